"""Messages on their way to a target, in a lane per key: what may be sent next, and what becomes of what failed.

Order within a key is never broken: of a lane only one request is under way, unless the target stores what comes behind it
after it or not at all (`Chain`). A target that takes a request whole or not at all is given many messages of a key in one; any
other is given one message of a key at a time. Messages without a key are one lane; there a target that refuses single messages
out of a request may get them later than their neighbours.

A lane whose head failed is parked until its back-off is over, and then sends its head alone. The other lanes go on.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import random
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from gateway.bridges.breaker import is_outage, jittered
from gateway.bridges.forward_rows import source_of
from gateway.bridges.pool import UpstreamPool
from gateway.broker.consume.consumer import ConsumedMessage
from gateway.broker.identity import identity_of, path_on, via_in, with_via
from gateway.envelope import Batch, Columns, Copies, Run
from gateway.errors import (
    LONGEST_TARGET_TEXT,
    GatewayError,
    RequestError,
    ShuttingDown,
    Status,
    TargetLost,
    TargetRefused,
    Throttled,
)
from gateway.model import Retry
from gateway.routing.table import RemoteRule
from gateway.store.interface import Store, TopicState

LOSSES_TO_FEAR = 3
"""A message that was under way at so many lost connections in a row goes with nothing beside it."""
PARK_MESSAGES = 4_096
PARK_BYTES = 16 << 20
"""How much may be parked for one partition before its forward stops reading on."""
_PASSING = (Throttled, ShuttingDown)
_first_record = operator.itemgetter(0)
_offset = operator.attrgetter("offset")
_key = operator.attrgetter("key")


def is_final(error: GatewayError) -> bool:
    """Whether sending it again is pointless: the upstream said so, or the protocol cannot carry it."""
    if isinstance(error, TargetRefused):
        return error.final
    return isinstance(error, RequestError) and not isinstance(error, _PASSING) and error.status is not Status.TIMEOUT


class LaneEntry(ConsumedMessage):
    __slots__ = ("again", "alone", "key", "losses", "size")

    def __init__(self, run: Run, index: int, attempts: int = 0, *, again: bool = False) -> None:
        super().__init__(run, index, attempts)
        columns = run.columns
        self.key = columns.key(index)
        self.size = columns.ends[index] - (columns.ends[index - 1] if index else 0)
        self.losses = 0
        """How often it was under way when its connection was lost."""
        self.again = again
        """It may have been sent before."""
        self.alone = False
        """It was in a request that was refused for good as a whole: alone it turns out whether it was the reason."""

    @property
    def suspect(self) -> bool:
        """Whether it must not be in a request with others."""
        return self.alone or self.attempts > 0 or self.feared

    @property
    def feared(self) -> bool:
        """Whether nothing else may be under way with it: it may be what makes the upstream hang up each time."""
        return self.losses >= LOSSES_TO_FEAR

    def failed(self, error: GatewayError) -> None:
        self.attempts += 1
        self.say(error.message)

    def say(self, problem: str) -> None:
        """What its letter is to say."""
        self.last_error = problem[:LONGEST_TARGET_TEXT]
        self.first_error = self.first_error or self.last_error


class KeyLane:
    """The messages of one key, in order."""

    __slots__ = ("busy", "due", "key", "listed", "parked", "queue")

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.queue: deque[LaneEntry] = deque()
        self.busy = 0
        """Messages that are under way."""
        self.parked = False
        self.due = 0.0
        self.listed = False
        """It is looked at when something may go out, or its time is waited for."""


class Lanes:
    def __init__(self, retry: Retry, *, atomic: bool, gives_up: bool, chance: random.Random) -> None:
        self._retry = retry
        self._atomic = atomic
        self._gives_up = gives_up
        """Whether there is a dead-letter topic; without one a lane waits."""
        self._chance = chance
        self._lanes: dict[bytes | None, KeyLane] = {}
        self._ready: deque[KeyLane] = deque()
        self._delayed: list[tuple[float, int, KeyLane]] = []
        self._numbers = itertools.count()
        self._busy = 0
        """Messages that are under way."""
        self._feared_under_way = False
        self.held = 0
        """Messages in lanes, not those under way."""
        self.parked = 0
        self.parked_bytes = 0

    @property
    def full(self) -> bool:
        return self.parked >= PARK_MESSAGES or self.parked_bytes >= PARK_BYTES

    def next_due(self) -> float | None:
        return self._delayed[0][0] if self._delayed else None

    def parked_heads(self, most: int) -> Sequence[tuple[float, LaneEntry]]:
        """What waits for a retry at the head of its lane, and until when; the soonest first, at most so many."""
        soonest = heapq.nsmallest(most, self._delayed)
        return [(due, lane.queue[0]) for due, _number, lane in soonest if lane.queue]

    def push(self, entry: LaneEntry) -> None:
        lane = self._lanes.get(entry.key)
        if lane is None:
            lane = self._lanes[entry.key] = KeyLane(entry.key)
        lane.queue.append(entry)
        self.held += 1
        if lane.parked:
            self._count_parked(entry)
        if not lane.listed:
            self._list(lane)

    def choose(self, most: int, most_bytes: int, now: float, *, behind: bool = False) -> list[LaneEntry]:
        """What may go out in one request now, in the order of the log. `behind`: it is stored behind all that is under way, or
        not at all, so that a lane need not wait for an answer.
        """
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._delayed)[2])
        chosen: list[LaneEntry] = []
        ready = self._ready
        if self._feared_under_way:
            return chosen
        while ready and len(chosen) < most and most_bytes > 0:
            lane = ready[0]
            head = lane.queue[0]
            suspect = head.suspect
            if lane.busy and (suspect or head.again or lane.parked or not behind):
                ready.popleft()
                lane.listed = False  # until something of it is answered, or there is more
                continue
            if lane.due > now:  # it failed while it was looked at
                ready.popleft()
                self._list(lane)
                continue
            if behind and head.again:  # no chain is made of what may be there already
                if chosen:
                    break
                behind = False
            if suspect:
                feared = head.feared
                if chosen or (feared and self._busy):
                    break
                ready.popleft()
                lane.listed = False
                self._feared_under_way = feared
                return [self._take(lane)]
            ready.popleft()
            lane.listed = False
            while len(chosen) < most and most_bytes > 0 and lane.queue and not lane.queue[0].suspect:
                entry = self._take(lane)
                most_bytes -= entry.size
                chosen.append(entry)
                if not self._atomic and entry.key is not None:
                    break
            if behind and lane.queue:
                self._list(lane)
        chosen.sort(key=_offset)
        return chosen

    def answered(
        self, entries: Sequence[LaneEntry], refused: Mapping[int, GatewayError], now: float
    ) -> list[LaneEntry]:
        """A request whose members `refused` (by index) were not taken. Returns those that are given up."""
        failed = {id(entries[index]): error for index, error in refused.items()}
        return self._again([entry for entry in entries if id(entry) in failed], failed, entries, now)

    def failed(self, entries: Sequence[LaneEntry], error: GatewayError, now: float) -> list[LaneEntry]:
        """A request came to nothing as a whole. Returns the messages that are given up."""
        if len(entries) == 1 or is_outage(error):
            return self._again(entries, {id(entry): error for entry in entries}, entries, now)
        if is_final(error):
            # one of them is the reason, and the answer does not say which: each shows it alone
            for entry in entries:
                entry.alone = True
            return self._again(entries, {}, entries, now)
        heads = {entry.key: entry for entry in reversed(entries)}.values()  # the others wait behind them
        return self._again(entries, {id(head): error for head in heads}, entries, now)

    def _again(
        self, lost: Sequence[LaneEntry], failed: Mapping[int, GatewayError], sent: Sequence[LaneEntry], now: float
    ) -> list[LaneEntry]:
        # what was not taken of what was sent goes back, but for what is given up; lanes whose head failed are parked
        given_up: list[LaneEntry] = []
        for entry in lost:
            error = failed.get(id(entry))
            if error is None:
                continue
            if is_outage(error):  # nobody has judged the message, so that it costs no attempt
                entry.losses += isinstance(error, TargetLost)
                continue
            entry.failed(error)
            if self._gives_up and (is_final(error) or entry.attempts >= self._retry.max):
                given_up.append(entry)
        back = [entry for entry in lost if entry not in given_up]
        self._return(back)
        self._park([entry for entry in back if id(entry) in failed and entry.attempts], now)
        self.free(sent)
        return given_up

    def put_back(self, back: Sequence[LaneEntry], gone: Sequence[LaneEntry] = ()) -> None:
        """Of what was chosen some is not sent after all, or was not looked at by who got it; `gone` never will be sent."""
        self._return(back)
        self.free([*back, *gone])

    # --- inside ---

    def _take(self, lane: KeyLane) -> LaneEntry:
        self._busy += 1
        lane.busy += 1
        entry = lane.queue.popleft()
        self.held -= 1
        if lane.parked:
            self.parked -= 1
            self.parked_bytes -= entry.size
        return entry

    def _return(self, entries: Sequence[LaneEntry]) -> None:
        for entry in reversed(entries):
            lane = self._lanes[entry.key]
            entry.again = True
            queue = lane.queue
            if queue and queue[0].offset < entry.offset:  # what was sent before it is back already
                queue.insert(bisect_left(queue, entry.offset, key=_offset), entry)
            else:
                queue.appendleft(entry)
            self.held += 1
            if lane.parked:
                self._count_parked(entry)

    def _park(self, heads: Iterable[LaneEntry], now: float) -> None:
        for entry in heads:
            lane = self._lanes[entry.key]
            if not lane.parked:
                lane.parked = True
                for waiting in lane.queue:
                    self._count_parked(waiting)
            delay = self._retry.backoff.delay(lane.queue[0].attempts or 1)
            lane.due = now + jittered(delay, self._chance)

    def _count_parked(self, entry: LaneEntry) -> None:
        entry.detach()
        self.parked += 1
        self.parked_bytes += entry.size

    def free(self, entries: Iterable[LaneEntry]) -> None:
        """They are not under way any more."""
        for key, count in Counter(map(_key, entries)).items():
            lane = self._lanes[key]
            self._busy -= count
            lane.busy -= count
            self._feared_under_way = False
            if not lane.queue:
                if not lane.busy:
                    del self._lanes[key]
                continue
            if lane.parked and not lane.queue[0].attempts:  # what held it is gone
                lane.parked = False
                lane.due = 0.0
                self.parked -= len(lane.queue)
                self.parked_bytes -= sum(entry.size for entry in lane.queue)
            if not lane.listed:
                self._list(lane)

    def _list(self, lane: KeyLane) -> None:
        lane.listed = True
        if lane.due:
            heapq.heappush(self._delayed, (lane.due, next(self._numbers), lane))
        else:
            self._ready.append(lane)


def stretches(entries: Sequence[LaneEntry]) -> Iterator[tuple[Run, int, int]]:
    """The messages as parts of what was read, each as long as they lie side by side there."""
    first = 0
    for at in range(1, len(entries) + 1):
        before = entries[at - 1]
        if at == len(entries) or entries[at].run is not before.run or entries[at].index != before.index + 1:
            yield before.run, entries[first].index, before.index + 1
            first = at


def columns_of(entries: Sequence[LaneEntry]) -> Columns:
    parts = [run.columns.slice(start, stop) for run, start, stop in stretches(entries)]
    return parts[0] if len(parts) == 1 else Columns.concat(parts)


def marked_columns_of(entries: Sequence[LaneEntry], identity: bytes) -> Columns:
    """The messages with a header that says by which gateways they came, for a target that is told by nothing else."""
    found = columns_of(entries)
    headers = [
        with_via(entry.run.columns.headers_of(entry.index), path_on(_via(entry.run, entry.index), identity))
        for entry in entries
    ]
    return Columns(found.packed, found.ends, found.keys, headers, found.expires)


def copies_of(
    source: bytes, identity: bytes, entries: Sequence[LaneEntry], after: tuple[int, bytes, int] | None = None
) -> Copies:
    """Where the messages are in the log, their ids, and the gateways they came by, for a target that can tell by them what it
    was sent before, and what goes in circles. It ends before the first that came by others. `after`: of what is under way.
    """
    via = _via(entries[0].run, entries[0].index)
    ranges: list[tuple[int, bytes, int, int]] = []
    for run, start, stop in stretches(entries):
        while start < stop:
            if _via(run, start) != via:
                return Copies(source, ranges, path_on(via, identity), after)
            meta, inner = run.meta_of(start)
            known = bisect_right(run.batches, start, key=_first_record)
            end = min(stop, run.batches[known][0]) if known < len(run.batches) else stop
            if run.columns.headers is not None:  # which may say another way of each
                end = next((at for at in range(start + 1, end) if _via(run, at) != via), end)
            ranges.append((run.base_offset + start, meta.id, inner, end - start))
            start = end
    return Copies(source, ranges, path_on(via, identity), after)


@attrs.frozen(eq=False)
class Sending:
    """What the requests of one partition to one upstream have in common."""

    pool: UpstreamPool
    address: str
    source: bytes
    """By what a target that can tell knows what it was sent before; empty for one that cannot."""
    identity: bytes

    @classmethod
    def to(
        cls,
        pool: UpstreamPool,
        store: Store,
        rule: RemoteRule,
        name: str,
        topic: TopicState,
        partition: int,
        repeated: int = 0,
    ) -> Sending:
        """`name`: of who reads that topic. `repeated`: what it was told to send once more."""
        source = source_of(store, name, topic.name, topic.epoch, partition, repeated) if pool.carries.copies else b""
        return cls(pool, rule.remote_address(topic.name) or topic.name, source, identity_of(store))

    def batch(self, entries: Sequence[LaneEntry], after: tuple[int, bytes, int] | None = None) -> Batch:
        """The messages as a request, from the first of them; those that it cannot say the way of are not in it. `after`: as in
        `Copies`.
        """
        copies = copies_of(self.source, self.identity, entries, after) if self.source else None
        if copies is not None:
            entries = entries[: copies.count]
        marked = self.pool.marks_by_header
        columns = marked_columns_of(entries, self.identity) if marked else columns_of(entries)
        return Batch(self.address, columns, copies=copies)


def _via(run: Run, index: int) -> tuple[str, ...]:
    via = run.meta_of(index)[0].origin.via
    return via if run.columns.headers is None else via + via_in(run.columns.headers_of(index))
