"""Makes tests/data/wire/messages.json: messages packed by the Python packages that robots use, and what they mean.

    python -m venv venv && venv/bin/pip install openpi-client==0.1.2 msgpack==1.2.1 msgpack-numpy==0.4.8 numpy==1.26.4
    venv/bin/python tools/make_wire_fixtures.py > tests/data/wire/messages.json

Any recent versions give the same bytes. `values` of every array are what NumPy's float64 conversion gives.
"""
import json

import msgpack
import msgpack_numpy
import numpy as np
from openpi_client import msgpack_numpy as openpi

NUMBERS = ["|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8",
           ">i2", ">i4", ">i8", ">u2", ">u4", ">u8", ">f2", ">f4", ">f8"]
cases = []


def add(name, data, **expected):
    cases.append({"name": name, "hex": data.hex(), **expected})


def array(value):
    return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.astype(np.float64).ravel().tolist()}


for pack_name, pack in (("openpi", openpi.packb), ("msgpack_numpy", lambda x: msgpack.packb(x, default=msgpack_numpy.encode))):
    for dtype in NUMBERS:
        value = np.arange(6).reshape(2, 3).astype(dtype)
        if value.dtype.kind == "f":
            value = (value - 1.5).astype(dtype)
        if value.dtype.kind == "i":
            value = (value - 3).astype(dtype)
        add(f"{pack_name} {dtype}", pack({"x": value}), **array(value))
        scalar = value.ravel()[1]
        if value.dtype.kind != "f" or value.dtype.itemsize != 8:
            add(f"{pack_name} scalar {dtype}", pack({"x": scalar}), number=float(scalar))
    add(f"{pack_name} float64 scalar", pack({"x": np.float64(-2.5)}), number=-2.5)
    add(f"{pack_name} no dimensions", pack({"x": np.array(1.25)}), **array(np.array(1.25)))
    add(f"{pack_name} empty", pack({"x": np.zeros((0, 3), np.float32)}), **array(np.zeros((0, 3), np.float32)))
    fortran = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    add(f"{pack_name} Fortran order", pack({"x": fortran}), **array(fortran))
    strided = np.arange(24, dtype=np.uint8).reshape(4, 6)[::-2, ::3]
    add(f"{pack_name} strided", pack({"x": strided}), **array(strided))
    for text in ("hi", "ä→𝄞", ""):
        add(f"{pack_name} <U {text!r}", pack({"x": np.array(text)}), text=text)
    add(f"{pack_name} >U", pack({"x": np.array("cup").astype(">U5")}), text="cup")
    add(f"{pack_name} |S", pack({"x": np.array(b"cup", dtype="S6")}), text="cup")
    add(f"{pack_name} one of <U", pack({"x": np.array(["cup"])}), text="cup")

# Keys of the other kind than the package writes.
shape = {"data": np.float32([1.5, 2.5]).tobytes(), "shape": [2]}
for marker, dtype, name in (("__ndarray__", "dtype", "openpi"), ("nd", "type", "msgpack_numpy")):
    for kind in ({}, {"kind": ""}, {"kind": "f"}):
        entry = {**shape, dtype: "<f4", marker: True, **(kind if marker == "nd" else {})}
        add(f"{name} str keys {kind}", msgpack.packb({"x": entry}), dtype="<f4", shape=[2], values=[1.5, 2.5])
        entry = {k.encode(): v for k, v in entry.items()}
        add(f"{name} bin keys {kind}", msgpack.packb({"x": entry}), dtype="<f4", shape=[2], values=[1.5, 2.5])
add("surplus data", msgpack.packb({"x": {b"__ndarray__": True, b"data": bytes(9), b"dtype": "<f4", b"shape": [2]}}),
    dtype="<f4", shape=[2], values=[0.0, 0.0])
