#!/usr/bin/env bash
# Installs what sections of tools/packages.txt list and is not there yet.
# Usage: tools/install.sh [build|test|lint|lab|all ...]    (default: all; test takes build with it)
set -euo pipefail
cd "$(dirname "$0")"

# A section begins with a comment whose first word is its name.
wanted=" ${*:-all} "
[ "$wanted" != " test " ] || wanted=" build test "
for name in $wanted; do
  [ "$name" = all ] || grep -qE "^# $name\b" packages.txt ||
    { echo "install: packages.txt has no section $name" >&2; exit 2; }
done
packages=() section=''
while read -r line; do
  case $line in
    "# "*) section=${line#\# } section=${section%%[ :]*} ;;
    "") ;;
    *) case $wanted in *" all "* | *" $section "*) packages+=("$line") ;; esac ;;
  esac
done <packages.txt

# A query fails if it does not know one of them, and still answers for the others.
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qx "installed $package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install: run this as root, or install: ${missing[*]}" >&2; exit 2; }
  sudo=(sudo)
fi
echo "installing: ${missing[*]}"
"${sudo[@]}" apt-get update -qq -o DPkg::Lock::Timeout=300
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
  "${missing[@]}" >/dev/null
