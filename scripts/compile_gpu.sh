#!/usr/bin/env bash
# Builds the program for the cards of every vendor that there is a compiler for, and starts it here:
# scripts/compile_gpu.sh [BUILD_DIR]
#
# In BUILD_DIR (default: build/cpu) TENDON_CUDA and TENDON_HIP are turned on for this, and off again. What has no
# compiler is left out with a line that says so. No card is needed: without one, --backend cuda and --backend hip have to
# end with exit code 4 and words about it, and the tests of tests/unit/cuda have to pass. Warnings are errors.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=${1:-build/cpu}
[[ -f $build/CMakeCache.txt ]] || die "compile_gpu.sh: $build is no build folder; run scripts/build.sh first"
tendon=$build/cli/tendon
nvcc=$(command -v nvcc || true)
[[ -n $nvcc || ! -x /usr/local/cuda/bin/nvcc ]] || nvcc=/usr/local/cuda/bin/nvcc
log=$(mktemp)
restore() {
  local status=$?
  cmake "$build" -DTENDON_CUDA=OFF -DTENDON_HIP=OFF -DTENDON_WERROR="$werror" >/dev/null || status=1
  rm -f "$log"
  exit "$status"
}
werror=$(sed -n 's/^TENDON_WERROR:[A-Z]*=//p' "$build/CMakeCache.txt")
trap restore EXIT

options=(-DTENDON_WERROR=ON) vendors=() targets=(tendon)
if [[ -n $nvcc ]]; then
  options+=(-DTENDON_CUDA=ON "-DCMAKE_CUDA_COMPILER=$nvcc")
  ! command -v ccache >/dev/null || options+=(-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  vendors+=(cuda)
  ! grep -q '^TENDON_BUILD_TESTS:BOOL=ON' "$build/CMakeCache.txt" || targets+=(test_cuda)
else
  say 'CUDA: NOT compiled, there is no nvcc'
fi
if command -v clang++-22 >/dev/null || [[ -x /opt/rocm/bin/amdclang++ ]]; then
  options+=(-DTENDON_HIP=ON)
  vendors+=(hip)
else
  say 'HIP: NOT compiled, there is no clang++-22 and no amdclang++'
fi
if ! cmake "$build" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  die "compile_gpu.sh: cannot configure for ${vendors[*]}"
fi
cmake --build "$build" --target "${targets[@]}" --parallel "${TENDON_JOBS:-$(build_jobs)}"

"$tendon" --version
[[ " ${targets[*]} " != *" test_cuda "* ]] || "$build/tests/unit/cuda/test_cuda" --gtest_brief=1
for vendor in cuda hip; do
  status=0
  "$tendon" info --backend "$vendor" >"$log" 2>&1 || status=$?
  words="has no $vendor backend"
  [[ " ${vendors[*]} " != *" $vendor "* ]] || words='--backend cpu'  # the way out that every refusal names
  if ((status != 0)) && { ((status != 4)) || ! grep -q -e "$words" "$log"; }; then
    cat "$log" >&2
    die "compile_gpu.sh: --backend $vendor ended with exit code $status; 4 and '$words' were wanted"
  fi
  say "--backend $vendor: exit code $status: $(tail -n 1 "$log")"
done
say "one program for: ${vendors[*]:-no cards}"
