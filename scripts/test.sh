#!/usr/bin/env bash
# Builds the cpu preset and runs its tests: scripts/test.sh [--full]
#
# Without --full, tests labelled `slow` (full-size models, many minutes and about 10 GB of memory) are left out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=cpu
case ${1:-} in
  '') ;;
  --full) preset=cpu-full ;;
  *) die "test.sh: unknown option '$1' (only --full)" ;;
esac

scripts/setup.sh
scripts/build.sh cpu
ctest --preset "$preset"
