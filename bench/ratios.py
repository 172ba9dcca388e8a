#!/usr/bin/env python3
"""Prints, for every benchmark in a folder of results, how it compares with the raw limit of the same program.

usage: ratios.py FOLDER        (the JSON files that run.sh wrote)

Benchmarks are named GROUP/WHO[/ARGUMENT...]. Within a group, whoever is called raw_* is a limit; the others are
compared with each limit whose arguments they have. Figures are nanoseconds an item: the median of the
repetitions, with the lowest and the highest. There are two ratios: of the medians, and of the lowest; on a
machine that has other work they differ, and the second, of the runs disturbed least, means more.
"""
import json
import pathlib
import re
import statistics
import sys

# What Google Benchmark appends to names.
NOT_ARGUMENTS = {"real_time", "manual_time", "process_time"}


class Series:
    """The repetitions of one benchmark."""

    def __init__(self, name):
        parts = [part for part in name.split("/") if part not in NOT_ARGUMENTS]
        parts = [part for part in parts if not part.startswith(("repeats:", "iterations:", "min_time:"))]
        self.group, self.who = parts[0], parts[1]
        self.arguments = parts[2:]
        self.ns_per_item = []
        self.label = ""
        self.error = ""

    def is_raw(self):
        return self.who.startswith("raw_")

    def limits(self, other):
        """True if self is a raw limit of `other`."""
        return self.is_raw() and self.group == other.group and set(self.arguments) <= set(other.arguments)

    def median(self):
        return statistics.median(self.ns_per_item)

    def figures(self):
        low, high = min(self.ns_per_item), max(self.ns_per_item)
        return f"{number(self.median())} ({number(low)} to {number(high)})"

    def name(self):
        return "/".join([self.group, self.who, *self.arguments])

    def sort_key(self):
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", self.name())]


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def read(path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    series = {}
    for run in document["benchmarks"]:
        if run.get("run_type") == "aggregate":
            continue
        one = series.setdefault(run["name"], Series(run["name"]))
        one.label = run.get("label", "")
        if run.get("error_occurred"):
            one.error = run.get("error_message", "failed")
        else:
            one.ns_per_item.append(1e9 / run["items_per_second"])
    return document["context"], list(series.values())


def rows(series):
    limits = [one for one in series if one.is_raw() and one.ns_per_item]
    for one in sorted(series, key=Series.sort_key):
        if one.is_raw():
            continue
        if not one.ns_per_item:
            yield one.name(), "failed: " + one.error, "", "", ""
            continue
        for limit in limits:
            if not limit.limits(one):
                continue
            raw = "/".join([limit.who, *limit.arguments])
            medians = one.median() / limit.median()
            lowest = min(one.ns_per_item) / min(limit.ns_per_item)
            yield one.name(), one.figures(), f"{raw} {limit.figures()}", number(medians), number(lowest)


def main():
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    if not paths:
        sys.exit(f"{sys.argv[1]} holds no .json file: run bench/run.sh first")
    for path in paths:
        context, series = read(path)
        print(f"### {path.stem}")
        print()
        print(f"link {context.get('link')}, {context.get('kernel')}, {context.get('cpus')}, {context['date']},")
        print(f"load average at the start {context['load_avg'][0]:.2f}, {context.get('build')}")
        print()
        print("| benchmark | ns an item | raw limit, ns an item | ratio | of the lowest |")
        print("|---|---|---|---|---|")
        for row in rows(series):
            print("| " + " | ".join(row) + " |")
        print()


if __name__ == "__main__":
    main()
