#!/bin/bash
# Runs in the emulated machine, after init: network, soft-RoCE, then the command, then what is left of it. Talks with
# run.sh through files in /run/lab (which two machines share) and its folder a or b (this machine's). From there come
# job and terminal, and, while this runs, go and stop; made here are ready, done, exit, kernel.log and resources.*.
# `machine` (a or b) and `machines` (1 or 2) are in the environment. Under emulation a process costs a tenth of a
# second to start, so this does with the shell what the shell can do.
set -u
here=${BASH_SOURCE[0]%/*}
lab=/run/lab/${machine:?}
export PATH=$here/bin:$PATH

pause() { read -rt "$1" -u 7 || true; }
resources() { rdma resource show 2>&1; }

set_up() {
  # A descriptor that nothing is ever written to, to sleep on without a process; init made it.
  exec 7<>/run/lab-pause
  ulimit -l unlimited
  # shellcheck disable=SC1090
  . "$here/net_${machines:?}.sh" || return
  before=$(resources)
  echo "$before" >"$lab/resources.before"
  # The other CPUs wait until now: kernels were seen to panic when they started with the first, and one CPU alone comes
  # this far in less time.
  local online
  for online in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ ! -e "$online" ] || echo 1 >"$online" || return
  done
}

# Ends the command when run.sh says so: because time is over, or because the other machine's command has failed.
end_at_stop() {
  until [ -e /run/lab/stop ]; do pause 0.25; done
  kill -TERM -- "-$1"
  pause 2
  kill -KILL -- "-$1"
}

run_command() {
  setsid bash "$lab/job" </dev/null >/dev/ttyS1 2>/dev/ttyS2 7<&- &
  local command=$!
  end_at_stop $command 2>/dev/null &
  local watch=$!
  wait $command
  code=$?
  kill $watch 2>/dev/null
  rest_of_job=$command
}

run_interactive() {
  local rows columns
  read -r rows columns <"$lab/terminal"
  stty -F /dev/ttyS1 sane rows "$rows" cols "$columns"
  setsid --ctty --wait bash "$lab/job" </dev/ttyS1 >/dev/ttyS1 2>&1 7<&-
  code=$?
}

# A killed program's objects go after it, and not at once.
note_resources() {
  local after
  for _ in {1..60}; do
    after=$(resources)
    [ "$after" != "$before" ] || break
    pause 0.25
  done
  echo "$after" >"$lab/resources.after"
}

# Removing the devices makes the kernel say which objects it finds still there.
tear_down() {
  [ -z "${rest_of_job:-}" ] || kill -KILL -- "-$rest_of_job" 2>/dev/null
  local device
  for device in /sys/class/infiniband/*; do
    [ ! -e "$device" ] || echo "link delete ${device##*/}"
  done | timeout -k 1 30 rdma --batch - || echo "lab: removing the devices failed or hung" >>"$lab/complaints"
}

set_up || { echo "lab: setting up the machine failed"; exit; }
: >"$lab/ready"
until [ -e /run/lab/go ] || [ -e /run/lab/stop ]; do pause 0.1; done
code=0
if [ -e "$lab/terminal" ]; then run_interactive; else run_command; fi
note_resources
# The other machine may still be talking to this one's devices: it has finished, too, when run.sh says stop.
echo "$code" >"$lab/done"
until [ -e /run/lab/stop ]; do pause 0.1; done
tear_down
dmesg >"$lab/kernel.log"
echo "$code" >"$lab/exit"
