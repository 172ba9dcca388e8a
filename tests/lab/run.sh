#!/usr/bin/env bash
# Runs a command on real verbs with no RDMA hardware: in an emulated machine with soft-RoCE. `run.sh --help` teaches.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)

usage() {
  cat <<'HELP'
Usage: tests/lab/run.sh [options] -- COMMAND...
       tests/lab/run.sh [options] --machines 2 -- COMMAND OF a... --- COMMAND OF b...
       tests/lab/run.sh [options] --interactive

Boots an emulated machine (some 5 s) with two soft-RoCE devices, rxe_v0 (10.0.0.1) and rxe_v1 (10.0.0.2), runs
COMMAND there and exits with its exit code. The machine sees this host's files at their places, read-only; /tmp, /run
and /var/tmp are its own, except for the checkout, the current folder and the program's folder, which are always seen.

  --machines 2    two machines on one wire: a has rxe_v0, b has rxe_v1. Both commands start together; when one
                  fails the other is ended 10 s later. Output is marked a: and b:
  --out DIR       DIR (made if missing) is /run/lab/out in the machine, to write to. Afterwards machine-a/ in it (and
                  machine-b/) holds kernel.log, console.log, resources.before and resources.after
  --share DIR     DIR is seen, too, although it lies below /tmp, /run or /var/tmp
  --env NAME=V    sets NAME there. TIDELOCK_* are passed on as they are, others are not
  --timeout S     ends everything after S seconds (default 120; 0: never, the default of --interactive)
  --leftovers-fail   RDMA objects that are still there after the command are a failure, not a warning
  --cpus N        CPUs of a machine (default 2; 1 each of two machines)
  --memory SIZE   memory of a machine (default 1G)
  --interactive   a shell on this terminal, in the machine
  --help          this

In the machine TIDELOCK_VERBS_DEVICE and TIDELOCK_VERBS_PEER_DEVICE name the devices, TIDELOCK_LAB_ADDRESS and
TIDELOCK_LAB_PEER_ADDRESS their addresses; lab-link cuts and heals links, lab-event lets one command wait for another.

Exit codes: the command's, 0 to 255. Of two, the first that is neither 0 nor 77 (skipped); else 77; else 0. And
  123   the command ended, but the machine's kernel complained (BUG, WARNING, leak, ...), or see --leftovers-fail
  124   time was over
  125   the machine died under the command, or twice while booting
  2     this command line is wrong, or the machine could not be prepared

Examples:
  tests/lab/run.sh -- ibv_devinfo
  tests/lab/run.sh -- bash -c 'ibv_rc_pingpong -d rxe_v0 -g 1 & sleep 1; ibv_rc_pingpong -d rxe_v1 -g 1 10.0.0.1'
  tests/lab/run.sh --machines 2 -- rping -s -a 10.0.0.1 -C 10 --- bash -c 'sleep 1; rping -c -a 10.0.0.1 -C 10'
  tests/lab/run.sh --out /tmp/result -- build/dev/tests/rdma/rdma_test --out=/run/lab/out/report.txt
HELP
}

say() { echo "lab: $*" >&2; }
refuse() { say "$*" "(run.sh --help teaches)"; exit 2; }

machines=1 timeout_s='' out='' cpus='' memory=1G interactive=0 leftovers_fail=0
shares=() environment=()
parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --help) usage; exit 0 ;;
      --interactive) interactive=1; shift ;;
      --leftovers-fail) leftovers_fail=1; shift ;;
      --) shift; break ;;
      --machines | --out | --share | --env | --timeout | --cpus | --memory)
        [ $# -ge 2 ] || refuse "$1 needs a value"
        case $1 in
          --machines) machines=$2 ;;
          --out) out=$2 ;;
          --share) shares+=("$2") ;;
          --env) environment+=("$2") ;;
          --timeout) timeout_s=$2 ;;
          --cpus) cpus=$2 ;;
          --memory) memory=$2 ;;
        esac
        shift 2
        ;;
      *) refuse "unknown option $1: options come first, then --, then the command" ;;
    esac
  done
  command_a=() command_b=()
  while [ $# -gt 0 ] && { [ "$machines" = 1 ] || [ "$1" != --- ]; }; do command_a+=("$1"); shift; done
  [ $# -eq 0 ] || command_b=("${@:2}")
}

check_options() {
  local number='^[0-9]+$' pair
  case $machines in 1 | 2) ;; *) refuse "--machines takes 1 or 2" ;; esac
  if [ $interactive = 1 ]; then
    [ "$machines" = 1 ] || refuse "--interactive takes one machine"
    [ -t 0 ] || refuse "--interactive needs a terminal"
    [ ${#command_a[@]} -gt 0 ] || command_a=(bash -i)
  fi
  [ ${#command_a[@]} -gt 0 ] || refuse "no command"
  [ "$machines" = 1 ] || [ ${#command_b[@]} -gt 0 ] || refuse "two machines take two commands, with --- between them"
  : "${timeout_s:=$((interactive ? 0 : 120))}" "${cpus:=$((3 - machines))}"
  [[ $timeout_s =~ $number ]] || refuse "--timeout takes seconds"
  [[ $cpus =~ ^[1-8]$ ]] || refuse "--cpus takes 1 to 8"
  [[ $memory =~ ^[0-9]+[MG]$ ]] || refuse "--memory takes a size such as 512M or 2G"
  for pair in "${environment[@]}"; do [[ $pair == *=* ]] || refuse "--env takes NAME=VALUE"; done
}

parse "$@"
check_options
# shellcheck source=machine.sh
. "$here/machine.sh"

prepared=$("$here/prepare.sh") || exit 2
{ read -r kernel && read -r initramfs; } <<<"$prepared"
started_in=$PWD
if [ -n "$out" ]; then
  mkdir -p "$out" || refuse "--out $out cannot be made"
  out=$(cd "$out" && pwd -P)
fi

# Emulated machines were seen to die while booting, so that is tried once more. One that dies under the command does so
# because of it, for all that is known here.
run_machines
if [ "$died" = 1 ] && ! all_have ready; then
  say "the machine died before the command began: trying once more"
  run_machines
fi
finish
