#!/usr/bin/env bash
# Installs what tendon needs from the distribution's packages. Safe to repeat: does nothing when all is present.
#
#   scripts/setup.sh                  compiler, build tools, libraries, test libraries
#   scripts/setup.sh --dev            these, clang-format, clang-tidy, clang with libFuzzer, Chromium for a test, for
#                                     AMD cards clang 22 and AMD's runtime library (which finds no card where there is none),
#                                     and Python environments of the released openpi client (scripts/openpi_clients.sh)
#   scripts/setup.sh --runtime-only   only the shared libraries that a built `tendon` loads
#   scripts/setup.sh --list           print the packages and stop
#
# Versions are those of Debian 12. Where the exact one cannot be had, a build of the same major.minor release is taken
# with a warning; of compilers and tools any newer release will do.
# TENDON_SKIP_SETUP=1 skips everything (other distributions: install the listed things by hand).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# name  Debian 12 version  kind (tool: this or newer; library: same major.minor)
build_packages='
build-essential      12.9                 tool
g++                  4:12.2.0-3           tool
cmake                3.25.1-1             tool
ninja-build          1.11.1-2~deb12u1     tool
ccache               4.8+really4.7.5-1    tool
libdnnl-dev          2.6.3-1              library
nlohmann-json3-dev   3.11.2-2             library
libcli11-dev         2.1.2+ds-1           library
libfmt-dev           9.1.0+ds1-2          library
libspdlog-dev        1:1.10.0+ds-0.4      library
libgtest-dev         1.12.1-0.2           library
libbenchmark-dev     1.7.1-1              library
libsentencepiece-dev 0.1.97-3+b1          library
sentencepiece        0.1.97-3+b1          library
libturbojpeg0-dev    1:2.1.5-2            library
libspng-dev          0.7.3-3              library
libboost-dev         1.74.0.3             library
libmsgpack-cxx-dev   4.1.3-1              library
zlib1g-dev           1:1.2.13.dfsg-1      library
'
dev_packages='
git                  1:2.39.5-0+deb12u3   tool
clang-format-14      1:14.0.6-12          library
clang-tidy-14        1:14.0.6-12          library
clang-14             1:14.0.6-12          library
libclang-rt-14-dev   1:14.0.6-12          library
libomp-14-dev        1:14.0.6-12          library
chromium             108.0.5359.94-1      tool
clang-22             1:22.1.8-1~deb12u1   tool
clang-tools-22       1:22.1.8-1~deb12u1   tool
lld-22               1:22.1.8-1~deb12u1   tool
llvm-22              1:22.1.8-1~deb12u1   tool
libamdhip64-5        5.2.3-8              library
python3-venv         3.11.2-1+b1          tool
'
runtime_packages='
libgomp1             12.2.0-14+deb12u1    tool
libdnnl2             2.6.3-1              library
libfmt9              9.1.0+ds1-2          library
libspdlog1.10        1:1.10.0+ds-0.4      library
libsentencepiece0    0.1.97-3+b1          library
libturbojpeg0        1:2.1.5-2            library
libspng0             0.7.3-3              library
zlib1g               1:1.2.13.dfsg-1      library
'

packages=$build_packages
list_only=0
developer=0
for argument in "$@"; do
  case $argument in
    --dev)
      packages=$build_packages$dev_packages
      developer=1
      ;;
    --runtime-only) packages=$runtime_packages ;;
    --list) list_only=1 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) die "setup.sh: unknown option '$argument' (try --help)" ;;
  esac
done

declare -a names=()
declare -A pinned=() kind=() installed=()
while read -r name version what; do
  [[ -n $name ]] || continue
  names+=("$name")
  pinned[$name]=$version
  kind[$name]=$what
done <<<"$packages"

if ((list_only)); then
  for name in "${names[@]}"; do printf '%-22s %s\n' "$name" "${pinned[$name]}"; done
  exit 0
fi
if [[ ${TENDON_SKIP_SETUP:-0} == 1 ]]; then
  say "setup skipped (TENDON_SKIP_SETUP=1)"
  exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is not a Debian or Ubuntu system, so setup.sh cannot install packages here."
  say "Install the equivalents of these, then run again with TENDON_SKIP_SETUP=1:"
  for name in "${names[@]}"; do printf '    %-22s %s\n' "$name" "${pinned[$name]}" >&2; done
  exit 1
fi

# "1:2.1.5-2" -> "2.1"
release_of() {
  local upstream=${1#*:}
  upstream=${upstream%%[-+~]*}
  local major=${upstream%%.*} rest=${upstream#*.}
  if [[ $rest == "$upstream" ]]; then printf '%s\n' "$major"; else printf '%s.%s\n' "$major" "${rest%%.*}"; fi
}

# Whether VERSION of package NAME will do in place of the pinned one.
acceptable() {
  local name=$1 version=$2
  if [[ $(release_of "$version") == "$(release_of "${pinned[$name]}")" ]]; then return 0; fi
  [[ ${kind[$name]} == tool ]] && dpkg --compare-versions "${version#*:}" ge "${pinned[$name]#*:}"
}

while read -r name version status; do
  [[ $status == installed ]] && installed[${name%%:*}]=$version
done < <(dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${names[@]}" 2>/dev/null || true)

missing=()
for name in "${names[@]}"; do
  if [[ -z ${installed[$name]:-} ]]; then
    missing+=("$name")
  elif [[ ${installed[$name]} != "${pinned[$name]}" ]] && ! acceptable "$name" "${installed[$name]}"; then
    say "warning: $name ${installed[$name]} is installed; tendon is tested with ${pinned[$name]}"
  fi
done
# What is not a package of the distribution. Status 77: no package index here, which the script has said.
finish() {
  if ((developer)); then scripts/openpi_clients.sh || (($? == 77)); fi
}
if ((${#missing[@]} == 0)); then
  finish
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    as_root=(sudo)
  else
    say "these packages are missing, and installing them needs root (or sudo):"
    say "  apt-get install --no-install-recommends ${missing[*]}"
    exit 1
  fi
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

say "installing: ${missing[*]}"
apt update || say "warning: the package lists could not be refreshed; trying with those at hand"

wanted=()
unavailable=()
for name in "${missing[@]}"; do
  mapfile -t versions < <(apt-cache madison "$name" 2>/dev/null | awk -F'|' '{ gsub(/ /, "", $2); print $2 }')
  choice=
  for version in "${versions[@]}"; do
    if [[ $version == "${pinned[$name]}" ]]; then
      choice=$version
      break
    fi
    if [[ -z $choice ]] && acceptable "$name" "$version"; then choice=$version; fi
  done
  if [[ -z $choice ]]; then
    unavailable+=("$name ${pinned[$name]} (on offer: ${versions[*]:-none})")
    continue
  fi
  [[ $choice == "${pinned[$name]}" ]] || say "warning: $name ${pinned[$name]} is not on offer; taking $choice"
  wanted+=("$name=$choice")
done
if ((${#unavailable[@]})); then
  say "the package sources of this system lack:"
  for line in "${unavailable[@]}"; do say "  $line"; done
  say "tendon is developed on Debian 12. Install these by hand, then run again with TENDON_SKIP_SETUP=1."
  exit 1
fi
apt install -y --no-install-recommends "${wanted[@]}"
finish
say "setup done"
