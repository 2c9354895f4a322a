"""Reading from a FlyMQ broker, which has no push: a subscription is a set of offsets kept here, and taking from it is
FETCH, partition by partition, with a pause that doubles while there is nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

import attrs

from gateway.envelope import BatchMeta, Origin, Run
from gateway.errors import InvalidRequest, TargetRefused, UnknownSubscription
from gateway.protocols.flymq.client.steps import Ask, ClientShared, ClientSteps, WaitUntil
from gateway.protocols.flymq.wire import codec_fetch
from gateway.protocols.flymq.wire.codec import REPLIES
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import STR, STR8, Layout
from gateway.requests import (
    DONE,
    Delivered,
    Fetch,
    Fetched,
    Request,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Dialect

MOST_PARTITIONS = 64
"""As many as the shipped clients look for, one SUBSCRIBE after the other until one is refused (FlyMQ wire 3.2)."""
LARGEST_FETCH = 1000
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.25
_META = BatchMeta(b"", Origin("flymq", ""))
_Steps = Generator[Ask | WaitUntil, bytes | None, Any]


@attrs.define(eq=False)
class TopicReader:
    """A subscription: where it is in each partition, and what it handed out that nobody settled yet."""

    address: str
    group: str
    acknowledge: bool
    positions: dict[int, int]
    turn: int = 0
    next_tag: int = 1
    tags: dict[int, tuple[int, int]] = attrs.Factory(dict)
    """Tag -> (partition, offset)."""
    returned: deque[tuple[int, int, int]] = attrs.Factory(deque)
    """(partition, offset, attempt) of what was given back, to be handed out again."""
    attempts: dict[tuple[int, int], int] = attrs.Factory(dict)

    def hand_out(self, run: Run, attempt: int = 1) -> Delivered:
        if not self.acknowledge:
            return Delivered(run, 0, attempt)
        first = self.next_tag
        self.next_tag += run.count
        for index in range(run.count):
            self.tags[first + index] = (run.partition, run.base_offset + index)
        return Delivered(run, first, attempt)

    def committed(self, partition: int) -> int:
        """The next offset this group reads: the lowest that is not settled."""
        open_ones = [offset for part, offset in self.tags.values() if part == partition]
        open_ones.extend(offset for part, offset, _ in self.returned if part == partition)
        return min(open_ones, default=self.positions[partition])


def _find(upstream: ClientShared, subscription: int) -> TopicReader:
    reader: TopicReader | None = upstream.readers.get(subscription)
    if reader is None:
        raise UnknownSubscription
    return reader


def _mode(upstream: ClientShared, topic: str, group: str, partition: int, mode: str) -> Ask:
    # SUBSCRIBE as this broker's dialect reads it: the shipped ones take a u16 for an empty mode (FlyMQ wire 2.2)
    width = STR if upstream.dialect is Dialect.DOCUMENT else STR8
    payload = upstream.request(Op.SUBSCRIBE, topic, group, partition) + Layout(width).encode(mode)
    return Ask(Op.SUBSCRIBE, payload)


def lookup(upstream: ClientShared, topic: str, group: str, partition: int, mode: str) -> _Steps:
    """Where this mode starts in a partition."""
    payload = yield _mode(upstream, topic, group, partition, mode)
    (offset,) = REPLIES[Op.SUBSCRIBE].decode(payload or b"")
    return int(offset)


def probe(upstream: ClientShared, topic: str, group: str, mode: str) -> _Steps:
    """The start of every partition there is: asked for one by one until one is refused."""
    positions: dict[int, int] = {}
    for partition in range(MOST_PARTITIONS):
        try:
            positions[partition] = yield from lookup(upstream, topic, group, partition, mode)
        except TargetRefused:
            if not positions:
                raise
            break
    return positions


def subscribe(upstream: ClientShared, request: Subscribe) -> ClientSteps:
    """A named reader goes on where its group is; others start where they are told."""
    mode = "latest" if request.start is Start.LATEST else "earliest"
    positions = yield from probe(upstream, request.address, request.name, mode)
    if isinstance(request.start, int):
        if len(positions) != 1:
            raise InvalidRequest("an offset to start at needs a topic of one partition")
        positions = {0: request.start}
    if request.name:
        for partition in positions:
            try:
                (kept,) = yield from upstream.ask(Op.GET_OFFSET, request.address, request.name, partition)
            except TargetRefused:  # a group that never committed
                continue
            if kept:  # 0 says "nothing committed here" as well; below the log's start there is nothing to read any more
                positions[partition] = max(kept, positions[partition]) if mode == "earliest" else kept
    number = upstream.number()
    upstream.readers[number] = TopicReader(request.address, request.name, request.acknowledge, positions)
    return Subscribed(number, request.address, positions[0] if len(positions) == 1 else 0)


def unsubscribe(upstream: ClientShared, request: Unsubscribe) -> ClientSteps:
    # forgets the subscription; FlyMQ was never told of it
    _find(upstream, request.subscription)
    del upstream.readers[request.subscription]
    yield from ()  # there is nothing to ask
    return DONE


def _fetch(upstream: ClientShared, topic: str, partition: int, offset: int, most: int) -> _Steps:
    payload = yield Ask(Op.FETCH, upstream.request(Op.FETCH, topic, partition, offset, most))
    records, following = codec_fetch.decode(payload or b"", offset)
    return _runs(topic, partition, records), following


def _runs(topic: str, partition: int, records: list[codec_fetch.Record]) -> list[Run]:
    # Records as runs, a new one wherever offsets leave something out. FETCH carries no times.
    runs: list[Run] = []
    start = 0
    for index in range(1, len(records) + 1):
        if index < len(records) and records[index][0] == records[index - 1][0] + 1:
            continue
        part = records[start:index]
        columns = codec_fetch.to_columns(part)
        runs.append(Run(topic, partition, part[0][0], columns, [0] * len(part), ((0, 0, _META),)))
        start = index
    return runs


def take(upstream: ClientShared, request: Take) -> ClientSteps:
    """What was given back first, then the partitions in turn, until one has something or the time is over."""
    reader = _find(upstream, request.subscription)
    most = max(1, min(request.max_messages, LARGEST_FETCH))
    pause = FIRST_PAUSE
    while True:
        if reader.returned:
            partition, offset, attempt = reader.returned.popleft()
            runs, _ = yield from _fetch(upstream, reader.address, partition, offset, 1)
            deliveries = [reader.hand_out(run, attempt) for run in runs if run.base_offset == offset]
            if deliveries:
                return Taken(deliveries, address=reader.address, acknowledge=reader.acknowledge)
            continue
        for _ in range(len(reader.positions)):
            partition = list(reader.positions)[reader.turn % len(reader.positions)]
            reader.turn += 1
            offset = reader.positions[partition]
            runs, following = yield from _fetch(upstream, reader.address, partition, offset, most)
            reader.positions[partition] = max(following, offset)
            if runs:
                if reader.group and not reader.acknowledge:  # handed out is as good as read
                    kept = reader.positions[partition]
                    yield from upstream.ask(Op.COMMIT, reader.address, reader.group, partition, kept)
                deliveries = [reader.hand_out(run) for run in runs]
                return Taken(deliveries, address=reader.address, acknowledge=reader.acknowledge)
        if _over(upstream, request.id, request.hold_until):
            return Taken((), address=reader.address, acknowledge=reader.acknowledge)
        yield WaitUntil(min(upstream.now + pause, request.hold_until or 0.0))
        pause = min(pause * 2, LONGEST_PAUSE)
        if request.id in upstream.cancelled:
            return Taken((), address=reader.address, acknowledge=reader.acknowledge)


def _over(upstream: ClientShared, request_id: int, hold_until: float | None) -> bool:
    return hold_until is None or upstream.now >= hold_until or request_id in upstream.cancelled


def fetch(upstream: ClientShared, request: Fetch) -> ClientSteps:
    """FETCH, asked again while there is nothing and time is left. The answer does not say where the log ends."""
    most = max(1, min(request.max_messages, LARGEST_FETCH))
    pause = FIRST_PAUSE
    while True:
        runs, following = yield from _fetch(upstream, request.address, request.partition, request.offset, most)
        if runs or _over(upstream, request.id, request.hold_until):
            return Fetched(runs, following, 0, following)
        yield WaitUntil(min(upstream.now + pause, request.hold_until or 0.0))
        pause = min(pause * 2, LONGEST_PAUSE)
        if request.id in upstream.cancelled:
            return Fetched((), request.offset, 0, request.offset)


def settle(upstream: ClientShared, request: Settle) -> ClientSteps:
    """Settled messages move the group's offset, as far as everything before them is settled too."""
    reader = _find(upstream, request.subscription)
    results: list[UnknownSubscription | None] = []
    touched: set[int] = set()
    for tag in request.tags:
        place = reader.tags.pop(tag, None)
        results.append(None if place is not None else UnknownSubscription())
        if place is None:
            continue
        touched.add(place[0])
        attempt = reader.attempts.pop(place, 1)
        if not request.accepted:
            reader.attempts[place] = attempt + 1
            reader.returned.append((*place, attempt + 1))
    if reader.group and request.accepted:
        for partition in sorted(touched):
            offset = reader.committed(partition)
            yield from upstream.ask(Op.COMMIT, reader.address, reader.group, partition, offset)
    return Settled(results)


READING: Mapping[type[Request], Callable[[ClientShared, Any], ClientSteps]] = {
    Subscribe: subscribe,
    Unsubscribe: unsubscribe,
    Take: take,
    Fetch: fetch,
    Settle: settle,
}
