#!/usr/bin/env bash
# Configures and builds a preset: scripts/build.sh [PRESET [TARGET...]]   (default: cpu, everything)
#
# Environment: TENDON_WERROR=ON|OFF and TENDON_UNITY=ON|OFF (sources in batches, tests with a precompiled header)
# override the preset's choice, TENDON_JOBS is the number of compile jobs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:-cpu}
shift || true

options=()
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
[[ -z ${TENDON_WERROR:-} ]] || options+=("-DTENDON_WERROR=$TENDON_WERROR")
[[ -z ${TENDON_UNITY:-} ]] || options+=("-DTENDON_UNITY=$TENDON_UNITY")

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  die "could not configure preset '$preset'"
fi
targets=()
if (($#)); then targets=(--target "$@"); fi
cmake --build --preset "$preset" --parallel "${TENDON_JOBS:-$(build_jobs)}" "${targets[@]}"
