"""The same connections in trio's own shapes: listeners and streams, for whoever wants tasks instead of callbacks.

A listener gives connections, a connection gives streams, a stream is a `HalfCloseableStream`. Receive credit follows
`receive_some`; `send_all` waits while more than `HIGH_WATER` low-water marks are unacknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import trio

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.dial import dial_quic
from gateway.transport.quic.halves import Receiving, Sending
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer, open_udp_sockets
from gateway.transport.tls import ClientTls
from gateway.wire.session import CONNECTION, Kind

HIGH_WATER = 4
"""Unacknowledged bytes at which `send_all` waits, in low-water marks."""

T = TypeVar("T")


class _Arrivals(Generic[T]):
    """What was not accepted yet."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self.closed = False
        self.ended = False

    def put(self, item: T) -> None:
        self._items.append(item)
        self._lot.unpark()

    def end(self, *, closed: bool) -> None:
        self.closed = self.closed or closed
        self.ended = True
        self._lot.unpark_all()

    async def get(self) -> T:
        await trio.lowlevel.checkpoint()
        while not self._items:
            self._check()
            await self._lot.park()
        if self.closed:
            self._check()
        return self._items.popleft()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self.ended:
            raise trio.BrokenResourceError


class QuicReceiveStream(trio.abc.ReceiveStream):
    """A unidirectional stream of the peer's."""

    def __init__(self, receiving: Receiving) -> None:
        self._receiving = receiving

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Some bytes, or none at the end."""
        return await self._receiving.receive_some(max_bytes)

    async def aclose(self) -> None:
        """Ask the peer to stop sending."""
        self._receiving.close()
        await trio.lowlevel.checkpoint()


class QuicSendStream(trio.abc.SendStream):
    """A unidirectional stream of ours."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue all bytes, waiting while too many are unacknowledged."""
        await self._sending.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Until `send_all` has room."""
        await self._sending.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Finish the stream; when cancelled, abandon what is not delivered."""
        self._sending.close()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self._sending.abandon()
            raise


class QuicStream(trio.abc.HalfCloseableStream):
    def __init__(self, receiving: Receiving, sending: Sending) -> None:
        self._receiving = receiving
        self._sending = sending

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Some bytes, or none at the end. Reading grants the peer credit for more."""
        return await self._receiving.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue all bytes, waiting while too many are unacknowledged."""
        await self._sending.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Until `send_all` has room."""
        await self._sending.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Finish this side."""
        await self._sending.send_eof()

    async def aclose(self) -> None:
        """Finish this side and ask the peer to stop; when cancelled, abandon what is not delivered."""
        self._receiving.close()
        self._sending.close()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self._sending.abandon()
            raise


