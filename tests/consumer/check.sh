#!/usr/bin/env bash
# Builds and runs the README's example in the three ways a user would take the library: an installed CMake
# package, pkg-config, and FetchContent. Usage: check.sh SOURCE BUILD find_package|pkg_config|fetch_content
set -euo pipefail
source_dir=$1 build_dir=$2 way=$3
here=$source_dir/tests/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "$way" != fetch_content ]; then
  cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null
fi
case $way in
  find_package)
    cmake -S "$here/find_package" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
    cmake --build "$work/build"
    program=$work/build/quickstart
    ;;
  pkg_config)
    pc=$(dirname "$(find "$work/prefix" -name tidelock.pc)")
    # The file names the configured prefix; an installed tree that was moved is named on the command line.
    read -ra flags < <(PKG_CONFIG_PATH=$pc pkg-config --define-variable=prefix="$work/prefix" --cflags --libs --static tidelock)
    g++ -std=c++20 "$here/quickstart.cc" -o "$work/quickstart" "${flags[@]}"
    program=$work/quickstart
    ;;
  fetch_content)
    # The library is built once more here. How each file of it compiles by itself is shown elsewhere; consumers that set
    # this have it set for us as well.
    cmake -S "$here/fetch_content" -B "$work/build" -G Ninja -DTIDELOCK_SOURCE="$source_dir" \
      -DCMAKE_UNITY_BUILD=ON >/dev/null
    cmake --build "$work/build"
    program=$work/build/quickstart
    ;;
  *) echo "check: unknown way $way" >&2; exit 2 ;;
esac
"$program"