add("str", openpi.packb({"x": "pick up the cup"}), text="pick up the cup")
add("np.str_", openpi.packb({"x": np.str_("cup")}), text="cup")
add("bytes", openpi.packb({"x": b"cup"}), text="cup")
add("list", openpi.packb({"x": [1, -2, 3.5, True]}), list=[1.0, -2.0, 3.5, 1.0])
add("tuple of scalars", openpi.packb({"x": (np.float32(0.5), np.int64(-7))}), list=[0.5, -7.0])
for number in (0, 1, -1, 127, 128, 255, 256, -32, -33, -128, -129, 65535, 65536, 2**31, -2**31, 2**53, 1.5, -0.0, 1e300):
    add(f"number {number}", openpi.packb({"x": number}), number=float(number))

# What must be refused, with a part of the message.
def refuse(name, data, *parts):
    cases.append({"name": name, "hex": data.hex(), "error": list(parts)})


def blob(**entries):
    return msgpack.packb({"cam": {"left": {key.encode(): value for key, value in entries.items()}}})


refuse("object array", msgpack.packb({"x": np.array([None, 1], dtype=object)}, default=msgpack_numpy.encode), "'x'", "O")
refuse("structured array", msgpack.packb({"x": np.zeros(2, dtype=[("a", "<f4")])}, default=msgpack_numpy.encode), "'x'", "V")
refuse("complex array", msgpack.packb({"x": np.zeros(2, dtype=np.complex64)}, default=msgpack_numpy.encode), "'x'", "<c8")
refuse("complex scalar", msgpack.packb({"x": np.complex64(1)}, default=msgpack_numpy.encode), "'x'")
refuse("dates", blob(__ndarray__=True, data=bytes(8), dtype="<M8[s]", shape=[1]), "cam/left", "<M8[s]")
refuse("void", blob(__ndarray__=True, data=bytes(8), dtype="|V2", shape=[4]), "cam/left", "|V2")
refuse("short data", blob(__ndarray__=True, data=bytes(11), dtype="<f4", shape=[3]), "cam/left", "12 bytes", "11")
refuse("huge shape", blob(__ndarray__=True, data=bytes(8), dtype="<f4", shape=[2**40, 2**40]), "cam/left")
refuse("negative shape", blob(__ndarray__=True, data=bytes(8), dtype="<f4", shape=[-1]), "cam/left")
refuse("shape of text", blob(__ndarray__=True, data=bytes(8), dtype="<f4", shape=["2"]), "cam/left")
refuse("too many dimensions", blob(__ndarray__=True, data=bytes(8), dtype="<f4", shape=[1] * 9), "cam/left")
refuse("no shape", blob(__ndarray__=True, data=bytes(8), dtype="<f4"), "cam/left", "shape")
refuse("no data", blob(__ndarray__=True, dtype="<f4", shape=[2]), "cam/left", "data")
refuse("no dtype", blob(__ndarray__=True, data=bytes(8), shape=[2]), "cam/left", "dtype")
refuse("data is text", blob(__ndarray__=True, data="12345678", dtype="<f4", shape=[2]), "cam/left", "text")
refuse("integer keys", msgpack.packb({"x": {1: 2}}), "'x'", "key")
refuse("extension", msgpack.packb({"x": msgpack.ExtType(5, b"abc")}), "'x'", "extension")
refuse("bytes after", msgpack.packb({"x": 1}) + b"\xc0", "4 of 5")
refuse("cut short", openpi.packb({"x": np.zeros(4)})[:-3], "cut short")
refuse("nothing", b"", "empty")
refuse("no msgpack", b"\xc1", "not msgpack")
refuse("pickle", b"\x80\x04\x95\x10", "bytes belong")
refuse("promise of 2^32 entries", bytes.fromhex("dfffffffff"), "cut short")
refuse("promise of 2^32 bytes", bytes.fromhex("c6ffffffff"), "cut short")
refuse("too deep", b"\x91" * 200 + b"\xc0", "deeper")
print("[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases) + "\n]")
