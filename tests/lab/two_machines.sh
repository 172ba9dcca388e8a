#!/bin/bash
# Two machines on one wire: b connects to a, loses it while the link is cut, and finds it again. Runs in the machines.
# Usage: two_machines.sh a|b
set -eu

ping() { rping -c -I "$TIDELOCK_LAB_ADDRESS" -a "$TIDELOCK_LAB_PEER_ADDRESS" -C 10; }

serve() {
  rping -s -P -a "$TIDELOCK_LAB_ADDRESS" &
  local server=$! deadline=$((SECONDS + 60))
  until rdma resource show cm_id | grep -q LISTEN; do
    [ $SECONDS -lt $deadline ] || { echo "rping does not listen"; exit 1; }
    sleep 0.2
  done
  lab-event tell serving
  lab-event await finished 150
  kill $server
  wait $server || true
}

connect() {
  lab-event await serving
  ping
  echo "connected"
  lab-link cut
  if timeout 3 rping -c -I "$TIDELOCK_LAB_ADDRESS" -a "$TIDELOCK_LAB_PEER_ADDRESS" -C 1; then
    echo "a cut link let packets through"
    exit 1
  fi
  lab-link heal
  ping
  echo "connected again"
  lab-event tell finished
}

case ${1:-} in
  a) serve ;;
  b) connect ;;
  *) echo "usage: two_machines.sh a|b" >&2; exit 2 ;;
esac
