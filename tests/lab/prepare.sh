#!/usr/bin/env bash
# Makes what run.sh boots: Debian's 6.1 kernel and an initramfs with soft-RoCE. Idempotent; under 40 s the first time,
# under a second when everything is there. Prints two lines, the kernel and the initramfs, for run.sh to read.
# Usage: tests/lab/prepare.sh      TIDELOCK_LAB_DIR=DIR keeps the result in DIR instead of ~/.cache/tidelock-lab
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tidelock-lab

# In the order in which they are loaded: first what the root file system takes. rdma_rxe asks for crc32 by name when a
# device is added, so no dependency names it.
modules=(virtio_pci 9pnet_virtio 9p crc32_generic rdma_rxe rdma_ucm veth virtio_net sch_netem)

fail() {
  printf 'lab: %s\n' "$@" >&2
  exit 2
}

# A folder made here is whole if the checksums that it was made with still hold.
intact() { [ -s "$1/sums" ] && (cd "$1" && b2sum --check --status sums 2>/dev/null); }

# Moves a finished folder to its place; nobody sees half of one.
publish() {
  local made=$1 place=$2
  (cd "$made" && b2sum -- * >"$work/sums" && mv "$work/sums" sums)
  rm -rf "$place"
  mv -T "$made" "$place"
}

kernel_package() {
  apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1
}

# The newest kernel that is there already, so that no run depends on what the archive has today.
folder_to_use() {
  if [ -n "${TIDELOCK_LAB_DIR:-}" ]; then
    echo "$TIDELOCK_LAB_DIR"
    return
  fi
  local there package
  there=$(find "$cache" -mindepth 3 -maxdepth 3 -path '*/6.1.*/kernel/sums' 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$there" ]; then
    dirname "$(dirname "$there")"
  else
    package=$(kernel_package)
    echo "$cache/${package#linux-image-}"
  fi
}

update_lists() {
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || return 0
    sudo=(sudo -n)
  fi
  "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 update >&2 || true
}

download_kernel() {
  local package
  package=$(kernel_package)
  if [ -z "$package" ] || ! (cd "$work" && apt-get -qq download "$package") 2>"$work/apt.log"; then
    update_lists
    package=$(kernel_package)
    [ -n "$package" ] || fail "apt knows no linux-image-amd64, whose kernel has soft-RoCE." \
      "Remedy: Debian 12's main archive in /etc/apt/sources.list, then 'apt-get update' as root."
    (cd "$work" && apt-get -qq download "$package") 2>"$work/apt.log" || fail "$(cat "$work/apt.log")" \
      "$package could not be downloaded." \
      "Remedy: a network and 'apt-get update', or a TIDELOCK_LAB_DIR that was prepared elsewhere."
  fi
  case $package in
    linux-image-6.1.*-cloud-*) fail "$package: the cloud kernels are built without soft-RoCE." ;;
    linux-image-6.1.*) ;;
    *) fail "$package: the lab is made for Debian 12's kernel 6.1, and later ones were seen to hang in event mode." ;;
  esac
}

# The compressed kernel carries the plain one, and says where (Documentation/x86/boot.rst: setup_sects, payload_offset,
# payload_length). Booting the plain one saves seconds of decompression under emulation.
extract_vmlinux() {
  local image=$1 sectors offset length
  sectors=$(od -An -tu1 -j 497 -N 1 "$image")
  read -r offset length < <(od -An -tu4 -j 584 -N 8 "$image")
  dd if="$image" of="$work/payload" status=none bs=64K iflag=skip_bytes,count_bytes \
    skip=$(((sectors + 1) * 512 + offset)) count="$length"
  # Its last four bytes are the size, which xz would take for garbage.
  xz -dc --single-stream <"$work/payload"
}

make_kernel() {
  echo "lab: preparing $folder (once; takes about 20 s)" >&2
  download_kernel
  local tree=$work/tree made=$folder/.kernel.$$
  mkdir -p "$tree" "$made"
  dpkg --fsys-tarfile "$work"/linux-image-*.deb | tar x -C "$tree" --wildcards \
    './boot/vmlinuz-*' './lib/modules/*/modules.*' \
    '*/kernel/arch/x86/crypto/*' '*/kernel/crypto/*' '*/kernel/drivers/infiniband/*' '*/kernel/drivers/net/*' \
    '*/kernel/drivers/virtio/*' '*/kernel/fs/*' '*/kernel/lib/*' '*/kernel/net/*'
  extract_vmlinux "$tree"/boot/vmlinuz-* >"$made/vmlinux"
  local version kept=$work/kept module
  version=$(ls "$tree/lib/modules")
  depmod -b "$tree" "$version" 2>/dev/null
  mkdir -p "$kept/lib/modules/$version"
  for module in "${modules[@]}"; do
    modprobe -d "$tree" -S "$version" --show-depends "$module" >"$work/depends" ||
      fail "kernel $version has no module $module."
    sed -n "s|^insmod $tree/\([^ ]*\).*|\1|p" "$work/depends" | (cd "$tree" && xargs cp --parents -t "$kept")
  done
  cp "$tree/lib/modules/$version"/modules.{builtin,order} "$kept/lib/modules/$version/"
  depmod -b "$kept" "$version" 2>/dev/null
  tar c -C "$kept" . >"$made/modules.tar"
  publish "$made" "$kernel"
}

make_initramfs() {
  local tree=$work/initramfs made=$folder/.initramfs.$$
  mkdir -p "$tree/bin" "$made"
  tar x -C "$tree" -f "$kernel/modules.tar"
  cp /bin/busybox "$tree/bin/"
  ln -s busybox "$tree/bin/sh"
  install -m 755 "$here/guest/init" "$tree/init"
  printf '%s\n' "${modules[@]}" >"$tree/modules"
  (cd "$tree" && find . | cpio -o -H newc -R 0:0 --quiet) >"$made/initramfs.cpio"
  publish "$made" "$initramfs"
  # Those of checkouts that are gone.
  find "$folder" -maxdepth 1 -name 'initramfs-*' -mtime +30 -exec rm -rf {} +
}

"$root/tools/install.sh" lab >&2 || fail "packages are missing (tools/packages.txt, section lab)." \
  "Remedy: run 'tools/install.sh lab' as root, with a network."
folder=$(folder_to_use)
mkdir -p "$folder" 2>/dev/null || fail "$folder cannot be made. Remedy: set TIDELOCK_LAB_DIR to a folder that can."
folder=$(cd "$folder" && pwd -P)
kernel=$folder/kernel
# Named by what goes into it: checkouts of different ages do not undo each other's.
initramfs=$folder/initramfs-$( (cat "$here/guest/init"; echo "${modules[*]}") | sha256sum | head -c 12)

if ! intact "$kernel" || ! intact "$initramfs"; then
  work=$(mktemp -d)
  trap 'rm -rf "$work" "$folder"/.kernel.$$ "$folder"/.initramfs.$$' EXIT
  trap 'exit 130' INT TERM HUP
  # Another preparation may be at it; afterwards there may be nothing left to do.
  exec 9>"$folder/lock"
  flock 9
  rm -rf "$folder"/.kernel.* "$folder"/.initramfs.* # of one that was killed
  intact "$kernel" || make_kernel
  intact "$initramfs" || make_initramfs
fi
printf '%s\n' "$kernel/vmlinux" "$initramfs/initramfs.cpio"
