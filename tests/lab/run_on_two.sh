#!/bin/bash
# `tidelock run` as two commands on two machines, once for each number of shards. Runs in the machines.
# Usage: run_on_two.sh a|b TIDELOCK SHARDS...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
machine=$1 tidelock=$2
shift 2
report=/tmp/report

# half FLAGS...: this machine's half of a run, judged.
half() {
  "$tidelock" run "$@" --overprovisioned --json --output $report 2>&1 | cat # no terminal, no progress
  "$here/check_report.py" $report
}

for shards in "$@"; do
  # A port of its own, so that neither can meet what is left of the run before.
  port=$((7480 + shards))
  case $machine in
    a)
      seq -f $'key%g\tvalue' 200 >/tmp/input
      half --role primary --side-channel "$TIDELOCK_LAB_ADDRESS:$port" --link verbs \
        --primary-address "$TIDELOCK_LAB_ADDRESS" --replica-address "$TIDELOCK_LAB_PEER_ADDRESS" --shards $shards \
        --input /tmp/input --duration 60 --checks 1000 --timeout 60
      ;;
    b) half --role replica --side-channel "$TIDELOCK_LAB_PEER_ADDRESS:$port" --replica-address "$TIDELOCK_LAB_ADDRESS" ;;
    *) echo "usage: run_on_two.sh a|b TIDELOCK SHARDS..." >&2; exit 2 ;;
  esac
done
