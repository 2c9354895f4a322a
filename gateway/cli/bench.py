"""`gateway bench`: how fast places take messages, how long they take for it, and whether they give what they took."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from struct import Struct
from time import perf_counter

import attrs
import click
import msgspec
import trio

from gateway.bench.figures import WORKLOADS, Comparison, Round, Workload, as_json, quantiles, table
from gateway.bench.loops import BenchTarget, Fill, compared, run_round
from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import SecondsType, examples, output_option
from gateway.cli.reading import Wish, read
from gateway.cli.url import PlaceType, UrlTarget
from gateway.envelope import Batch, Columns, Run
from gateway.errors import RequestTimeout
from gateway.protocols.registry import ReaderPosition
from gateway.requests import Publish, Published
from gateway.transport.client import Connection

HEAD = Struct(">8sIQI")
"""Which run of the bench, which connection, which message of it, CRC-32 of the rest."""
WRONG = ("lost", "damaged", "repeated", "disordered")


class BenchSource:
    """The messages of one connection, numbered."""

    def __init__(self, mark: bytes, number: int, plan: Workload) -> None:
        self._mark = mark
        self._number = number
        self._batch = plan.batch
        self._filler = bytes(range(256)) * (plan.size // 256 + 1)
        self._size = plan.size
        self._next = 0
        self._count = plan.shares[number]
        self.sent = array("d")
        """When each was."""

    def take(self) -> list[bytes]:
        first, self._next = self._next, min(self._next + self._batch, self._count)
        self.sent.extend([perf_counter()] * (self._next - first))
        return [self._message(sequence) for sequence in range(first, self._next)]

    def _message(self, sequence: int) -> bytes:
        body = self._filler[sequence % 256 :][: self._size - HEAD.size]
        return HEAD.pack(self._mark, self._number, sequence, zlib.crc32(body)) + body


class Checker:
    """The sink of one reader: every message once, whole, and in the order of its connection."""

    def __init__(self, mark: bytes, plan: Workload, sources: Sequence[BenchSource] = ()) -> None:
        """`sources`: whose messages they are, to know how long each was under way."""
        self._mark = mark
        self._sources = sources
        self.latencies = array("d")
        self.last = 0.0
        """When the last one came."""
        self.left: int | None = plan.messages
        self._last: dict[tuple[int, int], int] = {}
        """By connection and partition, the scope in which every protocol keeps order."""
        self._seen: list[set[int]] = [set() for _ in range(plan.connections)]
        self.damaged = self.disordered = self.repeated = 0

    def show(self, run: Run) -> None:
        """Check a run; messages of others do not count."""
        self.last = now = perf_counter() if self._sources else 0.0
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
            if self._sources:
                self.latencies.append(now - self._sources[number].sent[sequence])
            self.expect_fewer(1)

    def expect_fewer(self, messages: int) -> None:
        self.left = max(0, (self.left or 0) - messages)

    def found(self) -> Mapping[str, int]:
        return dict(zip(WRONG, (self.left or 0, self.damaged, self.repeated, self.disordered), strict=True))

    @property
    def seen(self) -> int:
        return sum(map(len, self._seen))


class PlaceLane:
    """A connection to a place, in whatever protocol."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address

    async def ask(self, values: Sequence[bytes]) -> int:
        reply = await self._connection.request(Publish(0, Batch(self._address, Columns.of(values))), None)
        assert isinstance(reply, Published)
        return len(reply.refused)


@attrs.frozen
class PlaceTarget:
    """A place by its URL."""

    place: UrlTarget
    dialling: Dialling
    pid: int | None = None
    title: str = ""
    """What it is called; else its URL."""
    mark: bool = False

    @property
    def name(self) -> str:
        return self.title or str(self.place)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[PlaceLane]:
        async with connected(self.place, self.dialling) as connection:
            yield PlaceLane(connection, self.place.address)


