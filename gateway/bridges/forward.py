"""One partition of a topic on its way to an upstream: read on, send what may be sent, settle what was taken."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Sequence

import attrs

from gateway.bridges.chain import Chain, ChainedRequest
from gateway.bridges.forward_rows import cursor_row
from gateway.bridges.lanes import LaneEntry, Lanes, Sending, stretches
from gateway.bridges.pool import PooledConnection, UpstreamPool
from gateway.broker.consume.consumer import MAX_DELIVERIES, Consumer, ConsumerContext, ConsumerPlace, Tally
from gateway.broker.consume.deliveries import Latencies
from gateway.broker.ownership import Owners
from gateway.broker.timers import Alarm
from gateway.envelope import PREFIX, Batch
from gateway.errors import GatewayError
from gateway.model import Forward, Scope
from gateway.recorder import ConsumerCounts, UnderWay
from gateway.requests import Outcome, Publish, Published
from gateway.routing.table import RemoteRule
from gateway.store.ack_window import AckWindow
from gateway.store.interface import PartitionState, Put, Require

REQUEST_BYTES = 1 << 20
LATE_CHECK = 1.0
"""Seconds between two looks at what has waited for too long."""
_again = operator.attrgetter("again")
REFUSED, OUTAGE = "refused", "outage"
"""Reasons of letters: the upstream does not take it, or was away for too long."""


@attrs.frozen(eq=False)
class ForwardContext(ConsumerContext):
    latencies: Latencies
    chance: random.Random
    owners: Owners


def job_of(forward: str, topic: str, partition: int) -> str:
    """The name under which one gateway at a time owns it."""
    return f"forward {forward} {topic} {partition}"


class PartitionForward(Consumer):
    """A durable consumer, and the messages that are between the log and the target."""

    def __init__(self, context: ForwardContext, rule: RemoteRule, pool: UpstreamPool, place: ConsumerPlace) -> None:
        target, name, carries = rule.target, place.topic.name, pool.carries
        assert isinstance(target, Forward)
        super().__init__(
            context,
            place,
            smallest=carries.min_value,
            largest=carries.max_value,
            route=rule.route,
            route_only=target.scope is Scope.ROUTE,
            letters_topic=rule.dead_letter(name),
        )
        self.target = target
        self.rule = rule
        self.pool = pool
        self._owners = context.owners
        context.store.watch(name)
        self._clock = context.clock
        self._latencies = context.latencies
        self._recorder = context.recorder
        self._sending = Sending.to(
            pool, context.store, rule, target.name, place.topic, place.partition, place.tally.repeated
        )
        self._lanes = Lanes(
            target.retry, atomic=carries.batch_atomic, gives_up=bool(self.letters_topic), chance=context.chance
        )
        self._chain = Chain()
        self._fresh_from = place.topic.partitions[place.partition].end
        """What comes before may have been sent by an earlier process, or by another gateway."""
        self.in_flight = 0
        self.stopped = ""
        """Why it does not read on, although there is more."""
        self._dropped = False
        self.stopping = False
        """It sends nothing more."""
        self.held = False
        """It is being put elsewhere: it sends nothing until somebody follows it, or until it is let go on."""
        self._alarm = Alarm(context.pump, self._turn)

    def rows(self, window: AckWindow, tally: Tally) -> Sequence[Put]:
        return [cursor_row(self.target.name, self.topic, self.partition, self.epoch, window, tally)]

    @property
    def job(self) -> str:
        return job_of(self.target.name, self.topic, self.partition)

    def guard(self) -> Sequence[Require]:
        return self._owners.guard(self.job)

    @property
    def place(self) -> tuple[str, int]:
        return self.target.name, self.partition

    @property
    def at_rest(self) -> bool:
        """Nothing is under way and nothing waits to be written."""
        return not self.in_flight and not self.reading and self.written

    @property
    def idle(self) -> bool:
        """It is done, and may be replaced."""
        return not self.held and not self.in_flight and self.written

    def wake(self) -> None:
        self._context.pump.soon(self, self._turn)

    def stop(self) -> None:
        """Send nothing more; what is under way ends, and is written."""
        self.stopping = True
        self.save()

    def hold(self) -> None:
        """The same, until it is let go on."""
        self.held = True
        self.save()

    def go_on(self) -> None:
        self.held = False
        self.wake()

    def drop(self) -> None:
        """The topic is gone, or it is another gateway's from here on."""
        if not self._dropped:
            self._dropped = True
            self._context.store.unwatch(self.topic)
        self.stopping = True
        self.close()
        self._alarm.set(None)

    def account(self) -> ConsumerCounts | None:
        """None once the topic is another one."""
        state = self.state
        return self.counts("forward", self.target.name, state.partitions[self.partition].end) if state else None

    def under_way(self, most: int) -> Sequence[UnderWay]:
        """The first message of each lane that was tried and waits."""
        now = self._clock.now()
        return [
            UnderWay(
                "forward",
                self.target.name,
                self.topic,
                self.partition,
                entry.offset,
                entry.attempts,
                entry.last_error,
                max(0.0, due - now),
            )
            for due, entry in self._lanes.parked_heads(most)
        ]

    @property
    def backlog(self) -> int:
        account = self.account()
        return account.backlog if account is not None else 0

    # --- reading ---

    def _turn(self) -> None:
        if self.stopping or self.held:
            self.save()
            return
        state = self.state
        if state is None:
            return
        while True:
            read = self._read_into_lanes(state.partitions[self.partition])
            if not self._send() or not read:
                break
        late = self._leave_late()
        # early enough that sending, which stops where the window is full of the unwritten, never waits for a write
        self.save_soon(at_once=self.unsaved * 4 >= self.target.window)
        due = self._lanes.next_due()
        if due is not None and due <= self._clock.now():
            due = None  # it waits for the upstream or for room in the window, and whoever gives that wakes us
        self._alarm.set(min((when for when in (due, late) if when is not None), default=None))

    def _read_into_lanes(self, bounds: PartitionState) -> bool:
        # whether there may be more to do
        lanes, window = self._lanes, self.target.window
        self.stopped = self.unreadable.message if self.unreadable is not None else ""
        going = lanes.held - (lanes.parked if self.pool.ready else 0)
        if going >= window:
            return False
        # a lane that waits holds the low water: further above it nothing could be noted as settled
        if lanes.full or self.window.span >= self.window.max_span - 2 * window:
            if self.pool.ready and self.next < bounds.end:
                self.stopped = f"{lanes.parked} messages of {self.topic} wait for a retry: there is no room for more"
            return False
        runs = self.read_on(bounds, max(64, 2 * window - going))
        tried = self.window.outstanding
        for run in runs or ():
            again = run.base_offset < self._fresh_from
            for index in range(run.count):
                attempts = tried.get(run.base_offset + index, 0) if tried else 0
                lanes.push(LaneEntry(run, index, attempts, again=again))
        return runs is not None

    # --- sending ---

    def _send(self) -> bool:
        sent = False
        while self._lanes.held and self.pool.ready and not self._chain.orphans:
            # what is acknowledged and not written would be sent again after a crash: the window bounds that, too
            room = self.target.window - self.in_flight - self.unsaved
            goes_on = self._chain.connection
            entries = self._choose(room, behind=goes_on is not None and self._chain.short)
            if not entries:
                break
            again = any(map(_again, entries))
            if again:
                goes_on = None
                self._chain.leave()
            connection = goes_on or self._chain.beside or self.pool.choose()
            assert connection is not None  # the pool is ready
            batch = self._sending.batch(entries, self._chain.after)
            count = batch.columns.count
            if count < len(entries):
                self._lanes.put_back(entries[count:])
            self.in_flight += count
            self._deliver(entries[:count], batch, connection, again=again)
            sent = True
        return sent

    def _deliver(
        self, entries: Sequence[LaneEntry], batch: Batch, connection: PooledConnection, *, again: bool
    ) -> None:
        size, route = batch.columns.value_bytes, self.rule.route
        self._recorder.delivered(route, self.pool.name, len(entries), size)
        times = sorted([entry.run.times[entry.index] for entry in entries])  # lanes may have changed their order
        self._latencies.add(route, self.topic, self.pool.spec.name, times, self._clock.now_ms())
        request = self._chain.add(connection, batch.copies, len(entries), again=again)
        self.pool.submit_on(
            connection,
            lambda number: Publish(number, batch),
            lambda outcome: self._ended(request, entries, size, outcome),
        )

    def _choose(self, room: int, *, behind: bool) -> list[LaneEntry]:
        # what may go out now, without what expired while it waited
        while room > 0 and (entries := self._lanes.choose(room, REQUEST_BYTES, self._clock.now(), behind=behind)):
            now_ms = self._clock.now_ms()
            expired = [entry for entry in entries if 0 < _expires(entry) <= now_ms]
            if not expired:
                return entries
            for entry in expired:
                self.expire(entry.offset, entry.offset + 1)
            fresh = [entry for entry in entries if entry not in expired]
            self._lanes.put_back((), gone=expired)
            if fresh:
                return fresh
        return []

    def _ended(self, request: ChainedRequest, entries: Sequence[LaneEntry], size: int, outcome: Outcome) -> None:
        self.in_flight -= len(entries)
        now = self._clock.now()
        if self._chain.ended(request, outcome):
            self._lanes.put_back(entries)
        elif isinstance(outcome, GatewayError):
            self._tried(entries, self._lanes.failed(entries, outcome, now))
        elif isinstance(outcome, Published) and outcome.refused:
            taken = [entry for index, entry in enumerate(entries) if index not in outcome.refused]
            self._acknowledged(taken, sum(entry.size - PREFIX for entry in taken))
            self._tried(entries, self._lanes.answered(entries, outcome.refused, now))
        else:
            self._acknowledged(entries, size)
            self._lanes.free(entries)
        self.wake()

    def _acknowledged(self, entries: Sequence[LaneEntry], size: int) -> None:
        for run, start, stop in stretches(entries):
            self.acknowledge(run.base_offset + start, run.base_offset + stop)
        self._recorder.acknowledged(self.rule.route, self.pool.name, len(entries), size)

    def _tried(self, entries: Sequence[LaneEntry], given_up: Sequence[LaneEntry]) -> None:
        for entry in entries:
            self.tried(entry)
        for entry in given_up:
            self.give_up(entry, MAX_DELIVERIES if entry.attempts >= self.target.retry.max else REFUSED)
        self.save_soon()

    def _leave_late(self) -> float | None:
        # An outage may have a limit: what has waited for so long in it goes to the dead letters. When to look again.
        limit, since, now = self.target.retry.outage, self.pool.away_since, self._clock.now()
        if since is None or math.isinf(limit) or not self.letters_topic:
            return None
        if now < since + limit:
            return since + limit
        stored_until = self._clock.now_ms() - 1000 * limit
        while not self.letters:
            chosen = self._lanes.choose(self.target.window, REQUEST_BYTES, now)
            late = [entry for entry in chosen if entry.run.times[entry.index] <= stored_until]
            self._lanes.put_back([entry for entry in chosen if entry not in late], gone=late)
            if not late:
                break
            for entry in late:
                entry.say(self.pool.problem)
                self.give_up(entry, OUTAGE)
            self.save_soon()
        return now + LATE_CHECK


def _expires(entry: LaneEntry) -> int:
    expires = entry.run.columns.expires
    return expires[entry.index] if expires is not None else 0
