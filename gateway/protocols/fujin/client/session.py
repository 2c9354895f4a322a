"""The client side of a Fujin connection (Fujin document; wire 0 to 2): one stream for plain publishes, one for each
transaction and each subscription, and an answer to every ping.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from gateway.errors import Conflict, GatewayError, TargetLost, UnknownSubscription, Unsupported
from gateway.protocols.fujin.client.lane import ClientCore, Lane
from gateway.protocols.fujin.client.reader import ReaderLane
from gateway.protocols.fujin.client.writer import WriterLane
from gateway.protocols.fujin.wire.frames import Op
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
from gateway.wire.session import CONNECTION, ClientContext, Close, Completions, Finish, Kind, Output

PONG = bytes((Op.PING,))


class FujinClient:
    """One connection to a broker."""

    def __init__(self, context: ClientContext) -> None:
        self._core = ClientCore(context.dialect)
        self._tokens = itertools.count(-1, -1)
        self._subscriptions = itertools.count(1)
        self._lanes: dict[int, Lane] = {}
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
        """The connection is up: there is nothing to say first. Streams of the server's are pings."""
        if channel == CONNECTION:
            self._ready = True
            early, self._early = self._early, deque()
            for request in early:
                self._start(request, now)
        return self._core.take()

    def submit(self, request: Request, now: float) -> Completions:
        """Start a request, or keep it until the connection is up."""
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
        """Replies; what a ping says does not matter (wire 1.2)."""
        lane = self._lanes.get(channel)
        if lane is not None:
            lane.receive(data, now)
            self._forget_if_over(lane)
        return self._core.take()

    def eof(self, channel: int, now: float) -> Completions:
        """A ping is complete: answer it once, with its end (wire 0, rule 1). Or a stream of ours is over."""
        lane = self._lanes.get(channel)
        if lane is not None:
            self._end(lane, "the broker ended the stream")
        elif channel >= 0:
            self._core.outbox.send(channel, PONG)
            self._core.outbox.put(channel, Finish(channel))
        return self._core.take()

    def reset(self, channel: int, code: int) -> Completions:
        """A stream is abandoned, or was never granted."""
        lane = self._lanes.get(channel)
        if lane is not None:
            self._end(lane, f"the broker reset the stream with code {code}")
        return self._core.take()

    def stopped(self, channel: int, code: int) -> Completions:
        """The server reads no more on a stream. After a DISCONNECT that is its way; replies still come (wire 1.4)."""
        lane = self._lanes.get(channel)
        if lane is not None:
            lane.leaving = True
        return self._core.take()

    def lost(self) -> Completions:
        """The connection is gone."""
        self._closed = True
        if self._over is None:
            self._over = TargetLost("the connection to the broker is lost")
            for request in self._early:
                self._core.done(request.id, self._over)
            self._early.clear()
            for lane in list(self._lanes.values()):
                self._end(lane, self._over.message)
        return self._core.take()

    def room(self, channel: int, now: float) -> Completions:
        """Nothing is sent with `notify`."""
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
        return self._core.take()

    def timeout_at(self) -> float | None:
        """When the first waiting Take ends."""
        times = [reader.timeout_at() for reader in self._readers.values()]
        return min((time for time in times if time is not None), default=None)

    def on_timeout(self, now: float) -> Completions:
        """Takes whose time is up."""
        for reader in self._readers.values():
            reader.on_timeout(now)
        return self._core.take()

    def outputs(self) -> Sequence[Output]:
        """Everything, each channel's bytes in one Send."""
        if self._closed:
            return ()
        if self._closing and not self._lanes:
            self._closed = True
            self._core.outbox.put(CONNECTION, Close())
        return self._core.outbox.outputs()

    @property
    def in_flight(self) -> int:
        """Requests that are not completed."""
        writers = [*self._transactions.values(), *([self._writer] if self._writer is not None else [])]
        return len(self._early) + sum(map(len, writers)) + sum(map(len, self._readers.values()))

    @property
    def admitted(self) -> bool | GatewayError:
        """There is no login."""
        return self._ready

    # --- requests ---

    def _start(self, request: Request, now: float) -> None:
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

    def _end(self, lane: Lane, reason: str) -> None:
        if not lane.over:
            lane.fail(TargetLost(reason))
        self._forget_if_over(lane)

    def _forget_if_over(self, lane: Lane) -> None:
        if not lane.over:
            return
        self._lanes.pop(lane.channel, None)
        if lane is self._writer:
            self._writer = None
        self._transactions.pop(str(lane.channel), None)
        for number in [number for number, reader in self._readers.items() if reader is lane]:
            del self._readers[number]
