"""bench/baselines/python_server.py against the released openpi client's own functions, then scripts/server_overhead.py with few requests:

    server_overhead_test.py TENDON      with a Python of environments.txt, which runs the Python server too
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
from openpi_client import image_tools, msgpack_numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench/baselines"))
import python_server  # noqa: E402

random = np.random.default_rng(0)
for height, width in ((480, 640), (225, 225), (53, 37), (1080, 1920)):
    picture = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = image_tools.resize_with_pad(picture[np.newaxis], 224, 224)[0]
    assert np.array_equal(python_server.resize_with_pad(picture), wanted), f"resize of {width} x {height}"

observation = {"state": np.linspace(0.05, 0.7, 14), "images": {"cam_high": picture.transpose(2, 0, 1)}, "prompt": "lift"}
message = msgpack_numpy.packb(observation)
assert python_server.pack(observation) == message, "bytes of a request"
reply = python_server.StubPolicy().infer(python_server.unpack(message))
assert reply["actions"].shape == (50, 14) and reply["actions"].dtype == np.float64
# 0.25 of the model times 0.5 plus 0.1, the state added to all but the grippers, signs, gripper formula.
row = [0.275, -0.125, -0.075, 0.425, 0.475, 0.525, 0.659897, 0.625, 0.225, 0.275, 0.775, 0.825, 0.875, 0.659897]
assert np.allclose(reply["actions"], row, atol=1e-6), reply["actions"][0]

script = [sys.executable, str(ROOT / "scripts/server_overhead.py"), "--tendon", sys.argv[1]]
with tempfile.TemporaryDirectory() as folder:
    out, table = pathlib.Path(folder, "out.json"), pathlib.Path(folder, "out.md")
    short = ["--seconds", "0.3", "--rounds", "1", "--json", str(out), "--markdown", str(table)]
    subprocess.run([*script, *short], check=True, timeout=250)
    figures = json.loads(out.read_text())
    rows = {(tuple(row["frame"]), row["server"]): row for row in figures["rows"]}
    assert len(rows) == 6 and all(row["replies"] > 0 and 0 < row["p50"] <= row["p99"] for row in rows.values()), rows
    assert all(row["model_p50"] > 0 for row in rows.values()), rows
    assert figures["packages"]["websockets"] and table.read_text().count("\n") == 8

    # Wheels come first: with a broken one the Python server cannot run, which is said.
    with zipfile.ZipFile(pathlib.Path(folder, "broken.whl"), "w") as wheel:
        wheel.writestr("msgpack.py", "raise ImportError('from the wheel')\n")
    refused = subprocess.run([*script, "--wheels", folder], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and "from the wheel" in refused.stderr and "--wheels" in refused.stderr, refused
