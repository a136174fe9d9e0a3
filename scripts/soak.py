#!/usr/bin/env python3
"""Serves a tiny model for a long time to clients of every kind, and looks at what the well-behaved ones notice.

    scripts/soak.py [--tendon build/cpu/cli/tendon] [--seconds 600] [--clients 64] [--json FILE]

The first tenth of the time `tendon load` runs alone, the rest beside 1,000 connections that are opened and closed, 50
clients that are killed while their request runs, and 10 that send and never read. Fails (exit code 1) when a reply is lost
or wrong, the server's memory grows by more than 1 %, or the load's p99 becomes more than 1.2 times what it was alone.
TENDON_BIN=DIR takes `tendon` from there; libraries may lie beside it. Ends at most 15 s after --seconds when all is well.
Python 3.9, standard library only.
"""

import argparse
import json
import re
import socket
import struct
import sys
import threading
import time

from tendon_process import default_binary, load, serve

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: soak\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def text(value):
    raw = value.encode()
    return bytes([0xD9, len(raw)]) + raw


def array(dtype, shape, data):
    sizes = b"".join(b"\xcd" + struct.pack(">H", n) for n in shape)
    bin8 = lambda raw: bytes([0xC4, len(raw)]) + raw
    body = bin8(b"__ndarray__") + b"\xc3" + bin8(b"data") + b"\xc6" + struct.pack(">I", len(data)) + data
    return b"\x84" + body + bin8(b"dtype") + text(dtype) + bin8(b"shape") + bytes([0x90 | len(shape)]) + sizes


def droid_request():
    """One observation of the DROID presets, as a masked WebSocket frame (mask 0)."""
    picture = array("|u1", (224, 224, 3), bytes(224 * 224 * 3))
    numbers = lambda n: array("<f8", (n,), bytes(8 * n))
    entries = [
        ("observation/exterior_image_1_left", picture),
        ("observation/wrist_image_left", picture),
        ("observation/joint_position", numbers(7)),
        ("observation/gripper_position", numbers(1)),
        ("prompt", text("soak")),
    ]
    message = bytes([0x80 | len(entries)]) + b"".join(text(key) + value for key, value in entries)
    return b"\x82\xff" + struct.pack(">Q", len(message)) + bytes(4) + message


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(HANDSHAKE)
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = connection.recv(4096)
        if not piece:
            raise ConnectionError("the server hung up in the handshake")
        answer += piece
    if b" 101 " not in answer.split(b"\r\n")[0] + b" ":
        raise ConnectionError(answer.split(b"\r\n")[0].decode())
    return connection


def kill(connection):
    """Ends the connection with a reset, as the kernel does for a killed process."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * 1024


class Trouble(threading.Thread):
    """Opens, kills and ignores, spread over `seconds`."""

    def __init__(self, port, seconds):
        super().__init__(daemon=True)
        self.port, self.seconds = port, seconds
        self.cycles = self.killed = self.deaf = 0
        self.error = None

    def run(self):
        try:
            request = droid_request()
            deaf = []
            for _ in range(10):
                connection = socket.socket()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", self.port))
                connection.sendall(HANDSHAKE)
                connection.setblocking(False)
                deaf.append([connection, b""])  # and what of its current request is not sent yet
            self.deaf = len(deaf)
            for i in range(1000):
                started = time.monotonic()
                connect(self.port).close()
                self.cycles += 1
                if i % 20 == 0:
                    victim = connect(self.port)
                    victim.sendall(request)
                    kill(victim)
                    self.killed += 1
                for pair in deaf:
                    try:
                        rest = pair[1] or request
                        pair[1] = rest[pair[0].send(rest) :]
                    except BlockingIOError:
                        pass  # the server does not read on: as it should be
                time.sleep(max(0.0, self.seconds / 1000 - (time.monotonic() - started)))
        except (OSError, ConnectionError) as error:
            self.error = str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tendon", default=default_binary())
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second of each client")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()

    def run_load(seconds):
        clients = ("--clients", str(arguments.clients), "--rate", str(arguments.rate))
        return load(arguments.tendon, server.port, seconds, *clients)

    with serve(arguments.tendon, "--preset", "pi0_droid", "--log-requests") as server:
        alone = run_load(arguments.seconds / 10)
        rest = arguments.seconds * 9 / 10
        trouble = Trouble(server.port, rest * 0.95)
        trouble.start()
        memory = []
        stop = threading.Event()

        def watch():
            while not stop.wait(min(5.0, rest / 60)):
                memory.append(resident_bytes(server.process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        beside = run_load(rest)
        stop.set()
        watcher.join()
        trouble.join(60)

    part = max(1, len(memory) // 6)
    early = sorted(memory[part : 2 * part])[part // 2]
    late = sorted(memory[-part:])[part // 2]
    figures = {
        "seconds": arguments.seconds,
        "clients": arguments.clients,
        "replies": alone["replies"] + beside["replies"],
        "lost": alone["lost"] + beside["lost"],
        "wrong": alone["wrong"] + beside["wrong"],
        "connect_cycles": trouble.cycles,
        "killed": trouble.killed,
        "never_read": trouble.deaf,
        "p50_ms_alone": alone["ms"]["total"]["p50"],
        "p50_ms_beside": beside["ms"]["total"]["p50"],
        "p99_ms_alone": alone["ms"]["total"]["p99"],
        "p99_ms_beside": beside["ms"]["total"]["p99"],
        "memory_early_bytes": early,
        "memory_late_bytes": late,
        "memory_growth": late / early - 1,
        "memory_bytes": memory[:: max(1, len(memory) // 20)],  # over the time beside the others
        "server_exit_code": server.exit_code,
        "trouble_error": trouble.error,
    }
    print(json.dumps(figures, indent=2))
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(json.dumps(figures, indent=2) + "\n")
    failed = []
    if figures["lost"] or figures["wrong"] or server.exit_code or trouble.error:
        failed.append("replies lost or wrong, or the server failed")
    if figures["memory_growth"] > 0.01:
        failed.append("the memory grows")
    if figures["p99_ms_beside"] > 1.2 * figures["p99_ms_alone"]:
        failed.append("p99 above 1.2 times that of the load alone")
    for reason in failed:
        print("soak: " + reason, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
