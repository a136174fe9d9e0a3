#!/usr/bin/env bash
# tools/amd_check.sh from one end to the other, on tiny models and the fake libraries of AMD:
# amd_check_test.sh TENDON OP_CHECK. LD_LIBRARY_PATH leads to the fakes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$1" "$work/bin/tendon"
ln -s "$2" "$work/bin/op_check"
export TENDON_BIN=$work/bin TENDON_COMMIT=0123abc PYTHON=/nonexistent/python

status=0
tools/amd_check.sh --tiny --out "$work/out" >"$work/log" 2>&1 || status=$?
if ((status != 0)); then
  cat "$work/log"
  exit 1
fi
python3 - "$work/out" <<'END'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
report = json.loads((folder / "gpu_check.json").read_text())
assert report["schema"] == 1 and report["commit"] == "0123abc", report["commit"]
assert report["ok"], [s for s in report["steps"] if s["status"] not in (0, -1)]
assert report["device"]["name"] == "fake AMD card", report["device"]
assert "hipBLASLt 1.1.2" in report["device"]["library"], report["device"]
done = {s["step"]: s["status"] for s in report["steps"]}
wanted = ["bench_pi0", "bench_pi05_h50", "bench_pi0_eager", "tune", "bench_pi0_tuned", "ladder", "trace", "stages_pi0-tiny",
          "repeat_pi05_h50", "ops"]
assert all(done.get(step) == 0 for step in wanted), done
assert all(s["seconds"] >= 0 and s["command"] for s in report["steps"])
for name in ["pi0", "pi0_h50", "pi0_v2", "pi0_v1", "pi0_b4", "pi0_b16", "pi05_h10", "pi05_h50", "pi0_eager", "pi0_tuned"]:
    row = report["bench"][name]
    assert row["wall_ms"]["p50"] > 0 and row["device_ms"]["p50"] > 0 and row["stages"], name
assert report["bench"]["pi0"]["energy"]["j_per_call"] > 0, report["bench"]["pi0"]["energy"]
assert "hipblaslt:" in (folder / "card.csv").read_text() or "own:" in (folder / "card.csv").read_text()
table = (folder / "gpu_check.md").read_text()
assert "fake AMD card" in table and "**failed" not in table
END

# Without a card it ends at once, with the command's exit code.
status=0
TENDON_FAKE_HIP=count=0 tools/amd_check.sh --tiny --out "$work/none" >"$work/log" 2>&1 || status=$?
if ((status != 4)) || ! grep -q 'No AMD card is visible' "$work/log"; then
  echo "without a card: exit code $status"
  cat "$work/log"
  exit 1
fi
