#!/usr/bin/env bash
# The main job at length: 1 and 2 shards, the three ack levels, both wakeups, on dpkg's database. Each run must
# check at least N receipts (default a million), find none stale, and end with equal digests.
# Usage: million_checks.sh PROGRAM [N]
set -euo pipefail
program=$1
checks=${2:-1000000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for shards in 1 2; do
  for ack in local received applied; do
    for wake in msg_ring eventfd; do
      "$program" run --shards "$shards" --ack "$ack" --wake "$wake" --checks "$checks" --duration 3600 --read-ratio 0.1 \
        --in-flight 64 --json >"$work/report.json" || { cat "$work/report.json"; echo "FAILED: $shards $ack $wake"; exit 1; }
      python3 - "$work/report.json" "$checks" "$shards shards, ack $ack, wake $wake" <<'PYTHON'
import json, sys
report = json.load(open(sys.argv[1]))
line = f"{sys.argv[3]}: {report['checked']} checked, {report['stale']} stale, digests equal: {report['digests_equal']}, " \
       f"{report['ops_per_second']:.0f} ops/s"
print(line, flush=True)
assert report["checked"] >= int(sys.argv[2]) and report["stale"] == 0 and report["digests_equal"], line
PYTHON
    done
  done
done
