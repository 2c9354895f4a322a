"""One remote address on its way into the log.

Data flow:

    remote ──Take──► taken (at most one answer ahead) ──Publish──► the broker's entry ──committed──► Settle ──► remote
                                                         │ refused for good                 └─ or our own bookmark
                                                         └──► dead letters

One batch is published at a time and its place at the remote moves only when it is committed here, so nothing that was
acknowledged can be missing and the order stays. Back-pressure is not taking: while a commit waits, at most one more answer
is held, and while the memory for what is held is spent, none is asked for. Whatever breaks (a connection, a refusal, a reload of
the remote) ends the *intake*: what was not committed is forgotten here and asked for again on the next one; what was committed
but not settled comes a second time.

    WAITING ──connection, targets ready──► SUBSCRIBING ──subscribed, place known──► RUNNING
       ▲                                        │                                     │
       └──────────── back-off ◄─────────────────┴──────────── lost, refused ◄─────────┘
"""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from gateway.bridges.bookmark import Bookmark, Places
from gateway.bridges.breaker import BACKOFF, jittered, refuses_login
from gateway.bridges.ingest_entry import IngestEntry, Stored
from gateway.bridges.ingest_memory import IngestMemory
from gateway.bridges.pool import PooledConnection, UpstreamPool
from gateway.broker.ownership import Owners
from gateway.broker.service import NOTHING_ALONG, Clock, Guard
from gateway.broker.timers import Alarm, Pump
from gateway.errors import (
    Conflict,
    GatewayError,
    OffsetOutOfRange,
    Status,
    TargetLost,
    TargetRefused,
    Unsupported,
)
from gateway.protocols.registry import ProtocolSpec, ReaderPosition
from gateway.recorder import IngestPlace, Recorder
from gateway.requests import (
    Delivered,
    Outcome,
    Request,
    Resume,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.store.interface import Store

_KEPT_HERE = (ReaderPosition.OWN, ReaderPosition.NUMBERED)
RESUME_SECONDS = 5.0
"""How long a subscription from before is given to show that it is still there. Longer than the first few redeliveries take."""
LOOK_AGAIN = 0.5
"""Seconds until a target that was not ready is looked at again."""
NOTE_SECONDS = 5.0
"""Seconds until it is written down by itself what the remote was told."""
LONGEST_HOLD = 5.0
"""Seconds an empty Take waits at most; half the upstream's time-out where that is less."""
FOR_PEOPLE = (Status.DENIED, Status.UNSUPPORTED, Status.INVALID)
"""Refusals that will not go away by themselves."""


class IngestState(enum.Enum):
    """Where an address is."""

    WAITING = "waiting"
    SUBSCRIBING = "subscribing"
    RUNNING = "running"


@attrs.frozen(eq=False)
class IngestContext:
    store: Store
    pump: Pump
    clock: Clock
    recorder: Recorder
    chance: random.Random
    memory: IngestMemory
    owners: Owners


@attrs.define(eq=False)
class Intake:
    """A subscription on one connection. Answers for one that is no more are not looked at."""

    connection: PooledConnection
    subscription: int = 0
    start: Start | int = Start.EARLIEST
    replays: bool = False
    """Its offsets are the remote log's own: a bookmark made of them means something."""
    taking: bool = False
    fallback: int = 0
    """The subscription to change to unless the one from before gives a sign of life in time."""
    fallback_at: float = 0.0
    """When that is, 0 while nothing is asked for: then it could not give any."""

    def until(self, now: float, patience: float) -> float:
        """When an empty answer is due at the latest to what is asked for now."""
        if not self.fallback:
            return now + patience
        self.fallback_at = self.fallback_at or now + RESUME_SECONDS
        return min(now + patience, self.fallback_at)


class Source:
    def __init__(
        self,
        context: IngestContext,
        pool: UpstreamPool,
        names: tuple[str, str, str],
        entry: IngestEntry,
        obstacle: Callable[[], str],
        guard: Guard,
    ) -> None:
        """`names`: the ingest as metrics call it (its `from`), the group, the remote address. `guard`: on what conditions
        anything is written for it.
        """
        self._context = context
        self._pool = pool
        self._source, self._group, self.remote = names
        self._entry = entry
        self._obstacle = obstacle
        self._guard = guard
        of = pool.name, self._group, self.remote
        self._bookmark = Bookmark(context.store, *of, guard)
        self._position = pool.spec.reader_position
        self._places = Places(context.store, *of, guard) if remembers_offsets(pool.spec) else None
        self._noting: Callable[[], None] | None = None
        self.state = IngestState.WAITING
        self._blocked = ""
        self._refused = ""
        self._intake: Intake | None = None
        self._taken: deque[Delivered] = deque()
        self._held = context.memory.part(self.wake)
        self._storing = False
        self._settling = 0
        """Requests to settle what is stored, on their way."""
        self._failures = 0
        self._due = 0.0
        self._alarm = Alarm(context.pump, self._turn)
        self._finishing = False
        self._closing = False

    @property
    def idle(self) -> bool:
        """Nothing of it is on its way into the log, and the remote has said that it knows."""
        return not (self._storing or self._settling or (self._finishing and self._expecting))

    @property
    def _expecting(self) -> bool:
        # what was asked for has not come yet, or has come and waits
        return bool(self._taken) or (self._intake is not None and self._intake.taking)

    @property
    def running(self) -> bool:
        return self.state is IngestState.RUNNING and not self._entry.stuck

    @property
    def problem(self) -> str:
        """Why it does not run, if somebody has to look."""
        return self._blocked or self._refused

    def place(self) -> IngestPlace:
        own = self._position is ReaderPosition.OWN
        return IngestPlace(
            self._pool.name,
            self._source,
            self.remote,
            self.state.value,
            self._bookmark.number if own else None,
            sum(one.run.count for one in self._taken),
            self.problem,
        )

    def wake(self) -> None:
        self._context.pump.soon(self, self._turn)

    def finish(self) -> None:
        # Ask for nothing more; what comes because it was asked for is stored, and settled. Who follows has it behind that:
        # given back to the remote it would come again behind what is newer.
        self._finishing = True

    def stop(self) -> None:
        """Take nothing more; what is being stored is stored, and settled."""
        self._closing = True
        self._taken.clear()
        self._held.forget()
        self._alarm.set(None)

    def close(self) -> None:
        if self._intake is not None:  # the connections may stay: what came over them would be nobody's
            self._leave(self._intake)
        if self._noting is not None:
            self._noting()
        if self._places is not None and not self._storing:
            self._places.note()
        self._entry.close()
        self._held.close()

    def restart(self) -> None:
        """The remote address has changed (more partitions): subscribe again."""
        if self._intake is not None and self.state is IngestState.RUNNING:
            self._leave(self._intake)
            self.wake()

    # --- between intakes ---

    def _turn(self) -> None:
        if self._closing:
            return
        if self._intake is not None:
            self._advance(self._intake)
            return
        now = self._context.clock.now()
        if self._storing or self._finishing:
            return
        if now < self._due:
            self._alarm.set(self._due)
            return
        self._blocked = self._obstacle()
        if self._position in _KEPT_HERE and self._bookmark.lost and self._bookmark.number is None:
            self._blocked = self._bookmark.lost
        if self._blocked:
            self._alarm.set(now + LOOK_AGAIN)
            return
        connection = self._pool.choose()
        if connection is None:
            return  # the pool says when there is one
        self._subscribe(Intake(connection, start=self._bookmark.start(self._position)))

    def _subscribe(self, intake: Intake) -> None:
        self._intake = intake
        self.state = IngestState.SUBSCRIBING
        self._send(
            intake,
            lambda number: Subscribe(number, self.remote, self._group, intake.start, acknowledge=True),
            lambda outcome: self._subscribed(intake, outcome),
        )

    def _subscribed(self, intake: Intake, outcome: Outcome) -> None:
        if isinstance(outcome, Unsupported) and intake.start is not Start.LATEST:
            intake.start = Start.LATEST  # where it begins is not ours to say
            self._subscribe(intake)
        elif isinstance(outcome, OffsetOutOfRange):
            self._bookmark.move(outcome.first or None)
            self._failed(intake, outcome)
        elif not isinstance(outcome, Subscribed):
            self._failed(intake, outcome if isinstance(outcome, GatewayError) else Unsupported())
        elif self._position is ReaderPosition.NUMBERED:
            self._find_number(intake, outcome.subscription)
        else:
            intake.subscription = outcome.subscription
            intake.replays = self._position is ReaderPosition.OWN and intake.start is not Start.LATEST
            self._run()

    def _find_number(self, intake: Intake, fresh: int) -> None:
        # The subscription from before has what came meanwhile. Numbers only grow while a broker lives: one that gives out a
        # smaller one has started again, and the old number may be somebody else's.
        before = self._bookmark.number
        if before is None or fresh <= before:
            self._use_number(intake, fresh)
            return
        intake.fallback = fresh

        def resumed(outcome: Outcome) -> None:
            if isinstance(outcome, Subscribed):
                intake.subscription = before
                self._run()
            else:
                self._failed(intake, outcome if isinstance(outcome, GatewayError) else Unsupported())

        self._send(intake, lambda number: Resume(number, before, self.remote), resumed)

    def _use_number(self, intake: Intake, number: int) -> None:
        # nothing is taken before the number is kept: what was taken would be out of reach after a crash
        intake.subscription = number
        intake.fallback = 0
        self.state = IngestState.SUBSCRIBING

        def kept(error: GatewayError | None) -> None:
            if self._intake is intake:
                if error is None:
                    self._run()
                else:
                    self._failed(intake, error)

        self._bookmark.move(number, synced=True).on_done(lambda ticket: kept(ticket.error))

    def _run(self) -> None:
        self.state = IngestState.RUNNING
        self._refused = ""
        self.wake()

    # --- while it runs ---

    def _advance(self, intake: Intake) -> None:
        if self.state is not IngestState.RUNNING:
            return
        if self._taken and not self._storing:
            self._store_next(intake)
        ahead = (
            self._storing and self._position is ReaderPosition.NUMBERED
        )  # there each delivery has a short time to be settled
        if not intake.taking and not self._taken and not ahead and not self._finishing:
            self._take(intake)

    def _take(self, intake: Intake) -> None:
        messages, size = self._held.ask()
        if not messages:
            intake.fallback_at = 0.0
            return
        # an answer with nothing in it has to come before the pool takes the silence for a dead connection
        until = intake.until(self._context.clock.now(), min(LONGEST_HOLD, self._pool.upstream.timeout / 2))
        intake.taking = True

        def make(number: int) -> Request:
            return Take(number, intake.subscription, messages, size, until)

        self._send(intake, make, lambda outcome: self._arrived(intake, outcome))

    def _arrived(self, intake: Intake, outcome: Outcome) -> None:
        intake.taking = False
        if not isinstance(outcome, Taken):
            self._failed(intake, outcome if isinstance(outcome, GatewayError) else Unsupported())
            return
        self._failures = 0
        if outcome.ended:
            self._failed(intake, TargetLost("the upstream ended the subscription"))
        elif self._position is not ReaderPosition.NUMBERED or self._is_ours(intake, outcome):
            self._taken.extend(outcome.deliveries)
            self._held.arrived(outcome.deliveries)
        self.wake()

    def _is_ours(self, intake: Intake, taken: Taken) -> bool:
        # Whether a numbered subscription is still the one we made. What came to another's is theirs: nobody settles it here,
        # so it is delivered to them again.
        if any(one.run.topic != self.remote for one in taken.deliveries):
            if intake.fallback:
                self._use_number(intake, intake.fallback)
            else:
                self._bookmark.move(None)
                self._failed(intake, TargetLost("the subscription's number was given to somebody else"))
            return False
        if intake.fallback and taken.deliveries:
            intake.fallback = 0  # it lives
        elif intake.fallback and self._context.clock.now() >= intake.fallback_at:
            self._use_number(intake, intake.fallback)
        return True

    def _store_next(self, intake: Intake) -> None:
        deliveries = list(self._taken)
        self._taken.clear()
        self._storing = True
        self._held.storing()
        fresh, along = deliveries, NOTHING_ALONG
        if self._places is not None:
            fresh = self._places.fresh(deliveries)
            along = self._places.along(fresh)
        elif intake.replays:
            along = self._bookmark.along(fresh)

        def ended(stored: Stored) -> None:
            if not stored.fenced:
                self._moved(intake, fresh)
            self._stored(intake, deliveries, stored)

        if fresh:
            self._entry.store(fresh, along, ended)
        else:
            ended(Stored())

    def _moved(self, intake: Intake, stored: Sequence[Delivered]) -> None:
        if self._places is not None:
            self._places.stored(stored)
        elif intake.replays:
            self._bookmark.number = stored[-1].run.next_offset

    def _stored(self, intake: Intake, deliveries: Sequence[Delivered], stored: Stored) -> None:
        # Stored, or in the dead letters: the remote may forget them. `IngestEntry` has not given up before.
        def settled(outcome: Outcome) -> None:
            # a tag that cannot be settled any more is delivered again: that is all there is to it
            self._settling -= 1
            if self._places is not None and isinstance(outcome, Settled) and not any(outcome.results):
                self._places.settled(deliveries)
                self._note_later()
            if isinstance(outcome, GatewayError) and self._intake is intake and not self._closing:
                self._failed(intake, outcome)

        self._storing = False
        self._held.stored()
        recorder = self._context.recorder
        for error in stored.errors:
            recorder.ingest_failed(self._pool.name, self._source, error.status)
        recorder.ingested(self._pool.name, self._source, stored.messages)
        if stored.fenced:
            self._leave(intake)
            table = self._context.store.table
            if any(table(one.table).get(one.key) != one.value for one in self._guard()):
                self.stop()
            else:  # it was stored after all by an attempt of which nobody knew what became: what comes again is known now
                (self._places or self._bookmark).read_again()
                self._failed(intake, Conflict("some of it is stored already"))
            return
        if self._intake is intake:  # or else its tags mean nothing any more, and it all comes again
            tags = [one.first_tag + index for one in deliveries for index in range(one.run.count)]
            self._settling += 1
            self._pool.submit_on(
                intake.connection,
                lambda number: Settle(number, intake.subscription, tags),
                settled,
            )
        self.wake()

    def _note_later(self) -> None:
        if self._noting is None and not self._closing:
            self._noting = self._context.pump.call_at(self._context.clock.now() + NOTE_SECONDS, self._note)

    def _note(self) -> None:
        # what is stored next has the row of before as a condition: not both at once
        self._noting = None
        if self._storing:
            self._note_later()
        elif self._places is not None and (ticket := self._places.note()) is not None:
            self._storing = True
            ticket.on_done(lambda _ticket: self._noted())

    def _noted(self) -> None:
        self._storing = False
        self.wake()

    # --- endings ---

    def _failed(self, intake: Intake, error: GatewayError) -> None:
        # the intake is over: wait a while, then begin again where the remote, or the bookmark, says
        reason = error.refusal if isinstance(error, TargetRefused) else error.status
        self._context.recorder.ingest_failed(self._pool.name, self._source, reason)
        if isinstance(error, TargetRefused | Unsupported) and reason in FOR_PEOPLE:
            self._refused = f"{self.remote}: {error.message}"
        self._leave(intake)
        self._failures += 1
        moved = (
            isinstance(error, OffsetOutOfRange) and self._failures == 1
        )  # and the bookmark with it: once more at once
        if not moved and not refuses_login(error):  # what the pool waits for need not be waited for here
            delay = jittered(BACKOFF.delay(self._failures), self._context.chance)
            self._due = self._context.clock.now() + delay
        self.wake()

    def _leave(self, intake: Intake) -> None:
        if self._intake is not intake:
            return
        self._intake = None
        self.state = IngestState.WAITING
        self._taken.clear()
        self._held.forget()
        # by its number it is gone on with, here or by whoever has it now
        if (
            self._position is not ReaderPosition.NUMBERED
            and intake.subscription
            and not intake.connection.over.is_set()
        ):
            number = intake.subscription
            self._pool.submit_on(intake.connection, lambda request: Unsubscribe(request, number), lambda _outcome: None)

    def _send(self, intake: Intake, make: Callable[[int], Request], ended: Callable[[Outcome], None]) -> None:
        def current(outcome: Outcome) -> None:
            if self._intake is intake and not self._closing:
                ended(outcome)

        self._pool.submit_on(intake.connection, make, current)


def remembers_offsets(spec: ProtocolSpec) -> bool:
    """Whether a broker elsewhere numbers its messages, and remembers our group."""
    return spec.carries.offset and spec.reader_position is ReaderPosition.NAMED
