#!/usr/bin/env bash
# Checks and measures the GPU engine on a machine with a card: scripts/gpu_check.sh [options]
#
#   --out DIR      where results go (default: gpu_check): one JSON, one table, the raw reports and logs
#   --only LIST    some of these, comma-separated: ops,sanitizer,golden,repeat,bench,ladder,trace,torch,ceilings
#   --tiny         tiny models in place of the published sizes: whether the script works, not how fast a card is
#   --quick        about two minutes: the standard workload, bf16 golden values, ten repeats, no sanitizer, no PyTorch
#   --device N     card index (default 0)
#   --backend B    cuda (default) or hip
#
# Without TENDON_BIN it builds the preset of that name. Environment:
#   TENDON_BIN=DIR     take `tendon` and `op_check` from there, and libraries that the system lacks (scripts/gpu_bundle.sh)
#   TENDON_COMMIT=ID   the commit to note where there is no git
#   PYTHON=…           a Python with PyTorch, for the baseline and the ceilings (default python3; without: left out)
#   TORCH_WORKLOADS=…  workloads of the baseline (bench/baselines/torch_pi0.py --help), in place of all rows of the table
# Every step has a time limit and goes on after a failure; exits 1 when any step failed. About 8 minutes on an H100.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=gpu_check only='' quick=0 device=0 backend=cuda tiny='' less=()
while (($#)); do
  case $1 in
    --out) out=${2:?--out needs a folder} && shift ;;
    --only) only=${2:?--only needs a list} && shift ;;
    --device) device=${2:?--device needs a number} && shift ;;
    --backend) backend=${2:?--backend needs a name} && shift ;;
    --quick) quick=1 ;;
    --tiny) tiny=-tiny less=(--steps 1) ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "gpu_check.sh: unknown option '$1' (try --help)" ;;
  esac
  shift
done
for step in ${only//,/ }; do
  case $step in
    ops | sanitizer | golden | repeat | bench | ladder | trace | torch | ceilings) ;;
    *) die "gpu_check.sh: --only: there is no step '$step'" ;;
  esac
done
wanted() {
  if [[ -n $only ]]; then
    [[ ",$only," == *",$1,"* ]]
  else
    ((!quick)) || [[ $1 == golden || $1 == repeat || $1 == bench ]]
  fi
}

if [[ -n ${TENDON_BIN:-} ]]; then
  tendon=$TENDON_BIN/tendon op_check=$TENDON_BIN/op_check
  export LD_LIBRARY_PATH=$TENDON_BIN${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  scripts/build.sh "$backend" tendon op_check
  tendon=build/$backend/cli/tendon op_check=build/$backend/tests/ops/op_check
fi
[[ -x $tendon ]] || die "there is no program $tendon"
python=${PYTHON:-python3}
case $backend in
  cuda) export CUDA_VISIBLE_DEVICES=$device ;;
  hip) export HIP_VISIBLE_DEVICES=$device ;;
  *) die "gpu_check.sh: --backend: there is no backend '$backend' for cards" ;;
esac
torch_workloads=${TORCH_WORKLOADS:-pi0:3:20:10:1 pi05:3:200:10:1 pi0:3:20:50:1 pi0:2:20:10:1 pi0:1:20:10:1 pi0:3:20:10:4 pi0:3:20:10:16 pi05:3:200:50:1}
commit=${TENDON_COMMIT:-$(git -c safe.directory='*' rev-parse --short=10 HEAD 2>/dev/null || echo unknown)}

