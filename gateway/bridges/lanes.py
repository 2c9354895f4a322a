"""Messages on their way to a target, in a lane per key: what may be sent next, and what becomes of what failed.

Order within a key is never broken: of a lane only one request is under way. A target that takes a request whole or not at
all is given many messages of a key in one; any other is given one message of a key at a time. Messages without a key are
one lane; there a target that refuses single messages out of a request may get them later than their neighbours.

A lane whose head failed is parked until its back-off is over, and then sends its head alone. The other lanes go on.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gateway.bridges.breaker import is_outage, jittered
from gateway.broker.consume.position import Message
from gateway.broker.identity import path_on
from gateway.envelope import Columns, Copies, Run
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

LOSSES_TO_FEAR = 3
"""A message that was under way at so many lost connections in a row goes with nothing beside it."""
PARK_MESSAGES = 4_096
PARK_BYTES = 16 << 20
"""How much may be parked for one partition before its forward stops reading on."""
_PASSING = (Throttled, ShuttingDown)
_first_record = operator.itemgetter(0)


def is_final(error: GatewayError) -> bool:
    """Whether sending it again is pointless: the upstream said so, or the protocol cannot carry it."""
    if isinstance(error, TargetRefused):
        return error.final
    return isinstance(error, RequestError) and not isinstance(error, _PASSING) and error.status is not Status.TIMEOUT


class Entry(Message):
    """One message on its way."""

    __slots__ = ("alone", "key", "losses", "size")

    def __init__(self, run: Run, index: int, attempts: int = 0) -> None:
        super().__init__(run, index, attempts)
        columns = run.columns
        self.key = columns.key(index)
        self.size = columns.ends[index] - (columns.ends[index - 1] if index else 0)
        self.losses = 0
        """How often it was under way when its connection was lost."""
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
        """It was tried in vain once more."""
        self.attempts += 1
        self.say(error.message)

    def say(self, problem: str) -> None:
        """What its letter is to say."""
        self.last_error = problem[:LONGEST_TARGET_TEXT]
        self.first_error = self.first_error or self.last_error


class Lane:
    """The messages of one key, in order."""

    __slots__ = ("busy", "due", "key", "parked", "queue")

    def __init__(self, key: bytes | None) -> None:
        self.key = key
        self.queue: deque[Entry] = deque()
        self.busy = False
        self.parked = False
        self.due = 0.0


class Lanes:
    """All lanes of one partition."""

    def __init__(self, retry: Retry, *, atomic: bool, gives_up: bool, chance: random.Random) -> None:
        self._retry = retry
        self._atomic = atomic
        self._gives_up = gives_up
        """Whether there is a dead-letter topic; without one a lane waits."""
        self._chance = chance
        self._lanes: dict[bytes | None, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._delayed: list[tuple[float, int, Lane]] = []
        self._numbers = itertools.count()
        self._busy = 0
        """Lanes of which something is under way."""
        self._feared_under_way = False
        self.held = 0
        """Messages in lanes, not those under way."""
        self.parked = 0
        self.parked_bytes = 0

    @property
    def full(self) -> bool:
        """Whether no more may be parked."""
        return self.parked >= PARK_MESSAGES or self.parked_bytes >= PARK_BYTES

    def next_due(self) -> float | None:
        """When the next parked lane may try again."""
        return self._delayed[0][0] if self._delayed else None

    def push(self, entry: Entry) -> None:
        """One more message, behind all of its key."""
        lane = self._lanes.get(entry.key)
        if lane is None:
            lane = self._lanes[entry.key] = Lane(entry.key)
            self._ready.append(lane)
        lane.queue.append(entry)
        self.held += 1
        if lane.parked:
            self._count_parked(entry)

    def choose(self, most: int, most_bytes: int, now: float) -> list[Entry]:
        """What may go out in one request now, in the order of the log."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._delayed)[2])
        chosen: list[Entry] = []
        ready = self._ready
        if self._feared_under_way:
            return chosen
        while ready and len(chosen) < most and most_bytes > 0:
            lane = ready[0]
            if lane.queue[0].feared:
                if not self._busy:
                    ready.popleft()
                    self._feared_under_way = True
                    return [self._take(lane)]
                break
            if lane.queue[0].suspect:
                if chosen:
                    break
                ready.popleft()
                return [self._take(lane)]
            ready.popleft()
            while len(chosen) < most and most_bytes > 0 and lane.queue and not lane.queue[0].suspect:
                entry = self._take(lane)
                most_bytes -= entry.size
                chosen.append(entry)
                if not self._atomic and entry.key is not None:
                    break
        chosen.sort(key=_offset)
        return chosen

    def give_back(self, entries: Sequence[Entry]) -> None:
        """They were not sent after all."""
        self._return(entries)
        self._go_on(entries)

    def delivered(self, entries: Sequence[Entry]) -> None:
        """The target has them."""
        self._go_on(entries)

    def answered(
        self, entries: Sequence[Entry], refused: Mapping[int, GatewayError], now: float
    ) -> list[tuple[Entry, GatewayError]]:
        """A request whose members `refused` (by index) were not taken. Returns those that are given up."""
        given_up: list[tuple[Entry, GatewayError]] = []
        again: list[Entry] = []
        for index, error in sorted(refused.items()):
            entry = entries[index]
            if is_outage(error):
                entry.losses += isinstance(error, TargetLost)
                again.append(entry)
                continue
            entry.failed(error)
            (given_up.append((entry, error)) if self._hopeless(entry, error) else again.append(entry))
        self._return(again)
        self._park([entry for entry in again if entry.attempts], now)
        self._go_on(entries)
        return given_up

    def failed(self, entries: Sequence[Entry], error: GatewayError, now: float) -> list[tuple[Entry, GatewayError]]:
        """A request came to nothing as a whole. Returns the messages that are given up."""
        if len(entries) == 1:
            return self.answered(entries, {0: error}, now)
        if is_outage(error):
            return self.answered(entries, dict.fromkeys(range(len(entries)), error), now)
        heads = list({entry.key: entry for entry in reversed(entries)}.values())
        if is_final(error):
            for entry in entries:
                entry.alone = True
            self._return(entries)
            self._go_on(entries)
            return []
        given_up: list[tuple[Entry, GatewayError]] = []
        for head in heads:
            head.failed(error)
            if self._hopeless(head, error):
                given_up.append((head, error))
        lost = {id(entry) for entry, _ in given_up}
        self._return([entry for entry in entries if id(entry) not in lost])
        self._park([head for head in heads if id(head) not in lost], now)
        self._go_on(entries)
        return given_up

    def take_late(self, most: int, late: Callable[[Entry], bool], now: float) -> list[Entry]:
        """Of what might go out now, that for which it is too late; it is gone from here."""
        chosen = self.choose(most, PARK_BYTES, now)
        taken = [entry for entry in chosen if late(entry)]
        gone = {entry.offset for entry in taken}
        self._return([entry for entry in chosen if entry.offset not in gone])
        self._go_on(chosen)
        return taken

    def put_back(self, entries: Sequence[Entry], kept: Sequence[Entry]) -> None:
        """Some of what was chosen is not sent after all; `kept` is."""
        self._return(entries)
        busy = {entry.key for entry in kept}
        self._go_on([entry for entry in entries if entry.key not in busy])

    # --- inside ---

    def _hopeless(self, entry: Entry, error: GatewayError) -> bool:
        return self._gives_up and (is_final(error) or entry.attempts >= self._retry.max)

    def _take(self, lane: Lane) -> Entry:
        self._busy += not lane.busy
        lane.busy = True
        entry = lane.queue.popleft()
        self.held -= 1
        if lane.parked:
            self.parked -= 1
            self.parked_bytes -= entry.size
        return entry

    def _return(self, entries: Sequence[Entry]) -> None:
        """Back to the front of their lanes, in order."""
        for entry in reversed(entries):
            lane = self._lanes[entry.key]
            lane.queue.appendleft(entry)
            self.held += 1
            if lane.parked:
                self._count_parked(entry)

    def _park(self, heads: Iterable[Entry], now: float) -> None:
        for entry in heads:
            lane = self._lanes[entry.key]
            if not lane.parked:
                lane.parked = True
                for waiting in lane.queue:
                    self._count_parked(waiting)
            delay = self._retry.backoff.delay(lane.queue[0].attempts or 1)
            lane.due = now + jittered(delay, self._chance)

    def _count_parked(self, entry: Entry) -> None:
        entry.detach()
        self.parked += 1
        self.parked_bytes += entry.size

    def _go_on(self, entries: Iterable[Entry]) -> None:
        """The lanes of these are free again."""
        for key in {entry.key: None for entry in entries}:
            lane = self._lanes[key]
            self._busy -= lane.busy
            lane.busy = self._feared_under_way = False
            if not lane.queue:
                del self._lanes[key]
                continue
            if lane.parked and not lane.queue[0].attempts:  # what held it is gone
                lane.parked = False
                lane.due = 0.0
                self.parked -= len(lane.queue)
                self.parked_bytes -= sum(entry.size for entry in lane.queue)
            if lane.due:
                heapq.heappush(self._delayed, (lane.due, next(self._numbers), lane))
            else:
                self._ready.append(lane)


