"""What grows with what: the CPU of one operation of a running gateway, over several orders of magnitude of everything that it
may have many of. `python -m tests.bench.growth` prints the charts of the page on growth.

A figure is CPU of the gateway's process, user and kernel, and the least of several repeats: what others do on the machine disturbs
it less than a clock. Charts show it as a multiple of its least.
"""

from __future__ import annotations

import math
import resource
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.bench.loops import processor_seconds
from tests.bench import loads, loads_flymq
from tests.bench.processes import Process, running

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, poll_hold: 600s,
            limits: {{connections: 20000, per_address: 20000}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0", limits: {{connections: 20000, per_address: 20000}}}}
storage: {{path: "{path}", free_space_floor: 1, durability: {{interval: 5ms}}}}
"""
REPEATS = 7
WIDTH, DECADES = 40, 4
Point = tuple[str, float]


def used(process: Process) -> float:
    found = processor_seconds(process.pid)
    assert found is not None
    return found


def least(process: Process, work: Callable[[], int]) -> float:
    """Microseconds of one operation; `work` says how many it was."""
    found = []
    for _ in range(REPEATS):
        before = used(process)
        count = work()
        found.append((used(process) - before) / count * 1e6)
    return min(found)


def ask(sock: socket.socket, frame: bytes) -> bytes:
    sock.sendall(frame)
    head = loads.receive(sock, 8)
    if head[2] != frame[2]:
        raise RuntimeError(f"refused: {loads.receive(sock, int.from_bytes(head[4:8]))!r}")
    return loads.receive(sock, int.from_bytes(head[4:8]))


def asking(sock: socket.socket, frames: Sequence[bytes]) -> Callable[[], int]:
    """One at a time."""

    def work() -> int:
        for frame in frames:
            ask(sock, frame)
        return len(frames)

    return work


def connections(process: Process) -> Iterator[Point]:
    """Others that are idle."""
    frame = loads_flymq.produce_frame(b"beside", 1024)
    with ExitStack() as stack:
        sock = stack.enter_context(loads.connect(process.ports["flymq"]))
        there = 1
        for many in (1, 10, 100, 1_000, 5_000):
            for _ in range(many - there):
                other = stack.enter_context(loads.connect(process.ports["flymq"]))
                ask(other, frame)
            there = many
            yield f"{many:,}", least(process, asking(sock, [frame] * 300))


def topics(process: Process) -> Iterator[Point]:
    """Each PRODUCE to the next topic."""
    with loads.connect(process.ports["flymq"]) as sock:
        frames: list[bytes] = []
        for many in (1, 10, 100, 1_000, 10_000, 50_000):
            fresh = [loads_flymq.produce_frame(b"many.%d" % number, 100) for number in range(len(frames), many)]
            for first in range(0, len(fresh), 500):  # a commit for many that are new
                some = fresh[first : first + 500]
                sock.sendall(b"".join(some))
                for _ in some:
                    head = loads.receive(sock, 8)
                    loads.receive(sock, int.from_bytes(head[4:8]))
            frames += fresh
            step = max(1, many // 300)
            yield f"{many:,}", least(process, asking(sock, (frames * 300)[: 300 * step : step]))


def records(process: Process) -> Iterator[Point]:
    """FETCH of one, at offsets all over the log."""
    topic, written = b"long", 0
    head = struct.pack(">H", len(topic)) + topic
    with loads.connect(process.ports["flymq"]) as sock:
        for many in (1_000, 10_000, 100_000, 1_000_000, 10_000_000):
            loads.produce(process.ports["rustlog"], topic, 100, 1_000, 4, (many - written) // 1_000)
            written = many
            places = [number * 7919 % many for number in range(300)]
            frames = [loads_flymq.frame(7, head + struct.pack(">iQi", 0, place, 1)) for place in places]
            yield f"{many:,}", least(process, asking(sock, frames))


def subscribers(process: Process) -> Iterator[Point]:
    """A delivery of BlipMQ, of a message that goes to all of them."""
    topic = b"news"
    frame = loads_flymq.produce_frame(topic, 100)
    subscribe = loads.frame(struct.pack(">BQH", 4, 9, len(topic)) + topic + b"\0")
    with ExitStack() as stack:
        publisher = stack.enter_context(loads.connect(process.ports["flymq"]))
        ask(publisher, frame)
        readers: list[tuple[socket.socket, bytes]] = []
        for many in (1, 10, 100, 1_000):
            while len(readers) < many:
                sock = stack.enter_context(loads.blipmq(process.ports["blipmq"]))
                sock.sendall(subscribe)
                number = int.from_bytes(loads.receive(sock, 21)[13:])
                readers.append((sock, loads.frame(struct.pack(">BQQ", 9, 5, number))))

            def work() -> int:
                rounds = max(1, 300 // len(readers))
                for _ in range(rounds):
                    for sock, poll in readers:
                        sock.sendall(poll)
                    ask(publisher, frame)
                    for sock, _poll in readers:
                        loads.receive(sock, int.from_bytes(loads.receive(sock, 4)))
                return rounds * len(readers)

            yield f"{many:,}", least(process, work)


def sizes(process: Process) -> Iterator[Point]:
    """PRODUCE of one message."""
    with loads.connect(process.ports["flymq"]) as sock:
        for name, size in (
            ("0 B", 0), ("1 KiB", 1 << 10), ("16 KiB", 16 << 10), ("256 KiB", 256 << 10), ("4 MiB", 4 << 20), ("16 MiB", 16 << 20),
        ):  # fmt: skip
            frame = loads_flymq.produce_frame(b"sized", size)
            yield name, least(process, asking(sock, [frame] * max(2, min(300, (8 << 20) // (size + 1)))))


CHARTS: Sequence[tuple[str, Callable[[Process], Iterator[Point]]]] = (
    ("PRODUCE of 1 KiB, one at a time, beside idle connections", connections),
    ("PRODUCE of 100 B, one at a time, each to the next topic", topics),
    ("FETCH of one record, at offsets all over a log of so many", records),
    ("POLL and delivery of 100 B, of a message to so many subscribers", subscribers),
    ("PRODUCE of one message of this size", sizes),
)


def chart(title: str, points: Sequence[Point]) -> str:
    """Bars as long as the logarithm of what they stand for: a tenfold is always the same step."""
    lowest = min(value for _name, value in points)
    lines = [title, ""]
    for name, value in points:
        ratio = value / lowest
        bar = "#" * (1 + round(WIDTH / DECADES * math.log10(ratio)))
        lines.append(f"{name:>12} {value:>10,.0f} µs {ratio:>8,.1f} x  {bar}")
    return "\n".join(lines)


@contextmanager
def gateway() -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "gateway.yaml"
        config.write_text(CONFIG.format(path=Path(directory) / "data"))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
        with running(command) as process:
            yield process


def main() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for title, measure in CHARTS:
        with gateway() as process:
            print(chart(title, list(measure(process))), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
