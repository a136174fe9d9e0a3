#!/usr/bin/env bash
# README's promises: the `sh` blocks under "Try it" and "Test" hold exactly `make demo` and `make test`, and the Makefile
# has these targets. With a heading as argument: print the commands under it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Lines of ```sh blocks below "## HEADING", up to the next heading of that level.
commands_under() {
  awk -v heading="## $1" '
    /^## / { inside = ($0 == heading) }
    /^```/ { block = (!block && $0 == "```sh"); next }
    inside && block && NF { print }
  ' README.md
}

if (($#)); then
  commands_under "$1"
  exit 0
fi

check() {
  local heading=$1 expected=$2 found
  found=$(commands_under "$heading")
  [[ $found == "$expected" ]] || die "README.md, \"$heading\": expected the command '$expected', found '$found'"
  grep -q "^${expected#make }:" Makefile || die "Makefile: no target for '$expected'"
}
check 'Try it' 'make demo'
check 'Test' 'make test'
say "README commands ok"
