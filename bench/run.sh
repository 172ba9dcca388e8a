#!/bin/sh
# Runs every benchmark, writes one JSON file a program into FOLDER and prints the ratios to the raw limits.
# usage: bench/run.sh FOLDER [BUILD] [BENCHMARK FLAGS...]
#   BUILD   a release build, by default build/release
set -eu

usage() {
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
}

[ $# -ge 1 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
build=$here/../build/release
case ${1:-} in
  '' | -*) ;;
  *)
    build=$1
    shift
    ;;
esac

for program in fiber ring mailbox link replicate table; do
  if [ ! -x "$build/bench/${program}_bench" ]; then
    echo "$build/bench/${program}_bench is missing: cmake --preset release && cmake --build --preset release" >&2
    exit 2
  fi
done
mkdir -p "$folder"
for program in fiber ring mailbox link replicate table; do
  status=0
  # All repetitions are kept in the JSON file, for the spread; the terminal shows the aggregates only.
  "$build/bench/${program}_bench" --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true \
    --benchmark_display_aggregates_only=true --benchmark_out="$folder/$program.json" \
    --benchmark_out_format=json "$@" >&2 || status=$?
  # 77: this machine cannot run it, and the program has said why.
  if [ "$status" -eq 77 ]; then
    rm -f "$folder/$program.json"
  elif [ "$status" -ne 0 ]; then
    exit "$status"
  fi
done
exec python3 "$here/ratios.py" "$folder"
