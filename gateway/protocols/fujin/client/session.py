"""The client side of a Fujin connection (Fujin document; wire 0 to 2, 6): one stream for plain publishes, one for each
transaction and each subscription, and an answer to every ping. Over a byte stream one session does it all.

What is spoken is what the dialect says; with `auto` what QUIC agreed upon, and with ALPN `fujin` 0.5 first: a server of the
seed's ends a stream that begins with HELLO without a word, and everything goes on in the seed's dialect.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence, Sized

from gateway.errors import Conflict, GatewayError, TargetLost, UnknownSubscription, Unsupported
from gateway.protocols.fujin.client.bound import PONG as STRICT_PONG
from gateway.protocols.fujin.client.bound import BoundSession
from gateway.protocols.fujin.client.lane import ClientCore, StreamLane
from gateway.protocols.fujin.client.reader import ReaderLane
from gateway.protocols.fujin.client.writer import WriterLane
from gateway.protocols.fujin.wire.frames import ALPN, V1_ALPN, Op
from gateway.requests import (
    DONE,
    Begin,
    Cancel,
    Commit,
    Publish,
    Request,
    Rollback,
    Settle,
    Start,
    Subscribe,
    Take,
    Unsubscribe,
)
from gateway.settings import Dialect, Transport
from gateway.wire.session import CONNECTION, ClientContext, Close, Completions, Finish, Kind, Output

PONG = bytes((Op.PING,))


class FujinClient:
    keeps_turns = False

    def __init__(self, context: ClientContext) -> None:
        self._core = ClientCore(context.dialect)
        self._context = context
        self._streams = context.transport in (None, Transport.QUIC)
        self._greets = context.dialect is Dialect.SESSION or (context.dialect is Dialect.AUTO and context.alpn == ALPN)
        self._binds = self._greets or context.dialect is Dialect.V1 or context.alpn == V1_ALPN
        """Whether a connector is bound; found out, with `auto`."""
        self._sessions: dict[int, BoundSession] = {}
        self._main: BoundSession | None = None
        """Where is published what is in no transaction, and what says whether we are let in."""
        self._owners: dict[str, BoundSession] = {}
        """The session of each transaction."""
        self._homes: dict[int, BoundSession] = {}
        """The session of each subscription."""
        self._refusal: GatewayError | None = None
        self._tokens = itertools.count(-1, -1)
        self._subscriptions = itertools.count(1)
        self._lanes: dict[int, StreamLane] = {}
        self._writer: WriterLane | None = None
        self._transactions: dict[str, WriterLane] = {}
        self._readers: dict[int, ReaderLane] = {}
        self._early: deque[Request] = deque()
        self._ready = False
        self._over: GatewayError | None = None
        """Why nothing more can be asked."""
        self._closing = False
        self._closed = False

    # --- the driver's side ---

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        # The connection is up: there is nothing to say first. Streams of the server's are pings.
        if channel == CONNECTION or (channel == 0 and not self._streams):
            if self._binds:
                self._main = self._open_session(own=self._streams)
            if not self._finds_out:
                self._begin(now)
        return self._core.take()

    def submit(self, request: Request, now: float) -> Completions:
        if self._over is not None:
            return ((request.id, self._over),)
        if self._closing:
            return ((request.id, TargetLost("the connection is being closed")),)
        if not self._ready:
            self._early.append(request)
            return ()
        self._start(request, now)
        return self._core.take()

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        # replies; what a ping says does not matter (wire 1.2)
        lane = self._lanes.get(channel)
        session = self._sessions.get(channel)
        if lane is not None:
            lane.receive(data, now)
            self._forget_if_over(lane)
        elif session is not None:
            session.receive(data)
            self._look_at(session, now)
        return self._core.take()

    def eof(self, channel: int, now: float) -> Completions:
        # A ping is complete: answer it once, with its end (wire 0, rule 1). Or a stream of ours is over.
        lane = self._lanes.get(channel)
        if lane is not None:
            self._end(lane, "the broker ended the stream")
        elif channel in self._sessions:
            self._end_session(self._sessions[channel], "the broker ended the session", now)
        elif channel >= 0:
            self._core.outbox.send(channel, STRICT_PONG if self._binds else PONG)
            self._core.outbox.put(channel, Finish(channel))
        return self._core.take()

    def reset(self, channel: int, code: int) -> Completions:
        lane = self._lanes.get(channel)
        if lane is not None:
            self._end(lane, f"the broker reset the stream with code {code}")
        if channel in self._sessions:
            self._end_session(self._sessions[channel], f"the broker reset the session with code {code}", None)
        return self._core.take()

    def stopped(self, channel: int, code: int) -> Completions:
        # The server reads no more on a stream. After a DISCONNECT that is its way; replies still come (wire 1.4).
        lane = self._lanes.get(channel)
        if lane is not None:
            lane.leaving = True
        return self._core.take()

    def lost(self) -> Completions:
        self._closed = True
        if self._over is None:
            self._over = TargetLost("the connection to the broker is lost")
            for request in self._early:
                self._core.done(request.id, self._over)
            self._early.clear()
            for lane in list(self._lanes.values()):
                self._end(lane, self._over.message)
            for session in list(self._sessions.values()):
                self._end_session(session, self._over.message, None)
        return self._core.take()

    def room(self, channel: int, now: float) -> Completions:
        # nothing is sent with `notify`
        return ()

    def close(self, now: float) -> Completions:
        """DISCONNECT on every stream; the connection closes when all are answered."""
        self._closing = True
        for request in self._early:
            self._core.done(request.id, TargetLost("the connection is being closed"))
        self._early.clear()
        for lane in self._lanes.values():
            if isinstance(lane, ReaderLane):
                lane.finish()
            lane.leave()
        for session in list(self._sessions.values()):
            session.finish()
            session.leave()
            if session.over:
                self._sessions.pop(session.channel, None)
        return self._core.take()

    def timeout_at(self) -> float | None:
        times = [reader.timeout_at() for reader in self._timed()]
        return min((time for time in times if time is not None), default=None)

    def on_timeout(self, now: float) -> Completions:
        for reader in self._timed():
            reader.on_timeout(now)
        return self._core.take()

    def _timed(self) -> Sequence[ReaderLane | BoundSession]:
        return [*self._readers.values(), *self._sessions.values()]

    def outputs(self) -> Sequence[Output]:
        if self._closed:
            return ()
        if self._closing and not self._lanes and not self._sessions:
            self._closed = True
            self._core.outbox.put(CONNECTION, Close())
        return self._core.outbox.outputs()

    @property
    def in_flight(self) -> int:
        writers = [*self._transactions.values(), *([self._writer] if self._writer is not None else [])]
        counted: list[Sized] = [*writers, *self._readers.values(), *self._sessions.values()]
        return len(self._early) + sum(map(len, counted))

    @property
    def admitted(self) -> bool | GatewayError:
        # the seed's dialect has no login; in the others BIND is one
        if self._refusal is not None:
            return self._refusal
        return self._ready and (self._main is None or self._main.bound)

    # --- requests ---

    def _begin(self, now: float) -> None:
        self._ready = True
        early, self._early = self._early, deque()
        for request in early:
            self._start(request, now)

    def _start(self, request: Request, now: float) -> None:
        if self._main is not None:
            self._start_bound(request, now)
            return
        match request:
            case Publish():
                self._publish(request)
            case Begin():
                lane = self._open_writer()
                self._transactions[str(lane.channel)] = lane
                lane.transact(Op.BEGIN, request)
            case Commit() | Rollback():
                transaction = self._transactions.get(request.transaction)
                if transaction is None:
                    self._core.done(request.id, Conflict("no such transaction"))
                else:
                    transaction.transact(Op.COMMIT if isinstance(request, Commit) else Op.ROLLBACK, request)
            case Subscribe() if request.start is not Start.LATEST:
                self._core.done(request.id, Unsupported("where a Fujin reader begins is the broker's to say"))
            case Subscribe():
                number = next(self._subscriptions)
                reader = ReaderLane(self._core, next(self._tokens), number, request)
                self._lanes[reader.channel] = self._readers[number] = reader
            case Take() | Settle() | Unsubscribe():
                self._read(request, now)
            case Cancel():
                for reader in self._readers.values():
                    reader.cancel(request.request)
                self._core.done(request.id, DONE)
            case _:
                self._core.done(request.id, Unsupported(f"Fujin has no {type(request).__name__}"))

    # --- in the dialects that bind ---

    def _start_bound(self, request: Request, now: float) -> None:
        main = self._main
        assert main is not None
        match request:
            case Publish() if request.deliver_at_ms or request.schema:
                self._core.done(request.id, Unsupported("Fujin has no delays or schemas"))
            case Begin():
                name = str(next(self._subscriptions))
                self._owners[name] = session = self._open_session(own=True) if self._streams else main
                session.begin(request, name)
            case Publish() | Commit() | Rollback():
                session = self._owners.get(request.transaction, main)
                session.submit(request)
                if not isinstance(request, Publish):
                    self._owners.pop(request.transaction, None)
                    self._look_at(session, now)
            case Subscribe() if request.start is not Start.LATEST:
                self._core.done(request.id, Unsupported("where a Fujin reader begins is the broker's to say"))
            case Subscribe():
                number = next(self._subscriptions)
                self._homes[number] = session = self._open_session(own=True) if self._streams else main
                session.subscribe(request, number)
            case Take() | Settle() | Unsubscribe():
                self._read_bound(request, now)
            case Cancel():
                for session in self._sessions.values():
                    session.cancel(request.request)
                self._core.done(request.id, DONE)
            case _:
                self._core.done(request.id, Unsupported(f"Fujin has no {type(request).__name__}"))

    def _read_bound(self, request: Take | Settle | Unsubscribe, now: float) -> None:
        session = self._homes.get(request.subscription)
        if session is None or session.over:
            self._core.done(request.id, UnknownSubscription())
        elif isinstance(request, Take):
            session.take(request, now)
        elif isinstance(request, Settle):
            session.settle(request)
        else:
            del self._homes[request.subscription]
            session.unsubscribe(request)

    def _open_session(self, *, own: bool) -> BoundSession:
        # on a stream of its own, or on the whole connection
        channel = next(self._tokens) if own else 0
        session = BoundSession(self._core, channel, self._context.credentials, greets=self._greets)
        self._sessions[channel] = session
        return session

    def _look_at(self, session: BoundSession, now: float) -> None:
        # after something came in: is it over, does it still have anything to do?
        if session is self._main and session.greeted and not self._ready and not session.over:
            self._begin(now)
        if session.refusal is not None and session is self._main:
            self._refusal = session.refusal
        if session.over:
            self._end_session(session, "the broker ended the session", now)
        elif session is not self._main and session.bound and not session.busy and not len(session):
            session.leave()

    def _end_session(self, session: BoundSession, reason: str, now: float | None) -> None:
        self._sessions.pop(session.channel, None)
        if self._is_seed(now):
            self._binds = self._greets = False
            self._main = None
            self._begin(now or 0.0)
            return
        if not session.over:
            session.fail(TargetLost(reason))
        self._homes = {number: one for number, one in self._homes.items() if one is not session}
        self._owners = {name: one for name, one in self._owners.items() if one is not session}
        if session is self._main and self._over is None and not self._closing:
            self._over = self._refusal or TargetLost(reason)
            self._core.outbox.put(CONNECTION, Close())

    def _is_seed(self, now: float | None) -> bool:
        # a server of the seed's ends the first stream without a word: HELLO is no first byte there (wire 2)
        return self._finds_out and not self._ready and now is not None and not self._closing

    @property
    def _finds_out(self) -> bool:
        # whether what is spoken shows only with the answer to HELLO
        return self._context.dialect is Dialect.AUTO and self._streams and self._context.alpn == ALPN

    # --- in the seed's ---

    def _publish(self, request: Publish) -> None:
        if request.deliver_at_ms or request.schema:
            self._core.done(request.id, Unsupported("Fujin has no delays or schemas"))
        elif request.transaction:
            transaction = self._transactions.get(request.transaction)
            if transaction is None:
                self._core.done(request.id, Conflict("no such transaction"))
            else:
                transaction.publish(request)
        else:
            if self._writer is None or self._writer.leaving:
                self._writer = self._open_writer()
            self._writer.publish(request)

    def _read(self, request: Take | Settle | Unsubscribe, now: float) -> None:
        reader = self._readers.get(request.subscription)
        if reader is None:
            self._core.done(request.id, UnknownSubscription())
        elif isinstance(request, Take):
            reader.take(request, now)
        elif isinstance(request, Settle):
            reader.settle(request)
        else:
            reader.unsubscribe(request)

    def _open_writer(self) -> WriterLane:
        lane = WriterLane(self._core, next(self._tokens))
        self._lanes[lane.channel] = lane
        return lane

    def _end(self, lane: StreamLane, reason: str) -> None:
        if not lane.over:
            lane.fail(TargetLost(reason))
        self._forget_if_over(lane)

    def _forget_if_over(self, lane: StreamLane) -> None:
        if not lane.over:
            return
        self._lanes.pop(lane.channel, None)
        if lane is self._writer:
            self._writer = None
        self._transactions.pop(str(lane.channel), None)
        for number in [number for number, reader in self._readers.items() if reader is lane]:
            del self._readers[number]