mkdir -p "$out/log" "$out/bench"
rm -f "$out/bench"/*.json "$out/log"/*.txt
steps=$out/log/steps.tsv
: >"$steps"
failed=0

# step NAME LIMIT_S COMMAND…: runs it with a time limit; output goes to log/NAME.txt.
step() {
  local name=$1 limit=$2 status=0 start
  shift 2
  [[ -z $tiny ]] || limit=$((3 * limit))  # on whatever executes it
  start=$(date +%s.%N)
  timeout --kill-after=10 "$limit" "$@" >"$out/log/$name.txt" 2>&1 || status=$?
  local seconds
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  printf '%s\t%d\t%s\t%s\n' "$name" "$status" "$seconds" "$*" >>"$steps"
  if ((status == 0)); then
    say "$name: ok, $seconds s"
  else
    failed=1
    say "$name: FAILED with $status after $seconds s (limit $limit s); the end of $out/log/$name.txt:"
    tail -n 8 "$out/log/$name.txt" >&2
  fi
}
skip() { say "$1: left out: $2" && printf '%s\t-1\t0\t%s\n' "$1" "$2" >>"$steps"; }

if [[ $backend == hip ]]; then
  { rocminfo || true; amd-smi static || rocm-smi -a || true; cat /opt/rocm/.info/version || echo 'version unknown'; } \
    >"$out/log/card.txt" 2>&1  # the report takes the last line
elif command -v nvidia-smi >/dev/null; then
  nvidia-smi -i "$device" --format=csv \
    --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,utilization.gpu \
    >"$out/log/card.txt" 2>&1 || true
fi

# bench NAME CALLS [options]: one row of the table.
bench() {
  local name=$1 calls=$2
  shift 2
  ((!quick)) || calls=$((calls > 200 ? 200 : calls))
  local power=()
  if [[ -n $tiny ]]; then
    calls=1 power=(--power-seconds 0)
    [[ $name != pi0 ]] || power=(--power-seconds 1)
  fi
  local run=("$tendon" bench --backend "$backend" "$@" "${less[@]}")
  step "bench_$name" 90 "${run[@]}" "${power[@]}" --iters "$calls" --json "$out/bench/$name.json"
  if [[ $backend == hip ]] && ((!quick)); then  # kernels launched one by one
    step "bench_${name}_eager" 60 "${run[@]}" --power-seconds 0 --iters $((calls > 50 ? 50 : calls)) --no-graph \
      --json "$out/bench/${name}_eager.json"
  fi
}
if wanted bench; then
  bench pi0 1000 --checkpoint "synthetic:pi0$tiny" --horizon 10
  bench pi0_h50 200 --checkpoint "synthetic:pi0$tiny" --horizon 50
  if ((!quick)); then
    bench pi0_v2 200 --checkpoint "synthetic:pi0$tiny" --horizon 10 --views 2
    bench pi0_v1 200 --checkpoint "synthetic:pi0$tiny" --horizon 10 --views 1
    bench pi0_b4 50 --checkpoint "synthetic:pi0$tiny" --horizon 10 --batch 4
    bench pi0_b16 20 --checkpoint "synthetic:pi0$tiny" --horizon 10 --batch 16
    bench pi05_h50 100 --checkpoint "synthetic:pi05$tiny" --prompt-tokens 200 --horizon 50
  fi
  bench pi05_h10 200 --checkpoint "synthetic:pi05$tiny" --prompt-tokens 200 --horizon 10
  if [[ $backend == hip ]] && ((!quick)); then
    for precision in int8 fp8; do bench "pi0_$precision" 200 --checkpoint "synthetic:pi0$tiny" --horizon 10 --precision "$precision"; done
    budget=180
    [[ -z $tiny ]] || budget=60
    step tune 240 "$tendon" tune --backend hip --checkpoint "synthetic:pi0$tiny" --views 3 --time-budget "$budget" --out "$out/card.csv"
    bench pi0_tuned 200 --checkpoint "synthetic:pi0$tiny" --horizon 10 --gemm-table "$out/card.csv"
  fi
fi

if wanted ladder; then
  step ladder 90 "$tendon" ladder --backend "$backend" --checkpoint "synthetic:pi0$tiny" --horizon 10 --json "$out/ladder.json" \
    --svg "$out/ladder.svg" "${less[@]}" ${tiny:+--iters 1}
fi
if wanted trace; then
  step trace 60 "$tendon" trace --backend "$backend" --checkpoint "synthetic:pi0$tiny" --horizon 10 --out "$out/log/call.json.gz" "${less[@]}"
  step report_trace 30 "$tendon" report "$out/log/call.json.gz"
fi

if wanted golden; then
  for variant in pi0 pi05; do
    golden=tests/data/full_$variant/golden.safetensors
    precisions=(bf16 f32)
    ((!quick)) || precisions=(bf16)
    [[ $backend != hip ]] || ((quick)) || precisions+=(int8 fp8)
    for precision in "${precisions[@]}"; do
      if [[ -n $tiny ]]; then
        skip "golden_${variant}_$precision" 'the values are those of the published sizes'
        continue
      fi
      step "golden_${variant}_$precision" 120 "$tendon" check --backend "$backend" --checkpoint "synthetic:$variant" \
        --precision "$precision" --against "$golden"
    done
    if ((!quick)) && [[ -z $tiny ]]; then
      scales=$out/log/scales_$variant.safetensors
      step "scales_$variant" 120 "$tendon" tune --backend "$backend" --checkpoint "synthetic:$variant" --calibrate workload \
        --observations 16 --out "$scales"
      step "golden_${variant}_static" 120 "$tendon" check --backend "$backend" --checkpoint "synthetic:$variant" \
        --precision int8 --codes vision prefix --scales "$scales" --against "$golden"
      # All of 8-bit operands, with the expert's weights as codes in the persistent loop.
      all=(--backend "$backend" --checkpoint "synthetic:$variant" --precision int8 --codes vision prefix expert-weights
        --scales "$scales")
      step "golden_${variant}_all" 120 "$tendon" check "${all[@]}" --against "$golden"
      step "repeat_${variant}_all" 60 "$tendon" check "${all[@]}" --horizon 10 --against none --repeat-identical 1000
      prompt=$([[ $variant == pi0 ]] || echo '--prompt-tokens 200')
      # shellcheck disable=SC2086  # two words or none
      step "bench_${variant}_int8_all" 90 "$tendon" bench "${all[@]}" --horizon 10 $prompt --iters 300 \
        --json "$out/bench/${variant}_int8_all.json"
    fi
    step "stages_$variant-tiny" 60 "$tendon" check --backend "$backend" --checkpoint "synthetic:$variant-tiny" --precision f32 "${less[@]}"
  done
fi

if wanted repeat; then
  repeats=$((quick ? 10 : 100))
  for variant in pi0 pi05; do
    for horizon in 10 50; do  # both persistent denoise kernels
      count=$((horizon == 10 ? 10 * repeats : repeats))
      [[ -z $tiny ]] || count=2
      step "repeat_${variant}_h$horizon" 60 "$tendon" check --backend "$backend" --checkpoint "synthetic:$variant$tiny" \
        --horizon "$horizon" --against none --repeat-identical "$count" "${less[@]}"
    done
  done
fi

if wanted ops; then
  if [[ -n $tiny ]]; then
    step ops 150 "$op_check" test --backend "$backend" --max-elements 1000 --verbose
  else
    step ops 150 "$op_check" test --backend "$backend" --verbose
    [[ $backend != cuda ]] || step ops_tiles 60 "$op_check" test --backend cuda --filter tile_ \
      --gemm-table tests/data/gemm/hopper_tiles.csv --verbose
    step ops_slow 180 "$op_check" test --backend "$backend" --slow --verbose
    step ops_bench 120 "$op_check" bench --backend "$backend" --seconds 0.05 --json "$out/log/ops_bench.json"
  fi
fi

if wanted sanitizer; then
  sanitizer=''
  [[ $backend != cuda ]] || sanitizer=$(command -v compute-sanitizer || true)
  [[ -n $sanitizer || $backend != cuda || ! -x /usr/local/cuda/bin/compute-sanitizer ]] || sanitizer=/usr/local/cuda/bin/compute-sanitizer
  if [[ -z $sanitizer ]]; then
    skip sanitizer 'there is no compute-sanitizer'
  else
    # Every case but the slow ones for memcheck, and of those a sample; racecheck takes the small ones, as it follows each
    # access to shared memory. (One case asks for more memory than there is: that call's error is wanted.)
    memcheck=("$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9)
    step memcheck_ops_all 150 "${memcheck[@]}" "$op_check" test --backend "$backend"
    step memcheck_ops_slow 200 "${memcheck[@]}" "$op_check" test --backend "$backend" --slow --every 5
    for tool in memcheck racecheck; do
      step "${tool}_tiles" 120 "$sanitizer" --tool "$tool" --error-exitcode 9 "$op_check" test --backend "$backend" \
        --filter tile_ --gemm-table tests/data/gemm/hopper_tiles.csv
    done
    # The persistent loops with one layer and one step.
    for tool in memcheck racecheck synccheck; do
      step "${tool}_loop_ops" 150 "$sanitizer" --tool "$tool" --error-exitcode 9 "$op_check" test --backend "$backend" --slow \
        --filter denoise_loop.least
    done
    for tool in memcheck racecheck; do
      checked=("$sanitizer" --tool "$tool" --error-exitcode 9)
      [[ $tool == memcheck ]] || step "${tool}_ops" 90 "${checked[@]}" "$op_check" test --backend "$backend" \
        --max-elements 20000
      for variant in pi0 pi05; do
        step "${tool}_$variant-tiny" 60 "${checked[@]}" "$tendon" check --backend "$backend" \
          --checkpoint "synthetic:$variant-tiny" --steps 2
      done
    done
    # The persistent denoise kernels take the published widths only.
    for tool in memcheck synccheck; do
      for horizon in 10 50; do
        step "${tool}_loop_h$horizon" 120 "$sanitizer" --tool "$tool" --error-exitcode 9 "$tendon" check --backend "$backend" \
          --checkpoint "synthetic:pi0$tiny" --horizon "$horizon" --views 1 --steps 2 --against none --repeat-identical 2
      done
    done
  fi
fi

if wanted torch || wanted ceilings; then
  if ! "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    skip torch "$python has no PyTorch that sees a card"
  else
    if wanted torch; then
      workloads=()
      for one in $torch_workloads; do workloads+=(--workload "$one"); done
      step torch_pi0 200 "$python" bench/baselines/torch_pi0.py --iters 50 --budget-s 150 --json "$out/log/torch.json" \
        "${workloads[@]}"
      # What tendon report finds in PyTorch's traces, beside events of the same call.
      for mode in default eager; do
        step "torch_trace_$mode" 90 "$python" bench/baselines/torch_pi0.py --mode "$mode" --profile "$out/log/torch_$mode.json"
        step "torch_report_$mode" 30 "$tendon" report "$out/log/torch_$mode.json" --format json \
          --out "$out/log/torch_${mode}_report.json"
        step "torch_stages_$mode" 10 "$python" tools/compare_stages.py "$out/log/torch_${mode}_report.json" \
          "$out/log/torch_$mode.json.events"
      done
    fi
    if wanted ceilings; then step ceilings 60 "$python" bench/baselines/ceilings.py --json "$out/log/ceilings.json"; fi
  fi
fi

step report 30 python3 tools/gpu_report.py "$out" --commit "$commit"
cat "$out/gpu_check.md" 2>/dev/null || true
exit "$failed"
