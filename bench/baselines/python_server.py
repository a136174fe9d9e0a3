"""A policy server in Python, for what the parts of openpi's cost: asyncio and `websockets`, msgpack with NumPy arrays, Pillow's
resize, the transforms of its ALOHA configuration in NumPy. Written from the protocol (docs/serving.md). The policy behind it is a
stub that answers constants, and a prompt's tokens are constants too, so that what a client waits is the server's own time;
pictures stay bytes, as a model on a card takes them. scripts/server_overhead.py measures it beside `tendon serve`.

    python_server.py        listens on a free port of 127.0.0.1 and names it on standard error

Needs websockets (13 or newer), msgpack, NumPy, Pillow."""
import asyncio
import sys
import time

import msgpack
import numpy as np
from PIL import Image
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

HORIZON, WIDTH, SIDE = 50, 32, 224
JOINTS = 14
CAMERAS = {"cam_high": "base_0_rgb", "cam_left_wrist": "left_wrist_0_rgb", "cam_right_wrist": "right_wrist_0_rgb"}
SIGNS = np.array([1, -1, -1, 1, 1, 1, 1] * 2)
GRIPPERS = [6, 13]
DELTA = np.array(([True] * 6 + [False]) * 2)


def pack_special(value):
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value)} cannot be sent")


def unpack_special(entries):
    if b"__ndarray__" in entries:
        return np.ndarray(buffer=entries[b"data"], dtype=np.dtype(entries[b"dtype"]), shape=entries[b"shape"])
    if b"__npgeneric__" in entries:
        return np.dtype(entries[b"dtype"]).type(entries[b"data"])
    return entries


def pack(value):
    return msgpack.packb(value, default=pack_special)


def unpack(message):
    return msgpack.unpackb(message, object_hook=unpack_special)


def resize_with_pad(picture):
    """(height, width, 3) uint8 to (224, 224, 3), its shape kept and black round it."""
    height, width = picture.shape[:2]
    if (height, width) == (SIDE, SIDE):
        return picture
    ratio = max(width / SIDE, height / SIDE)
    inner = int(width / ratio), int(height / ratio)
    out = Image.new("RGB", (SIDE, SIDE))
    out.paste(Image.fromarray(picture).resize(inner, Image.Resampling.BILINEAR), ((SIDE - inner[0]) // 2, (SIDE - inner[1]) // 2))
    return np.asarray(out)


class StubPolicy:
    """(50, 32) constants as the model's answer; everything round it as for a real one."""

    def __init__(self):
        self.actions = np.full((HORIZON, WIDTH), 0.25, np.float32)
        self.mean, self.std = np.full(JOINTS, 0.1), np.full(JOINTS, 0.5)
        self.tokens = np.zeros(48, np.int32)

    def infer(self, observation):
        state = SIGNS * observation["state"]
        x = state[GRIPPERS] * (0.05800 - 0.01844) + 0.01844
        angle = np.arcsin(np.clip((0.022**2 + x**2 - 0.036**2) / (2 * 0.022 * x), -1, 1))
        state[GRIPPERS] = (angle - 0.5476) / (1.6296 - 0.5476)
        pictures = {}
        for camera, name in CAMERAS.items():
            picture = observation["images"].get(camera)
            if picture is not None:
                pictures[name] = resize_with_pad(np.moveaxis(np.asarray(picture), 0, -1))
        masks = {name: np.asarray(name in pictures) for name in CAMERAS.values()}
        for name in CAMERAS.values():
            pictures.setdefault(name, np.zeros((SIDE, SIDE, 3), np.uint8))
        normalized = np.pad((state - self.mean) / (self.std + 1e-6), (0, WIDTH - JOINTS)).astype(np.float32)
        inputs = {"image": pictures, "image_mask": masks, "state": normalized, "tokens": self.tokens}
        inputs["image"] = {name: np.ascontiguousarray(picture)[np.newaxis] for name, picture in inputs["image"].items()}
        start = time.monotonic()
        actions = self.actions
        model_ms = (time.monotonic() - start) * 1e3
        actions = actions[:, :JOINTS] * (self.std + 1e-6) + self.mean
        actions += np.where(DELTA, state, 0)
        actions *= SIGNS
        actions[:, GRIPPERS] = (actions[:, GRIPPERS] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
        return {"actions": actions, "policy_timing": {"infer_ms": model_ms}}


async def answer(policy, connection):
    """One client: metadata, then a reply for each request, on the event loop like everything else."""
    try:
        await connection.send(pack({"reset_pose": [0, -1.5, 1.5, 0, 0, 0]}))
        previous_ms = None
        while True:
            began = time.monotonic()
            observation = unpack(await connection.recv())
            start = time.monotonic()
            reply = policy.infer(observation)
            reply["server_timing"] = {"infer_ms": (time.monotonic() - start) * 1e3}
            if previous_ms is not None:
                reply["server_timing"]["prev_total_ms"] = previous_ms
            await connection.send(pack(reply))
            previous_ms = (time.monotonic() - began) * 1e3
    except ConnectionClosed:
        pass


async def main():
    policy = StubPolicy()
    async with serve(lambda connection: answer(policy, connection), "127.0.0.1", 0, compression=None, max_size=None) as server:
        print(f"event=listening port={server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
