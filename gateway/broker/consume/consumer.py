"""One durable consumer of one partition: it reads on, knows what is settled and why, and has that written.

Subscriptions and forwards have one of these for each partition they read. A message is settled when it was acknowledged, when
nobody is to get it (it expired, retention took it, another route stored it), or by the very commit that stores its dead
letter: as long as that fails the message counts as backlog, is counted nowhere else, and the letter is tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain
from operator import sub

import attrs

from gateway.broker.letters import Letters
from gateway.broker.service import Clock
from gateway.broker.timers import Alarm, Pump
from gateway.envelope import PREFIX, Columns, Run
from gateway.errors import GatewayError, OffsetOutOfRange
from gateway.recorder import ConsumerCounts, Recorder
from gateway.requests import ConsumerMove
from gateway.store.ack_window import AckWindow
from gateway.store.interface import (
    Append,
    MakeTopic,
    PartitionState,
    Put,
    ReadResult,
    Require,
    Store,
    Ticket,
    TopicState,
    Unit,
)

READ_BYTES = 1 << 20
READ_AGAIN = 5.0
"""Seconds until a range that could not be read is looked at again."""
WRITE_BEHIND = 0.05
"""Positions are written this long after they moved: at-least-once may repeat what a crash forgets in between."""
WRITE_AGAIN = 1.0
"""After a write that failed: the store is read-only."""
SIZE = "size"
"""The reason of a letter: the reader's protocol cannot carry it."""
MAX_DELIVERIES = "max_deliveries"
"""It was tried as often as it may be."""


class ConsumedMessage:
    __slots__ = ("attempts", "first_error", "index", "last_error", "offset", "run")

    def __init__(self, run: Run, index: int, attempts: int = 0) -> None:
        self.run = run
        self.index = index
        self.offset = run.base_offset + index
        self.attempts = attempts
        self.first_error = ""
        self.last_error = ""

    def detach(self) -> None:
        # keep the message alone, not the whole read it came with: it may stay for long
        self.run = self.run.slice(self.index, self.index + 1)
        self.index = 0


@attrs.define(eq=False)
class Tally:
    """What became of the messages since the consumer began with the partition at `start`."""

    start: int
    acknowledged: int = 0
    filtered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    trimmed: int = 0
    absent: int = 0
    """Offsets without a record."""
    skipped: int = 0
    repeated: int = 0
    """What a reset has passed over, and what it has put in front of the consumer once more."""


@attrs.frozen(eq=False)
class ConsumerPlace:
    topic: TopicState
    partition: int
    window: AckWindow
    tally: Tally


def knows_ends(store: Store) -> bool:
    """Whether who is beyond the end of a log must have been there before it lost what followed: not where others append, too, and
    not while an end is damaged, of which `salvage` may bring more to light.
    """
    return store.capabilities.single_writer and not store.lost.catalogue


@attrs.frozen(eq=False)
class Moved:
    """A place to begin at, for whoever follows a consumer that is put elsewhere."""

    place: ConsumerPlace
    trimmed: int
    """What retention had taken from the one before, and it had not noticed."""
    shown: ConsumerMove


@attrs.frozen(eq=False)
class ConsumerContext:
    store: Store
    pump: Pump
    clock: Clock
    recorder: Recorder
    letters: Letters
    start_soon: Callable[[Callable[[], Awaitable[None]]], None]
    turn: Callable[[int], AbstractAsyncContextManager[int]]
    """Around a read of the disk of so many bytes at most: how many it may have."""


