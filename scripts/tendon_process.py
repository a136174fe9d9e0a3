"""The `tendon` binary as a server and as its load, for the Python scripts of this folder. Python 3.9, standard library only."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent


def default_binary():
    """Of TENDON_BIN (scripts/gpu_bundle.sh), else of the CPU build."""
    folder = os.environ.get("TENDON_BIN")
    return str(pathlib.Path(folder) / "tendon" if folder else ROOT / "build/cpu/cli/tendon")


def environment_of(binary):
    """The environment to run `binary` in: libraries that the system lacks may lie beside it."""
    folder = str(pathlib.Path(binary).resolve().parent)
    path = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{path}" if path else folder}


class Server:
    """A server process, from when it listens to the end of the `with` block.

    Its standard error must get a line with `port=N` once it listens; `exit_code` is there after the block. Exits the
    program when the server ends before.
    """

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        said = []
        for line in self.process.stderr:
            said.append(line)
            found = re.search(r"event=listening .*port=(\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            sys.exit(f"the server did not start ({' '.join(command)}):\n{''.join(said[-20:])}")
        self.exit_code = None
        # The log, which must be read.
        threading.Thread(target=lambda: [None for _ in self.process.stderr], daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.exit_code = self.process.wait(150)


def make_checkpoint(binary, folder, image_size):
    """A tiny π0 with meaningless weights that sees pictures of image_size pixels a side, and ALOHA's statistics as zeros and ones."""
    synth = [binary, "synth", "--size", "tiny", "--image-size", str(image_size), "--out", str(folder)]
    subprocess.run(synth, check=True, stdout=subprocess.DEVNULL, env=environment_of(binary))
    width = {"mean": [0.0] * 14, "std": [1.0] * 14}
    assets = pathlib.Path(folder) / "assets/trossen"
    assets.mkdir(parents=True)
    (assets / "norm_stats.json").write_text(json.dumps({"norm_stats": {"state": width, "actions": width}}), encoding="utf-8")


def serve(binary, *options, checkpoint="synthetic:pi0-tiny", backend="cpu"):
    """`tendon serve` of a tiny model with meaningless weights, on one thread of the CPU or on a card, on any free port."""
    command = [binary, "serve", "--checkpoint", str(checkpoint), "--tokens", "2,5,7", "--backend", backend, "--threads", "1"]
    return Server([*command, "--port", "0", *options], environment_of(binary))


def load(binary, port, seconds, *options):
    """The figures of `tendon load`; exits the program when there are none."""
    command = [binary, "load", "--url", f"ws://127.0.0.1:{port}", "--seconds", str(seconds), "--json", "-", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment_of(binary))
    if not done.stdout:
        sys.exit(f"tendon load failed: {done.stderr}")
    return json.loads(done.stdout)
