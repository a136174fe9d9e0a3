#!/usr/bin/env bash
# Every kind of finding of scripts/check_code_objects.sh is found: code_objects_self_test.sh CHECK ARCHITECTURES OBJECT...
set -euo pipefail
check=$1 architectures=$2
shift 2
objects=()
for object in "$@"; do [[ $object == */norms*.o ]] && objects+=("$object"); done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

finds() {  # WORDS BUDGET-LINES
  printf '%s\n' "$2" >"$work/budgets"
  if "$check" "$work/budgets" "$architectures" "${objects[@]}" >"$work/out" 2>&1; then
    echo "not found: $1" && exit 1
  fi
  grep -q -e "$1" "$work/out" || { echo "not said: $1" && cat "$work/out" && exit 1; }
}
finds 'vector registers, 8 allowed' '. 8 0 64 s_endpgm'
finds 'bytes of shared memory, 8 allowed' '. 256 0 8 s_endpgm'
finds 'no v_mfma_f32_16x16' '. 256 0 64 @bf16'
finds 'no v_mfma_i32_32x32' '. 256 0 64 @i8x32'
finds 'no budget for' 'tile_gemm 256 0 64 s_endpgm'
printf '. 256 0 192 s_endpgm\n' >"$work/budgets"
"$check" "$work/budgets" "$architectures" "${objects[@]}"

# A kernel that needs scratch memory and spills.
cat >"$work/greedy.cu" <<'END'
using Kernel = int;
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void*, dim3, dim3, void**, unsigned long, void*);
__attribute__((global)) __attribute__((amdgpu_num_vgpr(16))) void greedy(float* p) {
  float v[64];
  for (int i = 0; i < 64; ++i) v[i] = p[i * 3];
  for (int j = 0; j < 64; ++j) for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + j) & 63] + p[j];
  for (int i = 0; i < 64; ++i) p[i] = v[i];
}
END
clang++-22 -x hip -nogpuinc -nogpulib -nohipwrapperinc --no-offload-new-driver -mcode-object-version=5 -O3 \
  --offload-arch=gfx942 -c "$work/greedy.cu" -o "$work/greedy.o"
objects=("$work/greedy.o") architectures=gfx942
finds 'bytes of scratch memory' '. 512 900 64 s_endpgm'
