#!/usr/bin/env bash
# From a fresh Debian 12 to a replicated key-value file: installs what is needed, builds, runs for a few seconds.
# Arguments go to `tidelock run`; with none it takes dpkg's own status database for 3 seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install.sh build
cmake --preset release -DTIDELOCK_BUILD_TESTS=OFF -DTIDELOCK_BUILD_BENCH=OFF >build-release.log 2>&1 ||
  { cat build-release.log; exit 2; }
rm -f build-release.log
cmake --build --preset release
if [ $# -eq 0 ]; then set -- --duration 3; fi
echo
echo "+ build/release/bin/tidelock run $*"
exec build/release/bin/tidelock run "$@"
