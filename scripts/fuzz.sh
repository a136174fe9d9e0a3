#!/usr/bin/env bash
# Fuzzes every parser of untrusted bytes, and the server's socket, for a while: scripts/fuzz.sh [SECONDS_IN_TOTAL]
# (default 60, shared by all targets)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh --dev
exec tests/fuzz/run.sh build/fuzz "${1:-60}"
