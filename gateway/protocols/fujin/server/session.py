"""The serving side of a Fujin connection (Fujin document; wire 1.1, 1.2, 1.4, 6.1): streams, pings, the end.

The first byte of each stream says what is spoken on it: with ALPN `fujin` 00 is 0.5, 01 and 02 are the seed's dialect; with
`fujin/1` 01 is v1. Over a byte stream (TCP, WebSocket, Unix) there is one session, of 0.5 or v1, and there are no pings. Over
QUIC the server opens a stream for each ping, which says what the client's dialect says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from gateway.protocols.fujin.server.bound_stream import BoundStream
from gateway.protocols.fujin.server.reader import connect_reader
from gateway.protocols.fujin.server.seed_stream import SeedStream
from gateway.protocols.fujin.server.stream import Stream, StreamContext
from gateway.protocols.fujin.server.writer import SeedWriter, connect_writer
from gateway.protocols.fujin.settings import FujinSettings
from gateway.protocols.fujin.wire import mapping
from gateway.protocols.fujin.wire.bound_frames import PING_FAILED_STRICTLY, BoundOp, BoundReply
from gateway.protocols.fujin.wire.frames import PING_FAILED, V1_ALPN, Op
from gateway.protocols.fujin.wire.outbox import Outbox
from gateway.requests import Outcome, Published
from gateway.settings import Dialect, Transport
from gateway.wire.session import (
    CONNECTION,
    LISTENER,
    Close,
    Finish,
    Kind,
    Open,
    Output,
    Requests,
    Send,
    SessionContext,
    Spoken,
    StopSending,
)

PING = bytes((Op.PING,))
STRICT_PING = bytes((BoundReply.PING,))
SEEDS = (Dialect.AUTO, Dialect.DOCUMENT, Dialect.STOCK)
"""Dialects of a listener that serves the seed's."""

UNSIGNED = "no sign yet"
GREETS = Spoken(Dialect.SESSION.value, "a session that begins with HELLO")
BINDS = Spoken(Dialect.V1.value, "a session that begins with BIND")
NUMBERED = Spoken(Dialect.DOCUMENT.value, "a CONNECT WRITER whose id is a number")
NAMED = Spoken(Dialect.STOCK.value, "a CONNECT WRITER whose id is a text")
SEED_WRITES = Spoken("seed's", "a stream that begins with CONNECT WRITER")
SEED_READS = Spoken("seed's", "a stream that begins with CONNECT READER")
"""Which of the seed's two it is shows in a writer's id alone; both are served."""

MAX_INCOMPLETE = 32 << 20
"""Bytes of incomplete commands on all streams of a connection: a WRITE may have 16 MiB, and a client a thousand streams."""


