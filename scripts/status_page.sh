#!/usr/bin/env bash
# Opens the server's status page in headless Chromium and looks at what it shows:
#   scripts/status_page.sh [TENDON] [SCREENSHOT.png]      (default build/cpu/cli/tendon, no screenshot)
# Exit status 77: there is no Chromium here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tendon=${1:-build/cpu/cli/tendon}
screenshot=${2:-}
browser=$(find_chromium)
if [[ -z $browser ]]; then
  [[ ${TENDON_NO_SKIP:-0} != 1 ]] || die 'status_page.sh: no Chromium here, and TENDON_NO_SKIP=1'
  say "status_page.sh: no Chromium here; skipped"
  exit 77
fi

work=$(mktemp -d)
server=
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

"$tendon" serve --checkpoint synthetic:pi0-tiny --preset pi0_droid --tokens 2,5,7 --threads 1 --port 0 2>"$work/log" &
server=$!
port=
for _ in $(seq 600); do
  port=$(sed -n 's/.*event=listening .*port=\([0-9]*\).*/\1/p' "$work/log")
  [[ -z $port ]] || break
  kill -0 "$server" 2>/dev/null || die "status_page.sh: the server did not start: $(cat "$work/log")"
  sleep 0.1
done
[[ -n $port ]] || die 'status_page.sh: the server does not listen'
"$tendon" load --url "ws://127.0.0.1:$port" --clients 2 --seconds 2 --json "$work/load.json" >/dev/null
# One client whose message is no observation, for the table of errors.
if "$tendon" load --url "ws://127.0.0.1:$port" --preset pi0_aloha --clients 1 --seconds 0.2 >/dev/null 2>&1; then
  die 'status_page.sh: a request of another robot was answered'
fi

visit() { timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
  --window-size=1000,760 --virtual-time-budget=4000 "$@" "http://127.0.0.1:$port/" 2>"$work/browser"; }
visit --dump-dom >"$work/page.html"
require() {
  grep -q -- "$1" "$work/page.html" || { cat "$work/page.html" >&2; die "status_page.sh: the page does not show '$1'"; }
}
require '<h1 id="model">pi0 · pi0_droid</h1>'
require 'chunks of 10 × 8'
require '<b>0</b><span>clients</span>'
require '<span>p99 ms</span>'
require 'lacks the key'
require '<div id="trouble"></div>'
requests=$(sed -n 's/.*<b>\([0-9]*\)<\/b><span>requests<\/span>.*/\1/p' "$work/page.html")
((requests > 2)) || die "status_page.sh: the page shows ${requests:-no} requests"
if [[ -n $screenshot ]]; then
  visit --screenshot="$work/page.png"
  cp "$work/page.png" "$screenshot"
fi
say "status page: $requests requests shown, as it should be"
