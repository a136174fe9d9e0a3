#!/usr/bin/env bash
# tools/amd_check.sh from one end to the other, on tiny models and the fake libraries of AMD:
# amd_check_test.sh TENDON OP_CHECK. LD_LIBRARY_PATH leads to the fakes; they go beside the programs, as
# scripts/gpu_bundle.sh leaves libraries there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$1" "$work/bin/tendon"
ln -s "$2" "$work/bin/op_check"
for folder in ${LD_LIBRARY_PATH//:/ }; do ln -s "$folder"/*.so* "$work/bin"; done
unset LD_LIBRARY_PATH
export OMP_WAIT_POLICY=passive  # also on a busy machine
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
          "repeat_pi05_h50", "ops", "stages_pi05-tiny"]
assert all(done.get(step) == 0 for step in wanted), done
assert all(s["seconds"] >= 0 and s["command"] for s in report["steps"])
variants = ["pi0", "pi0_h50", "pi0_v2", "pi0_v1", "pi0_b4", "pi0_b16", "pi05_h10", "pi05_h50", "pi0_int8", "pi0_fp8", "pi0_tuned"]
for name in [*variants, *(variant + "_eager" for variant in variants)]:
    row = report["bench"][name]
    assert row["wall_ms"]["p50"] > 0 and row["device_ms"]["p50"] > 0 and row["stages"], name
assert report["bench"]["pi0"]["energy"]["j_per_call"] > 0, report["bench"]["pi0"]["energy"]
assert "hipblaslt:" in (folder / "card.csv").read_text() or "own:" in (folder / "card.csv").read_text()
table = (folder / "gpu_check.md").read_text()
assert "fake AMD card" in table and "**failed" not in table and "nvidia" not in table
assert ", kernel by kernel |" in table and ", int8 |" in table
products = report["products"]
assert products and all(row["chosen"] for row in products), products
assert any(row["library_default"] and row["library_best"] and row["own_best"] for row in products), products
END

# The correctness part under an emulator, played by a script that starts what it is given.
emulators=$work/emulators
mkdir "$emulators"
status=0
PATH=$emulators:$PATH tools/amd_check.sh --emulated --out "$work/emulated" >"$work/log" 2>&1 || status=$?
if ((status != 1)) || ! grep -q 'neither mirage nor rocjitsu' "$work/log"; then
  echo "without an emulator: exit code $status"
  cat "$work/log"
  exit 1
fi
cat >"$emulators/mirage" <<'END'
#!/usr/bin/env bash
[[ "$1 $2 $3 $4" == 'run --profile mi350x --' ]] || exit 2
shift 4
[[ " $* " != *" ${EMULATOR_BREAKS:-nothing} "* ]] || exit 3
TENDON_FAKE_HIP=gfx=950 exec "$@"
END
chmod +x "$emulators/mirage"
emulated() { PATH=$emulators:$PATH tools/amd_check.sh --emulated --tiny --out "$work/emulated" >"$work/log" 2>&1; }
if ! emulated || [[ $(grep -c ': ok$' "$work/log") != 10 ]] || ! grep -q gfx950 "$work/emulated/log/emulated_info.txt"; then
  echo 'under an emulator:'
  cat "$work/log"
  exit 1
fi
status=0
EMULATOR_BREAKS=synthetic:pi05-tiny emulated || status=$?
if ((status != 1)) || ! grep -q 'pi05-tiny_f32: FAILED' "$work/log" || ! grep -q 'ops: ok' "$work/log"; then
  echo "under an emulator that breaks: exit code $status"
  cat "$work/log"
  exit 1
fi

# Without a card it ends at once, with the command's exit code.
status=0
TENDON_FAKE_HIP=count=0 tools/amd_check.sh --tiny --out "$work/none" >"$work/log" 2>&1 || status=$?
if ((status != 4)) || ! grep -q 'No AMD card is visible' "$work/log"; then
  echo "without a card: exit code $status"
  cat "$work/log"
  exit 1
fi
