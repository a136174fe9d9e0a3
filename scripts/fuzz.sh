#!/usr/bin/env bash
# Fuzzes every parser of untrusted bytes, and the server's socket: scripts/fuzz.sh [SECONDS]
# SECONDS (default 60) for each kind of bytes from the network, a quarter of it for each kind of file
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh --dev
exec tests/fuzz/run.sh build/fuzz "${1:-60}"
