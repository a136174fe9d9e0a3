#!/usr/bin/env bash
# The released openpi client against our server, in several versions of Python's packages (tests/wire/openpi):
#
#   scripts/openpi_clients.sh                       makes the environments in build/openpi; does nothing when they are there
#   scripts/openpi_clients.sh NAME TEST [ARG...]    runs the test program with TENDON_OPENPI_PYTHON set to that environment's Python
#
# Environments come from the package index of pip. Without one, exit status 77 says that the tests are skipped; with
# TENDON_NO_SKIP=1, as in .ci/run, it is a failure. TENDON_OPENPI_INTERPRETER is the Python they are made from (python3).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
list=tests/wire/openpi/environments.txt
root=$TENDON_ROOT/build/openpi
interpreter=${TENDON_OPENPI_INTERPRETER:-python3}

# Ends the script: nothing can be tested here, because of $1.
cannot() {
  if [[ ${TENDON_NO_SKIP:-0} == 1 ]]; then die "openpi_clients.sh: $1 (TENDON_NO_SKIP=1: this is a failure)"; fi
  say "openpi_clients.sh: skipped, the released openpi client cannot be run here: $1"
  exit 77
}

make_environment() {
  local name=$1 packages=$2 directory=$root/$1 log
  local stamp="$packages $("$interpreter" --version 2>&1)"
  if [[ -r $directory/made && $(<"$directory/made") == "$stamp" ]]; then return 0; fi
  command -v "$interpreter" >/dev/null || cannot "there is no $interpreter"
  say "making the Python environment '$name' in $directory"
  rm -rf "$directory"
  mkdir -p "$root"
  log=$root/$name.log
  if ! "$interpreter" -m venv "$directory" >"$log" 2>&1; then
    cannot "$interpreter -m venv failed ($log), $(tail -n 1 "$log")"
  fi
  # No dependencies beside the pinned ones, and no builds from source.
  # shellcheck disable=SC2086
  if ! "$directory/bin/python" -m pip install -q --disable-pip-version-check --retries 2 --timeout 30 --only-binary :all: --no-deps \
    $packages >"$log" 2>&1; then
    rm -rf "$directory"
    cannot "pip cannot install the packages of '$name' ($log), $(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")"
  fi
  printf '%s\n' "$stamp" >"$directory/made"
}

if (($# == 0)); then
  while read -r name packages; do
    [[ -z $name || $name == \#* ]] || make_environment "$name" "$packages"
  done <$list
  exit 0
fi

name=$1
shift
packages=$(sed -n "s/^$name  *//p" $list)
[[ -n $packages ]] || die "openpi_clients.sh: $list has no environment '$name'"
make_environment "$name" "$packages"
TENDON_OPENPI_PYTHON=$root/$name/bin/python exec "$@"
