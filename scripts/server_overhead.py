#!/usr/bin/env python3
"""What a client waits beyond the model's call: `tendon serve` beside a Python server, in the same run.

    scripts/server_overhead.py [--tendon build/cpu/cli/tendon] [--seconds 20] [--rounds 3] [--wheels DIR] [--json FILE] [--markdown FILE]

Both get the requests of `pi0_aloha`, three cameras, from `tendon load` with one client; frames of 224 x 224, 640 x 480 and
1920 x 1080. `tendon serve` runs a tiny model that sees 224 x 224 and resizes on the CPU, the Python server
(bench/baselines/python_server.py) has a stub in the model's place. Overhead is a request's time at the client less
`policy_timing.infer_ms` of its reply. The servers take turns; a row is the median of its rounds. Exit code 1 when a reply is
lost or wrong; whether goals are met is in the table only.

The Python server's packages come from --python or, where there is no package index, from the wheels in --wheels (websockets,
msgpack, Pillow; NumPy too if the Python has none). TENDON_BIN=DIR takes `tendon` from there. Python 3.9.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zipfile

from tendon_process import ROOT, Server, default_binary, load, make_checkpoint, serve

PRESET = "pi0_aloha"
GOALS_MS = {(224, 224): {"p50": 0.5, "p99": 1.5}, (1080, 1920): {"p50": 8.0}}  # of `tendon serve`, by (height, width)
PYTHON_SERVER = ROOT / "bench/baselines/python_server.py"
VERSIONS = """
import platform, msgpack, numpy, PIL, websockets
numbers = (platform.python_version(), websockets.__version__, ".".join(map(str, msgpack.version)), numpy.__version__, PIL.__version__)
print(*numbers)"""


def unpack_wheels(folder, to):
    wheels = sorted(pathlib.Path(folder).glob("*.whl"))
    if not wheels:
        sys.exit(f"there are no wheels in {folder}")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(to)


def versions(python, environment):
    """Of the Python server's interpreter and packages; exits when it cannot run."""
    done = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{python} cannot run the Python server (--python, --wheels): {done.stderr.strip().splitlines()[-1]}")
    return dict(zip(("python", "websockets", "msgpack", "numpy", "pillow"), done.stdout.split()))


def measure(arguments, port, frame, seconds, *options):
    height, width = frame
    return load(arguments.tendon, port, seconds, "--height", str(height), "--width", str(width), *options)


def summary(rounds):
    """Medians over the rounds, and the rounds themselves."""
    overheads = [figures["ms"]["overhead"] for figures in rounds]
    row = {name: statistics.median(spread[name] for spread in overheads) for name in ("p50", "p99")}
    row["rounds"] = overheads
    row["model_p50"] = statistics.median(figures["ms"]["model"]["p50"] for figures in rounds)
    for count in ("replies", "lost", "wrong"):
        row[count] = sum(figures[count] for figures in rounds)
    return row


def table(rows):
    lines = ["| frames, 3 each | server | replies | overhead p50, ms | p99, ms | goal (p50, p99) |", "|---|---|---|---|---|---|"]
    for row in rows:
        goal = "" if row["server"] != "tendon" else ", ".join(
            f"{bound:g}: {'met' if row[name] <= bound else 'missed'}" for name, bound in GOALS_MS.get(tuple(row["frame"]), {}).items()
        )
        height, width = row["frame"]
        lines.append(f"| {width} × {height} | {row['server']} | {row['replies']} | {row['p50']:.3f} | {row['p99']:.3f} | {goal} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tendon", default=default_binary(), help="the binary")
    parser.add_argument("--python", default=sys.executable, help="that runs the Python server")
    parser.add_argument("--wheels", help="folder of wheels for it")
    parser.add_argument("--backend", default="cpu", help="that runs the tiny model")
    parser.add_argument("--resize-threads", type=int, help="of tendon serve")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each server with each frame size")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--markdown", help="also write the table to this file")
    arguments = parser.parse_args()
    frames = [(224, 224), (480, 640), (1080, 1920)]

    with contextlib.ExitStack() as running:
        environment = dict(os.environ)
        if arguments.wheels:
            packages = running.enter_context(tempfile.TemporaryDirectory())
            unpack_wheels(arguments.wheels, packages)
            environment["PYTHONPATH"] = packages
        packages = versions(arguments.python, environment)
        checkpoint = running.enter_context(tempfile.TemporaryDirectory())
        make_checkpoint(arguments.tendon, checkpoint, 224)
        resize = ["--resize", "host"]
        if arguments.resize_threads:
            resize += ["--resize-threads", str(arguments.resize_threads)]
        tendon = running.enter_context(serve(arguments.tendon, "--preset", PRESET, *resize, checkpoint=checkpoint, backend=arguments.backend))
        python = running.enter_context(Server([arguments.python, str(PYTHON_SERVER)], environment))
        servers = {"tendon": (tendon, ()), "Python": (python, ("--preset", PRESET, "--free-noise"))}  # and options of the load
        rows = []
        for frame in frames:
            for server, options in servers.values():
                measure(arguments, server.port, frame, min(1.0, arguments.seconds), *options)  # warm
            rounds = {name: [] for name in servers}
            for _ in range(arguments.rounds):
                for name, (server, options) in servers.items():
                    rounds[name].append(measure(arguments, server.port, frame, arguments.seconds, *options))
            rows += [{"frame": frame, "server": name, **summary(figures)} for name, figures in rounds.items()]

    figures = {
        "seconds": arguments.seconds,
        "backend": arguments.backend,
        "resize_threads": arguments.resize_threads,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": packages,
        "rows": rows,
    }
    print(table(rows))
    if arguments.markdown:
        pathlib.Path(arguments.markdown).write_text(table(rows), encoding="utf-8")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["lost"] or row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
