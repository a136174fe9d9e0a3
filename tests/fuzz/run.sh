#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs them, as many at a time as there are cores:
#   tests/fuzz/run.sh BUILD_DIR [SECONDS]      (default 60)
# What comes from the network (msgpack, WebSocket frames, HTTP) is fuzzed for that long each, what comes from files for a
# quarter of it each.
# Exit status 0: no finding. New inputs go to BUILD_DIR/corpus, findings to BUILD_DIR/findings; nothing in the source tree
# changes. CXX chooses the compiler (default clang++-14, or clang++).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
build="${1:?usage: tests/fuzz/run.sh BUILD_DIR [SECONDS]}"
seconds="${2:-60}"
compiler="${CXX:-$(command -v clang++-14 || command -v clang++ || true)}"
[ -n "$compiler" ] || { echo "run.sh: no clang++ here; install clang and libclang-rt" >&2; exit 2; }

launcher=()
command -v ccache > /dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake -S "$here" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" "${launcher[@]}" > /dev/null
cmake --build "$build"

network=(fuzz_wire fuzz_frames fuzz_http)
files=(fuzz_safetensors fuzz_norm_stats fuzz_config fuzz_trace)
for source in "$here"/fuzz_*.cc; do
  name="$(basename "$source" .cc)"
  [[ " ${network[*]} ${files[*]} " == *" $name "* ]] || { echo "run.sh: for how long is $name to run?" >&2; exit 2; }
done

# fuzz NAME SECONDS
fuzz() {
  local name="$1" log="$build/$1.log"
  mkdir -p "$build/corpus/$name"
  if "$build/$name" -max_total_time="$2" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -dict="$here/json.dict" -artifact_prefix="$build/findings/$name-" "$build/corpus/$name" "$here/corpus/$name" \
    > "$log" 2>&1; then
    echo "== $name: $2 s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs"
  else
    tail -n 40 "$log"
    echo "== $name FAILED; see $log and $build/findings" >&2
    return 1
  fi
}

mkdir -p "$build/findings"
failed=0 running=0
start() {
  if ((running == $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$@" &
  running=$((running + 1))
}
for name in "${network[@]}"; do start "$name" "$seconds"; done
for name in "${files[@]}"; do start "$name" $(((seconds + 3) / 4)); done
while ((running > 0)); do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"
