#!/usr/bin/env bash
# clang-tidy over the sources: scripts/tidy.sh [--changed [BASE]] [--seconds N]
#
#   --changed [BASE]   only files that differ from BASE (default origin/main, else the previous commit)
#   --seconds N        start no further file after N seconds (default: no limit)
# Exits 1 when a check of .clang-tidy's WarningsAsErrors fires.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tidy=${CLANG_TIDY:-clang-tidy-14}
command -v "$tidy" >/dev/null || die "$tidy not found: run scripts/setup.sh --dev"

changed=0 base='' limit=0
while (($#)); do
  case $1 in
    --changed)
      changed=1
      if [[ ${2:-} && ${2:-} != --* ]]; then
        base=$2
        shift
      fi
      ;;
    --seconds)
      limit=${2:?--seconds needs a number}
      shift
      ;;
    *) die "tidy.sh: unknown option '$1'" ;;
  esac
  shift
done

[[ -f build/cpu/compile_commands.json ]] || scripts/build.sh cpu
if ((changed)); then
  git() { command git -c safe.directory='*' "$@"; }
  if [[ -z $base ]]; then
    if git rev-parse -q --verify origin/main >/dev/null; then base=origin/main; else base=HEAD~1; fi
  fi
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- 'src/*.cc' 'cli/*.cc')
else
  mapfile -t files < <(source_files 'src/*.cc' 'cli/*.cc')
fi

failed=0 done_count=0
start=$SECONDS
for file in "${files[@]}"; do
  if ((limit && SECONDS - start >= limit)); then
    say "tidy: time is up after $done_count of ${#files[@]} files"
    break
  fi
  grep -qF "/$file\"" build/cpu/compile_commands.json || continue
  "$tidy" -p build/cpu --quiet "$file" 2>/dev/null || failed=1
  done_count=$((done_count + 1))
done
say "tidy: $done_count files in $((SECONDS - start)) s"
exit "$failed"
