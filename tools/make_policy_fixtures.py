#!/usr/bin/env python3
"""Makes tests/data/policy: resize checksums, small pictures and a tiny tokenizer with golden ids.

Needs numpy, pillow<13 and sentencepiece from PyPI; the files say which versions wrote them. Pillow 13 scales tall
pictures down along columns first, which changes single pixels by one; openpi's locked version does not.
Run from the repository root:
    python3 tools/make_policy_fixtures.py
The expected values come from Pillow and SentencePiece, not from tendon.
"""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
import PIL
import sentencepiece
from PIL import Image

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "policy"

# (height, width)
SIZES = [
    (480, 640), (640, 480), (720, 1280), (360, 640), (225, 225), (480, 848), (53, 37), (1, 1), (224, 224), (1080, 1920),
    (376, 672), (225, 300), (223, 224), (224, 223), (239, 100), (100, 239), (448, 448), (7, 300), (2, 2), (1000, 999),
]
SMALL = [("noise", 53, 37, 16, 16), ("noise", 9, 31, 12, 20), ("checker", 40, 30, 16, 16), ("point", 48, 64, 16, 16)]


def fnv1a64(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def picture(rule: str, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8; tests/unit/policy/resize_test.cc builds the same."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    if rule == "noise":
        value = np.arange(height * width * 3, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(0x9E3779B9)
        value = (value ^ (value >> np.uint32(15))) * np.uint32(2246822519)
        value = value ^ (value >> np.uint32(13))
        return (value >> np.uint32(24)).astype(np.uint8).reshape(height, width, 3)
    if rule == "checker":
        return (((x // 8 + y // 8) & 1) * 255).astype(np.uint8)
    if rule == "point":
        return (((y == height // 2) & (x == width // 2)) * 255).astype(np.uint8)
    if rule == "ramp":
        return ((x + 2 * y + 85 * c) & 255).astype(np.uint8)
    raise ValueError(rule)


def resize_with_pad(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """What openpi does to a camera picture, with Pillow doing the scaling."""
    if pixels.shape[:2] == (height, width):
        return pixels
    image = Image.fromarray(pixels)
    ratio = max(image.width / width, image.height / height)
    scaled = image.resize((int(image.width / ratio), int(image.height / ratio)), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (width, height), 0)
    canvas.paste(scaled, (int((width - scaled.width) / 2), int((height - scaled.height) / 2)))
    return np.asarray(canvas)


def make_resize() -> None:
    checksums = []
    for height, width in SIZES:
        for rule in ("noise", "checker", "point", "ramp"):
            out = resize_with_pad(picture(rule, height, width), 224, 224)
            checksums.append({"rule": rule, "height": height, "width": width, "fnv1a64": fnv1a64(out.tobytes())})
    small = []
    for rule, height, width, out_height, out_width in SMALL:
        out = resize_with_pad(picture(rule, height, width), out_height, out_width)
        small.append({"rule": rule, "height": height, "width": width, "out_height": out_height,
                      "out_width": out_width, "rgb": out.tobytes().hex()})
    write_json("resize.json", {"made_with": f"Pillow {PIL.__version__}", "checksums": checksums, "small": small})


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_file(width: int, height: int, depth: int, color: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(rows))
            + png_chunk(b"IEND", b""))


def make_images() -> None:
    folder = OUT / "images"
    folder.mkdir(exist_ok=True)
    pixels = np.asarray(Image.fromarray(picture("ramp", 40, 56)).resize((28, 20), Image.Resampling.BILINEAR))
    image = Image.fromarray(pixels)
    gray = image.convert("L")
    palette = image.quantize(16)
    alpha = image.copy()
    alpha.putalpha(gray)

    def save(name, picture_, **options):
        buffer = io.BytesIO()
        picture_.save(buffer, **options)
        (folder / name).write_bytes(buffer.getvalue())

    save("rgb.png", image, format="PNG")
    save("alpha.png", alpha, format="PNG")
    save("gray.png", gray, format="PNG")
    save("palette.png", palette, format="PNG")
    save("rgb.jpg", image, format="JPEG", quality=90, subsampling=2)
    save("rgb_444.jpg", image, format="JPEG", quality=90, subsampling=0)
    save("progressive.jpg", image, format="JPEG", quality=90, progressive=True)
    save("gray.jpg", gray, format="JPEG", quality=90)
    save("cmyk.jpg", image.convert("CMYK"), format="JPEG", quality=90)
    save("gif.png", image.quantize(16), format="GIF")  # the name lies on purpose
    height, width = pixels.shape[:2]
    wide = (pixels.astype(np.uint16) * 256 + 77).astype(">u2")  # the low byte must not matter
    rows = b"".join(b"\0" + wide[y].tobytes() for y in range(height))
    (folder / "rgb16.png").write_bytes(png_file(width, height, 16, 2, rows))
    (folder / "too_wide.png").write_bytes(png_file(20000, 4, 8, 2, b"\0" * 64))
    (folder / "too_many_pixels.png").write_bytes(png_file(16000, 16000, 8, 2, b"\0" * 64))

    expected = {}
    for path in sorted(folder.iterdir()):
        if path.name in ("cmyk.jpg", "gif.png", "too_wide.png", "too_many_pixels.png"):
            continue
        decoded = pixels if path.name == "rgb16.png" else np.asarray(Image.open(path).convert("RGB"))
        expected[path.name] = {"height": decoded.shape[0], "width": decoded.shape[1], "rgb": decoded.tobytes().hex()}
    write_json("images.json", {"made_with": f"Pillow {PIL.__version__}", "images": expected})


VERBS = ["pick up", "place", "open", "close", "fold", "move", "push", "uncap", "put away", "hand over"]
THINGS = ["the red cube", "the towel", "the pen", "a blue bowl", "the drawer", "the tupperware", "the left gripper"]
PLACES = ["on the table", "in the box", "next to the plate", "into the sink", "with both arms"]

TEXTS = [
    "", " ", "  ", "     ", "\n", "\n\n", "\n\n\n\n\n\n", "pick up the red cube", "Pick_Up the  CUBE", "fold the towel\n",
    "Task: pick up cube, State: 0 128 255;\nAction: ", "Task: fold the towel, State: -1 0 127 128 192 255 255;\nAction: ",
    "Task: , State: ;\nAction: ", "<mask>", "a <loc0000> b", "<bos>", "<s></s><unk><pad>", "tab\there", "crlf\r\nline",
    "caf\u00e9 na\u00efve", "\u6293\u4f4f\u7ea2\u8272\u7684\u65b9\u5757", "\U0001f916 robot", "A\u0300 \ufb01 \u2460",
    "1234567890", "3.14159", "\u2581literal", "\u00a0nbsp", "x" * 100, "the the the the", "!@#$%^&*()[]{}",
]
# Bytes that are not UTF-8, as hex.
MALFORMED = ["ff", "61ff62", "c3", "e29681e296", "f0808080", "eda080", "7069636bfe20757000"]


def corpus() -> list:
    lines = []
    for i in range(4000):
        verb, thing, place = VERBS[i % 10], THINGS[(i // 10) % 7], PLACES[(i // 70) % 5]
        state = " ".join(str((i * 37 + k * 101) % 256) for k in range(i % 9))
        lines.append(f"Task: {verb} {thing} {place}, State: {state}; Action: ")
        lines.append(f"{verb} {thing} {place}")
    return lines


def make_tokenizer() -> None:
    symbols = ["<mask>"] + ["\n" * n for n in range(1, 6)] + ["\u2581" * n for n in range(2, 6)] + ["<loc0000>"]
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model_file, model_type="bpe", vocab_size=560,
        byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True,
        normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        user_defined_symbols=symbols, pad_id=0, eos_id=1, bos_id=2, unk_id=3, num_threads=1, minloglevel=2)
    model = model_file.getvalue()
    (OUT / "tiny_tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = [{"hex": text.encode().hex(), "ids": processor.encode(text)} for text in TEXTS]
    cases += [{"hex": text, "ids": processor.encode(bytes.fromhex(text))} for text in MALFORMED]
    write_json("tokenizer.json", {"made_with": f"sentencepiece {sentencepiece.__version__}",
                                  "vocab_size": processor.vocab_size(), "cases": cases})


def write_json(name: str, value) -> None:
    (OUT / name).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    if int(PIL.__version__.split(".")[0]) >= 13:
        raise SystemExit("Pillow 13 and newer resize tall pictures in another order; install 'pillow<13'")
    OUT.mkdir(parents=True, exist_ok=True)
    make_resize()
    make_images()
    make_tokenizer()
