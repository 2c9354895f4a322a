"""One partition of a topic on its way to an upstream: read on, send what may be sent, settle what was taken."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence

import attrs

from gateway.bridges.forward_rows import cursor_row, source_of
from gateway.bridges.lanes import Entry, Lanes, columns_of, copies_of, stretches
from gateway.bridges.pool import UpstreamPool
from gateway.broker.consume.deliveries import Latencies
from gateway.broker.consume.position import Position, PositionContext, Tally
from gateway.broker.identity import identity_of
from gateway.broker.service import Clock, LetterMaker
from gateway.broker.timers import Pump
from gateway.envelope import PREFIX, Batch, Copies, Run
from gateway.errors import GatewayError, OffsetOutOfRange
from gateway.model import Forward, Scope
from gateway.recorder import ConsumerCounts, Recorder
from gateway.requests import Outcome, Publish, Published, Request
from gateway.routing.table import RemoteRule
from gateway.store.ack_window import AckWindow
from gateway.store.interface import PartitionState, ReadResult, Store, TopicState

READ_BYTES = 1 << 20
REQUEST_BYTES = 1 << 20
READ_AGAIN = 5.0
"""Seconds until a range that could not be read is looked at again."""
LATE_CHECK = 1.0
"""Seconds between two looks at what has waited for too long."""
REFUSED, ATTEMPTS, SIZE, OUTAGE = "refused", "max_deliveries", "size", "outage"


@attrs.frozen(eq=False)
class ForwardContext:
    """What every forward works with."""

    store: Store
    pump: Pump
    clock: Clock
    recorder: Recorder
    latencies: Latencies
    dead_letters: LetterMaker
    start_soon: Callable[[Callable[[], Awaitable[None]]], None]
    chance: random.Random


class PartitionForward:
    """A durable cursor and the messages that are between the log and the target."""

    def __init__(
        self,
        context: ForwardContext,
        rule: RemoteRule,
        pool: UpstreamPool,
        topic: TopicState,
        partition: int,
        window: AckWindow,
        tally: Tally,
    ) -> None:
        target = rule.target
        assert isinstance(target, Forward)
        self.target = target
        self.topic = topic.name
        self.epoch = topic.epoch
        self.partition = partition
        self._context = context
        self.rule = rule
        self.pool = pool
        self._address = rule.remote_address(topic.name) or topic.name
        self._letters_topic = rule.dead_letter(topic.name)
        carries = pool.spec.carries
        epoch = topic.epoch
        self._source = source_of(context.store, target.name, topic.name, epoch, partition) if carries.copies else b""
        self._identity = identity_of(context.store)
        self._smallest, self._largest = carries.min_value, carries.max_value
        self._lanes = Lanes(
            target.retry, atomic=carries.batch_atomic, gives_up=bool(self._letters_topic), chance=context.chance
        )
        self.position = Position(
            PositionContext(context.store, context.pump, context.clock, context.recorder, context.dead_letters),
            window,
            tally,
            rows=lambda window, tally: [cursor_row(target.name, topic.name, partition, epoch, window, tally)],
            written=self.wake,
            letters_topic=self._letters_topic,
        )
        self._next = window.low
        self._settled_until = window.high
        self.in_flight = 0
        self.stopped = ""
        """Why it does not read on, although there is more."""
        self._loading = False
        self.stopping = False
        """It sends nothing more."""
        self._timer: tuple[float, Callable[[], None]] | None = None
        self._late_timer: Callable[[], None] | None = None

    @property
    def idle(self) -> bool:
        """Nothing is under way and nothing waits to be written."""
        return not self.in_flight and self.position.settled

    def wake(self) -> None:
        """Something may be possible now: look in the next pass."""
        self._context.pump.soon(self, self._turn)

    def stop(self) -> None:
        """Send nothing more; what is under way ends, and is written."""
        self.stopping = True
        self.position.save()

    def drop(self) -> None:
        """The topic is gone."""
        self.stopping = True
        self.position.close()
        if self._timer is not None:
            self._timer[1]()
        if self._late_timer is not None:
            self._late_timer()

    def backlog(self, state: PartitionState) -> int:
        """Messages that are not settled."""
        return self.counts(state).backlog

    def counts(self, state: PartitionState) -> ConsumerCounts:
        """For the accounting."""
        return self.position.counts("forward", self.target.name, self.topic, self.partition, state.end)

    # --- reading ---

    def _turn(self) -> None:
        if self.stopping:
            self.position.save()
            return
        state = self._context.store.topics.get(self.topic)
        if state is None or state.epoch != self.epoch:
            return
        while True:
            read = self._read_on(state.partitions[self.partition])
            if not self._send() or not read:
                break
        self._leave_late()
        self.position.save_soon(at_once=self.position.unsaved * 4 >= self.target.window)
        self._set_timer()

    def _read_on(self, bounds: PartitionState) -> bool:
        """Read what is next into the lanes; whether there may be more to do."""
        self.stopped = ""
        if self._loading or self._next >= bounds.end or self.position.letters:
            return False
        lanes = self._lanes
        going = lanes.held - (lanes.parked if self.pool.ready else 0)
        if going >= self.target.window:
            return False
        if lanes.full or self.position.window.span >= self.position.window.max_span - 2 * self.target.window:
            if self.pool.ready:
                self.stopped = f"{lanes.parked} messages of {self.topic} wait for a retry: there is no room for more"
            return False
        if self._next < bounds.start:
            trimmed = self.position.passed(self._next, bounds.start)
            self.position.tally.trimmed += trimmed
            self._context.recorder.dropped(self.rule.route, "trimmed", trimmed)
            self._next = bounds.start
        size = max(64, 2 * self.target.window - going)
        now_ms = self._context.clock.now_ms()
        result = self._context.store.read_cached(self.topic, self.partition, self._next, size, READ_BYTES, now_ms)
        if result is None:
            self._loading = True
            self._context.start_soon(lambda: self._load(size))
            return False
        self._take_in(result)
        return True

    async def _load(self, size: int) -> None:
        context = self._context
        try:
            now_ms = context.clock.now_ms()
            result = await context.store.read(self.topic, self.partition, self._next, size, READ_BYTES, now_ms)
            if self.stopping:
                return  # what it makes of this is not written any more
            self._take_in(result)
        except OffsetOutOfRange:
            pass  # trimmed meanwhile: the next look goes on at the log's start
        except GatewayError as error:
            self.stopped = error.message
            context.pump.call_at(context.clock.now() + READ_AGAIN, self._read_again)
            return
        self._loading = False
        self.wake()

    def _read_again(self) -> None:
        self._loading = False
        self.wake()

    def _take_in(self, result: ReadResult) -> None:
        offset = self._next
        for run in result.runs:
            self._expire(offset, run.base_offset)
            self._sort_in(run)
            offset = run.next_offset
        self._expire(offset, result.next_offset)
        self._next = result.next_offset

    def _expire(self, first: int, next_offset: int) -> None:
        if first < next_offset:
            expired = self.position.passed(first, next_offset)
            self.position.tally.expired += expired
            if expired:
                self._context.recorder.dropped(self.rule.route, "expired", expired)

    def _sort_in(self, run: Run) -> None:
        """Into the lanes, but for what other routes stored, what is settled already, and what cannot be carried."""
        if self.target.scope is Scope.TOPIC:
            self._push(run, 0, run.count)
            return
        for number, (first, _inner, meta) in enumerate(run.batches):
            end = run.batches[number + 1][0] if number + 1 < len(run.batches) else run.count
            if meta.route == self.rule.route:
                self._push(run, first, end)
            else:
                filtered = self.position.passed(run.base_offset + first, run.base_offset + end)
                self.position.tally.filtered += filtered

    def _push(self, run: Run, start: int, stop: int) -> None:
        window, base = self.position.window, run.base_offset
        attempts = window.outstanding or None
        for index in range(start, stop):
            offset = base + index
            if offset < self._settled_until and window.is_settled(offset):
                continue
            entry = Entry(run, index, attempts.get(offset, 0) if attempts else 0)
            if self._smallest <= entry.size - PREFIX <= self._largest:
                self._lanes.push(entry)
            else:
                self.position.give_up(entry, SIZE)

    # --- sending ---

    def _send(self) -> bool:
        """Send while there is room in the window; whether anything was sent."""
        sent = False
        context, lanes = self._context, self._lanes
        while self.pool.ready:
            room = self.target.window - self.in_flight - self.position.unsaved
            entries = self._fresh(lanes.choose(room, REQUEST_BYTES, context.clock.now())) if room > 0 else []
            if not entries:
                break
            copies = None
            if self._source:
                copies = copies_of(self._source, self._identity, entries)
                if copies.count < len(entries):
                    entries, others = entries[: copies.count], entries[copies.count :]
                    lanes.put_back(others, entries)
            self.in_flight += len(entries)
            self._deliver(entries, copies)
            sent = True
        return sent

    def _deliver(self, entries: Sequence[Entry], copies: Copies | None) -> None:
        batch = Batch(self._address, columns_of(entries), copies=copies)

        def request(number: int) -> Request:
            return Publish(number, batch)

        size = batch.columns.value_bytes
        context, route = self._context, self.rule.route
        context.recorder.delivered(route, self.pool.name, len(entries), size)
        times = sorted([entry.run.times[entry.index] for entry in entries])  # lanes may have changed their order
        context.latencies.add(route, self.topic, self.pool.spec.name, times, context.clock.now_ms())
        self.pool.submit(request, lambda outcome: self._ended(entries, size, outcome))

    def _fresh(self, entries: list[Entry]) -> list[Entry]:
        """Without those that expired while they waited."""
        while any(entry.run.columns.expires is not None for entry in entries):
            now_ms = self._context.clock.now_ms()
            late = [entry for entry in entries if 0 < _expires(entry) <= now_ms]
            for entry in late:
                self._expire(entry.offset, entry.offset + 1)
            fresh = [entry for entry in entries if not 0 < _expires(entry) <= now_ms]
            if fresh or not late:
                freed = {entry.key for entry in fresh}
                self._lanes.delivered([entry for entry in late if entry.key not in freed])
                return fresh
            self._lanes.delivered(late)
            entries = self._lanes.choose(len(late), REQUEST_BYTES, self._context.clock.now())
        return entries

    def _ended(self, entries: Sequence[Entry], size: int, outcome: Outcome) -> None:
        self.in_flight -= len(entries)
        now = self._context.clock.now()
        if isinstance(outcome, GatewayError):
            self._give_up(self._lanes.failed(entries, outcome, now))
            self.position.tried(entries)
        elif isinstance(outcome, Published) and outcome.refused:
            taken = [entry for index, entry in enumerate(entries) if index not in outcome.refused]
            self._acknowledged(taken, sum(entry.size - PREFIX for entry in taken))
            self._give_up(self._lanes.answered(entries, outcome.refused, now))
            self.position.tried(entries)
        else:
            self._acknowledged(entries, size)
            self._lanes.delivered(entries)
        self.wake()

    def _acknowledged(self, entries: Sequence[Entry], size: int) -> None:
        for first, stop in stretches(entries):
            self.position.acknowledged(first, stop)
        self._context.recorder.acknowledged(self.rule.route, self.pool.name, len(entries), size)

    def _give_up(self, given_up: Sequence[tuple[Entry, GatewayError]]) -> None:
        for entry, _error in given_up:
            reason = ATTEMPTS if entry.attempts >= self.target.retry.max else REFUSED
            self.position.give_up(entry, reason)
        self.position.save_soon()

    def _leave_late(self) -> None:
        """An outage may have a limit: what has waited for so long in it goes to the dead letters."""
        limit, since, now = self.target.retry.outage, self.pool.away_since, self._context.clock.now()
        if since is None or math.isinf(limit) or not self._letters_topic:
            return
        if now < since + limit:
            self._look_at(since + limit)
            return
        stored_until = self._context.clock.now_ms() - 1000 * limit
        while not self.position.letters:
            late = self._lanes.take_late(
                self.target.window, lambda entry: entry.run.times[entry.index] <= stored_until, now
            )
            for entry in late:
                entry.say(self.pool.problem)
                self.position.give_up(entry, OUTAGE)
            self.position.save_soon()
            if not late:
                self._look_at(now + LATE_CHECK)
                return

    def _look_at(self, when: float) -> None:
        if self._late_timer is not None:
            self._late_timer()
        self._late_timer = self._context.pump.call_at(when, self.wake)

    def _set_timer(self) -> None:
        due = self._lanes.next_due()
        if due is not None and due <= self._context.clock.now():
            due = None  # it waits for the upstream or for room in the window, and whoever gives that wakes us
        if self._timer is not None:
            if self._timer[0] == due:
                return
            self._timer[1]()
            self._timer = None
        if due is not None:
            self._timer = (due, self._context.pump.call_at(due, self._timer_fired))

    def _timer_fired(self) -> None:
        self._timer = None
        self._turn()


def _expires(entry: Entry) -> int:
    expires = entry.run.columns.expires
    return expires[entry.index] if expires is not None else 0
