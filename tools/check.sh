#!/usr/bin/env bash
# Everything that decides whether a change is good: builds and tests dev, asan and tsan, then lints.
# Usage: tools/check.sh [dev|asan|tsan|release|lint ...]   (default: dev asan tsan lint)
# Idempotent; installs the Debian packages that it needs. Ends with one line that says what passed.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(dev asan tsan lint)
tools/install.sh all
# Two compilers at once is what small machines have memory for; ctest runs programs that want both cores.
jobs=$(nproc)
started=$SECONDS
done_steps=()

run_preset() {
  local preset=$1
  echo "== $preset: build"
  cmake --preset "$preset" -Wno-dev >/dev/null
  cmake --build --preset "$preset" -j "$jobs"
  echo "== $preset: test"
  ctest --preset "$preset" --no-tests=error
}

for step in "${steps[@]}"; do
  case $step in
    dev | release | asan | tsan) run_preset "$step" ;;
    lint) tools/lint.sh ;;
    *) echo "check: unknown step $step: give any of dev, release, asan, tsan, lint" >&2; exit 2 ;;
  esac
  done_steps+=("$step ($((SECONDS - started)) s)")
done
echo "== all passed: ${done_steps[*]}"
