"""The one driver: runs any protocol's session over any link, against the broker.

Bytes go in, requests come out and go to the broker; replies go back into the session, and its outputs to the link. All of
it is synchronous and per batch: no task, no await, no lock. Back-pressure is not reading: the link is paused while too
many requests are in flight, too much output waits, or the global byte budget is spent.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs
import structlog

from gateway.envelope import Origin
from gateway.errors import GatewayError
from gateway.recorder import ConnectionSnapshot, Recorder
from gateway.requests import Completion, Fetch, Fetched, Publish, Request, Write
from gateway.settings import Limits
from gateway.transport.edge import supervised
from gateway.transport.limits import Budget, Holder
from gateway.transport.link import Link, apply
from gateway.transport.tcp import REQUEST_COST
from gateway.wire.session import Kind, Send, ServerSession

log = structlog.get_logger()

SAID = (bytes, Send)
"""What a session has answered with that is all there is to send."""
MAX_ROUNDS = 64
"""How often one turn lets a session react to immediate replies before others get the loop."""
INDEX = 4
"""Bytes that say where a message ends."""
MOST_AT_ONCE = 512
"""Requests of one connection that are handed over before others get the loop."""
FETCHES_AT_ONCE = 2
"""As long as it is not known how much each of them brings."""
MOST_FETCHES = 64
"""At once, however little the last ones have brought: the next ones may bring much."""
READ_AHEAD = 2
"""From the disk: while one leaves the next is read."""
MUCH = 64 << 10
"""What brings less than this has its turn with all that is small."""
TURN_BYTES = 256 << 10
"""With so much brought for one connection the next fetch of it is handed over alone."""


class BrokerClient(Protocol):
    """A connection's side of the broker."""

    @property
    def origin(self) -> Origin:
        """Who it is, as the log remembers it."""
        ...

    def submit(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """Start requests; those that end at once are returned, the others come through the callback given to attach."""
        ...

    def start(self, requests: Sequence[Request]) -> None:
        """Start requests; `collect` returns those that have ended by then."""
        ...

    def collect(self) -> Sequence[Completion]:
        """What has ended since `start`."""
        ...

    def detach(self) -> None:
        """The connection is gone."""
        ...


class TakesTurns(Protocol):
    """What takes long, of all connections together: so much in each pass of the event loop."""

    @property
    def busy(self) -> bool:
        """Whether this pass has nothing left, or somebody waits for it."""
        ...

    def spend(self, size: int) -> None:
        """So much was done in this pass."""
        ...

    def add(self, connection: object, call: Callable[[], None], size: int = 0) -> None:
        """Call when it is this connection's turn. `size`: what it takes, beside what it will `spend`."""
        ...


Attach = Callable[[str, Callable[[Sequence[Completion]], None]], BrokerClient]
"""(peer, callback for later completions) -> the connection's side of the broker."""


@attrs.frozen
class DriverContext:
    listener: str
    limits: Limits
    budget: Budget
    recorder: Recorder
    clock: Callable[[], float]
    lane: TakesTurns
    hold: Callable[[], None] = lambda: None
    """Requests of several connections are coming that should be committed together: until `release`."""
    release: Callable[[int], None] = lambda _by: None


class Driver:
    """One connection: its link, its session and its side of the broker. Implements LinkHandler."""

    # objects of one class share the keys of their attributes, but not of more than thirty: each would have a dictionary of 1.5 KB
    __slots__ = (
        "_at_once",
        "_backlog",
        "_brought",
        "_busy",
        "_calm",
        "_charged",
        "_client",
        "_closed",
        "_context",
        "_counted",
        "_cut",
        "_deadline",
        "_due",
        "_fed",
        "_frame_since",
        "_gathered",
        "_heard_at",
        "_hit",
        "_hits",
        "_in_lane",
        "_kept",
        "_key",
        "_last_error",
        "_last_hit",
        "_link",
        "_now",
        "_opened_at",
        "_owed",
        "_paused",
        "_read_at",
        "_reading",
        "_session",
        "_sizes",
        "_sole",
        "_started",
        "_stirred",
        "_taken",
        "_unread",
        "_unsaid",
        "_writing",
        "asked",
    )
    _keys = itertools.count()

    def __init__(self, context: DriverContext, session: ServerSession, link: Link, attach: Attach) -> None:
        self._context = context
        self._session = session
        self._link = link
        self._client = attach(link.peer, self._completed)
        self._key = next(self._keys)
        self._now = context.clock()
        self._opened_at = self._now
        self._heard_at = self._now
        self._sizes: dict[int, int] = {}
        self._writing = 0
        self._counted = False
        """Whether this connection is counted among the writers of the budget."""
        self._charged = 0
        self._owed = 0
        """Charged for answers."""
        self._paused = False
        self.asked = 0
        """Requests of the peer's that were handed over as they were read, or in a turn of their own; never counted down."""
        self._fed = 0
        """Bytes that came since the last turn."""
        self._kept = 0
        self._frame_since = math.inf
        """When the frame that is not whole began."""
        self._hit = ""
        """The limit because of which nothing is read."""
        self._closed = False
        self._cut = ""
        """Why the gateway ended the connection, if it did."""
        self._busy = False
        self._stirred = False
        """The session was told something since its outputs were taken."""
        self._gathered = False
        """Requests are under way of which the next turn asks whether they have ended."""
        self._started: Sequence[Request] = ()
        """Of those, the ones that do not count as under way yet: nearly all have ended by then."""
        self._calm = False
        """The last turn ended with nothing under way, and nothing but `gather` has been called since. Where answers leave at
        once, nothing was to be sent either, and no time to be kept but the peer's.
        """
        self._sole = 0
        """The publish that is all there is under way, of a connection that was calm before: nothing has been called since."""
        self._due = math.inf
        """When the session wants to be called."""
        self._deadline = math.inf
        """When the link calls us at the latest. It may be too early: to put it off for every turn costs more than to look."""
        self._backlog: list[Request] = []
        self._in_lane = False
        """Its turn comes."""
        self._unsaid = False
        """The session has more to say than one turn may have, and its next one comes."""
        self._at_once = FETCHES_AT_ONCE
        """So many requests, with a fetch among them, probably bring no more than others can wait for."""
        self._brought = 0
        """Bytes that the last ones have."""
        self._reading: list[int] = []
        """Fetches under way that did not come alone, and wait for the disk."""
        self._unread = self._taken = 0
        """Bytes of replies that the peer had not taken, and those that it had, when it was last seen to."""
        self._read_at = self._now
        """When it last took any, or there was none to take."""
        self._hits = 0
        self._last_hit = ""
        self._last_error = ""
        log.debug("a connection opened", listener=context.listener, peer=link.peer)

    # --- LinkHandler ---

    @supervised
    def opened(self, channel: int, kind: Kind) -> None:
        self._now = self._context.clock()
        self._run(self._session.opened(channel, kind, self._now))

    @supervised
    def received(self, channel: int, data: bytes) -> None:
        self._now = self._heard_at = self._context.clock()
        self._fed += len(data)
        self._run(self._session.receive(channel, data, self._now))

    @supervised
    def eof(self, channel: int) -> None:
        self._now = self._context.clock()
        self._run(self._session.eof(channel, self._now))

    @supervised
    def reset(self, channel: int, code: int) -> None:
        self._run(self._session.reset(channel, code))

    @supervised
    def stopped(self, channel: int, code: int) -> None:
        self._run(self._session.stopped(channel, code))

    @supervised
    def room(self, channel: int) -> None:
        self._now = self._context.clock()
        self._run(self._session.room(channel, self._now))

    def take(self, channel: int, data: bytes, now: float) -> int:
        """As `received`, for who reads many connections before their turns: what they ask for is committed together, and known
        when their turn comes.
        """
        if self._closed:
            return 0
        self._sole = 0
        self._now = self._heard_at = now
        self._fed += len(data)
        requests = self._session.receive(channel, data, now)
        self._stirred = True
        count = len(requests)
        if not count:
            return 0
        if self._backlog or self._reading or self._context.lane.busy or count > self._at_once:
            asked = self.asked
            if self._backlog or (self._has_to_wait(count) and fetches(requests)):
                self._backlog.extend(requests)
                return 0
            if count > MOST_AT_ONCE:
                self._run(requests)
                return self.asked - asked
        self.asked += count
        self._client.start(requests)
        self._started = [*self._started, *requests] if self._started else requests
        self._gathered = True
        return count

    gather = supervised(take)

    def answer(self, now: float) -> bytes | None:
        """`turn`, behind `take`. What most of them come to is done in a few lines: bytes, which are all there is to send, or what
        is all there is to send on one of several channels.
        """
        started, budget = self._started, self._context.budget
        if not self._calm or len(started) != 1 or now >= self._deadline or budget.used >= budget.limit:
            self._turn(now)
            return None
        ended = self._client.collect()
        if not ended and self._link.immediate and type(started[0]) is Publish:
            self._gathered, self._started, self._now = False, (), now
            self._account(started)
            if self._waits_alone():
                self._sole = started[0].id
                return b"" if self._session.answer_due else None
            self._turn(now)
            return None
        number, outcome = ended[0] if len(ended) == 1 else (0, None)
        if outcome is None or number != started[0].id or isinstance(outcome, GatewayError):
            self._turn(now, ended)
            return None
        self._gathered, self._started, self._now = False, (), now
        following = self._session.answered(number, outcome, now)
        if isinstance(following, bytes):
            if not self._link.immediate:
                self._turn(now, said=Send(0, following))
                return None
            self._stirred, self._fed = False, 0
            if len(following) >= MUCH:
                self._context.lane.spend(len(following))
            return following
        if isinstance(following, Send):
            self._turn(now, said=following)
        else:
            self._turn(now, (), following)
        return None

    respond = supervised(answer)

    def _waits_alone(self) -> bool:
        # What is under way waits for the disk, and came to a calm connection: most often there is nothing to be looked at but its
        # size, until it has ended. False: there is, by a turn.
        context, session, link = self._context, self._session, self._link
        budget, writing = context.budget, self._writing
        self._calm = False
        if session.kept or session.held or session.timeout_at() is not None:
            return False
        outputs = session.outputs()
        self._stirred, self._fed = False, 0
        if outputs:
            apply(outputs, link)
            self._leave_rest()
            return False
        budget.writers += not self._counted
        self._counted = True
        change, self._charged = writing - self._charged, writing
        budget.change(change)
        few = session.in_flight < context.limits.in_flight
        return few and writing < budget.share and not budget.spent(writer=True)

    def _answered_alone(self, completions: Sequence[Completion]) -> bool:
        # it has ended, and its answer is all there is to be done; False if not
        number, outcome = completions[0]
        if len(completions) != 1 or number != self._sole or self._closed or isinstance(outcome, GatewayError):
            return False
        context, link = self._context, self._link
        budget = context.budget
        self._sole, self._now = 0, context.clock()
        self._writing -= self._sizes.pop(number)
        following = self._session.answered(number, outcome, self._now)
        if not isinstance(following, SAID):
            self._run(following)
            self._turn_or_wake()
            return True
        budget.writers -= 1
        self._counted = False
        freed, self._charged = self._charged, 0
        budget.change(-freed)
        self._calm = True
        if following:
            channel, data = (following.channel, following.data) if isinstance(following, Send) else (0, following)
            link.send(channel, data)
            link.flush()
            if link.waiting()[0]:
                self._turn_or_wake()
        return True

    @supervised
    def turn(self, now: float) -> None:
        self._turn(now)

    def _turn(
        self,
        now: float,
        ended: Sequence[Completion] | None = None,
        following: Iterable[Request] = (),
        said: Send | None = None,
    ) -> None:
        # `ended`: what was collected already; `following`: what that has led to; `said`: that it has led to this alone
        if self._closed or self._busy:
            return
        self._sole = 0
        self._now = now
        self._busy = True
        until: float | None
        if said is not None:
            self._stirred = False
            self._link.send(said.channel, said.data)
            if self._link.immediate:
                self._link.flush()
            until = self._due
        else:
            if self._gathered:
                self._gathered = False
                started, self._started = self._started, ()
                if ended is None:
                    ended = self._client.collect()
                if len(started) != 1 or len(ended) != 1 or ended[0][0] != started[0].id:
                    self._account(started)
                following = self._finish(ended)
            if following:
                self._run(following)
            if self._due <= now:
                due = self._session.timeout_at()
                if due is not None and due <= now:
                    self._run(self._session.on_timeout(now))
            if self._backlog and not self._in_lane and self._may_go_on:
                if self._context.lane.busy and fetches(self._backlog[:MOST_AT_ONCE]):
                    self._line_up()
                else:
                    self._go_on()
            self._flush()
            until = self._session.rests_until()
        self._busy = False
        buffered, replies, taken = self._link.waiting()
        if not (replies and self._unread) or taken != self._taken:
            self._taken, self._read_at = taken, now
        self._unread = replies
        if until is None or not self._at_rest(now, buffered, replies):
            self._look_after(now, buffered, replies)
            self._calm = until == math.inf and self._at_rest(now, buffered, replies) and not buffered
            return
        self._calm = (until == math.inf and not buffered) or not self._link.immediate
        self._due = until
        if replies:
            until = min(until, self._read_at + self._context.limits.write_timeout)
        elif not buffered:
            until = min(until, self._heard_at + self._context.limits.idle)
        if until < self._deadline or self._deadline <= now:
            self._wake_at(until)

    def _at_rest(self, now: float, buffered: int, replies: int) -> bool:
        # Most turns end with all that was asked answered: what may be on its way to the peer is held against the bounds, and
        # there is little else to look at. Whether it is so, as far as the session does not say it.
        context = self._context
        limits, budget = context.limits, context.budget
        if (
            self._hit
            or self._paused
            or self._writing
            or self._counted
            or self._kept
            or self._closed
            or replies >= limits.output
            or now >= (self._read_at + limits.write_timeout if replies else self._heard_at + limits.idle)
            or budget.used >= budget.limit
        ):
            return False
        if buffered != self._owed or self._charged:
            self._charge(0, buffered)
        self._fed = 0
        return True

    def _look_after(self, now: float, buffered: int, replies: int) -> None:
        # the other turns: whether the peer's time is up, whether it is read any further, when to look again
        session = self._session
        in_flight, due = session.in_flight, session.timeout_at()
        self._due = math.inf if due is None else due
        if not self._timed_out(now, buffered, replies, in_flight):
            self._throttle(buffered, replies, in_flight)
            self._leave_rest()
            soonest = self._next_deadline(buffered, replies, in_flight)
            if soonest < self._deadline or self._deadline <= now:
                self._wake_at(soonest)

    def _wake_at(self, soonest: float) -> None:
        self._deadline = soonest
        self._link.set_deadline(soonest if soonest < math.inf else None)

    @supervised
    def lost(self) -> None:
        if self._closed:
            return
        self._closed, self._calm = True, False
        log.debug("a connection closed", listener=self._context.listener, peer=self._link.peer, cut=self._cut)
        # what was parsed counts as sent by the client, whose connection may have ended for another reason
        unheard = [request for request in self._backlog if isinstance(request, Write)]  # read is read, answered or not
        self._submit([*unheard, *self._session.lost()])
        self._client.detach()
        self._context.budget.forget(self._key)
        self._context.budget.writers -= self._counted
        self._counted = False
        self._charge(0, 0)

    @supervised
    def drain(self) -> None:
        if self._closed:
            return
        self._now = self._context.clock()
        self._run(self._session.drain(self._now))
        self._link.wake()

    def fail(self, error: Exception) -> None:
        # something inside this connection went wrong that nobody expected: say so, and cut it
        log.error("a connection failed", listener=self._context.listener, peer=self._link.peer, exc_info=error)
        self._busy = False
        self._abort("internal_error")

    @property
    def number(self) -> int:
        """Unique in this process."""
        return self._key

    def snapshot(self) -> ConnectionSnapshot:
        origin, spoken, now = self._client.origin, self._session.spoken, self._context.clock()
        buffered, replies, _taken = self._link.waiting()
        return ConnectionSnapshot(
            id=self._key,
            listener=self._context.listener,
            protocol=origin.protocol,
            peer=self._link.peer,
            principal=origin.principal,
            dialect=spoken.dialect,
            sign=spoken.sign,
            handshaken=self._session.handshaken,
            age=now - self._opened_at,
            quiet=now - self._heard_at,
            in_flight=self._session.in_flight,
            buffered=buffered,
            replies=replies,
            kept=self._session.kept,
            held_by=self._hit,
            limits_hit=self._hits,
            last_limit=self._last_hit,
            last_error=self._last_error,
        )

    def cut(self) -> None:
        if not self._closed:
            self._abort("operator")
            self.lost()

    def _abort(self, reason: str) -> None:
        self._cut = reason
        self._context.recorder.refused_connection(self._context.listener, reason)
        self._link.abort()

    # --- inside ---

    @supervised
    def _completed(self, completions: Sequence[Completion]) -> None:
        if self._sole and self._answered_alone(completions):
            return
        lane = self._context.lane
        if (lane.busy or len(completions) > 1) and brought(completions) >= MUCH:
            for one in completions:  # of which each is much for a pass, if several came back from the disk together
                size = brought((one,))
                self._context.budget.change(0, size)
                lane.add(self, functools.partial(self._have, one, size), 0)
        else:
            self._ended(completions)

    def _have(self, one: Completion, size: int) -> None:
        # its turn has come: from here on what is unsent of it counts
        self._context.budget.change(0, -size)
        self._ended((one,))

    @supervised
    def _ended(self, completions: Sequence[Completion]) -> None:
        if self._closed:
            return
        self._now = self._context.clock()
        reading = bool(self._reading)
        following = self._finish(completions)
        if reading and self._brought:
            self._learn()
        self._run(following)
        self._turn_or_wake()

    def _turn_or_wake(self) -> None:
        if self._link.immediate:
            self.turn(self._now)
        else:
            self._link.wake()

    # --- what is asked for much, in turns with others ---

    @property
    def _reads_ahead(self) -> bool:
        # as much as it may
        return len(self._reading) >= max(self._at_once, READ_AHEAD)

    def _has_to_wait(self, count: int) -> bool:
        return count > self._at_once or self._reads_ahead or self._context.lane.busy

    @property
    def _may_go_on(self) -> bool:
        return not (self._unsaid or self._reads_ahead) and self._link.waiting()[1] < self._context.limits.output

    def _line_up(self) -> None:
        # unless it waits for the disk, which comes to another turn too
        if not self._in_lane and not self._reads_ahead:
            self._in_lane = True
            self._context.lane.add(self, self._have_turn, 0)

    @supervised
    def _have_turn(self) -> None:
        self._in_lane = False
        if self._closed:
            return
        self._now = self._context.clock()
        if self._backlog and self._may_go_on:
            self._go_on()
        self._turn_or_wake()

    def _leave_rest(self) -> None:
        if not self._unsaid and self._session.unsaid:
            self._unsaid = True
            self._context.lane.add(self, self._say_more, 0)

    @supervised
    def _say_more(self) -> None:
        self._unsaid = False
        if self._closed:
            return
        before = self._said
        self._now = self._context.clock()
        self._turn_or_wake()
        self._context.lane.spend(self._said - before)

    @property
    def _said(self) -> int:
        # bytes that were ever put out
        _buffered, replies, taken = self._link.waiting()
        return replies + taken

    def _go_on(self) -> None:
        backlog, self._backlog = self._backlog, []
        self._run(backlog, in_turn=True)

    def _run(self, requests: Iterable[Request], *, in_turn: bool = False) -> None:
        # submit, let the session react to what ended at once, submit what it asks for then, and so on
        if self._closed:
            return
        self._stirred = True
        self._calm = False
        self._sole = 0
        pending = requests if isinstance(requests, list) else list(requests)
        if self._backlog:
            # order is fixed when bytes are parsed: what is new must not pass what waits
            self._backlog.extend(pending)  # it waits for its turn, and so does what comes behind it
            return
        left, lane = MOST_AT_ONCE, self._context.lane
        while pending and left:
            now = pending[:left]
            some = len(now) > self._at_once and fetches(now)
            if some and self._reads_ahead:
                break
            if lane.busy and not in_turn and fetches(now):
                break
            if some:
                del now[self._at_once :]
                lane.spend(len(now) * REQUEST_COST)
            in_turn = False
            left -= len(now)
            completions = self._submit(now)
            following = self._finish(completions)
            if some and completions:
                self._learn()
            pending = [*pending[len(now) :], *following] if len(now) < len(pending) else following
        self.asked += MOST_AT_ONCE - left
        if pending:
            self._backlog = pending
            if fetches(pending[:MOST_AT_ONCE]):
                self._line_up()
            else:
                self._link.wake()

    def _learn(self) -> None:
        # what the last ones have brought says how many the next may be
        if self._brought > TURN_BYTES:
            self._at_once = 1
        elif 2 * self._brought < TURN_BYTES:
            self._at_once = min(2 * self._at_once, MOST_FETCHES)

    def _submit(self, requests: Sequence[Request]) -> Sequence[Completion]:
        if not requests:
            return ()
        self._account(requests)
        return self._client.submit(requests)

    def _account(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if isinstance(request, Publish):
                columns = request.batch.columns
                size = len(columns.packed) + INDEX * columns.count
                if columns.keys is not None or columns.headers is not None:
                    size += columns.beside_values()
                self._sizes[request.id] = size
                self._writing += size
            elif type(request) is Fetch and request.hold_until is None:
                self._reading.append(request.id)

    def _finish(self, completions: Sequence[Completion]) -> list[Request]:
        if self._started:  # they may have ended with others
            started, self._started = self._started, ()
            self._account(started)
        following: list[Request] = []
        session, size = self._session, 0
        for request_id, outcome in completions:
            if self._sizes:
                self._writing -= self._sizes.pop(request_id, 0)
            if self._reading and request_id in self._reading:
                self._reading.remove(request_id)
            if type(outcome) is Fetched:
                for run in outcome.runs:
                    size += len(run.columns.packed)
            elif isinstance(outcome, GatewayError):
                self._last_error = outcome.message
            more = session.complete(request_id, outcome, self._now)
            if more:
                following.extend(more)
        self._brought = size
        if size >= MUCH:
            self._context.lane.spend(size)
        return following

    def _flush(self) -> None:
        link = self._link
        if self._unsaid:
            return
        # a session that always has one more thing to say leaves the others their turn
        for _ in range(MAX_ROUNDS):
            outputs = self._session.outputs()
            self._stirred = False
            if outputs:
                apply(outputs, link)
            if not self._stirred or self._session.unsaid:
                return
        link.wake()

    def _throttle(self, buffered: int, replies: int, in_flight: int) -> None:
        context = self._context
        kept = self._session.kept
        if self._writing + kept != self._charged or buffered != self._owed:
            self._charge(self._writing + kept, buffered)
        self._note_unfinished(kept)
        if (self._writing > 0) is not self._counted:
            self._counted = not self._counted
            context.budget.writers += 1 if self._counted else -1
        hit = ""
        if in_flight >= context.limits.in_flight:
            hit = "in_flight"
        elif replies >= context.limits.output or (self._hit and replies > context.limits.output // 2):
            # what was stopped goes on at half of it, or reading would flap with every answer that leaves
            hit = "output"
        elif self._writing >= context.budget.share:
            hit = "share"
        elif context.budget.spent(writer=(writer := not buffered or self._charged > 0)):
            # what somebody will ask for who has nothing unsent is not known: it may be a small publish
            hit = "budget"
            context.budget.wait(self._key, self._link.wake, writer=writer)
            context.budget.relieve_writers(self._now)
            if self._closed:
                return
        # counted when it begins, not for every turn that it lasts
        if hit and not self._hit:
            context.recorder.limit_hit(context.listener, hit)
            self._hits += 1
            self._last_hit = hit
        self._hit = hit
        paused = bool(hit) or self._session.held
        if paused == self._paused:
            return
        self._paused = paused
        if paused:
            self._link.pause()
        else:
            self._link.resume()

    def _charge(self, held: int, owed: int) -> None:
        held_before, owed_before = self._charged, self._owed
        self._charged, self._owed = held, owed
        budget = self._context.budget
        if owed and not owed_before:
            budget.owing[self] = None
        elif owed_before and not owed:
            del budget.owing[self]
        budget.change(held - held_before, owed - owed_before)

    def _note_unfinished(self, kept: int) -> None:
        # tell the budget who holds the beginning of a frame: not who waits for a commit or an answer of ours
        fed, self._fed = self._fed, 0
        if not kept and not self._kept:
            return
        if not kept:
            self._frame_since = math.inf
        elif kept < self._kept + fed or self._frame_since == math.inf:  # a frame was whole, and another one begins
            self._frame_since = self._now
        self._kept = kept
        waits_for_us = self._writing > 0 or self._session.held
        holder = None if not kept or waits_for_us else Holder(kept, self._frame_since, self._evict_writer)
        self._context.budget.unfinished(self._key, holder)

    def _evict_writer(self) -> None:
        self._evict("unfinished")

    def evict_reader(self) -> None:
        """Others wait for the room that its answers hold, and its peer does not take them."""
        self._evict("unread")

    def held(self) -> tuple[int, int]:
        """How many bytes of answers there are, and how many the peer was ever seen to take."""
        size, taken = self._link.held()
        if size != self._owed:
            self._charge(self._charged, size)
        return size, taken

    def _evict(self, reason: str) -> None:
        # who has it in hand is told by this line alone: to its peer nothing can be said
        log.warning(
            "a connection was cut for the room it held",
            listener=self._context.listener,
            peer=self._link.peer,
            reason=reason,
            unread=self._owed,
            unfinished=self._kept,
        )
        self._abort(reason)
        self.lost()

    def _timed_out(self, now: float, buffered: int, replies: int, in_flight: int) -> bool:
        if self._closed:
            return True
        limits = self._context.limits
        if not self._session.handshaken:
            reason = "handshake" if now >= self._opened_at + limits.handshake else ""
        else:
            reason = "idle" if now >= self._heard_at + limits.idle and not (in_flight or buffered) else ""
        # a peer that reads slowly is served; one that reads nothing for the whole time is cut
        if not reason and replies and now >= self._read_at + limits.write_timeout:
            reason = "write_timeout"
        if not reason:
            return False
        self._abort(reason)
        return True

    def _next_deadline(self, buffered: int, replies: int, in_flight: int) -> float:
        limits, session = self._context.limits, self._session
        if not session.handshaken:
            soonest = self._opened_at + limits.handshake
        elif not buffered and not in_flight:
            soonest = self._heard_at + limits.idle
        else:
            soonest = math.inf
        soonest = min(soonest, self._due)
        if replies:
            soonest = min(soonest, self._read_at + limits.write_timeout)
        if self._hit == "budget":
            soonest = min(soonest, self._context.budget.relief_at)
        return soonest


def fetches(requests: Iterable[Request]) -> bool:
    """Whether what is asked for may be much."""
    return any(type(request) is Fetch for request in requests)


def brought(completions: Sequence[Completion]) -> int:
    """Bytes of what was fetched."""
    size = 0
    for _, outcome in completions:
        if type(outcome) is Fetched:
            for run in outcome.runs:
                size += len(run.columns.packed)
    return size
