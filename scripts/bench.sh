#!/usr/bin/env bash
# Measures whole inferences on this machine: scripts/bench.sh [options of `tendon bench`]
#
# TENDON_CHECKPOINT names other weights than the synthetic full-size π0, e.g. synthetic:pi0-tiny.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
scripts/build.sh cpu tendon
exec build/cpu/cli/tendon bench --checkpoint "${TENDON_CHECKPOINT:-synthetic:pi0}" "$@"
