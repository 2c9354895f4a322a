"""`gateway bench`: how fast a place takes and gives messages, and whether it gives what it took."""

from __future__ import annotations

import json
import os
import statistics
import zlib
from array import array
from struct import Struct

import attrs
import click
import trio

from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import examples, output_option
from gateway.cli.reading import Wish, read
from gateway.cli.url import PlaceType, UrlTarget
from gateway.envelope import Batch, Columns, Run
from gateway.requests import Publish, Published

HEAD = Struct(">8sIQI")
"""Which run of the bench, which connection, which message of it, CRC-32 of the rest."""


@attrs.frozen
class BenchPlan:
    messages: int
    size: int
    batch: int
    window: int
    connections: int


class BenchSource:
    """The messages of one connection, numbered; its requests under way are as many as the window."""

    def __init__(self, mark: bytes, number: int, plan: BenchPlan) -> None:
        self._mark = mark
        self._number = number
        self._batch = plan.batch
        self._filler = bytes(range(256)) * (plan.size // 256 + 1)
        self._size = plan.size
        self._next = 0
        self._count = plan.messages // plan.connections + (number < plan.messages % plan.connections)
        self.refused = 0
        self.latencies = array("d")

    def take(self) -> list[bytes]:
        first, self._next = self._next, min(self._next + self._batch, self._count)
        return [self._message(sequence) for sequence in range(first, self._next)]

    def _message(self, sequence: int) -> bytes:
        body = self._filler[sequence % 256 :][: self._size - HEAD.size]
        return HEAD.pack(self._mark, self._number, sequence, zlib.crc32(body)) + body


class Checker:
    """The sink that reads it all back: every message once, whole, and in the order of its connection."""

    def __init__(self, mark: bytes, plan: BenchPlan) -> None:
        self._mark = mark
        self.left: int | None = plan.messages
        self._last: dict[tuple[int, int], int] = {}
        """By connection and partition, the scope in which every protocol keeps order."""
        self._seen: list[set[int]] = [set() for _ in range(plan.connections)]
        self.damaged = self.disordered = self.repeated = 0

    def show(self, run: Run) -> None:
        """Check a run; messages of others do not count."""
        for value in run.columns.values():
            if len(value) < HEAD.size or value[:8] != self._mark:
                continue
            _, number, sequence, checksum = HEAD.unpack_from(value)
            if zlib.crc32(value[HEAD.size :]) != checksum:
                self.damaged += 1
            elif sequence in self._seen[number]:
                self.repeated += 1
                continue
            elif sequence < self._last.get((number, run.partition), -1):
                self.disordered += 1
            self._seen[number].add(sequence)
            self._last[number, run.partition] = sequence
            self.expect_fewer(1)

    def expect_fewer(self, messages: int) -> None:
        self.left = max(0, (self.left or 0) - messages)


@click.command(
    epilog=examples(
        "gateway bench rustlog://127.0.0.1:9192/bench --messages 1000000 --batch 1000",
        "gateway bench blipmq://127.0.0.1:5555/bench --api-key dev-key --connections 50 --batch 50 --window 1",
    )
)
@click.argument("place", type=PlaceType(), metavar="URL")
@click.option("--messages", "-n", type=click.IntRange(min=1), default=100_000, show_default=True, help="How many.")
@click.option("--size", type=click.IntRange(min=HEAD.size), default=100, show_default=True, help="Bytes of each.")
@click.option("--batch", type=click.IntRange(min=1), default=100, show_default=True, help="Messages in a request.")
@click.option("--window", type=click.IntRange(min=1), default=8, show_default=True, help="Requests under way at once.")
@click.option("--connections", type=click.IntRange(min=1), default=1, show_default=True, help="Publishers.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Give up after, in seconds."
)
@output_option
@dialling_options
def command(
    place: UrlTarget,
    messages: int,
    size: int,
    batch: int,
    window: int,
    connections: int,
    timeout: float,
    output: str,
    dialling: Dialling,
) -> int:
    """Publish as fast as a place takes it, and read everything back.

    Every message is numbered and carries a checksum: exit code 1 means that something was lost, damaged, repeated or out
    of its order. The figures include this command, which shares the machine's cores with what it measures.
    """
    plan = BenchPlan(messages, size, batch, window, min(connections, messages))
    report = run_until_interrupted(_bench, place, dialling, plan, timeout)
    click.echo(json.dumps(report) if output == "json" else _table(report))
    return 0 if report["lost"] == report["damaged"] == report["repeated"] == report["disordered"] == 0 else 1


async def _bench(place: UrlTarget, dialling: Dialling, plan: BenchPlan, timeout: float) -> dict[str, float]:
    mark = os.urandom(8)
    sources = [BenchSource(mark, number, plan) for number in range(plan.connections)]
    checker = Checker(mark, plan)
    began = published = finished = trio.current_time()

    async def reader(task_status: trio.TaskStatus[None]) -> None:
        async with connected(place, dialling) as connection:
            await read(connection, place, Wish(), checker, task_status.started)

    with trio.move_on_after(timeout):
        async with trio.open_nursery() as nursery:
            await nursery.start(reader)
            began = trio.current_time()
            async with trio.open_nursery() as publishers:
                for source in sources:
                    publishers.start_soon(_publish, place, dialling, plan, source, checker)
            published = trio.current_time()
        finished = trio.current_time()
    refused = sum(source.refused for source in sources)
    latencies = sorted(value for source in sources for value in source.latencies) or [0.0]
    taking = max(published - began, 1e-9)
    return {
        "messages": plan.messages,
        "published_per_second": round((plan.messages - refused) / taking),
        "megabytes_per_second": round((plan.messages - refused) * plan.size / taking / 1e6, 1),
        "read_per_second": round((plan.messages - refused - (checker.left or 0)) / max(finished - began, 1e-9)),
        "request_ms_p50": round(statistics.median(latencies) * 1e3, 3),
        "request_ms_p99": round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
        "refused": refused,
        "lost": checker.left or 0,
        "damaged": checker.damaged,
        "repeated": checker.repeated,
        "disordered": checker.disordered,
    }


async def _publish(
    place: UrlTarget, dialling: Dialling, plan: BenchPlan, source: BenchSource, checker: Checker
) -> None:
    async with connected(place, dialling) as connection:

        async def lane() -> None:
            while values := source.take():
                asked = trio.current_time()
                reply = await connection.request(Publish(0, Batch(place.address, Columns.of(values))), None)
                assert isinstance(reply, Published)
                source.latencies.append(trio.current_time() - asked)
                source.refused += len(reply.refused)
                checker.expect_fewer(len(reply.refused))

        async with trio.open_nursery() as lanes:
            for _ in range(plan.window):
                lanes.start_soon(lane)


def _table(report: dict[str, float]) -> str:
    width = max(map(len, report))
    return "\n".join(f"{name.replace('_', ' ').ljust(width)}  {value:>14,}" for name, value in report.items())