class QuicConnection(trio.abc.Listener[QuicStream]):
    """A connection: `accept` gives the peer's streams, `open_stream` and `open_uni` make own ones. A LinkHandler."""

    def __init__(self, limits: QuicLimits, link: QuicLink | None = None) -> None:
        self._high_water = HIGH_WATER * limits.low_water
        self.link = link
        self._tokens = itertools.count(-1, -1)
        self._receiving: dict[int, Receiving] = {}
        self._sending: dict[int, Sending] = {}
        self._streams: _Arrivals[QuicStream] = _Arrivals()
        self._unis: _Arrivals[QuicReceiveStream] = _Arrivals()
        self._openings: dict[int, trio.Event] = {}
        self._prune_at = 64

    async def accept(self) -> QuicStream:
        """The next bidirectional stream that the peer has used."""
        return await self._streams.get()

    async def accept_uni(self) -> QuicReceiveStream:
        """The next unidirectional stream that the peer has used."""
        return await self._unis.get()

    async def open_stream(self) -> QuicStream:
        """A new bidirectional stream, once the peer's limit allows it."""
        token = await self._open(Kind.DUPLEX)
        return QuicStream(self._receiving[token], self._sending[token])

    async def open_uni(self) -> QuicSendStream:
        """A new unidirectional stream, once the peer's limit allows it."""
        return QuicSendStream(self._sending[await self._open(Kind.WRITE_ONLY)])

    async def aclose(self) -> None:
        """Close after what is queued; when cancelled, at once."""
        link = self._bound()
        for arrivals in (self._streams, self._unis):
            arrivals.end(closed=True)
        link.close()
        try:
            await link.over.wait()
        except trio.Cancelled:
            link.abort()
            raise

    async def _open(self, kind: Kind) -> int:
        link = self._bound()
        await trio.lowlevel.checkpoint()
        token = next(self._tokens)
        self._add(token, kind)
        event = self._openings[token] = trio.Event()
        link.open(token, kind)
        link.pause(token)
        try:
            await event.wait()
        except trio.Cancelled:
            link.reset(token, 0)
            raise
        finally:
            self._openings.pop(token, None)
        if self._sending[token].broken:
            raise trio.BrokenResourceError("the stream could not be opened")
        return token

    def _bound(self) -> QuicLink:
        if self.link is None:
            raise trio.ClosedResourceError("not connected")
        return self.link

    def _add(self, channel: int, kind: Kind) -> None:
        link = self._bound()
        if kind is not Kind.WRITE_ONLY:
            self._receiving[channel] = Receiving(link, channel)
        if kind is not Kind.READ_ONLY:
            self._sending[channel] = Sending(link, channel, self._high_water)

    # --- LinkHandler ---

    def opened(self, channel: int, kind: Kind) -> None:
        """A stream is there. Its bytes wait until somebody reads."""
        if channel == CONNECTION:
            return
        opening = self._openings.get(channel)
        if opening is not None or channel < 0:
            if opening is not None:
                opening.set()
            return
        self._bound().pause(channel)
        self._add(channel, kind)
        if kind is Kind.READ_ONLY:
            self._unis.put(QuicReceiveStream(self._receiving[channel]))
        else:
            self._streams.put(QuicStream(self._receiving[channel], self._sending[channel]))

    def received(self, channel: int, data: bytes) -> None:
        """Never: every channel is paused, and read by `take`."""
        raise AssertionError(f"{len(data)} bytes for channel {channel}, which is paused")

    def eof(self, channel: int) -> None:
        """The peer has finished."""
        side = self._receiving[channel]
        side.ended = True
        side.wake()

    def reset(self, channel: int, code: int) -> None:
        """The peer has given up sending, or an own stream could not be opened."""
        del code
        opening = self._openings.get(channel)
        if opening is not None:
            self._sending[channel].broken = True
            opening.set()
        if channel in self._receiving:
            self._receiving[channel].broken = True
            self._receiving[channel].wake()

    def stopped(self, channel: int, code: int) -> None:
        """The peer reads no more."""
        del code
        self._sending[channel].broken = True
        self._sending[channel].wake()

    def room(self, channel: int) -> None:
        """There is room again."""
        self._sending[channel].wake()

    def turn(self, now: float) -> None:
        """Wake the readers that have something to read; forget what is over."""
        del now
        for side in self._receiving.values():
            if side.readable:
                side.wake()
        if len(self._receiving) + len(self._sending) >= self._prune_at:
            link = self._bound()
            for table in (self._receiving, self._sending):
                for channel in [channel for channel in table if not link.knows(channel)]:
                    del table[channel]
            self._prune_at = 2 * (len(self._receiving) + len(self._sending)) + 64

    def lost(self) -> None:
        """The connection is gone."""
        for arrivals in (self._streams, self._unis):
            arrivals.end(closed=False)
        for side in (*self._receiving.values(), *self._sending.values()):
            side.broken = True
            side.wake()
        for opening in self._openings.values():
            opening.set()


class QuicListener(trio.abc.Listener[QuicConnection]):
    """Accepts connections."""

    def __init__(self, limits: QuicLimits) -> None:
        self._limits = limits
        self._arrivals: _Arrivals[QuicConnection] = _Arrivals()
        self.server: QuicServer | None = None

    @property
    def port(self) -> int:
        """The real port."""
        assert self.server is not None
        return self.server.port

    async def accept(self) -> QuicConnection:
        """The next connection whose handshake is done."""
        return await self._arrivals.get()

    async def aclose(self) -> None:
        """Accept no more; connections stay."""
        self._arrivals.end(closed=True)
        if self.server is not None:
            self.server.stop_accepting()
        await trio.lowlevel.checkpoint()

    def welcome(self, link: QuicLink) -> QuicConnection:
        """Make the handler of a new connection."""
        connection = QuicConnection(self._limits, link)
        self._arrivals.put(connection)
        return connection


@contextlib.asynccontextmanager
async def open_quic_listener(
    host: str, port: int, *, certificate: CertificateFiles, alpn: str | None = None, limits: QuicLimits | None = None
) -> AsyncIterator[QuicListener]:
    """A listener. Leaving the block ends its connections."""
    limits = limits or QuicLimits()
    listener = QuicListener(limits)
    sockets = await open_udp_sockets(host, port)
    listener.server = QuicServer(sockets, {alpn: listener.welcome}, certificate, limits=limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.server.run)
        try:
            yield listener
        finally:
            listener.server.abort()


@contextlib.asynccontextmanager
async def open_quic_connection(
    host: str,
    port: int,
    *,
    tls: ClientTls,
    alpn: str | None = None,
    timeout: float = 10.0,
    limits: QuicLimits | None = None,
) -> AsyncIterator[QuicConnection]:
    """A dialled connection. Leaving the block closes it."""
    limits = limits or QuicLimits()
    connection = QuicConnection(limits)
    async with dial_quic(host, port, alpn=alpn, tls=tls, handler=connection, timeout=timeout, limits=limits) as link:
        connection.link = link
        yield connection
