#!/usr/bin/env bash
# Checks and measures tendon on a machine with an AMD card (gfx942, gfx950), and leaves one folder to send back:
#
#   tools/amd_check.sh [--out DIR] [--quick] [--tiny] [--device N]    default folder: amd_check
#   tools/amd_check.sh --emulated [--out DIR] [--tiny]       correctness alone, under AMD's emulator (mirage or rocjitsu);
#                                                            --tiny: of the operations the smallest cases
#
# It builds the preset hip, or takes `tendon` and `op_check` from TENDON_BIN=DIR. docs/amd.md has the container to run it
# in. Every step goes on after a failure; exit code 1 when one failed, 4 when there is no card.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

out=amd_check emulated=0 device=0
more=()
while (($#)); do
  case $1 in
    --out) out=${2:?--out needs a folder} && shift ;;
    --device) device=${2:?--device needs a number} && shift ;;
    --quick | --tiny) more+=("$1") ;;
    --emulated) emulated=1 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "amd_check.sh: unknown option '$1' (try --help)" ;;
  esac
  shift
done

if [[ -n ${TENDON_BIN:-} ]]; then
  tendon=$TENDON_BIN/tendon op_check=$TENDON_BIN/op_check
  export LD_LIBRARY_PATH=$TENDON_BIN${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  [[ ${TENDON_SKIP_SETUP:-0} == 1 ]] || scripts/setup.sh
  scripts/build.sh hip tendon op_check
  tendon=build/hip/cli/tendon op_check=build/hip/tests/ops/op_check
fi
mkdir -p "$out/log"

if ((emulated)); then
  if command -v mirage >/dev/null; then
    emulator=(mirage run --profile "${TENDON_EMULATED_CARD:-mi350x}" --)
  elif command -v rocjitsu >/dev/null; then
    emulator=(rocjitsu --config "${TENDON_EMULATED_CARD:-configs/gfx950_cdna4_kmd.json}" --)
  else
    die "amd_check.sh: --emulated: there is neither mirage nor rocjitsu (package amdrocm-emulation of ROCm 7.15 or later)"
  fi
  failed=0
  run() {
    local name=$1
    shift
    if "${emulator[@]}" "$@" >"$out/log/emulated_$name.txt" 2>&1; then
      say "$name: ok"
    else
      failed=1
      say "$name: FAILED; the end of $out/log/emulated_$name.txt:"
      tail -n 8 "$out/log/emulated_$name.txt" >&2
    fi
  }
  run info "$tendon" info --backend hip
  elements=100000
  [[ " ${more[*]} " != *' --tiny '* ]] || elements=1000
  run ops "$op_check" test --backend hip --max-elements "$elements" --verbose
  for model in pi0 pi05; do
    for precision in f32 bf16 int8 fp8; do
      run "$model-tiny_$precision" "$tendon" check --backend hip --checkpoint "synthetic:$model-tiny" --precision "$precision" --steps 1
    done
  done
  exit "$failed"
fi

status=0
HIP_VISIBLE_DEVICES=$device "$tendon" info --backend hip >"$out/log/info.txt" 2>&1 || status=$?
cat "$out/log/info.txt"
if ((status != 0)); then exit "$status"; fi
scripts/gpu_check.sh --backend hip --out "$out" --device "$device" "${more[@]}" || status=$?
say "please send the folder $out (gpu_check.json and the logs)"
exit "$status"
