#!/usr/bin/env bash
# Every number of the lists in docs/serving-cases.md has a row, and every test that it names exists.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
page=docs/serving-cases.md
failed=0
complain() {
  say "check_cases.sh: $*"
  failed=1
}

# The numbers of the section that begins with "## $1", one a line.
numbers() { sed -n "/^## $1/,/^## /s/^| \([0-9]*\) |.*/\1/p" $page; }
diff <(numbers 'Field cases') <(seq 25) >&2 || complain 'the field cases are not 1 to 25'
diff <(numbers 'Pitfalls') <(seq 26) >&2 || complain 'the pitfalls are not 1 to 26'

# "Suite.Test, Test, Suite": the tests of the sources, as "Suite Test".
tests=$(grep -rhoE 'TEST(_[FP])?\(\w+, \w+\)' tests | sed -E 's/TEST(_[FP])?\((\w+), (\w+)\)/\2 \3/')
named=0
while IFS= read -r row; do
  suite=
  # Only words that look like tests: capitals, outside of quotation marks and parentheses.
  for word in $(sed -E 's/^\|[^|]*\|[^|]*\|//; s/`[^`]*`//g; s/\([^)]*\)//g; s/[|;:,]/ /g' <<<"$row"); do
    [[ $word =~ ^([A-Z][A-Za-z0-9]*)(\.([A-Z][A-Za-z0-9]*)(…)?)?(…)?$ ]] || continue
    first=${BASH_REMATCH[1]} test=${BASH_REMATCH[3]} open=${BASH_REMATCH[4]}${BASH_REMATCH[5]}
    named=$((named + 1))
    if [[ -n $test ]]; then
      suite=$first
    elif [[ -n $suite ]]; then
      test=$first
    fi
    # A word alone is a suite, or one more test of the last one.
    if [[ -z $test ]]; then
      grep -q "^$first " <<<"$tests" || complain "no suite $first: $row"
    elif ! grep -qE "^$suite $test${open:+.*}\$" <<<"$tests"; then
      if [[ ${BASH_REMATCH[2]} ]] || ! grep -q "^$first " <<<"$tests"; then complain "no test $suite.$test: $row"; fi
    fi
  done
done < <(sed '/^## What/,$d' $page | grep -E '^\| [0-9]+ \|')
((named > 100)) || complain "only $named tests are named"
((failed == 0)) || exit 1
say "cases: $named names of tests in $page, all there"