@click.command(
    epilog=examples(
        "gateway bench rustlog://127.0.0.1:9192/bench --messages 1000000 --batch 1000",
        "gateway bench blipmq://127.0.0.1:5555/bench --api-key dev-key --connections 50 --batch 50 --window 1",
        "gateway bench flymq://127.0.0.1:9092/bench rustlog://127.0.0.1:9192/bench --workload one --rounds 3 --svg one.svg",
        "gateway bench flymq://127.0.0.1:9092/bench --rate 500 --messages 2000 --rounds 3 --report steady.json",
    )
)
@click.argument("places", type=PlaceType(), metavar="URL...", nargs=-1, required=True)
@click.option(
    "--workload",
    type=click.Choice(list(WORKLOADS)),
    help="One that has a name, changed by what else is said: one at a time, the same on sixteen connections, 64 under way, "
    "100 in a request, a steady 500 a second; or with ten readers, or one that begins late.",
)
@click.option("--messages", "-n", type=click.IntRange(min=1), help="How many, a round.  [default: 100000]")
@click.option("--size", type=click.IntRange(min=HEAD.size), help="Bytes of each.  [default: 100]")
@click.option("--batch", type=click.IntRange(min=1), help="Messages in a request.  [default: 100]")
@click.option("--window", type=click.IntRange(min=1), help="Requests under way on a connection.  [default: 8]")
@click.option("--connections", type=click.IntRange(min=1), help="Publishers.  [default: 1]")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="An open loop: so many requests a second, each timed from when it was due, whatever became of those before.",
)
@click.option("--readers", type=click.IntRange(min=1), help="Who read all of it.  [default: 1]")
@click.option(
    "--late",
    is_flag=True,
    default=None,
    help="They begin when everything is published: by offset, or by a subscription that stood before.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Of each place, in turns.")
@click.option(
    "--bare", is_flag=True, help="Run the bare loops in the same rounds: an echo, and one that syncs a commit."
)
@click.option(
    "--pid",
    "pids",
    type=int,
    multiple=True,
    help="The server's process, of each URL in turn: its processor time is measured.",
)
@click.option("--check/--no-check", default=True, show_default=True, help="Read everything back while it is published.")
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write everything that was found, as JSON."
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write a plot.")
@click.option(
    "--timeout",
    type=SecondsType(),
    default=60.0,
    show_default=True,
    help="Give a round up after so long: 60 or 60s.",
)
@output_option
@dialling_options
def command(
    places: Sequence[UrlTarget],
    workload: str | None,
    rounds: int,
    bare: bool,
    pids: Sequence[int],
    check: bool,
    report: Path | None,
    svg: Path | None,
    timeout: float,
    output: str,
    dialling: Dialling,
    **changed: float | None,
) -> int:
    """Publish to places, in turns if there are several, and read everything back.

    Every message is numbered and carries a checksum: exit code 1 means that something was lost, damaged, repeated or out
    of its order. The figures include this command, which shares the machine's cores with what it measures; the processor
    time of a server (--pid) does not.
    """
    plan = _planned(WORKLOADS[workload] if workload else Workload(), changed)
    for spec in (place.spec for place in places if check and not place.spec.carries.offset):
        if plan.readers > 1 and spec.reader_position is ReaderPosition.NAMED:
            raise click.UsageError(
                f"--readers: who reads one address over {spec.name} shares it: each message is for one of them"
            )
    if pids and len(pids) != len(places):
        raise click.UsageError(f"--pid: one for each URL, {len(places)} of them")
    named = zip(places, [*pids, *[None] * len(places)], strict=False)
    targets = [PlaceTarget(place, dialling, pid) for place, pid in named]

    async def run(target: BenchTarget, plan: Workload) -> Round:
        if check and isinstance(target, PlaceTarget):
            return await _checked(target, plan, timeout)
        return await _limited(
            lambda: run_round(target, plan, [Fill(plan, n) for n in range(plan.connections)]), plan, timeout
        )

    async def everything() -> Comparison:
        async with AsyncExitStack() as stack:
            marks: list[BenchTarget] = []
            if bare:
                from gateway.bench.bare import KINDS, bare_target

                marks = [await stack.enter_async_context(bare_target(kind)) for kind in KINDS]
            return await compared(workload or "bench", plan, [*targets, *marks], rounds, run)

    found = run_until_interrupted(everything)
    if report is not None:
        report.write_bytes(msgspec.json.format(as_json(found)) + b"\n")
    if svg is not None:
        from gateway.bench.plot import plot

        svg.write_text(plot(found))
    click.echo(as_json(found).decode() if output == "json" else _text(found))
    return int(any(sum(one.checked.values()) for each in found.targets for one in each.rounds))


