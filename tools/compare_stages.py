#!/usr/bin/env python3
"""Compares the stages that `tendon report` found in a trace with CUDA-event times of the same call:

    compare_stages.py REPORT.json EVENTS.json [--within 3]

REPORT.json is `tendon report TRACE --format json --out REPORT.json`; EVENTS.json was written beside the trace by
bench/baselines/torch_pi0.py --profile. Exit status 1 when a stage is missing or its span is further away than so many
percent, 2 when a file cannot be read."""
import argparse
import json
import sys


def read(path, key):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"compare_stages.py: cannot read '{key}' of {path}: {error}", file=sys.stderr)
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("events")
    parser.add_argument("--within", type=float, default=3, metavar="PERCENT")
    options = parser.parse_args()
    spans = {row["stage"]: row["span_ms"] for row in read(options.report, "stages")}
    failed = False
    print("| stage | events ms | report ms | difference |\n|---|---|---|---|")
    for stage, events_ms in read(options.events, "stage_ms").items():
        if stage not in spans:
            failed = True
            print(f"| {stage} | {events_ms:.3f} | not found | |")
            continue
        percent = 100 * (spans[stage] / events_ms - 1)
        failed = failed or abs(percent) > options.within
        print(f"| {stage} | {events_ms:.3f} | {spans[stage]:.3f} | {percent:+.1f} % |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
