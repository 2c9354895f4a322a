"""What grows with what: the CPU of one operation of a running gateway, over several orders of magnitude of everything that it
may have many of. `python -m tests.bench.growth [AXIS ...]` prints the charts of the page on growth, and keeps their figures and their
plot beside it; of an axis that is not asked for again the figures stay.

A figure is CPU of the gateway's process, user and kernel, and the least of several repeats: what others do on the machine disturbs
it less than a clock. Charts show it as a multiple of its least.
"""

from __future__ import annotations

import resource
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tests.bench import growth_log, loads, loads_flymq
from tests.bench.growth_log import ask, used
from tests.bench.growth_plot import GrowthChart, GrowthFigures, svg, text
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
FIGURES = Path("gateway/docs/images/growth.json")
PLOT = Path("gateway/docs/images/growth.svg")
Point = tuple[str, float]


def least(process: Process, work: Callable[[], int]) -> float:
    """Microseconds of one operation; `work` says how many it was."""
    found = []
    for _ in range(REPEATS):
        before = used(process)
        count = work()
        found.append((used(process) - before) / count * 1e6)
    return min(found)


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


CHARTS: Sequence[tuple[str, str, Callable[[Process], Iterator[Point]]]] = (
    ("connections", "PRODUCE of 1 KiB, one at a time, beside idle connections", connections),
    ("topics", "PRODUCE of 100 B, one at a time, each to the next topic", topics),
    ("subscribers", "POLL and delivery of 100 B, of a message to so many subscribers", subscribers),
    ("size", "PRODUCE of one message of this size", sizes),
)


@contextmanager
def gateway() -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "gateway.yaml"
        config.write_text(CONFIG.format(path=Path(directory) / "data"))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
        with running(command) as process:
            yield process


def measured(axis: str) -> Iterator[GrowthChart]:
    if axis == "records":
        yield from growth_log.charts()
    for name, title, measure in CHARTS:
        if name == axis:
            with gateway() as process:
                yield GrowthChart(name, title, "µs", list(measure(process)))


def kept_figures() -> Sequence[GrowthChart]:
    return msgspec.json.decode(FIGURES.read_bytes(), type=GrowthFigures).charts


def main(wanted: Sequence[str]) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    known = kept_figures()
    kept: list[GrowthChart] = []
    for axis in ("connections", "topics", "records", "subscribers", "size"):
        found = list(measured(axis)) if not wanted or axis in wanted else [one for one in known if one.axis == axis]
        for one in found:
            print(text(one), end="\n\n", flush=True)
        kept += found
    FIGURES.write_bytes(msgspec.json.format(msgspec.json.encode(GrowthFigures(kept))) + b"\n")
    PLOT.write_text(svg(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
