#!/usr/bin/env bash
# Latency of tidelock's path beside perftest's on the same two devices, in interleaved rounds. --help teaches.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
  cat <<'HELP'
Usage: bench/pingpong_vs_perftest.sh [options]

Runs, in each round and in turns: ib_send_lat, ib_write_lat, tidelock pingpong, tidelock pingpong --verb send, with 64
bytes; prints the median of their t_typical and t_min over the rounds, the lowest and the highest, and the ratios.
On a busy host trust the ratio of t_min: the emulated machine's typical time is then its scheduler's.

  --program FILE  tidelock (default: build/release/bin/tidelock of this checkout)
  --rounds N      default 5
  --iters N       round trips of one measurement, default 1000
  --bytes N       default 64, a multiple of 8
  --no-pin        neither side is pinned (default: the server on the first usable CPU, the client on the last)
  --json          one JSON object instead of the table
  --help          this

Devices: TIDELOCK_VERBS_DEVICE and TIDELOCK_VERBS_PEER_DEVICE (default: the same one, which a card reaches itself);
without either rxe_v0 and rxe_v1, which the emulated machine has:
  tests/lab/run.sh --timeout 600 -- bench/pingpong_vs_perftest.sh

Exit codes: 0 all was measured, whatever the ratios; 2 something could not be measured, or a wrong flag.
HELP
}
refuse() { echo "pingpong_vs_perftest: $* (--help teaches)" >&2; exit 2; }

program=$here/../build/release/bin/tidelock rounds=5 iters=1000 bytes=64 pin=1 json=0
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --no-pin) pin=0; shift ;;
    --json) json=1; shift ;;
    --program | --rounds | --iters | --bytes)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      declare "${1#--}=$2"; shift 2 ;;
    *) refuse "there is no $1" ;;
  esac
done
[ -x "$program" ] || refuse "$program is missing: cmake --preset release && cmake --build --preset release, or --program"
for tool in ib_send_lat ib_write_lat python3 taskset; do
  command -v "$tool" > /dev/null || refuse "$tool is missing: tools/install.sh lab, as root"
done
for number in "$rounds" "$iters" "$bytes"; do
  [[ $number =~ ^[1-9][0-9]{0,6}$ ]] || refuse "$number is no number from 1 to 9999999"
done

server_device=${TIDELOCK_VERBS_DEVICE:-rxe_v0}
client_device=${TIDELOCK_VERBS_PEER_DEVICE:-${TIDELOCK_VERBS_DEVICE:-rxe_v1}}

# "INDEX ADDRESS" of a device's RoCEv2 GID that maps an IPv4 address.
gid_of() {
  local port=/sys/class/infiniband/$1/ports/1 gid index
  [ -d "$port" ] || refuse "there is no RDMA device $1: see ibv_devices, and TIDELOCK_VERBS_DEVICE"
  for gid in "$port"/gids/*; do
    index=${gid##*/}
    [ "$(cat "$port/gid_attrs/types/$index" 2> /dev/null)" = 'RoCE v2' ] || continue
    local text
    text=$(cat "$gid")
    [[ $text == 0000:0000:0000:0000:0000:ffff:* ]] || continue
    text=${text: -9}
    printf '%d %d.%d.%d.%d\n' "$index" "0x${text:0:2}" "0x${text:2:2}" "0x${text:5:2}" "0x${text:7:2}"
    return
  done
  refuse "$1 has no RoCEv2 GID of an IPv4 address: give its network interface one"
}
server_gid_text=$(gid_of "$server_device")
client_gid_text=$(gid_of "$client_device")
read -r server_gid address <<< "$server_gid_text"
read -r client_gid _ <<< "$client_gid_text"

cpus=$(python3 -c 'import os; c = sorted(os.sched_getaffinity(0)); print(c[0], c[-1])')
on_server=() on_client=() pinned='not pinned'
if [ $pin = 1 ]; then
  on_server=(taskset -c "${cpus% *}") on_client=(taskset -c "${cpus#* }")
  pinned="server on CPU ${cpus% *}, client on CPU ${cpus#* }"
fi

