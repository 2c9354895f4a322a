"""The serving side of a Fujin connection (Fujin document; wire 1.1, 1.2, 1.4): streams, pings, the end.

Each stream of the client's is a `Stream` with a role of its own. The server opens one stream per ping.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gateway.protocols.fujin.server.reader import connect_reader
from gateway.protocols.fujin.server.stream import Stream, StreamContext
from gateway.protocols.fujin.server.writer import Writer, connect_writer
from gateway.protocols.fujin.settings import FujinSettings
from gateway.protocols.fujin.wire import mapping
from gateway.protocols.fujin.wire.frames import PING_FAILED, Op
from gateway.protocols.fujin.wire.outbox import Outbox
from gateway.requests import Outcome
from gateway.settings import Dialect
from gateway.wire.session import (
    CONNECTION,
    LISTENER,
    Close,
    Finish,
    Kind,
    Open,
    Output,
    Requests,
    SessionContext,
    Spoken,
    StopSending,
)

PING = bytes((Op.PING,))

MAX_INCOMPLETE = 32 << 20
"""Bytes of incomplete commands on all streams of a connection: a WRITE may have 16 MiB, and a client a thousand streams."""


class FujinServer:
    """One connection."""

    def __init__(self, context: SessionContext) -> None:
        settings: FujinSettings = context.settings
        self._ping = settings.ping
        self._outbox = Outbox()
        self._streams: dict[int, Stream] = {}
        self._context = StreamContext(self._outbox, settings, context.dialect, {}, self._streams, self._gone)
        self._tokens = itertools.count(-1, -1)
        self._ping_at: float | None = None
        """When the next ping is due; none before the client has said something."""
        self._pinging: int | None = None
        self._ping_until = 0.0
        self._incomplete = 0
        """What the streams hold of commands that are not whole; or more, where it was not looked at again since."""
        self._draining = False
        self._drain_until: float | None = None
        self._closed = False
        self._lost = False

    # --- what comes in ---

    def opened(self, channel: int, kind: Kind, now: float) -> Requests:
        """A stream of the client's. There are only bidirectional ones (wire 1.1)."""
        if channel >= 0:
            if kind is Kind.DUPLEX:
                self._streams[channel] = Stream(channel, self._context, _connect)
                if self._draining:
                    self._streams[channel].stop()
            else:
                self._outbox.put(channel, StopSending(channel))
        return self._outbox.requests()

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        """Bytes of a stream. What a pong says is not looked at (wire 1.2)."""
        if self._ping_at is None:
            self._ping_at = now + self._ping.interval
        stream = self._streams.get(channel)
        if stream is not None and data:
            before = stream.incomplete
            stream.receive(data, now)
            self._incomplete += stream.incomplete - before
            if self._incomplete > MAX_INCOMPLETE:
                self._incomplete = sum(each.incomplete for each in self._streams.values())
                if self._incomplete > MAX_INCOMPLETE:
                    stream.end()
        return self._outbox.requests()

    def eof(self, channel: int, now: float) -> Requests:
        """A stream's end; the end of a ping's stream is the pong (wire 0, rule 1)."""
        if channel == self._pinging:
            self._pinging = None
            self._ping_at = max(now, self._ping_at or now)
        stream = self._streams.get(channel)
        if stream is not None:
            stream.eof(now)
        return self._outbox.requests()

    def reset(self, channel: int, code: int) -> Requests:
        """A stream is abandoned; a ping's stream that is means the client is gone (wire 1.2)."""
        return self._abandoned(channel)

    def stopped(self, channel: int, code: int) -> Requests:
        """A stream is not read any more."""
        return self._abandoned(channel)

    def lost(self) -> Requests:
        """The connection is gone: transactions are rolled back, readers give back."""
        for stream in list(self._streams.values()):
            stream.abandon()
        self._closed = self._lost = True
        return self._outbox.requests()

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        """A request ended."""
        self._outbox.complete(request_id, outcome, now)
        return self._outbox.requests()

    def room(self, channel: int, now: float) -> Requests:
        """A reader's client reads."""
        stream = self._streams.get(channel)
        if stream is not None and stream.role is not None:
            stream.role.room(now)
        return self._outbox.requests()

    # --- time ---

    def timeout_at(self) -> float | None:
        """The next ping, the end of a ping or of the drain, a reader's first message."""
        times = [self._ping_until if self._pinging is not None else self._ping_at, self._drain_until]
        times += [stream.role.timeout_at() for stream in self._streams.values() if stream.role is not None]
        return min((time for time in times if time is not None), default=None) if not self._closed else None

    def on_timeout(self, now: float) -> Requests:
        """Whatever is due."""
        for stream in list(self._streams.values()):
            if stream.role is not None:
                stream.role.on_timeout(now)
        if self._pinging is not None:
            if now >= self._ping_until:
                self._close(PING_FAILED, mapping.PING_TIMED_OUT)
        elif self._ping_at is not None and now >= self._ping_at:
            self._send_ping(now)
        if self._drain_until is not None and now >= self._drain_until:
            self._drain_until = None
            for stream in list(self._streams.values()):
                stream.end()
        return self._outbox.requests()

    def drain(self, now: float) -> Requests:
        """STOP on every stream; the client has the time of a pong to disconnect them (Fujin document, STOP)."""
        for stream in list(self._streams.values()):
            stream.stop()
        self._drain_until = now + self._ping.timeout
        self._draining = True
        self._close_if_drained()
        return self._outbox.requests()

    # --- what goes out ---

    def outputs(self) -> Sequence[Output]:
        """Everything, each channel's bytes in one Send."""
        outputs = self._outbox.outputs()
        return outputs if not self._lost else ()

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self._outbox.waiting

    @property
    def held(self) -> bool:
        """A client that goes on sending while a stream waits for a reply is not read."""
        return any(stream.clogged for stream in self._streams.values())

    @property
    def kept(self) -> int:
        """Bytes of frames that are not whole, or wait, on all streams."""
        return self._incomplete

    @property
    def spoken(self) -> Spoken:
        dialect = self._context.dialect
        return Spoken(dialect.value, LISTENER) if dialect is not Dialect.AUTO else Spoken("", "command by command")

    @property
    def handshaken(self) -> bool:
        """Nothing is asked for beyond the handshake of QUIC."""
        return True

    # --- inside ---

    def _abandoned(self, channel: int) -> Requests:
        if channel == self._pinging:
            self._close(PING_FAILED, mapping.PING_REFUSED)
        stream = self._streams.get(channel)
        if stream is not None:
            stream.abandon()
        return self._outbox.requests()

    def _send_ping(self, now: float) -> None:
        """A new stream per ping; the byte and the FIN in one frame, or stock clients leak the stream (wire 0, rule 1)."""
        self._pinging = next(self._tokens)
        self._ping_until = now + self._ping.timeout
        self._ping_at = now + self._ping.interval
        self._outbox.put(self._pinging, Open(self._pinging, Kind.DUPLEX))
        self._outbox.send(self._pinging, PING)
        self._outbox.put(self._pinging, Finish(self._pinging))

    def _gone(self, channel: int) -> None:
        self._streams.pop(channel, None)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._draining and not self._streams:
            self._close(0, "")

    def _close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._outbox.put(CONNECTION, Close(code, reason))


def _connect(stream: Stream, data: bytes, at: int) -> int:
    """The first command of a stream gives it its role."""
    if data[at] == Op.CONNECT_READER:
        return connect_reader(stream, data, at)
    end = connect_writer(data, at, stream.context.dialect)
    stream.role = Writer(stream)
    return end
