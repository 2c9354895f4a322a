"""The one driver: runs any protocol's session over any link, against the broker.

Bytes go in, requests come out and go to the broker; replies go back into the session, and its outputs to the link. All of
it is synchronous and per batch: no task, no await, no lock. Back-pressure is not reading: the link is paused while too
many requests are in flight, too much output waits, or the global byte budget is spent.
"""

from __future__ import annotations

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
from gateway.transport.limits import Budget, Unfinished
from gateway.transport.link import Link, apply
from gateway.wire.session import Kind, ServerSession

log = structlog.get_logger()

MAX_ROUNDS = 64
"""How often one turn lets a session react to immediate replies before others get the loop."""
INDEX = 4
"""Bytes that say where a message ends."""
MOST_AT_ONCE = 512
"""Requests of one connection that are handed over before others get the loop."""
FETCHES_AT_ONCE = 2
"""As long as it is not known how much each of them brings."""
TURN_BYTES = 256 << 10
"""With so much fetched for one connection others have their turns before it goes on."""


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


Attach = Callable[[str, Callable[[Sequence[Completion]], None]], BrokerClient]
"""(peer, callback for later completions) -> the connection's side of the broker."""


@attrs.frozen
class DriverContext:
    listener: str
    limits: Limits
    budget: Budget
    recorder: Recorder
    clock: Callable[[], float]
    hold: Callable[[], None] = lambda: None
    """Requests of several connections are coming that should be committed together: until `release`."""
    release: Callable[[int], None] = lambda _by: None


class Driver:
    """One connection: its link, its session and its side of the broker. Implements LinkHandler."""

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
        self._due = math.inf
        """When the session wants to be called."""
        self._deadline = math.inf
        """When the link calls us at the latest. It may be too early: to put it off for every turn costs more than to look."""
        self._backlog: list[Request] = []
        self._at_once = FETCHES_AT_ONCE
        """So many requests, with a fetch among them, probably bring no more than others can wait for."""
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

    @supervised
    def gather(self, channel: int, data: bytes, now: float) -> None:
        """As `received`, for who reads many connections before their turns: what they ask for is committed together, and known
        when their turn comes.
        """
        if self._closed:
            return
        self._now = self._heard_at = now
        self._fed += len(data)
        requests = self._session.receive(channel, data, now)
        self._stirred = True
        if self._backlog or len(requests) > self._at_once:
            if self._backlog or fetches(requests):
                self._backlog.extend(requests)
                return
            if len(requests) > MOST_AT_ONCE:
                self._run(requests)
                return
        if requests:
            self.asked += len(requests)
            self._client.start(requests)
            self._started = [*self._started, *requests] if self._started else requests
            self._gathered = True

    @supervised
    def turn(self, now: float) -> None:
        if self._closed or self._busy:
            return
        self._now = now
        self._busy = True
        if self._gathered:
            self._gathered = False
            started, self._started = self._started, ()
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
        if self._backlog and self._link.waiting()[1] < self._context.limits.output:
            backlog, self._backlog = self._backlog, []
            self._run(backlog)
        self._flush()
        self._busy = False
        buffered, replies, taken = self._link.waiting()
        if not (replies and self._unread) or taken != self._taken:
            self._taken, self._read_at = taken, now
        self._unread = replies
        until = self._session.rests_until()
        if until is None or not self._at_rest(now, buffered, replies):
            self._look_after(now, buffered, replies)
            return
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
        if buffered != self._charged:
            change, self._charged = buffered - self._charged, buffered
            budget.change(change)
        self._fed = 0
        return True

    def _look_after(self, now: float, buffered: int, replies: int) -> None:
        # the other turns: whether the peer's time is up, whether it is read any further, when to look again
        session = self._session
        in_flight, due = session.in_flight, session.timeout_at()
        self._due = math.inf if due is None else due
        if not self._timed_out(now, buffered, replies, in_flight):
            self._throttle(buffered, replies, in_flight)
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
        self._closed = True
        log.debug("a connection closed", listener=self._context.listener, peer=self._link.peer, cut=self._cut)
        # what was parsed counts as sent by the client, whose connection may have ended for another reason
        unheard = [request for request in self._backlog if isinstance(request, Write)]  # read is read, answered or not
        self._submit([*unheard, *self._session.lost()])
        self._client.detach()
        self._context.budget.forget(self._key)
        self._context.budget.writers -= self._counted
        self._counted = False
        self._context.budget.change(-self._charged)
        self._charged = 0

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
        if self._closed:
            return
        self._now = self._context.clock()
        self._run(self._finish(completions))
        if self._link.immediate:
            self.turn(self._now)
        else:
            self._link.wake()

    def _run(self, requests: Iterable[Request]) -> None:
        # submit, let the session react to what ended at once, submit what it asks for then, and so on
        if self._closed:
            return
        self._stirred = True
        pending = requests if isinstance(requests, list) else list(requests)
        if self._backlog:
            # order is fixed when bytes are parsed: what is new must not pass what waits
            self._backlog.extend(pending)  # it waits for its turn, and so does what comes behind it
            return
        left, room = MOST_AT_ONCE, TURN_BYTES
        while pending and left and room > 0:
            now = pending[:left]
            some = len(now) > self._at_once and fetches(now)
            if some:
                del now[self._at_once :]
            left -= len(now)
            completions = self._submit(now)
            if some:
                room -= self._weigh(completions)
            following = self._finish(completions)
            pending = [*pending[len(now) :], *following] if len(now) < len(pending) else following
        self.asked += MOST_AT_ONCE - left
        if pending:
            self._backlog = pending
            self._link.wake()

    def _weigh(self, completions: Sequence[Completion]) -> int:
        # what the last ones have brought says how many the next may be
        size = sum(len(run.columns.packed) for _, one in completions if isinstance(one, Fetched) for run in one.runs)
        if size > TURN_BYTES:
            self._at_once = 1
        elif completions and 2 * size < TURN_BYTES:
            self._at_once = min(2 * self._at_once, MOST_AT_ONCE)
        return size

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

    def _finish(self, completions: Sequence[Completion]) -> list[Request]:
        if self._started:  # they may have ended with others
            started, self._started = self._started, ()
            self._account(started)
        following: list[Request] = []
        session = self._session
        for request_id, outcome in completions:
            if self._sizes:
                self._writing -= self._sizes.pop(request_id, 0)
            if isinstance(outcome, GatewayError):
                self._last_error = outcome.message
            more = session.complete(request_id, outcome, self._now)
            if more:
                following.extend(more)
        return following

    def _flush(self) -> None:
        link = self._link
        # a session that always has one more thing to say leaves the others their turn
        for _ in range(MAX_ROUNDS):
            outputs = self._session.outputs()
            self._stirred = False
            if outputs:
                apply(outputs, link)
            if not self._stirred:
                return
        link.wake()

    def _throttle(self, buffered: int, replies: int, in_flight: int) -> None:
        context = self._context
        kept = self._session.kept
        held = self._writing + buffered + kept
        if held != self._charged:
            change, self._charged = held - self._charged, held
            context.budget.change(change)
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
        elif context.budget.spent(writer=self._writing > 0 or kept > 0):
            hit = "budget"
            context.budget.wait(self._key, self._link.wake)
            context.budget.relieve(self._now)
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
        holder = None if not kept or waits_for_us else Unfinished(kept, self._frame_since, self._evict)
        self._context.budget.unfinished(self._key, holder)

    def _evict(self) -> None:
        self._abort("unfinished")
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
