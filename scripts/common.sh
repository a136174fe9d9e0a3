# Shared by the scripts of this folder; meant to be sourced. Leaves the caller in the repository root.
# shellcheck shell=bash

TENDON_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$TENDON_ROOT" || exit 1

say() { printf 'tendon: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}

# The program of an installed Chromium; nothing without one.
find_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome || true; }

# Memory that a new process may use, in kB: what the kernel calls available, or less in a container with a limit.
available_memory_kb() {
  local available limit used cache
  available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  if [[ -r /sys/fs/cgroup/memory.max && -r /sys/fs/cgroup/memory.current ]]; then
    limit=$(</sys/fs/cgroup/memory.max)
    if [[ $limit != max ]]; then
      used=$(</sys/fs/cgroup/memory.current)
      cache=$(awk '/^inactive_file / { print $2 }' /sys/fs/cgroup/memory.stat)
      limit=$(((limit - used + ${cache:-0}) / 1024))
      ((limit >= available)) || available=$limit
    fi
  fi
  printf '%s\n' "$available"
}

# Compile jobs: one a core, and about 1.5 GB of memory for each.
build_jobs() {
  local jobs by_memory
  jobs=$(nproc)
  by_memory=$(($(available_memory_kb) / 1500000))
  ((jobs <= by_memory)) || jobs=$by_memory
  ((jobs >= 1)) || jobs=1
  printf '%s\n' "$jobs"
}

# Files of the repository that match the given patterns; works in a release archive too.
source_files() {
  if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory='*' ls-files -- "$@"
  else
    local pattern
    for pattern in "$@"; do
      find . -path ./build -prune -o -path './build-*' -prune -o -type f -name "$pattern" -print
    done | sed 's|^\./||' | sort
  fi
}
