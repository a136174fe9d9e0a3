#!/usr/bin/env bash
# Unit, op, golden and end-to-end tests under AddressSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scripts/setup.sh
scripts/build.sh asan

# The leak checker has to trace its own process, which some containers forbid.
leaks=1
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int main() {}' >"$probe/probe.cc"
g++ -fsanitize=address "$probe/probe.cc" -o "$probe/probe"
if ! ASAN_OPTIONS=detect_leaks=1 "$probe/probe" >/dev/null 2>&1; then
  leaks=0
  say "LeakSanitizer cannot run here: leaks are not checked"
fi
export ASAN_OPTIONS=detect_leaks=$leaks:strict_string_checks=1:check_initialization_order=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
ctest --preset asan
