#!/usr/bin/env bash
# tools/compare_stages.py on a real trace and the stopwatch of the same run: compare_stages.sh TENDON SOURCE_DIR
set -euo pipefail
tendon=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$tendon" report "$source/tests/data/traces/torch_cpu_tiny.json.gz" --format json --out "$work/report.json" >/dev/null
compare() { python3 "$source/tools/compare_stages.py" "$work/report.json" "$work/events.json" "$@" >"$work/table" 2>"$work/errors"; }
require() {  # STATUS [options]: what compare must exit with
  local wanted=$1 status=0
  shift
  compare "$@" || status=$?
  ((status == wanted)) || { echo "exit status $status, not $wanted:" && cat "$work/table" "$work/errors" && exit 1; }
}
# What make_torch_trace.py printed when it recorded the file.
echo '{"stage_ms": {"vision": 5.931, "prefix": 12.594, "denoise": 14.835}}' >"$work/events.json"
require 0
grep -q '| vision | 5.931 |' "$work/table"
require 1 --within 0.001
echo '{"stage_ms": {"vision": 5.6, "prefix": 12.594, "denoise": 14.835}}' >"$work/events.json"
require 1
echo '{"stage_ms": {"vision": 5.931, "readout": 1}}' >"$work/events.json"
require 1
grep -q '| readout | 1.000 | not found |' "$work/table"
echo '{"stages": {}}' >"$work/events.json"
require 2
grep -q "stage_ms" "$work/errors"
