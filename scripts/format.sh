#!/usr/bin/env bash
# Formats every source file with clang-format 14, or checks that nothing would change: scripts/format.sh [--check]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

formatter=${CLANG_FORMAT:-clang-format-14}
command -v "$formatter" >/dev/null || die "$formatter not found: run scripts/setup.sh --dev"

mapfile -t files < <(source_files '*.h' '*.hpp' '*.cc' '*.cu' '*.cuh' '*.hip')
existing=()
for file in "${files[@]}"; do [[ -f $file && ! -L $file ]] && existing+=("$file"); done
((${#existing[@]})) || exit 0

case ${1:-} in
  '') "$formatter" -i --style=file "${existing[@]}" ;;
  --check)
    "$formatter" --style=file --dry-run --Werror "${existing[@]}" || die "not formatted: run 'make format'"
    say "format: ${#existing[@]} files ok"
    ;;
  *) die "format.sh: unknown option '$1' (only --check)" ;;
esac