work=$(mktemp -d)
server=''
finish() {
  [ -z "$server" ] || kill "$server" 2> /dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# Waits until `$@` holds.
await() {
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    if "$@"; then return; fi
    kill -0 "$server" 2> /dev/null || break
    sleep 0.1
  done
  cat "$work/server" >&2
  refuse "the server of a measurement did not start"
}
perftest_listens() { grep -q "$port_hex 00000000:0000 0A" /proc/net/tcp || grep -q "$port_hex 0*:0000 0A" /proc/net/tcp6; }
tidelock_listens() { grep -q 'waiting for' "$work/server"; }

# A port of its own for each: the one before may linger.
port=18600 port_hex=''
next_port() { port=$((port + 1)); port_hex=$(printf ':%04X' $port); }

# t_typical and t_min, in microseconds, of one measurement.
perftest() {
  local flags=(-F -s "$bytes" -n "$iters" -p "$port")
  timeout 300 "${on_server[@]}" "$1" -d "$server_device" -x "$server_gid" "${flags[@]}" > "$work/server" 2>&1 &
  server=$!
  await perftest_listens
  timeout 300 "${on_client[@]}" "$1" -d "$client_device" -x "$client_gid" "${flags[@]}" "$address" > "$work/client" 2>&1 ||
    { cat "$work/client" >&2; refuse "$1 failed"; }
  wait "$server" || true
  server=''
  awk '$1 ~ /^[0-9]+$/ && NF >= 9 { line = $5 " " $3 } END { print line }' "$work/client"
}
pingpong() {
  timeout 300 "${on_server[@]}" "$program" pingpong -d "$server_device" -p "$port" > "$work/server" 2>&1 &
  server=$!
  await tidelock_listens
  timeout 300 "${on_client[@]}" "$program" pingpong -d "$client_device" -p "$port" -n "$iters" "$@" "$address" --json \
    > "$work/client" 2> "$work/errors" || { cat "$work/errors" >&2; refuse "tidelock pingpong failed"; }
  wait "$server" || true
  server=''
  python3 -c 'import json, sys; r = json.load(open(sys.argv[1]))["results"][0]
print("%.2f %.2f" % (r["t_typical_usec"], r["t_min_usec"]))' "$work/client"
}
measure() {
  next_port
  case $1 in
    ib_*) perftest "$1" > "$work/value" ;;
    tidelock_link) pingpong -s "$bytes" > "$work/value" ;;
    tidelock_send) pingpong --verb send > "$work/value" ;;
  esac
  [ -s "$work/value" ] || refuse "$1 printed no t_typical"
  echo "$1 $(cat "$work/value")" >> "$work/all"
  echo "round $((round + 1)) of $rounds: $1 $(cat "$work/value") usec (t_typical, t_min)" >&2
}

subjects=(ib_send_lat ib_write_lat tidelock_link tidelock_send)
for ((round = 0; round < rounds; ++round)); do
  # Each begins a round in turn, so that none always follows the same one.
  for ((i = 0; i < ${#subjects[@]}; ++i)); do
    measure "${subjects[(round + i) % ${#subjects[@]}]}"
  done
done

python3 - "$work/all" "$json" "$server_device" "$client_device" "$bytes" "$iters" "$pinned" <<'PYTHON'
import json, os, statistics, sys
path, as_json, server, client, size, iters, pinned = sys.argv[1:]
SUBJECTS = ("ib_send_lat", "ib_write_lat", "tidelock_link", "tidelock_send")
COLUMNS = ("t_typical", "t_min")
values = {column: {name: [] for name in SUBJECTS} for column in COLUMNS}
for line in open(path):
    name, *numbers = line.split()
    for column, number in zip(COLUMNS, numbers):
        values[column][name].append(float(number))
TARGET = 1.25
ratios = []
for column in COLUMNS:
    for ours in SUBJECTS[2:]:
        for theirs in SUBJECTS[:2]:
            by_round = [a / b for a, b in zip(values[column][ours], values[column][theirs]) if b > 0]
            ratio = statistics.median(by_round)
            ratios.append({"column": column, "ours": ours, "theirs": theirs, "ratio": round(ratio, 3),
                           "lowest": round(min(by_round), 3), "highest": round(max(by_round), 3), "target": TARGET,
                           "verdict": "ok" if ratio <= TARGET else "miss"})
kernel = os.uname()
software = server.startswith(("rxe", "siw"))
note = "RDMA in software; says nothing about a network card" if software else ""
if as_json == "1":
    print(json.dumps({"server": server, "client": client, "bytes": int(size), "iterations": int(iters), "pinned": pinned,
                      "kernel": kernel.sysname + " " + kernel.release, "note": note,
                      "usec": {column: {name: {"median": statistics.median(v), "lowest": min(v), "highest": max(v), "rounds": v}
                                        for name, v in values[column].items()} for column in COLUMNS}, "ratios": ratios}, indent=2))
    sys.exit()
print(f"{server} and {client}, {size} bytes, {iters} round trips, {pinned}, {kernel.sysname} {kernel.release}"
      + (f" ({note})" if note else ""))
for column in COLUMNS:
    print(f"{column + '[usec]':<17}{'median':>10}{'lowest':>10}{'highest':>10}  rounds")
    for name in SUBJECTS:
        v = values[column][name]
        print(f"{name:<17}{statistics.median(v):>10.2f}{min(v):>10.2f}{max(v):>10.2f}  {len(v)}")
print(f"{'ratio':<45}{'median':>8}{'lowest':>10}{'highest':>10}  target {TARGET}")
for r in ratios:
    label = r["column"] + " " + r["ours"] + " / " + r["theirs"]
    print(f"{label:<45}{r['ratio']:>8.2f}{r['lowest']:>10.2f}{r['highest']:>10.2f}  {r['verdict']}")
PYTHON
