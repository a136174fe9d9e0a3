#!/usr/bin/env bash
# Server, queue, client and upload tests under ThreadSanitizer: everything where threads of ours meet.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
scripts/build.sh tsan base_test test_wire test_server test_engine_upload wire_protocol wire_lifetime wire_policy wire_client

# ThreadSanitizer wants memory mapped where it expects it; kernels that randomise more than that are told not to.
runner=()
if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}
"${runner[@]}" ctest --preset tsan
