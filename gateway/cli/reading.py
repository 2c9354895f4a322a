"""Reading from a place, whichever way its protocol reads: by offset, or from a subscription.

What comes goes to a sink that takes a number of messages. Readers by offset follow every partition of an address at
once; what a subscription hands out, or a group commits, counts as read only once the sink has it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import click
import trio
from msgspec.structs import replace

from gateway.cli.url import UrlTarget
from gateway.envelope import Run
from gateway.errors import GatewayError, NotFound, Status, TargetRefused, Unsupported
from gateway.requests import (
    CommitOffset,
    Delivered,
    DescribeTopics,
    Fetch,
    Fetched,
    GroupOffset,
    PartitionInfo,
    ReadOffset,
    Settle,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Topics,
)

if TYPE_CHECKING:
    from gateway.transport.client import Connection

MOST_MESSAGES = 5_000
MOST_BYTES = 1 << 20
HOLD = 5.0
"""How long a request for messages may wait at the other side."""

QUIET = 1.0
"""Seconds without a message after which what came is taken for all there is."""

TRICKLE = 5
"""So many times in a row what came had to be waited for: that is not the past any more."""

PAUSE = 0.05
"""Before asking again, where the other side cannot wait."""


class Sink(Protocol):
    """Where messages go."""

    @property
    def left(self) -> int | None:
        """How many more it takes; None for any number."""
        ...

    def show(self, run: Run) -> None:
        """Take a run, of at most `left` messages."""
        ...


@attrs.frozen
class Wish:
    start: Start | int = Start.LATEST
    last: int | None = None
    """Begin with the last so many (in all partitions together) instead."""
    follow: bool = True
    """Wait for what comes after the end."""
    group: str = ""
    gate: trio.Event | None = None
    """A subscription that stands takes nothing before this."""


def _nothing() -> None:
    pass


async def read(
    connection: Connection, place: UrlTarget, wish: Wish, sink: Sink, ready: Callable[[], None] = _nothing
) -> None:
    """Read until the sink is full, or until the end when not following. What is published after `ready` is not missed."""
    if place.spec.carries.offset:
        await _by_offset(connection, place, wish, sink, ready)
    else:
        await _by_subscription(connection, place, wish, sink, ready)


def _most(sink: Sink) -> int:
    return MOST_MESSAGES if sink.left is None else min(MOST_MESSAGES, sink.left)


def _show(sink: Sink, run: Run) -> int:
    # give the sink what it takes of a run; the offset behind that
    if sink.left is not None:
        run = run.slice(0, sink.left)
    sink.show(run)
    return run.next_offset


# --- by offset ---


def status_of(error: GatewayError) -> Status:
    """What went wrong: as this side sees it, or as the other side said."""
    return error.refusal if isinstance(error, TargetRefused) else error.status


async def describe(connection: Connection, address: str) -> Sequence[PartitionInfo] | None:
    """The partitions of an address; None if there is nothing of that name."""
    try:
        reply = await connection.request(DescribeTopics(0, address))
    except GatewayError as error:
        if status_of(error) is Status.NOT_FOUND:
            return None
        raise
    assert isinstance(reply, Topics)
    for topic in reply.topics:
        if topic.address == address:
            return topic.partitions
    return None


async def _by_offset(
    connection: Connection, place: UrlTarget, wish: Wish, sink: Sink, ready: Callable[[], None]
) -> None:
    partitions = await describe(connection, place.address)
    if partitions is None:
        if not wish.follow:
            raise NotFound(f"there is no '{place.address}'")
        click.echo(f"waiting for '{place.address}' to exist", err=True)
        ready()
        partitions = await _appears(connection, place.address)
        # all of it came after this command began
        wish = attrs.evolve(wish, start=Start.EARLIEST, last=None)
        ready = _nothing
    positions = {each.id: await _begin(connection, place, wish, each) for each in partitions}
    ends = {each.id: each.end for each in partitions}
    ready()
    if wish.last is not None:
        for run in await _last(connection, place, positions, ends, wish.last):
            _show(sink, run)
        positions = dict(ends)
    with trio.CancelScope() as full:
        async with trio.open_nursery() as nursery:
            for partition, offset in positions.items():
                end = None if wish.follow else ends[partition]
                nursery.start_soon(_partition, connection, place, wish, partition, offset, end, sink, full)


async def _appears(connection: Connection, address: str) -> Sequence[PartitionInfo]:
    # its partitions, once it exists: nothing on the wire tells when that is
    while True:
        partitions = await describe(connection, address)
        if partitions is not None:
            return partitions
        await trio.sleep(PAUSE)


async def _begin(connection: Connection, place: UrlTarget, wish: Wish, partition: PartitionInfo) -> int:
    if wish.group:
        reply = await connection.request(ReadOffset(0, place.address, wish.group, partition.id))
        assert isinstance(reply, GroupOffset)
        if reply.offset is not None:
            return reply.offset
    if wish.last is not None:
        return max(partition.start, partition.end - wish.last)
    if isinstance(wish.start, int):
        return wish.start
    return partition.start if wish.start is Start.EARLIEST else partition.end


async def _partition(
    connection: Connection,
    place: UrlTarget,
    wish: Wish,
    partition: int,
    offset: int,
    end: int | None,
    sink: Sink,
    full: trio.CancelScope,
) -> None:
    while sink.left != 0 and (end is None or offset < end):
        asked = trio.current_time()
        reply = await _fetch(connection, place, partition, offset, _most(sink), HOLD if end is None else None)
        before, offset = offset, reply.next_offset
        for run in reply.runs:
            if sink.left == 0:
                break
            shown = _show(sink, run)
            if sink.left == 0:
                offset = shown
        if offset > before:
            await _commit(connection, place, wish, partition, offset)
        elif end is not None:
            return
        elif trio.current_time() - asked < PAUSE:
            await trio.sleep(PAUSE)
    if sink.left == 0:
        full.cancel()


async def _fetch(
    connection: Connection, place: UrlTarget, partition: int, offset: int, most: int, hold: float | None
) -> Fetched:
    hold_until = trio.current_time() + hold if hold is not None else None
    request = Fetch(0, place.address, partition, offset, most, MOST_BYTES, hold_until=hold_until)
    reply = await connection.request(request, None)
    assert isinstance(reply, Fetched)
    return reply


async def _commit(connection: Connection, place: UrlTarget, wish: Wish, partition: int, offset: int) -> None:
    if wish.group:
        await connection.request(CommitOffset(0, place.address, wish.group, partition, offset))


async def _last(
    connection: Connection, place: UrlTarget, positions: dict[int, int], ends: dict[int, int], count: int
) -> Sequence[Run]:
    # the last records of all partitions together, by their store time
    found: list[tuple[int, int, int, Run]] = []
    for partition, offset in positions.items():
        while offset < ends[partition]:
            reply = await _fetch(connection, place, partition, offset, MOST_MESSAGES, None)
            if reply.next_offset <= offset:
                break
            offset = reply.next_offset
            found += [
                (time, partition, run.base_offset + index, run.slice(index, index + 1))
                for run in reply.runs
                for index, time in enumerate(run.times)
            ]
    found.sort(key=lambda record: record[:3])
    return [run for *_, run in found[max(0, len(found) - count) :]] if count else []


# --- from a subscription ---


async def _by_subscription(
    connection: Connection, place: UrlTarget, wish: Wish, sink: Sink, ready: Callable[[], None]
) -> None:
    subscription, past = await _subscribe(connection, place, wish)
    ready()
    if wish.gate is not None:
        await wish.gate.wait()
    if past:
        for run in await _caught_up(connection, place, subscription, wish.last or 0):
            _show(sink, run)
        if not wish.follow:
            return
    while sink.left != 0:
        taken = await _take(connection, subscription, _most(sink), math.inf if wish.follow else HOLD)
        for delivered in taken.deliveries:
            _show(sink, delivered.run)
            await _settle(connection, place, subscription, delivered)
        if taken.ended or (not taken.deliveries and not wish.follow):
            return


async def _subscribe(connection: Connection, place: UrlTarget, wish: Wish) -> tuple[int, bool]:
    # the subscription, and whether it begins at the oldest so that the last of what there is can be shown
    past = bool(wish.last)
    start = Start.EARLIEST if past else Start.LATEST if wish.last is not None else wish.start
    request = Subscribe(
        0, place.address, name=wish.group, start=start, acknowledge=place.spec.carries.consumer_acknowledges
    )
    try:
        reply = await connection.request(request)
    except GatewayError as error:
        refused = status_of(error) in {Status.UNSUPPORTED, Status.CONFLICT, Status.INVALID}
        if start is Start.LATEST or not refused:
            raise
        if not past or not wish.follow:
            other = "another protocol's listener reads the same topic from any offset"
            raise Unsupported(f"{place.spec.name} cannot begin there ({error}); {other}") from error
        click.echo(f"{place.spec.name} cannot begin in the past: following from where it stands", err=True)
        past = False
        reply = await connection.request(replace(request, start=Start.LATEST))
    assert isinstance(reply, Subscribed)
    return reply.subscription, past


async def _caught_up(connection: Connection, place: UrlTarget, subscription: int, count: int) -> Sequence[Run]:
    # the last of what comes until nothing more does: a subscription does not tell where the log ends
    last: deque[Run] = deque(maxlen=count)
    waited = 0
    while waited < TRICKLE:
        asked = trio.current_time()
        taken = await _take(connection, subscription, MOST_MESSAGES, QUIET)
        for delivered in taken.deliveries:
            run = delivered.run
            last.extend(run.slice(index, index + 1) for index in range(max(0, run.count - count), run.count))
            await _settle(connection, place, subscription, delivered)
        if taken.ended or not taken.deliveries:
            break
        waited = waited + 1 if trio.current_time() - asked > PAUSE else 0
    return list(last)


async def _take(connection: Connection, subscription: int, most: int, hold: float) -> Taken:
    hold_until = trio.current_time() + hold
    reply = await connection.request(Take(0, subscription, most, MOST_BYTES, hold_until=hold_until), None)
    assert isinstance(reply, Taken)
    return reply


async def _settle(connection: Connection, place: UrlTarget, subscription: int, delivered: Delivered) -> None:
    if place.spec.carries.consumer_acknowledges:
        tags = range(delivered.first_tag, delivered.first_tag + delivered.run.count)
        await connection.request(Settle(0, subscription, tags))
