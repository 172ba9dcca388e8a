#!/usr/bin/env bash
# Everything that decides whether a change is good: builds and tests dev, asan and tsan, then lints.
# Usage: tools/check.sh [dev|asan|tsan|release|lint ...]   (default: dev asan tsan lint)
# Idempotent; installs the Debian packages that it needs. Ends with one line that says what passed.
#
# Tests wait for much of their time. Meanwhile the later steps are prepared: presets built, lint run. That is done at
# idle priority, so it takes no core from a test that wants one. Its output is shown when its step comes.
set -euo pipefail
cd "$(dirname "$0")/.."
logs=build/check

# Two compilers at once is what small machines have memory for; ctest runs programs that want both cores.
prepare() {
  case $1 in
    lint) tools/lint.sh ;;
    *)
      echo "== $1: build"
      cmake --preset "$1" -Wno-dev >/dev/null && cmake --build --preset "$1" -j "$(nproc)"
      ;;
  esac
}

# check.sh --ahead STEPS...: prepares them, one after the other, each with a log and an exit code in $logs.
if [ "${1:-}" = --ahead ]; then
  # Where the kernel shares the cores by session first, the priority of this one counts; else that of the process.
  { echo 19 >/proc/self/autogroup; } 2>/dev/null || true
  chrt --idle --pid 0 $$ || renice -n 19 -p $$ >/dev/null
  for step in "${@:2}"; do
    code=0
    prepare "$step" >"$logs/$step.log" 2>&1 || code=$?
    echo $code >"$logs/$step.code.new"
    mv "$logs/$step.code.new" "$logs/$step.code"
  done
  exit
fi

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(dev asan tsan lint)
for step in "${steps[@]}"; do
  case $step in
    dev | release | asan | tsan | lint) ;;
    *) echo "check: unknown step $step: give any of dev, release, asan, tsan, lint" >&2; exit 2 ;;
  esac
done
tools/install.sh all
started=$SECONDS
done_steps=()
rm -rf $logs
mkdir -p $logs

ahead=''
end_ahead() { [ -z "$ahead" ] || kill -TERM -- "-$ahead" 2>/dev/null || true; }
trap end_ahead EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Waits for what was prepared ahead.
take_over() {
  until [ -e "$logs/$1.code" ]; do
    kill -0 "$ahead" 2>/dev/null || [ -e "$logs/$1.code" ] || break
    sleep 0.2
  done
  [ -e "$logs/$1.code" ] || { cat "$logs/$1.log"; echo "check: what prepares $1 ahead was ended from outside" >&2; return 1; }
  cat "$logs/$1.log"
  [ "$(cat "$logs/$1.code")" = 0 ]
}

# Whoever shows a long log cuts its middle: what the failed tests complained of comes once more, at the end.
show_failures() {
  local kept=build/$1/Testing/Temporary failed
  while IFS=: read -r _ failed; do
    echo "== $1: $failed failed with"
    awk -v start="Testing: $failed" '$0 ~ start "$" { on = 1 } on && /^<end of output>/ { exit } on' "$kept/LastTest.log" |
      sed 's/.*\r//' | cut -c 1-240 |
      { grep -aE -A2 'ERROR|FATAL|WARNING|Sanitizer|lab: |[Tt]imeout|[Ff]ailed' || true; } | tail -n 40
  done <"$kept/LastTestsFailed.log"
}

for step in "${steps[@]}"; do
  if [ -n "$ahead" ]; then
    take_over "$step"
  else
    prepare "$step"
    # A session, and so a process group, of its own: it can be ended with all that it has started.
    if [ ${#steps[@]} -gt 1 ]; then
      setsid "$0" --ahead "${steps[@]:1}" </dev/null &
      ahead=$!
    fi
  fi
  if [ "$step" != lint ]; then
    echo "== $step: test"
    if ! ctest --preset "$step" --no-tests=error; then
      show_failures "$step"
      exit 8
    fi
  fi
  done_steps+=("$step ($((SECONDS - started)) s)")
done
echo "== all passed: ${done_steps[*]}"
