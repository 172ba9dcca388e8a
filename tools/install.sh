#!/usr/bin/env bash
# Installs what tools/packages.txt lists and is not there yet. Usage: tools/install.sh [build|all]
set -euo pipefail
cd "$(dirname "$0")"

what=${1:-all}
wanted=()
while read -r line; do
  case $line in
    "# test") [ "$what" = all ] || break ;;
    "#"* | "") ;;
    *) wanted+=("$line") ;;
  esac
done <packages.txt

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install: run this as root, or install: ${missing[*]}" >&2; exit 2; }
  sudo=(sudo)
fi
echo "installing: ${missing[*]}"
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
