#!/usr/bin/env bash
# Gathers what scripts/gpu_check.sh needs on a machine without our packages: scripts/gpu_bundle.sh BUILD_DIR OUT_DIR
#
# OUT_DIR gets `tendon`, `op_check` (stripped) and the shared libraries they load, but for those of the C library. Use it
# with TENDON_BIN=OUT_DIR. The GPU's own libraries are not among them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

(($# == 2)) || die "gpu_bundle.sh: give a build folder and an output folder"
build=$1 out=$2
mkdir -p "$out"
for program in "$build/cli/tendon" "$build/tests/ops/op_check"; do
  [[ -x $program ]] || die "gpu_bundle.sh: there is no program $program; build it first"
  strip -o "$out/$(basename "$program")" "$program"
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    while read -r library; do
      case $(basename "$library") in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
        *) cp -Lu "$library" "$out/" ;;
      esac
    done
done
say "$(du -sh "$out" | cut -f1) in $out"
