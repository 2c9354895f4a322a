"""A QUIC client that is nothing but streams of bytes, as many as wanted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.dial import dial_quic
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.tls import ClientTls
from gateway.wire.session import CONNECTION, Kind


class Streams:
    """One connection: the streams we open are numbered downwards from -1, the server's upwards from 0."""

    link: QuicLink

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.broken: dict[int, int] = {}
        self.unread: dict[int, int] = {}
        self.offered: list[int] = []
        """The server's streams that `incoming` has not handed out."""
        self.gone = False
        self._buffers: dict[int, bytearray] = defaultdict(bytearray)
        self._changed = trio.Event()
        self._last = 0

    # --- what the connection says ---

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def opened(self, channel: int, kind: Kind) -> None:
        if channel >= 0 and channel != CONNECTION:
            self.offered.append(channel)
            self._change()

    def received(self, channel: int, data: bytes) -> None:
        self._buffers[channel] += data
        self._change()

    def eof(self, channel: int) -> None:
        self.ended.add(channel)
        self._change()

    def reset(self, channel: int, code: int) -> None:
        self.broken[channel] = code
        self._change()

    def stopped(self, channel: int, code: int) -> None:
        self.unread[channel] = code
        self._change()

    def room(self, channel: int) -> None: ...

    def turn(self, now: float) -> None: ...

    def lost(self) -> None:
        self.gone = True
        self._change()

    # --- what a test does ---

    def open(self, data: bytes = b"", kind: Kind = Kind.DUPLEX, *, end: bool = False) -> int:
        """A new stream with these bytes on it."""
        self._last -= 1
        self.link.open(self._last, kind)
        self.send(self._last, data, end=end)
        return self._last

    def send(self, channel: int, data: bytes, *, end: bool = False) -> None:
        """Bytes, and nothing behind them."""
        if data:
            self.link.send(channel, data)
        if end:
            self.link.finish(channel)
        self.link.flush()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a stream's events make true."""
        while not condition():
            await self._changed.wait()

    async def read(self, channel: int, size: int) -> bytes:
        """So many bytes of a stream."""
        buffer = self._buffers[channel]
        await self.until(lambda: len(buffer) >= size or channel in self.ended or channel in self.broken or self.gone)
        assert len(buffer) >= size, (bytes(buffer), channel in self.ended, self.broken, self.gone)
        data = bytes(buffer[:size])
        del buffer[:size]
        return data

    async def rest(self, channel: int) -> bytes:
        """What is left of a stream, which has to end."""
        await self.until(lambda: channel in self.ended or self.gone)
        assert channel in self.ended
        return bytes(self._buffers.pop(channel, b""))

    async def incoming(self) -> int:
        """The next stream that the server opened."""
        await self.until(lambda: bool(self.offered))
        return self.offered.pop(0)

    async def felix(self, channel: int) -> tuple[int, bytes]:
        """(flags, payload) of a Felix frame."""
        head = await self.read(channel, 12)
        assert head[:6] == b"FLX1\0\1", head
        return int.from_bytes(head[6:8], "big"), await self.read(channel, int.from_bytes(head[8:], "big"))

    async def said(self, channel: int) -> dict[str, object]:
        """A Felix message in JSON."""
        flags, payload = await self.felix(channel)
        assert flags == 0, (flags, payload)
        message: dict[str, object] = json.loads(payload)
        return message


@asynccontextmanager
async def streams(
    port: int, alpn: str | None = None, tls: ClientTls | None = None, limits: QuicLimits | None = None
) -> AsyncIterator[Streams]:
    """A connection."""
    wire = Streams()
    trust = tls or ClientTls(insecure=True)
    async with dial_quic(
        "127.0.0.1", port, alpns=[alpn] if alpn else (), tls=trust, handler=wire, limits=limits
    ) as link:
        wire.link = link
        yield wire
