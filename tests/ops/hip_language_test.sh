#!/usr/bin/env bash
# A kernel by CMake's HIP language, on a ROCm root that holds nothing but what CMake asks of it; then its code objects have
# to keep to the budgets: hip_language_test.sh CMAKE COMPILER LIBRARIES ARCHITECTURES
# LIBRARIES: a folder with a libamdhip64.so, for CMake's own trials.
set -euo pipefail
cmake=$1 compiler=$2 libraries=$3 architectures=$4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/rocm/lib/cmake/hip-lang"
cat >"$work/rocm/lib/cmake/hip-lang/hip-lang-config.cmake" <<'END'
add_library(hip-lang::device INTERFACE IMPORTED)
set(_CMAKE_HIP_DEVICE_RUNTIME_TARGET hip-lang::device)
END
"$cmake" -S tests/ops/hip_language -B "$work/build" -G Ninja -DTENDON_HIP_LANGUAGE=ON -DTENDON_WERROR=ON \
  "-DTENDON_HIP_ARCHITECTURES=$architectures" "-DCMAKE_HIP_COMPILER=$compiler" \
  "-DCMAKE_HIP_COMPILER_ROCM_ROOT=$work/rocm" "-DCMAKE_HIP_FLAGS=-nogpuinc -nogpulib -L$libraries"
"$cmake" --build "$work/build"
scripts/check_code_objects.sh src/backend/hip/budgets.txt "$architectures" "$work/build/kernel.o"
