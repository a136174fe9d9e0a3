#!/usr/bin/env bash
# Configures and builds a preset: scripts/build.sh [PRESET [TARGET...]]   (default: cpu, everything)
#
# Environment: TENDON_WERROR=ON|OFF overrides the preset's choice, TENDON_JOBS the number of compile jobs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:-cpu}
shift || true

options=()
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
[[ -z ${TENDON_WERROR:-} ]] || options+=("-DTENDON_WERROR=$TENDON_WERROR")

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  die "could not configure preset '$preset'"
fi
targets=()
if (($#)); then targets=(--target "$@"); fi
cmake --build --preset "$preset" --parallel "${TENDON_JOBS:-$(build_jobs)}" "${targets[@]}"
