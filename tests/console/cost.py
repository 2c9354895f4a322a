"""What an open page costs the gateway: its processor time with and without one, taken in turns under the same load.

    python -m tests.console.cost [rounds] [seconds]

Prints, for each round, per cent of a core without a page, with one, and the difference. 10 000 messages a second, 1 000 topics.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.integration.running import Served, started

MESSAGES, TOPICS = 10_000, 1_000
CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1, durability: none}}
topics: {{"**": {{retention: {{bytes: 1MiB}}}}}}
"""


def produce(topic: str, value: bytes) -> bytes:
    """FlyMQ document, PRODUCE."""
    payload = struct.pack(">H", len(topic)) + topic.encode() + struct.pack(">I", 0)
    payload += struct.pack(">I", len(value)) + value + struct.pack(">i", 0)
    return struct.pack(">BBBBI", 0xAF, 1, 1, 1, len(payload)) + payload


def answered(sock: socket.socket) -> None:
    """One answer; ConnectionResetError where the other end is gone, in whichever way it went."""
    length = struct.unpack_from(">I", whole(sock, 8), 4)[0]
    whole(sock, length)


def whole(sock: socket.socket, length: int) -> bytes:
    found = sock.recv(length, socket.MSG_WAITALL)
    if len(found) < length:
        raise ConnectionResetError("the connection was ended before the answer was")
    return found


def publish(port: int, topic: str, values: Sequence[bytes]) -> None:
    """Messages to one topic; when this returns they are stored."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"".join(produce(topic, value) for value in values))
        for _ in values:
            answered(sock)


def load(port: int, ended: threading.Event, sent: list[int]) -> None:
    """A hundred messages to one topic, a hundred times a second; how many is told."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        due = time.monotonic()
        number = 0
        while not ended.is_set():
            number += 1
            sock.sendall(produce(f"topic.{number % TOPICS}", b"x" * 100) * 100)
            for _ in range(100):
                answered(sock)
            sent[0] += 100
            due = max(due + 100 / MESSAGES, time.monotonic() - 1)
            ended.wait(max(0.0, due - time.monotonic()))


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(port: int, seconds: float) -> None:
    """An open page: its stream of events, and every five seconds the list of topics anew, as the page's script asks for it."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        sock.settimeout(0.2)
        until, again = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < until:
            if time.monotonic() >= again:
                again += 5
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/topics") as page:
                    assert b"topic." in page.read()
            try:
                sock.recv(1 << 16)
            except TimeoutError:
                continue


def measured(served: Served, seconds: float, *, page: bool) -> float:
    before, at = processor_seconds(served.pid), time.monotonic()
    if page:
        watched(served.ports["admin"], seconds)
    else:
        threading.Event().wait(seconds)
    return 100 * (processor_seconds(served.pid) - before) / (time.monotonic() - at)


def main(rounds: int = 6, seconds: float = 10.0) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with started(directory, CONFIG.format(data=directory / "data")) as served:
            ended, sent = threading.Event(), [0]
            thread = threading.Thread(target=load, args=(served.ports["flymq"], ended, sent))
            thread.start()
            try:
                measured(served, 12, page=True)  # every topic is there, everything is loaded
                found = []
                sent[0], began = 0, time.monotonic()
                for _ in range(rounds):
                    without, beside = (measured(served, seconds, page=page) for page in (False, True))
                    found.append(beside - without)
                    print(f"without {without:5.1f} %, with a page {beside:5.1f} %, difference {found[-1]:+5.2f} %")
                print(f"{sent[0] / (time.monotonic() - began):.0f} messages a second")
                print(f"median difference {sorted(found)[len(found) // 2]:+.2f} % of a core")
            finally:
                ended.set()
                thread.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
