#!/usr/bin/env bash
# Checks the lab itself: that it carries output and exit codes, and that it takes nothing bad for good.
# Usage: tests/lab/selfcheck.sh      (ten boots)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [ -n "${TIDELOCK_VERBS_DEVICE:-}" ]; then
  echo "skipped: nothing runs in the lab while TIDELOCK_VERBS_DEVICE=$TIDELOCK_VERBS_DEVICE asks for a real device"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The machines' folders are made here, so that what is left over shows.
mkdir "$scratch/runs" "$scratch/out"
export TMPDIR=$scratch/runs

fail() {
  echo "FAILED: $*"
  tail -n 40 "$scratch/stdout" "$scratch/stderr"
  exit 1
}

# expect CODE WHAT OPTIONS... -- COMMAND...
expect() {
  local wanted=$1 what=$2 code=0
  shift 2
  "$here/run.sh" --out "$scratch/out" "$@" >"$scratch/stdout" 2>"$scratch/stderr" || code=$?
  [ "$code" = "$wanted" ] || fail "exit code $code instead of $wanted: $what"
  [ -z "$(ls -A "$TMPDIR")" ] || fail "left over: $(ls "$TMPDIR")"
  echo "exit code $code, as it should be: $what"
}

# Has the run's output on stdout or stderr a line like this?
said() { grep -q -e "$2" "$scratch/$1" || fail "$1 has no line '$2'"; }

# Waits until a command succeeds; what these wait for takes a moment.
await() {
  local deadline=$((SECONDS + 90))
  until "$@"; do
    [ $SECONDS -lt $deadline ] || fail "after 90 s still not: $*"
    sleep 0.1
  done
}

# QEMU's current folder is the run's.
# (find fails when a process ends while it looks.)
a_machine_runs() { [ -n "$(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$TMPDIR/*" 2>/dev/null || true)" ]; }
no_machine_runs() { ! a_machine_runs; }
machine_has_started() { compgen -G "$TMPDIR/*/a/console.log" >/dev/null; }
machine_is_ready() { compgen -G "$TMPDIR/*/a/ready" >/dev/null; }

# shellcheck disable=SC2016  # the machine's shell is to expand these
inside='
  set -e
  [ "$TIDELOCK_VERBS_DEVICE $TIDELOCK_VERBS_PEER_DEVICE" = "rxe_v0 rxe_v1" ]
  ports_are() { [ "$(cat /sys/class/infiniband/rxe_v[01]/ports/1/state)" = "$(echo "$1"; echo "$1")" ]; }
  ports_are "4: ACTIVE"
  ping() { rping -c -I 10.0.0.2 -a 10.0.0.1 -C 3; }
  rping -s -P -a 10.0.0.1 &
  server=$!
  until rdma resource show cm_id | grep -q LISTEN; do sleep 0.2; done
  ping
  # What the client sends is lost: a serving rping does not outlive a client that asks and cannot hear.
  lab-link cut v1
  ! timeout 3 rping -c -I 10.0.0.2 -a 10.0.0.1 -C 3
  lab-link heal
  # Ports that go down under a connection come back, and so does the device behind each.
  rping -c -I 10.0.0.2 -a 10.0.0.1 &
  client=$!
  until rdma resource show qp | grep -q "rxe_v1/1 .* type RC state RTS"; do sleep 0.2; done
  lab-link down
  # A device hears of its carrier a moment later.
  until ports_are "1: DOWN"; do sleep 0.1; done
  kill -KILL $client
  wait $client || true
  until ! rdma resource show qp | grep -q "rxe_v1/1 .* type RC "; do sleep 0.2; done
  lab-link up
  until ports_are "4: ACTIVE"; do sleep 0.1; done
  ping
  kill $server
  wait $server || true
  echo "$SPACED" >/run/lab/out/file
  seq 20000'
expect 0 "devices, links, files" --env "SPACED=two  words \$HOME" --leftovers-fail -- bash -c "$inside"
diff <(seq 20000) "$scratch/stdout" || fail "output was changed on its way"
diff <(echo "two  words \$HOME") "$scratch/out/file" || fail "the out folder or the environment was not carried"
said out/machine-a/kernel.log 'rdma_rxe: loaded'
diff "$scratch/out/machine-a/resources.before" "$scratch/out/machine-a/resources.after"

expect 3 "a command's 3" -- bash -c 'echo said on stdout; echo said on stderr >&2; exit 3'
said stdout '^said on stdout$'
said stderr '^said on stderr$'
# Of two commands, a failure goes before a skip.
expect 200 "two commands' 77 and 200" --machines 2 -- bash -c 'exit 77' --- bash -c 'exit 200'
said stderr 'of a exited with 77'
said stderr 'of b exited with 200'

expect 123 "a kernel that complains" -- bash -c 'echo BUG: planted >/dev/kmsg'
said stderr 'BUG: planted'
expect 123 "objects left over" --leftovers-fail -- bash -c '
  setsid rping -s -P -a 10.0.0.1 &
  until rdma resource show cm_id | grep LISTEN; do sleep 0.2; done'
said stderr 'RDMA objects before'
expect 125 "a panic" -- bash -c 'echo c >/proc/sysrq-trigger'
said stderr 'panic'
expect 125 "a machine that cannot boot" --memory 40M -- true
said stderr 'trying once more'
expect 124 "a time-out" --timeout 10 -- sleep 1000
said stderr 'time was over'

# Killing run.sh ends its machine and leaves nothing.
"$here/run.sh" -- sleep 1000 >"$scratch/stdout" 2>"$scratch/stderr" &
await machine_is_ready
kill -TERM $!
code=0
wait $! || code=$?
[ $code = 143 ] || fail "exit code $code of a killed run"
await no_machine_runs
[ -z "$(ls -A "$TMPDIR")" ] || fail "a killed run left $(ls "$TMPDIR")"
echo "SIGTERM: nothing left"

# Even a kill that it cannot see ends the machine.
"$here/run.sh" -- sleep 1000 >"$scratch/stdout" 2>"$scratch/stderr" &
disown
await machine_has_started
kill -KILL $!
await no_machine_runs
echo "SIGKILL: no machine left"