def _planned(plan: Workload, changed: Mapping[str, float | None]) -> Workload:
    plan = msgspec.structs.replace(plan, **{name: value for name, value in changed.items() if value is not None})
    if plan.size < HEAD.size:
        raise click.UsageError(f"--size: at least {HEAD.size}")
    return msgspec.structs.replace(plan, connections=min(plan.connections, plan.messages))


async def _limited(work: Callable[[], Awaitable[Round]], plan: Workload, timeout: float) -> Round:
    with trio.move_on_after(timeout):
        return await work()
    raise RequestTimeout(f"{plan.messages:,} messages were not answered within {timeout:g} s")


async def _checked(target: PlaceTarget, plan: Workload, timeout: float) -> Round:
    # a round that is read while it goes on, or after it, by as many as the workload has
    mark = os.urandom(8)
    sources = [BenchSource(mark, number, plan) for number in range(plan.connections)]
    checkers = [Checker(mark, plan, sources) for _ in range(plan.readers)]
    # late readers: by offset they come late; a subscription stands before, or it would not be for them, and is taken from late
    behind = plan.late and target.place.spec.carries.offset
    gate = trio.Event()
    wish = Wish(last=plan.messages) if behind else Wish(gate=gate)
    done: Round | None = None
    began = 0.0

    async def reader(checker: Checker, task_status: trio.TaskStatus[None]) -> None:
        async with connected(target.place, target.dialling) as connection:
            await read(connection, target.place, wish, checker, task_status.started)

    with trio.move_on_after(timeout):
        async with trio.open_nursery() as nursery:
            if behind:
                done = await run_round(target, plan, sources)
            if not plan.late:
                gate.set()
            began = perf_counter()
            for checker in checkers:
                await nursery.start(reader, checker)
            if done is None:
                began = perf_counter()
                done = await run_round(target, plan, sources)
                if plan.late:
                    began = perf_counter()
                    gate.set()
            for checker in checkers:  # what was refused comes to nobody
                checker.expect_fewer(plan.messages - done.messages)
            if not any(checker.left for checker in checkers):
                nursery.cancel_scope.cancel()  # one that waits for nothing more waits for the next message all the same
    if done is None:
        raise RequestTimeout(f"{target.name}: {plan.messages:,} messages were not answered within {timeout:g} s")
    found = [one.found() for one in checkers]
    latencies = [value for one in checkers for value in one.latencies]
    return msgspec.structs.replace(
        done,
        delivered=sum(one.seen for one in checkers),
        delivered_seconds=max(max(one.last for one in checkers) - began, 1e-9),
        delivery_milliseconds={} if plan.late else quantiles(latencies),
        checked={name: sum(one[name] for one in found) for name in WRONG},
    )


def _text(found: Comparison) -> str:
    lines = [table(found)]
    for one in found.targets:
        for number, each in enumerate(one.rounds, 1):
            wrong = [f"{count:,} {what}" for what, count in each.checked.items() if count]
            if wrong:
                lines.append(f"{one.name}, round {number}: {', '.join(wrong)}")
    if any(one.rounds and one.rounds[0].checked for one in found.targets):
        lines.append(f"{sum(each.delivered for one in found.targets for each in one.rounds):,} messages read back")
    return "\n".join(lines)