class Consumer:
    """See the module. Subscriptions and forwards say by `rows` what keeps it in the store, and by `wake` what follows when
    there may be more to read, or when it was written.
    """

    def __init__(
        self,
        context: ConsumerContext,
        place: ConsumerPlace,
        *,
        kept: bool = True,
        smallest: int = 0,
        largest: int | None = None,
        route: str = "",
        route_only: bool = False,
        letters_topic: str = "",
    ) -> None:
        """`kept`: whether it outlives this process. `smallest`, `largest`: what the reader's protocol can carry. `route`: who
        loses, in the metrics, what expires or is trimmed; with `route_only` it gets only what that route stored.
        `letters_topic`: empty for where the topic's dead letters are.
        """
        self.topic = place.topic.name
        self.epoch = place.topic.epoch
        self.partition = place.partition
        self.window = window = place.window
        self.tally = place.tally
        self.next = window.low
        """The offset that is read next."""
        self.reading = False
        self.unreadable: GatewayError | None = None
        """Why it cannot read on at the moment."""
        self.unsaved = 0
        """Acknowledged messages that a crash would deliver again."""
        self.unwritable = ""
        """Why what it knows cannot be written."""
        self.on_disk = window.low
        """Below this offset everything is settled, and written to be: retention may go no further."""
        self.letters: Sequence[tuple[ConsumedMessage, str]] = ()
        """What is given up and not stored yet, with the reason. Nothing is read while there are any: that is their bound."""
        self.letters_topic = letters_topic
        self._context = context
        self._kept = kept
        self.smallest, self.largest = smallest, largest
        self._route, self._route_only = route, route_only
        self._settled_until = window.high
        """After a restart: below this some offsets may be settled already."""
        self.loaded: ReadResult | None = None
        """What came from the disk, and is not read on from yet."""
        self._dirty = self._writing = self._closed = False
        # made when they are wanted: of consumers that nobody asks for anything there may be tens of thousands
        self._save_alarm: Alarm | None = None
        self._read_alarm: Alarm | None = None

    def rows(self, window: AckWindow, tally: Tally) -> Sequence[Put]:
        raise NotImplementedError

    def guard(self) -> Sequence[Require]:
        """What has to hold for that to be written."""
        return ()

    def wake(self) -> None:
        raise NotImplementedError

    @property
    def state(self) -> TopicState | None:
        """Its topic, if that is still there, and the same."""
        state = self._context.store.topics.get(self.topic)
        return state if state is not None and state.epoch == self.epoch else None

    # --- reading ---

    def read_on(self, bounds: PartitionState, most: int) -> Sequence[Run] | None:
        """Of what is next, what is to be delivered. None: there is nothing, or not yet; then `wake` is called."""
        if self.reading or self.letters or self.unreadable is not None:
            return None
        result, self.loaded = self.loaded, None
        if result is None:
            if self.next >= bounds.end:
                return None
            if self.next < bounds.start:
                self.tally.trimmed += self._lose("trimmed", self.next, bounds.start)
                self.next = bounds.start
            now_ms = self._context.clock.now_ms()
            result = self._context.store.read_cached(self.topic, self.partition, self.next, most, READ_BYTES, now_ms)
        if result is None:
            self.reading = True
            self._context.start_soon(lambda: self._load(most))
            return None
        wanted: list[Run] = []
        missing = 0
        for run in result.runs:
            missing += self.pass_over(self.next, run.base_offset)
            wanted += self._wanted(run)
            self.next = run.next_offset
        missing += self.pass_over(self.next, result.next_offset)
        self.next = result.next_offset
        if missing:
            self._account_missing(missing, result.expired)
        return wanted

    def _account_missing(self, offsets: int, expired: int) -> None:
        # what was not there to be read has expired, or never was: a log need not have a record at each offset
        expired = min(offsets, expired)
        self.tally.absent += offsets - expired
        if expired:
            self.tally.expired += expired
            self._context.recorder.dropped(self._route, "expired", expired)

    async def _load(self, most: int) -> None:
        context = self._context
        try:
            async with context.turn(READ_BYTES) as size:
                now_ms = context.clock.now_ms()
                self.loaded = await context.store.read(self.topic, self.partition, self.next, most, size, now_ms)
        except OffsetOutOfRange:
            pass  # trimmed meanwhile: the next look goes on at the log's start
        except GatewayError as error:
            self.unreadable = error
            if self._read_alarm is None:
                self._read_alarm = Alarm(context.pump, self._read_again)
            self._read_alarm.set(context.clock.now() + READ_AGAIN)
        finally:
            self.reading = False
        self.wake()

    def _read_again(self) -> None:
        self.unreadable = None
        self.wake()

    def _wanted(self, run: Run) -> Iterator[Run]:
        # without what other routes stored, what is settled already, and what cannot be carried
        if not self._route_only:
            yield from self._deliverable(run)
            return
        first = 0  # of those side by side that the route stored
        for number, (begin, _inner, meta) in enumerate(run.batches):
            if meta.route != self._route:
                if first < begin:
                    yield from self._deliverable(run.slice(first, begin))
                first = run.batches[number + 1][0] if number + 1 < len(run.batches) else run.columns.count
                self.tally.filtered += self.pass_over(run.base_offset + begin, run.base_offset + first)
        if first < run.columns.count:
            yield from self._deliverable(run.slice(first, run.columns.count) if first else run)

    def _deliverable(self, run: Run) -> Iterator[Run]:
        smallest, largest = self.smallest, self.largest
        check_size = (largest is not None and len(run.columns.packed) > largest) or smallest > 0
        check_settled = run.base_offset < self._settled_until
        if not check_settled and (not check_size or _all_fit(run.columns, smallest, largest)):
            yield run
            return
        first = before = 0
        for index, end in enumerate(run.columns.ends):
            size = end - before - PREFIX
            before = end
            settled = check_settled and self.window.is_settled(run.base_offset + index)
            fits = size >= smallest and (largest is None or size <= largest)
            if settled or not fits:
                if index > first:
                    yield run.slice(first, index)
                first = index + 1
                if not settled:
                    self.give_up(ConsumedMessage(run, index), SIZE)
        if first < run.columns.count:
            yield run.slice(first, run.columns.count) if first else run

    # --- settling ---

    def acknowledge(self, first: int, stop: int) -> None:
        count = self.window.settle_range(first, stop)
        if count:
            self._dirty = self._kept
            self.tally.acknowledged += count
            self.unsaved += count

    def expire(self, first: int, stop: int) -> None:
        if first < stop:
            self.tally.expired += self._lose("expired", first, stop)

    def pass_over(self, first: int, stop: int) -> int:
        """Settle them, undelivered; returns how many were not settled before."""
        count = self.window.settle_range(first, stop)
        if count:
            self.touch()
        return count

    def _lose(self, why: str, first: int, stop: int) -> int:
        count = self.pass_over(first, stop)
        if count:
            self._context.recorder.dropped(self._route, why, count)
        return count

    def touch(self) -> None:
        """What its rows keep has changed."""
        self._dirty = self._kept

    def tried(self, message: ConsumedMessage) -> None:
        # remember attempts in vain: a restart must not give a message that fails all its attempts again
        window, offset = self.window, message.offset
        # on what is very far ahead of the oldest they are not worth keeping
        if offset - window.low < window.max_span and not window.is_settled(offset):
            while window.outstanding.get(offset, 0) < message.attempts:
                window.hand_out(offset)
                self.touch()

    def give_up(self, message: ConsumedMessage, reason: str) -> None:
        message.detach()
        self.letters = [*self.letters, (message, reason)]

    # --- writing ---

    @property
    def written(self) -> bool:
        return not (self._dirty or self._writing or self.letters)

    def save_soon(self, *, at_once: bool = False) -> None:
        # letters do not wait for WRITE_BEHIND: nothing more is read until they are stored
        if self._writing or self._closed or not (self._dirty or self.letters):  # for every message
            return
        if (at_once or self.letters) and not self.unwritable:
            self.save()
            return
        if self._save_alarm is None:
            self._save_alarm = Alarm(self._context.pump, self.save)
        if not self._save_alarm.is_set:
            self._save_alarm.set(self._context.clock.now() + (WRITE_AGAIN if self.unwritable else WRITE_BEHIND))

    def save(self) -> None:
        if self._save_alarm is not None:
            self._save_alarm.set(None)
        if self._writing or self._closed or self.written:
            return
        letters, window, tally = list(self.letters), self.window, self.tally
        creates: list[MakeTopic] = []
        appends: list[Append] = []
        if letters:  # settled in a copy: whether they are is known when this is stored
            window = AckWindow.from_bytes(window.to_bytes())
            settled = sum(window.settle(message.offset) for message, _reason in letters)
            tally = attrs.evolve(tally, dead_lettered=tally.dead_lettered + settled)
        for message, reason in letters:
            made, append = self._context.letters.dead_letter_append(
                message.run,
                message.index,
                reason=reason,
                attempts=message.attempts,
                first_error=message.first_error or reason,
                last_error=message.last_error or reason,
                topic=self.letters_topic,
            )
            creates += (one for one in made if one not in creates)
            appends.append(append)
        unsaved, low = self.unsaved, window.low
        self._writing, self._dirty = True, False
        puts = self.rows(window, tally) if self._kept else ()
        # a crash may take positions back, and what was done is repeated; a letter must be as durable as its topic
        unit = Unit(appends, puts, self.guard(), creates, synced=None if letters else False)
        self._context.store.submit(unit).on_done(lambda ticket: self._saved(ticket, letters, unsaved, low))

    def _saved(self, ticket: Ticket, letters: Sequence[tuple[ConsumedMessage, str]], unsaved: int, low: int) -> None:
        self._writing = False
        self.unwritable = f"its position cannot be written: {ticket.error.message}" if ticket.error is not None else ""
        if ticket.error is not None:
            self.touch()
            self.save_soon()
            return
        # no more than what was handed to the store: more may have been acknowledged while it wrote
        self.unsaved -= unsaved
        self.on_disk = low
        self.letters = self.letters[len(letters) :]
        for message, reason in letters:
            self.tally.dead_lettered += self.window.settle(message.offset)
            meta, _inner = message.run.meta_of(message.index)
            self._context.recorder.dead_lettered(meta.route, reason, 1)
        self.save_soon()
        self.wake()

    def close(self) -> None:
        self._closed = True
        for alarm in (self._save_alarm, self._read_alarm):
            if alarm is not None:
                alarm.set(None)
        # they refer to each other, which the collector alone would find
        self._save_alarm = self._read_alarm = None

    # --- being put elsewhere ---

    def moved(self, state: TopicState, after: int) -> Moved:
        """Where whoever follows it would begin if this read on at `after`, whatever is settled. Attempts are forgotten."""
        bounds, tally = state.partitions[self.partition], self.tally
        after = max(after, bounds.start)  # retention may have gone on since that was said
        window = AckWindow.from_bytes(self.window.to_bytes(), self.window.max_span)
        trimmed = window.settle_range(window.low, bounds.start)
        skipped = window.settle_range(window.low, after)
        repeated = window.low - after + window.settled_above
        account = attrs.evolve(
            tally,
            trimmed=tally.trimmed + trimmed,
            skipped=tally.skipped + skipped,
            repeated=tally.repeated + repeated,
        )
        backlog = max(0, bounds.end - after)
        shown = ConsumerMove(
            self.partition, self.window.low, after, bounds.start, bounds.end, skipped, repeated, backlog
        )
        place = ConsumerPlace(state, self.partition, AckWindow(after, self.window.max_span), account)
        return Moved(place, trimmed, shown)

    def leave(self, moved: Moved) -> None:
        """That is written: what nobody gets any more is lost to its route."""
        for why, count in (("trimmed", moved.trimmed), ("skipped", moved.shown.skipped)):
            if count:
                self._context.recorder.dropped(self._route, why, count)

    # --- accounting ---

    def counts(self, kind: str, name: str, end: int) -> ConsumerCounts:
        return counts_of(kind, name, self.topic, self.partition, end, self.window, self.tally)


def _all_fit(columns: Columns, smallest: int, largest: int | None) -> bool:
    # without a loop over them in Python: nearly always they do
    ends, step = columns.ends, columns.step
    if step:
        return step >= smallest + PREFIX and (largest is None or step <= largest + PREFIX)
    sizes = list(map(sub, ends, chain((0,), ends)))
    return not sizes or (min(sizes) >= smallest + PREFIX and (largest is None or max(sizes) <= largest + PREFIX))


def counts_of(
    kind: str, name: str, topic: str, partition: int, end: int, window: AckWindow, tally: Tally
) -> ConsumerCounts:
    """The account of one partition. A position beyond the end has passed what is not there."""
    backlog = max(0, end - window.low - window.settled_above)
    return ConsumerCounts(
        kind=kind,
        name=name,
        end=end,
        backlog=backlog,
        topic=topic,
        partition=partition,
        position=window.low,
        start=tally.start,
        acknowledged=tally.acknowledged,
        filtered=tally.filtered,
        expired=tally.expired,
        dead_lettered=tally.dead_lettered,
        trimmed=tally.trimmed,
        absent=tally.absent,
        skipped=tally.skipped,
        repeated=tally.repeated,
    )
