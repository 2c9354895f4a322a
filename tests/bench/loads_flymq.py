"""FlyMQ in the benchmark: PRODUCE and FETCH as stock clients send them, the gateway and the bare loop in turns.

The topics are synced within 5 ms, which is what the original does. Everything produced is read back and counted.
"""

from __future__ import annotations

import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.bench.loads import ask_side_by_side, connect, receive
from tests.bench.processes import Process, running

ROUNDS = 3
FIXED = 8 + 2 + 28
"""What the answer to a PRODUCE has beside the topic's name."""
Report = Callable[[str, str, str, str], None]
Load = Callable[[int, bytes], tuple[int, float]]


def frame(op: int, payload: bytes) -> bytes:
    """A whole frame."""
    return struct.pack(">BBBBI", 0xAF, 1, op, 1, len(payload)) + payload


def produce_frame(topic: bytes, size: int) -> bytes:
    """PRODUCE without a key, to a partition that the server chooses."""
    value = struct.pack(">I", size) + b"x" * size
    return frame(1, struct.pack(">H", len(topic)) + topic + bytes(4) + value + b"\xff" * 4)


def produce(port: int, topic: bytes, size: int, connections: int, each: int) -> tuple[int, float]:
    """One at a time on each of some connections."""
    socks = {sock.fileno(): sock for sock in (connect(port) for _ in range(connections))}
    one, answer = produce_frame(topic, size), FIXED + len(topic)
    first = next(iter(socks.values()))
    first.sendall(one)  # makes the topic
    receive(first, answer)
    return connections * each, ask_side_by_side(socks, one, answer, each)


def pipelined(port: int, topic: bytes, size: int, block: int, blocks: int) -> tuple[int, float]:
    """Blocks of PRODUCEs, two of them under way."""
    with connect(port) as sock:
        one, answers = produce_frame(topic, size), block * (FIXED + len(topic))
        sock.sendall(one)
        receive(sock, FIXED + len(topic))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        many = one * block
        started = time.perf_counter()
        sock.sendall(many)
        for number in range(blocks):
            if number + 1 < blocks:
                sock.sendall(many)
            receive(sock, answers)
        return block * blocks, time.perf_counter() - started


def fetch(port: int, topic: bytes, most: int, records: int) -> tuple[int, float]:
    """FETCH by FETCH from the start, with the suffix by which newer stock clients show themselves."""
    head = struct.pack(">H", len(topic)) + topic
    with connect(port) as sock:
        offset = 0
        started = time.perf_counter()
        while offset < records:
            sock.sendall(frame(7, head + struct.pack(">iQiH", 0, offset, most, 0)))
            op, length = struct.unpack(">xxBxI", receive(sock, 8))
            answer = receive(sock, length)
            count, following = struct.unpack_from(">IQ", answer)
            if op != 7 or not count or following != offset + count:
                raise RuntimeError(f"FETCH at {offset}: operation {op}, {count} records, next {following}")
            offset = following
        return offset, time.perf_counter() - started


def two_segments(port: int, topic: bytes, size: int, times: int) -> tuple[float, float]:
    """(median, longest) seconds of a PRODUCE whose header and payload are sent apart, with Nagle's algorithm."""
    one, answer = produce_frame(topic, size), FIXED + len(topic)
    taken: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        for _ in range(times):
            started = time.perf_counter()
            sock.sendall(one[:8])
            sock.sendall(one[8:])
            receive(sock, answer)
            taken.append(time.perf_counter() - started)
    return statistics.median(taken), max(taken)


@contextmanager
def bare(mode: str = "unsynced") -> Iterator[int]:
    """The bare loop; yields its port."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.bench.bare_flymq", mode, directory]
        with running(command) as process:
            yield process.ports["flymq"]


def flymq(process: Process, report: Report) -> None:
    """Producing and fetching over FlyMQ."""
    served = process.ports["flymq"]
    produced: list[tuple[bytes, int]] = []

    def compare(name: str, topic: bytes, load: Load, meant: str) -> None:
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(ROUNDS):
            count, seconds = load(mark, topic)
            theirs.append(count / seconds)
            own = topic + b".%d" % number
            count, seconds = load(served, own)
            produced.append((own, count + 1))
            ours.append(count / seconds)
        mine, best = statistics.median(ours), statistics.median(theirs)
        report(f"FlyMQ {name}", f"{mine:,.0f}/s", f"{mine / best:.2f} of {best:,.0f}", meant)

    with bare() as mark:
        compare(
            "PRODUCE 1 KiB, one at a time, 5 ms", b"lazy.one",
            lambda port, topic: produce(port, topic, 1024, 1, 4000), "10 k/s",
        )  # fmt: skip
        compare(
            "PRODUCE 1 KiB, 16 connections, 5 ms", b"lazy.sixteen",
            lambda port, topic: produce(port, topic, 1024, 16, 600), "30 k/s",
        )  # fmt: skip
        compare(
            "PRODUCE 1 KiB, pipelined, 5 ms", b"lazy.pipelined",
            lambda port, topic: pipelined(port, topic, 1024, 500, 100), "200 k/s",
        )  # fmt: skip
        for topic, count in produced:
            fetch(served, topic, 10_000, count)  # raises where something is missing
        for chunk in (100, 900):
            topic = b"lazy.read.%d" % chunk
            written, _ = pipelined(served, topic, 100, chunk, 90_000 // chunk)
            ours = [written / fetch(served, topic, 500, written)[1] for _ in range(ROUNDS)]
            theirs = [written / fetch(mark, topic, 500, written)[1] for _ in range(ROUNDS)]
            mine, best = statistics.median(ours), statistics.median(theirs)
            name = f"FlyMQ FETCH of 500 x 100 B, written {chunk} at a time"
            report(name, f"{mine:,.0f}/s", f"{mine / best:.2f} of {best:,.0f}", "1 M/s")
        ours_ms, longest = two_segments(served, b"lazy.large", 60 << 10, 300)
        theirs_ms, _ = two_segments(mark, b"lazy.large", 60 << 10, 300)
        figure = f"{ours_ms * 1e3:.2f} ms, max {longest * 1e3:.0f}"
        report("FlyMQ PRODUCE 60 KiB in two segments", figure, f"bare {theirs_ms * 1e3:.2f} ms", "no 40 ms")
