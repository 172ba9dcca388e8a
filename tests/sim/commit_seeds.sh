#!/usr/bin/env bash
# Runs a thousand seeds of each world that no earlier commit has run: the first is drawn from this commit's hash. Outside of a
# git checkout it is always the same. Usage: commit_seeds.sh TIDELOCK
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
first=10001
if hash=$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null); then
  first=$((16#${hash:0:12}))
fi
"$1" sim --world streams --seed "$first" --seeds 1000
exec "$1" sim --world groups --seed "$first" --seeds 1000
