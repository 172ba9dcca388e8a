#!/bin/bash
# What runs on real verbs in one machine, or on a host with a device: rdma/ with a device, whole runs, the doctor.
# Several commands, as a boot costs more than most of them.
# Usage: one_machine.sh RDMA_DEVICE_TEST TIDELOCK     (devices and addresses: README.md)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
rdma_test=$1 tidelock=$2
primary=${TIDELOCK_LAB_ADDRESS:-} replica=${TIDELOCK_LAB_PEER_ADDRESS:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

said() { printf '== %4d s: %s\n' $SECONDS "$*"; }

# run SHARDS: a whole run, both nodes on this machine.
run() {
  local addresses=()
  if [ -n "$primary" ]; then
    addresses=(--primary-address "$primary" --replica-address "$replica")
  else
    addresses=(--primary-address "${TIDELOCK_VERBS_ADDRESS:?an IPv4 address of $TIDELOCK_VERBS_DEVICE}")
  fi
  seq -f $'key%g\tvalue' 200 >"$scratch/input"
  "$tidelock" run --link verbs "${addresses[@]}" --shards "$1" --input "$scratch/input" --duration 60 --checks 1000 \
    --timeout 60 --overprovisioned --json --output "$scratch/report" 2>&1 | cat # no terminal, no progress
  "$here/check_report.py" "$scratch/report"
}

# pingpong VERB FLAG...: server and client on this machine.
pingpong() {
  local tries server verb=$1
  shift
  "$tidelock" pingpong -d "$TIDELOCK_VERBS_DEVICE" --overprovisioned --timeout 300 >"$scratch/server" &
  server=$!
  for ((tries = 0; tries < 600; ++tries)); do
    if grep -q 'waiting for' "$scratch/server"; then break; fi
    sleep 0.1
  done
  "$tidelock" pingpong -d "${TIDELOCK_VERBS_PEER_DEVICE:-$TIDELOCK_VERBS_DEVICE}" --overprovisioned --timeout 300 \
    --verb "$verb" "$@" "${primary:-${TIDELOCK_VERBS_ADDRESS:-}}"
  wait "$server"
}

for shards in 1 2; do
  said "tidelock run, $shards shards"
  run $shards
done
said "tidelock doctor"
code=0
"$tidelock" doctor --link verbs || code=$?
[ $code -lt 2 ] || { echo "the doctor found what stops the engine: exit code $code"; exit 1; }
said "tidelock pingpong"
pingpong link -a -n 5 --warmup 1
pingpong send -n 50
said "rdma_device_test"
"$rdma_test" --duration=true
said "done"
