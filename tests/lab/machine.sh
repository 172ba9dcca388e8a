# shellcheck shell=bash disable=SC2154  # run.sh has the options
# Sourced by run.sh: starts the emulated machines, waits for them and judges what they leave. Everything of a run is in
# $work: a/ and b/ are the machines' own files, see guest/main.sh for their meaning.

names() { if [ "$machines" = 1 ]; then echo a; else echo a b; fi; }

# Ends what this run has started, and only that; also on Ctrl-C and kill. (QEMU also dies with this shell.)
clean_up() {
  local pid
  for pid in "${qemu_pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  [ -z "${terminal_state:-}" ] || stty "$terminal_state"
  cd /
  [ -z "$work" ] || rm -rf "$work"
}
work='' qemu_pids=()
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# A folder that the machine's own /tmp, /run or /var/tmp would hide. Those themselves stay the machine's.
hidden() { case $1/ in /tmp/?* | /run/?* | /var/tmp/?*) return 0 ;; *) return 1 ;; esac; }

write_shares() {
  local program folder place wanted=("$root" "$started_in" "${shares[@]}")
  cd "$started_in" || exit
  for program in "${command_a[0]}" "${command_b[0]:-}"; do
    [[ $program != */* || ! -d ${program%/*}/ ]] || wanted+=("${program%/*}/")
  done
  for folder in "${wanted[@]}"; do
    place=$(realpath -e -- "$folder" 2>/dev/null) || refuse "there is no folder $folder"
    if hidden "$place"; then echo "$place"; fi
  done | sort -u >"$work/shares"
}

# The command as a script, so that every argument arrives as it is.
write_job() {
  local file=$1 name pair
  shift
  {
    for name in "${!TIDELOCK_@}"; do
      case $name in TIDELOCK_VERBS_* | TIDELOCK_LAB_*) ;; *) printf 'export %s=%q\n' "$name" "${!name}" ;; esac
    done
    for pair in "${environment[@]}"; do printf 'export %s=%q\n' "${pair%%=*}" "${pair#*=}"; done
    printf 'export TERM=%q\n' "${TERM:-dumb}"
    printf 'cd %q 2>/dev/null || cd /tmp\n' "$started_in"
    printf 'exec'
    printf ' %q' "$@"
    echo
  } >"$file"
}

# Starts QEMU for machine $1. Its output ports end in processes of ours: QEMU makes what it writes to non-blocking, and
# that may not happen to a terminal or pipe that others write to as well.
start_machine() {
  local name=$1 peer=b index=1 show=(cat)
  if [ "$name" = b ]; then peer=a index=2; fi
  [ "$machines" = 1 ] || show=(sed -u "s/^/$name: /")
  # shellcheck disable=SC2054  # QEMU's own commas
  # No PIT: on a busy host the kernel measured the TSC against it at a thirtieth of what it is, took that, and had a
  # clock that ran thirty times too fast for the rest of the boot. Without it the HPET is what it measures against.
  local arguments=(
    -accel tcg,thread=multi -machine pc,pit=off -cpu max -smp "$cpus" -m "$memory"
    -nodefaults -no-user-config -display none -monitor none -no-reboot -kernel "$kernel" -initrd "$initramfs"
    # Little on the console while booting, and warnings from then on. Watchdogs are patient, for emulation is slow.
    -append "console=ttyS0 loglevel=5 log_buf_len=1M panic=-1 no_timer_check tsc=reliable maxcpus=1 net.ifnames=0 \
watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 machine=$name machines=$machines"
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap
    -virtfs local,path=.,mount_tag=lab,security_model=none
    -virtfs "local,path=${out:-out},mount_tag=out,security_model=none"
    -chardev "file,id=console,path=$name/console.log" -serial chardev:console
  )
  if [ "$machines" = 2 ]; then
    arguments+=(-netdev "dgram,id=wire,local.type=unix,local.path=$name.wire,remote.type=unix,remote.path=$peer.wire"
      -device "virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0$index")
  fi
  if [ "$interactive" = 1 ]; then
    terminal_state=$(stty -g)
    stty size >"$name/terminal"
    setpriv --pdeathsig KILL qemu-system-x86_64 "${arguments[@]}" \
      -chardev stdio,id=stdout,signal=off -serial chardev:stdout <&0 2>"$name/qemu.log" &
    qemu_pids+=($!)
    return
  fi
  local to_stdout to_stderr
  exec {to_stdout}> >(exec "${show[@]}")
  show_pids+=($!)
  exec {to_stderr}> >(exec "${show[@]}" >&2)
  show_pids+=($!)
  setpriv --pdeathsig KILL qemu-system-x86_64 "${arguments[@]}" \
    -chardev "file,id=stdout,path=/dev/fd/$to_stdout" -serial chardev:stdout \
    -chardev "file,id=stderr,path=/dev/fd/$to_stderr" -serial chardev:stderr </dev/null >"$name/qemu.log" 2>&1 &
  qemu_pids+=($!)
  disown # without it the shell would report a machine that had to be killed
  exec {to_stdout}>&- {to_stderr}>&-
}

alive() {
  local pid
  for pid in "${qemu_pids[@]}"; do if kill -0 "$pid" 2>/dev/null; then return 0; fi; done
  return 1
}

# True when every machine has made this file.
all_have() {
  local name
  for name in $(names); do [ -e "$name/$1" ] || return 1; done
}

any_failed() {
  local name
  for name in $(names); do
    [ ! -s "$name/done" ] || [ "$(cat "$name/done")" = 0 ] || return 0
  done
  return 1
}

# Machines that are gone without having finished.
any_dead() {
  local index=0 name
  for name in $(names); do
    kill -0 "${qemu_pids[index]}" 2>/dev/null || [ -s "$name/exit" ] || return 0
    index=$((index + 1))
  done
  return 1
}

# Steps the machines through go and stop until they are off; sets timed_out.
supervise() {
  local begin=$SECONDS end_by='' failed_at=''
  timed_out=0
  while alive; do
    if [ ! -e go ] && all_have ready; then touch go; fi
    if [ ! -e stop ]; then
      if [ "$timeout_s" -gt 0 ] && [ $((SECONDS - begin)) -ge "$timeout_s" ]; then timed_out=1; fi
      if [ -z "$failed_at" ] && any_failed; then failed_at=$SECONDS; fi
      # The other command of one that failed gets ten seconds.
      if [ "$timed_out" = 1 ] || all_have 'done' || any_dead || [ $((SECONDS - ${failed_at:-$SECONDS})) -ge 10 ]; then
        touch stop
        end_by=$((SECONDS + 60))
      fi
    elif [ $SECONDS -ge $end_by ]; then
      kill -KILL "${qemu_pids[@]}" 2>/dev/null || true
    fi
    sleep 0.1
  done
  wait "${show_pids[@]}" || true
}

# One attempt; sets died and timed_out, and leaves the machines' files in $work.
run_machines() {
  cd /
  [ -z "$work" ] || rm -rf "$work"
  work=$(mktemp -d "${TMPDIR:-/tmp}/tidelock-lab.XXXXXX")
  write_shares
  # Relative names from here: a socket's may not be longer than 107 bytes.
  cd "$work" || exit
  mkdir a b out events
  touch a/complaints b/complaints
  echo "$here/guest/main.sh" >main
  write_job a/job "${command_a[@]}"
  [ "$machines" = 1 ] || write_job b/job "${command_b[@]}"
  qemu_pids=() show_pids=()
  local name
  for name in $(names); do start_machine "$name"; done
  supervise
  died=0
  if ! all_have exit && [ "$timed_out" = 0 ]; then died=1; fi
  [ -z "$out" ] || keep_files
}

keep_files() {
  local name file
  for name in $(names); do
    mkdir -p "$out/machine-$name"
    for file in console.log kernel.log resources.before resources.after; do
      rm -f "$out/machine-$name/$file"
      [ ! -e "$name/$file" ] || cp "$name/$file" "$out/machine-$name/"
    done
  done
}

# What a kernel says when something is wrong in it. Leaks are found when the devices are removed.
complaints='BUG|Oops|WARNING|[Ss]oft lockup|hard LOCKUP|blocked for more than|detected stall|self-detected'
complaints+='|refcount|KASAN|UBSAN|[Ll]eak|general protection|Call Trace|^lab:'

# The machine's kernel must not have complained. Time-outs are judged, too: what hung may have hung in the kernel.
judge_kernel() {
  local name=$1 log=$1/kernel.log
  [ -e "$log" ] || log=$name/console.log
  if ! grep -ahE "$complaints" "$log" "$name/complaints" >"$name/found"; then return 0; fi
  say "machine $name: its kernel complained${out:+ ($out/machine-$name/${log#*/})}:"
  head -n 20 "$name/found" >&2
  return 1
}

