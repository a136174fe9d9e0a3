#!/usr/bin/env bash
# Compiles every tracked GPU source for NVIDIA cards, device code included, without needing a card. (Those for AMD cards
# are part of the build.) What has no compiler here is skipped
# with a line that says so.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# compile_all KIND COMPILER FILES... -- FLAGS...
compile_all() {
  local kind=$1 compiler=$2
  shift 2
  local files=() file
  while [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  shift
  if ((${#files[@]} == 0)); then
    say "$kind: no sources, skipped"
  elif ! command -v "$compiler" >/dev/null; then
    say "$kind: ${#files[@]} sources NOT compiled, there is no $compiler"
  else
    for file in "${files[@]}"; do
      "$compiler" "$@" -c "$file" -o "$out/object.o" || die "$kind: $file does not compile"
    done
    say "$kind: ${#files[@]} sources compiled with $compiler"
  fi
}

nvcc=nvcc
command -v nvcc >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
mapfile -t cuda_sources < <(source_files '*.cu')
compile_all CUDA "$nvcc" "${cuda_sources[@]}" -- -std=c++20 -O1 -Isrc -gencode=arch=compute_90a,code=sm_90a

# The host side of the CUDA backend, with the toolkit's headers.
cuda_include=$(dirname "$(dirname "$(readlink -f "$(command -v "$nvcc" || echo /nonexistent/bin/nvcc)")")")/include
mapfile -t cuda_host_sources < <(source_files 'src/backend/cuda/*.cc')
if [[ -f $cuda_include/cublasLt.h ]]; then
  compile_all 'CUDA host' g++ "${cuda_host_sources[@]}" -- -std=c++20 -O1 -Wall -Wextra -Werror -Isrc -isystem "$cuda_include" \
    -DTENDON_CUDA_ARCHITECTURES=\"90a-real\"
else
  say "CUDA host: ${#cuda_host_sources[@]} sources NOT compiled, there is no cublasLt.h"
fi
