#!/usr/bin/env bash
# clang-format and clang-tidy (the allow-list in .clang-tidy, warnings as errors) over the whole tree.
# Usage: tools/lint.sh [--fix]
set -euo pipefail
cd "$(dirname "$0")/.."

clang_format=$(command -v clang-format-14 || command -v clang-format)
run_tidy=$(command -v run-clang-tidy-14 || command -v run-clang-tidy)
mapfile -t files < <(git ls-files '*.h' '*.cc')
if [ "${1:-}" = --fix ]; then
  "$clang_format" -i "${files[@]}"
else
  echo "== lint: format"
  "$clang_format" --dry-run --Werror "${files[@]}"
fi
echo "== lint: the README's example is the tested one"
awk '/^```cpp$/ {inside = 1; next} /^```$/ {inside = 0} inside' README.md | diff - tests/consumer/quickstart.cc
echo "== lint: clang-tidy"
# File by file, which also shows that each stands alone: the presets build several as one.
cmake --preset dev -B build/lint -DCMAKE_UNITY_BUILD=OFF -Wno-dev >/dev/null
# Tests and benchmarks are held to the compiler's warnings; the library and the program to these as well.
"$run_tidy" -quiet -p build/lint -j "$(nproc)" "$PWD/(reactor|rdma|replication|engine|tools)/.*\.cc$" >build/tidy.log 2>&1 ||
  { grep -E 'warning:|error:' build/tidy.log | sort -u; exit 1; }
echo "== lint: no problem found"