judge_leftovers() {
  local name=$1
  if [ ! -e "$name/resources.after" ] || cmp -s "$name/resources.before" "$name/resources.after"; then return 0; fi
  say "machine $name: RDMA objects before the command, and after it:"
  cat "$name/resources.before" "$name/resources.after" >&2
  [ "$leftovers_fail" = 0 ]
}

# The exit code of both commands: a failure goes before a skipped command, which goes before success.
command_code() {
  local name code result=0
  for name in $(names); do
    code=$(cat "$name/exit")
    [ "$machines" = 1 ] || say "the command of $name exited with $code"
    case $result,$code in *,0) ;; 0,* | 77,*) result=$code ;; esac
  done
  return "$result"
}

finish() {
  local name clean=1
  for name in $(names); do
    [ ! -s "$name/qemu.log" ] || say "qemu: $(cat "$name/qemu.log")"
    if [ "$died" = 1 ] && [ ! -s "$name/exit" ]; then
      say "machine $name died${out:+ ($out/machine-$name/console.log)}; its console:"
      grep -aE "$complaints|panic" "$name/console.log" | head -n 10 >&2 || true
      tail -n 10 "$name/console.log" >&2 || true
      continue
    fi
    judge_kernel "$name" || clean=0
    judge_leftovers "$name" || clean=0
  done
  if [ "$died" = 1 ]; then exit 125; fi
  if [ "$timed_out" = 1 ]; then say "time was over after $timeout_s s"; exit 124; fi
  local code=0
  command_code || code=$?
  if [ $clean = 0 ]; then say "so this is a failure; the command itself: $code"; exit 123; fi
  exit "$code"
}
