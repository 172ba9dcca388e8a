#!/usr/bin/env bash
# What ctest runs of a test made by tidelock_lab_test(): in the emulated machine, or, where TIDELOCK_VERBS_DEVICE names
# a real device, on this host. Exit code 77 (skipped) says why on its last line.
# Usage: ctest.sh --prepare | ctest.sh [--lab-only] [options of run.sh] -- COMMAND...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

skip() {
  echo "skipped: $*"
  exit 77
}

device=${TIDELOCK_VERBS_DEVICE:-}
if [ "${1:-}" = --prepare ]; then
  [ -z "$device" ] || { echo "not needed: tests run on $device"; exit 0; }
  exec "$here/prepare.sh"
fi
lab_only=0
if [ "${1:-}" = --lab-only ]; then
  lab_only=1
  shift
fi
[ -n "$device" ] || exec "$here/run.sh" "$@"

[ $lab_only = 0 ] || skip "only the emulated machine can do this, and TIDELOCK_VERBS_DEVICE=$device"
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ "$1 ${2:-}" != "--machines 2" ] || skip "takes two machines, and TIDELOCK_VERBS_DEVICE=$device is in one"
  shift
done
[ -e "/sys/class/infiniband/$device" ] || { echo "there is no RDMA device $device here: see ibv_devices" >&2; exit 1; }
# A card reaches itself: one device is enough for both ends.
export TIDELOCK_VERBS_PEER_DEVICE=${TIDELOCK_VERBS_PEER_DEVICE:-$device}
exec "${@:2}"
