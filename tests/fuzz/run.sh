#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for an equal share of the time:
#   tests/fuzz/run.sh BUILD_DIR [SECONDS_IN_TOTAL]      (default 60)
# Exit status 0: no finding. New inputs go to BUILD_DIR/corpus, findings to BUILD_DIR/findings; nothing in the source tree
# changes. CXX chooses the compiler (default clang++-14, or clang++).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="${1:?usage: tests/fuzz/run.sh BUILD_DIR [SECONDS_IN_TOTAL]}"
total="${2:-60}"
compiler="${CXX:-$(command -v clang++-14 || command -v clang++ || true)}"
[ -n "$compiler" ] || { echo "run.sh: no clang++ here; install clang and libclang-rt" >&2; exit 2; }

launcher=()
command -v ccache > /dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" "${launcher[@]}" > /dev/null
cmake --build "$build"

targets=("$here"/fuzz_*.cc)
seconds=$((total / ${#targets[@]}))
((seconds > 0)) || seconds=1
mkdir -p "$build/findings"
failed=0
for source in "${targets[@]}"; do
  name="$(basename "$source" .cc)"
  mkdir -p "$build/corpus/$name"
  echo "== $name: $seconds s"
  log="$build/$name.log"
  if "$build/$name" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -dict="$here/json.dict" -artifact_prefix="$build/findings/$name-" "$build/corpus/$name" "$here/corpus/$name" \
    > "$log" 2>&1; then
    grep -E 'number_of_executed_units|average_exec_per_sec' "$log" || true
  else
    failed=1
    tail -n 40 "$log"
    echo "== $name FAILED; see $log and $build/findings" >&2
  fi
done
exit "$failed"