def _offset(entry: Entry) -> int:
    return entry.offset


def stretches(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    """The offsets of messages in the order of the log, as ranges."""
    first = stop = -1
    for entry in entries:
        if entry.offset != stop:
            if first >= 0:
                yield first, stop
            first = entry.offset
        stop = entry.offset + 1
    if first >= 0:
        yield first, stop


def columns_of(entries: Sequence[Entry]) -> Columns:
    """The messages as columns; a slice of what was read where they stand side by side."""
    first, last = entries[0], entries[-1]
    if first.run is last.run and last.index - first.index == len(entries) - 1:
        return first.run.columns.slice(first.index, last.index + 1)
    parts: list[Columns] = []
    start = 0
    for index in range(1, len(entries) + 1):
        before = entries[index - 1]
        if index < len(entries) and entries[index].run is before.run and entries[index].index == before.index + 1:
            continue
        parts.append(before.run.columns.slice(entries[start].index, before.index + 1))
        start = index
    return Columns.concat(parts)


def copies_of(source: bytes, identity: bytes, entries: Sequence[Entry]) -> Copies:
    """Where the messages are in the log, their ids, and the gateways they came by, for a target that can tell by them what it
    was sent before, and what goes in circles. It ends before the first that came by others.
    """
    ranges: list[tuple[int, bytes, int, int]] = []
    at, via = 0, entries[0].run.meta_of(entries[0].index)[0].origin.via
    while at < len(entries):
        entry = entries[at]
        run, start = entry.run, entry.index
        meta, inner = run.meta_of(start)
        if meta.origin.via != via:
            break
        known = bisect_right(run.batches, start, key=_first_record)
        end = run.batches[known][0] if known < len(run.batches) else run.count
        count = 1
        while (
            at + count < len(entries)
            and start + count < end
            and entries[at + count].run is run
            and entries[at + count].index == start + count
        ):
            count += 1
        ranges.append((entry.offset, meta.id, inner, count))
        at += count
    return Copies(source, ranges, path_on(via, identity))
