"""One log of a thousand to a hundred million records: what a record costs when it is written, kept, found and dropped, and what
a start costs beside it. Each length has a store of its own, which takes some 2 GB on the disk in the end.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import struct
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gateway.bench.loops import processor_seconds
from tests.bench import loads, loads_flymq
from tests.bench.growth_plot import GrowthChart
from tests.bench.processes import Process, running

CONFIG = """
version: 1
listeners:
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{path}", free_space_floor: 1, durability: {{interval: 5ms}}}}
topics: {{bounded: {{retention: {{bytes: {kept}}}}}}}
"""
LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
TOPIC = b"long"
RECORD, RECORDS, WINDOW = 8, 1_000, 16
"""Bytes of a record, records of a request, and requests under way."""
WARM = 50
"""Requests before that, for another topic; each may be a chunk."""
READS = 100
NEAR, SCATTER = 500, 7919
PATIENCE = 600.0

FILL, DISK, MEMORY, START, FIRST, MIDDLE, LAST, TIME, DROP, KEEP = (
    "CPU to store a record of 8 B, a thousand in a request",
    "Bytes on the disk for each of them",
    "Memory of a gateway that was started on them",
    "CPU of that start",
    "FETCH of one record near the start of the log",
    "FETCH of one record in the middle",
    "FETCH of one record near the end",
    "Offset for a time",
    "CPU to drop a record: the topic is deleted",
    "CPU to store a record in a topic that keeps about half of them",
)
UNITS: Mapping[str, str] = {
    FILL: "µs", DISK: "B", MEMORY: "MiB", START: "ms", FIRST: "µs", MIDDLE: "µs", LAST: "µs", TIME: "µs", DROP: "µs", KEEP: "µs",
}  # fmt: skip


def used(process: Process) -> float:
    found = processor_seconds(process.pid)
    assert found is not None
    return found


def ask(sock: socket.socket, frame: bytes) -> bytes:
    """One question to FlyMQ, and the answer."""
    sock.sendall(frame)
    head = loads.receive(sock, 8)
    body = loads.receive(sock, int.from_bytes(head[4:8]))
    if head[2] != frame[2]:
        raise RuntimeError(f"refused: {body!r}")
    return body


def ask_all(process: Process, frames: Sequence[bytes]) -> None:
    with loads.connect(process.ports["flymq"]) as sock:
        for frame in frames:
            ask(sock, frame)


@contextmanager
def serving(directory: Path, many: int) -> Iterator[Process]:
    config = directory / "gateway.yaml"
    config.write_text(CONFIG.format(path=directory / "data", kept=many * RECORD))
    with running(
        [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
    ) as process:
        yield process


def admin(process: Process, path: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.ports['admin']}{path}") as answer:
        found: Mapping[str, Any] = json.load(answer)
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)  # noqa: TID251  # no event loop here


def at_rest(process: Process) -> None:
    """Until it has nothing left to put in order."""
    before = [used(process)]

    def resting() -> bool:
        time.sleep(0.5)  # noqa: TID251  # no event loop here
        before.append(used(process))
        return before[-1] - before[-2] < 0.02

    until(resting)


def chunks(data: Path) -> int:
    with closing(sqlite3.connect(f"file:{data}/log.sqlite?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM chunks").fetchone()[0])


def reads(process: Process, begin: int, many: int) -> float:
    """CPU of one FETCH of one record, each at a place of its own within a hundredth of the log, and none where the one before it
    ended; in microseconds.
    """
    stretch = min(max(many // 100, NEAR), many)
    places = [min(begin, many - stretch) + number * SCATTER % stretch for number in range(READS)]
    head = struct.pack(">H", len(TOPIC)) + TOPIC
    frames = [loads_flymq.frame(7, head + struct.pack(">iQi", 0, place, 1)) for place in places]
    before = used(process)
    ask_all(process, frames)
    return (used(process) - before) / READS * 1e6


def measure(many: int, directory: Path) -> Mapping[str, float]:
    found: dict[str, float] = {}
    data = directory / "data"
    with serving(directory, many) as process:
        loads.produce(process.ports["rustlog"], b"warm", RECORD, RECORDS, WINDOW, WARM)
        began_at, before = time.time(), used(process)
        loads.produce(process.ports["rustlog"], TOPIC, RECORD, RECORDS, WINDOW, many // RECORDS)
        found[FILL] = (used(process) - before) / many * 1e6
        ended_at = time.time()
        (topic,) = admin(process, "/v1/topics?name=long")["topics"]
        if [partition["end"] for partition in topic["partitions"]] != [many]:
            raise RuntimeError(f"{many} records were acknowledged, and this is there: {topic}")
        at_rest(process)
    found[DISK] = sum(file.stat().st_size for file in data.iterdir()) / many
    with serving(directory, many) as process:
        found[START] = used(process) * 1e3
        found[MEMORY] = process.memory() / (1 << 20)
        ask_all(process, [loads_flymq.produce_frame(b"warm", 10)] * 20)
        reads(process, 0, 1)
        for name, begin in ((FIRST, 0), (MIDDLE, many // 2), (LAST, many - many // 100)):
            found[name] = reads(process, begin, many)
        admin(process, "/v1/topics?name=long")
        before = used(process)
        for number in range(READS):
            moment = int(1e3 * (began_at + (ended_at - began_at) * number / READS))
            admin(process, f"/v1/offset-for-time?topic=long&timestamp_ms={moment}")
        found[TIME] = (used(process) - before) / READS * 1e6
        at_rest(process)
        before = used(process)
        ask_all(process, [loads_flymq.frame(9, struct.pack(">H", len(TOPIC)) + TOPIC)])
        until(lambda: chunks(data) <= WARM)
        at_rest(process)
        found[DROP] = (used(process) - before) / many * 1e6
        before = used(process)
        loads.produce(process.ports["rustlog"], b"bounded", RECORD, RECORDS, WINDOW, many // RECORDS)
        at_rest(process)
        found[KEEP] = (used(process) - before) / many * 1e6
    return found


def charts(lengths: Sequence[int] = LENGTHS) -> Iterator[GrowthChart]:
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for many in lengths:
        with tempfile.TemporaryDirectory() as directory:
            for name, value in measure(many, Path(directory)).items():
                found[name].append((f"{many:,}", round(value, 4)))
    for name, points in found.items():
        yield GrowthChart("records", name, UNITS[name], points)
