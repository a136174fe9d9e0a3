#!/usr/bin/env bash
# clang-tidy over the sources: scripts/tidy.sh [--changed [BASE]] [--seconds N]
#
#   --changed [BASE]   only files that differ from BASE (default origin/main, else the previous commit)
#   --seconds N        stop after N seconds (default: no limit)
# Findings are advice (a file takes about 15 s, too long for every CI run); exits 1 only when a file does not parse.
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

checked=()
for file in "${files[@]}"; do
  if grep -qF "/$file\"" build/cpu/compile_commands.json; then checked+=("$file"); fi
done
((${#checked[@]})) || exit 0

start=$SECONDS status=0
printf '%s\0' "${checked[@]}" |
  timeout "$limit" xargs -0 -n 1 -P "$(nproc)" "$tidy" -p build/cpu --quiet 2>/dev/null || status=$?
if ((status == 124)); then
  say "tidy: stopped after $limit s, not all of ${#checked[@]} files were checked"
  exit 0
fi
say "tidy: ${#checked[@]} files in $((SECONDS - start)) s"
exit "$((status != 0))"
