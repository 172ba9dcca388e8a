#!/usr/bin/env python3
"""Judges the report of `tidelock run --json`. Usage: check_report.py FILE"""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
print({name: report[name] for name in ("link", "passed", "acknowledged", "checked", "stale", "digests_equal")})
good = (
    report["link"].startswith("verbs ")
    and report["passed"]
    and report["stale"] == 0
    and report["digests_equal"]
    and report["checked"] > 0
    and report["checked"] == report["acknowledged"]
)
sys.exit(0 if good else 1)