class FujinServer:
    unsaid = False
    answer_due = False

    def __init__(self, context: SessionContext) -> None:
        settings: FujinSettings = context.settings
        self._ping = settings.ping
        self._outbox = Outbox()
        self._streams: dict[int, Stream] = {}
        self._fresh: set[int] = set()
        """Streams on which nothing was said yet."""
        self._context = StreamContext(
            self._outbox,
            settings,
            context.dialect,
            {},
            lambda: len(self._streams) + len(self._fresh),
            self._gone,
            context.auth_required,
            context.server_id,
        )
        self._pings = context.transport in (None, Transport.QUIC)
        self._v1 = context.alpn == V1_ALPN
        self._logs_in = context.auth_required
        self._strict = False
        """What the client was told by pings, and has to answer: as its dialect says."""
        self._spoken = Spoken("", UNSIGNED)
        self._failures = 0
        self._pong = b""
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
        # A stream of the client's. There are only bidirectional ones (wire 1.1).
        if channel >= 0:
            if kind is Kind.DUPLEX:
                self._fresh.add(channel)
                if self._draining:
                    # a stream that is opened while the gateway goes down is told so, and not left without an answer
                    self._begin(channel, None).stop()
            else:
                self._outbox.put(channel, StopSending(channel))
        return self._outbox.requests()

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        if channel in self._fresh and data:
            self._begin(channel, data[0])
            # who has said nothing yet may speak a dialect that answers pings otherwise
            if self._ping_at is None and self._pings:
                self._ping_at = now + self._ping.interval
        if channel == self._pinging:
            self._pong = (self._pong + data)[:2]
        stream = self._streams.get(channel)
        if stream is not None and data:
            buffer = stream.buffer
            before = buffer.size
            stream.receive(data, now)
            self._incomplete += buffer.size - before
            if self._incomplete > MAX_INCOMPLETE:
                # counted again only when the bound seems to be reached: to keep it right for every stream would cost each read
                self._incomplete = sum(each.buffer.size for each in self._streams.values())
                if self._incomplete > MAX_INCOMPLETE:
                    stream.end()
        return self._outbox.requests()

    def eof(self, channel: int, now: float) -> Requests:
        # a stream's end; the end of a ping's stream is the pong (wire 0, rule 1)
        if channel == self._pinging:
            self._pinged(answered=not self._strict or self._pong == STRICT_PING, reason=mapping.PING_WRONG)
            self._ping_at = max(now, self._ping_at or now)
        stream = self._stream(channel)
        if stream is not None:
            stream.eof(now)
        return self._outbox.requests()

    def reset(self, channel: int, code: int) -> Requests:
        # a stream is abandoned; a ping's stream that is means the client is gone (wire 1.2)
        return self._abandoned(channel)

    def stopped(self, channel: int, code: int) -> Requests:
        return self._abandoned(channel)

    def lost(self) -> Requests:
        # the connection is gone: transactions are rolled back, readers give back
        for stream in list(self._streams.values()):
            stream.abandon()
        for stream in self._streams.values():
            stream.let_go()
        self._streams.clear()
        self._fresh.clear()
        self._closed = self._lost = True
        requests = self._outbox.requests()
        self._outbox.forget()
        self._context.forget()
        return requests

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self._outbox.complete(request_id, outcome, now)
        return self._outbox.requests()

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | Send:
        outbox = self._outbox
        outbox.complete(request_id, outcome, now)
        said = None
        if type(outcome) is Published and not (outbox.waiting or self._incomplete or self._draining):
            said = outbox.alone()
        return outbox.requests() if said is None else said

    def room(self, channel: int, now: float) -> Requests:
        stream = self._streams.get(channel)
        if stream is not None:
            stream.room(now)
        return self._outbox.requests()

    # --- time ---

    def timeout_at(self) -> float | None:
        """The next ping, the end of a ping or of the drain, a reader's first message."""
        if self._closed:
            return None
        soonest = self._ping_until if self._pinging is not None else self._ping_at
        if self._drain_until is not None and (soonest is None or self._drain_until < soonest):
            soonest = self._drain_until
        for stream in self._streams.values():
            due = stream.timeout_at() if stream.timed else None
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    def rests_until(self) -> float | None:
        # a stream that holds its connection back keeps the bytes for which it does
        if self._incomplete or self._outbox.waiting or not self.handshaken:
            return None
        due = self.timeout_at()
        return math.inf if due is None else due

    def on_timeout(self, now: float) -> Requests:
        for stream in list(self._streams.values()):
            stream.on_timeout(now)
        if self._pinging is not None and now >= self._ping_until:
            self._pinged(answered=False, reason=mapping.PING_TIMED_OUT)
            self._ping_at = max(now, self._ping_at or now)
        if self._pinging is None and self._ping_at is not None and now >= self._ping_at and not self._closed:
            self._send_ping(now)
        if self._drain_until is not None and now >= self._drain_until:
            self._drain_until = None
            for stream in list(self._streams.values()):
                stream.end()
        return self._outbox.requests()

    def drain(self, now: float) -> Requests:
        """STOP on every stream; the client has the time of a pong to disconnect them (Fujin document, STOP)."""
        for channel in list(self._fresh):
            self._begin(channel, None)
        for stream in list(self._streams.values()):
            stream.stop()
        self._drain_until = now + self._ping.timeout
        self._draining = True
        self._close_if_drained()
        return self._outbox.requests()

    # --- what goes out ---

    def outputs(self) -> Sequence[Output]:
        outputs = self._outbox.outputs()
        return outputs if not self._lost else ()

    @property
    def in_flight(self) -> int:
        return self._outbox.waiting

    @property
    def held(self) -> bool:
        # a client that goes on sending while a stream waits for a reply is not read
        return any(stream.clogged for stream in self._streams.values())

    @property
    def kept(self) -> int:
        return self._incomplete

    @property
    def spoken(self) -> Spoken:
        dialect = self._context.dialect
        return self._spoken if dialect is Dialect.AUTO else Spoken(dialect.value, LISTENER)

    @property
    def handshaken(self) -> bool:
        # who speaks the seed's dialect over QUIC has nothing more to do; a session that binds has to be let in first, where
        # there is a login, and to be there, where nothing was done before
        if self._logs_in:
            return self._pings and not any(isinstance(stream, BoundStream) for stream in self._streams.values())
        return self._pings or not self._fresh

    # --- inside ---

    def _begin(self, channel: int, first: int | None) -> Stream:
        # what is spoken on a stream, from its first byte; without one, what its connection is most likely about
        self._fresh.discard(channel)
        dialect = self._context.dialect
        binds = (
            first in (BoundOp.BIND, None) and (self._v1 or not self._pings) and dialect in (Dialect.AUTO, Dialect.V1)
        )
        greets = first == BoundOp.HELLO and not self._v1 and dialect in (Dialect.AUTO, Dialect.SESSION)
        stream: Stream
        if not (binds or greets) and self._pings and not self._v1 and dialect in SEEDS:
            stream = SeedStream(channel, self._context, self._connect)
        else:  # where it is neither, its states refuse what it begins with
            # these dialects say what the answer to a ping is; of the seed's any answer will do
            self._strict = True
            if binds or greets:
                self._spoken = BINDS if binds else GREETS
            stream = BoundStream(channel, self._context, self._let_in, greets=greets or (not binds and first != 0))
        self._streams[channel] = stream
        return stream

    def _let_in(self) -> None:
        self._logs_in = False

    def _stream(self, channel: int) -> Stream | None:
        return self._begin(channel, None) if channel in self._fresh else self._streams.get(channel)

    def _abandoned(self, channel: int) -> Requests:
        if channel == self._pinging:
            self._pinged(answered=False, reason=mapping.PING_REFUSED)
        stream = self._stream(channel)
        if stream is not None:
            stream.abandon()
        return self._outbox.requests()

    def _send_ping(self, now: float) -> None:
        # a new stream per ping; the byte and the FIN in one frame, or stock clients leak the stream (wire 0, rule 1)
        self._pinging = next(self._tokens)
        self._pong = b""
        self._ping_until = now + self._ping.timeout
        self._ping_at = now + self._ping.interval
        self._outbox.put(self._pinging, Open(self._pinging, Kind.DUPLEX))
        self._outbox.send(self._pinging, STRICT_PING if self._strict else PING)
        self._outbox.put(self._pinging, Finish(self._pinging))

    def _pinged(self, *, answered: bool, reason: str) -> None:
        # A ping is over. The seed's clients may fail none, and answer anything; the others may fail some, and have to answer
        # what they were asked (wire 1.2, 6.2).
        self._pinging = None
        if answered:
            self._failures = 0
            return
        self._failures += 1
        if not self._strict:
            self._close(PING_FAILED, reason)
        elif self._failures >= self._ping.retries:
            self._close(PING_FAILED_STRICTLY, f"{mapping.PINGS_FAILED}: {reason}")

    def _gone(self, channel: int) -> None:
        self._streams.pop(channel, None)
        # over a byte stream the one session is the connection
        if not self._pings:
            self._close(0, "")
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._draining and not self._streams and not self._fresh:
            self._close(0, "")

    def _close(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._outbox.put(CONNECTION, Close(code, reason))

    def _connect(self, stream: SeedStream, data: bytes, at: int) -> int:
        # the first command of a stream gives it its role; a writer's id tells whose client it is, unless it is 0
        if data[at] == Op.CONNECT_READER:
            end = connect_reader(stream, data, at)
            if self._spoken.sign == UNSIGNED:
                self._spoken = SEED_READS
            return end
        end = connect_writer(data, at, stream.context.dialect)
        stream.role = SeedWriter(stream)
        if data[at + 1 : at + 5] != b"\0\0\0\0":
            self._spoken = NUMBERED if end == at + 5 else NAMED
        elif self._spoken.sign == UNSIGNED:
            self._spoken = SEED_WRITES
        return end
