"""Clients made of bytes: what a stock client of each protocol would send, and what it must get, to the byte.

Nothing of the gateway's codecs is used, so that a mistake made twice is still a mistake. QUIC itself is the gateway's own
dialler: the bytes on its streams are written out here.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from gateway.transport.quic.dial import dial_quic
from gateway.transport.tls import ClientTls
from gateway.wire.session import Kind

OWN = -1


class Wire:
    """One connection: bytes out, bytes in, per channel."""

    async def send(self, data: bytes, channel: int = 0) -> None:
        raise NotImplementedError

    async def receive(self, size: int, channel: int = 0) -> bytes:
        raise NotImplementedError

    async def expect(self, data: bytes, channel: int = 0) -> None:
        got = await self.receive(len(data), channel)
        assert got == data, f"\n  {got!r}\ninstead of\n  {data!r}"


class TcpWire(Wire):
    """Over TCP."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def send(self, data: bytes, channel: int = 0) -> None:
        await self._stream.send_all(data)

    async def receive(self, size: int, channel: int = 0) -> bytes:
        while len(self._buffer) < size:
            more = await self._stream.receive_some()
            assert more, f"closed after {bytes(self._buffer)!r}"
            self._buffer += more
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def closed(self) -> None:
        """The other side ends the connection without another byte."""
        assert await self._stream.receive_some() == b""


class QuicWire(Wire):
    """Over QUIC: channel 0 is a bidirectional stream of ours, 1 the first unidirectional one of the server's. A bidirectional one of
    the server's is a ping of Fujin's: it is answered with what it says, and its end (Fujin wire 0, rule 1). Who does not answer is
    cut seven seconds after he came.
    """

    def __init__(self) -> None:
        self.link = None
        self._names: dict[int, int] = {OWN: 0}
        self._buffers: dict[int, bytes] = defaultdict(bytes)
        self._ends: dict[int, str] = {}
        self._lost = False
        self._pings = 0
        self._changed = trio.Event()

    def opened(self, channel: int, kind: Kind) -> None:
        if channel >= 0 and kind is Kind.READ_ONLY:
            self._names[channel] = 1

    def received(self, channel: int, data: bytes) -> None:
        if channel in self._names:
            self._buffers[self._names[channel]] += data
            self._changed.set()
        else:
            self.link.send(channel, data)

    def eof(self, channel: int) -> None:
        if channel in self._names:
            self._ended(channel, "ended")
        else:
            self.link.finish(channel)
            self.link.flush()
            self._pings += 1
            self._changed.set()

    def reset(self, channel: int, code: int) -> None:
        self._ended(channel, f"reset with {code}")

    def stopped(self, channel: int, code: int) -> None: ...
    def room(self, channel: int) -> None: ...
    def turn(self, now: float) -> None: ...

    def lost(self) -> None:
        self._lost = True
        self._changed.set()

    def _ended(self, channel: int, how: str) -> None:
        if channel in self._names:
            self._ends[self._names[channel]] = how
            self._changed.set()

    async def send(self, data: bytes, channel: int = 0) -> None:
        self.link.send(OWN, data)
        self.link.flush()

    async def receive(self, size: int, channel: int = 0) -> bytes:
        while len(self._buffers[channel]) < size:
            # who waits for what cannot come any more hears it now, and not when his patience is over
            assert not self._lost, "the connection is lost"
            assert channel not in self._ends, f"the stream is {self._ends[channel]}"
            self._changed = trio.Event()
            await self._changed.wait()
        data, self._buffers[channel] = self._buffers[channel][:size], self._buffers[channel][size:]
        return data

    async def asked(self, times: int) -> None:
        """Until there were so many pings; who has not answered one is asked no more."""
        while self._pings < times:
            self._changed = trio.Event()
            await self._changed.wait()


@asynccontextmanager
async def tcp(port: int) -> AsyncIterator[Wire]:
    """A TCP connection."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield TcpWire(stream)


@asynccontextmanager
async def quic(port: int, alpn: str | None) -> AsyncIterator[Wire]:
    """A QUIC connection with one stream."""
    wire = QuicWire()
    async with dial_quic(
        "127.0.0.1", port, alpns=[alpn] if alpn else (), tls=ClientTls(insecure=True), handler=wire
    ) as link:
        wire.link = link
        link.open(OWN, Kind.DUPLEX)
        yield wire


def s16(text: str) -> bytes:
    """u16 length and text."""
    return struct.pack(">H", len(text)) + text.encode()


def s32(data: bytes) -> bytes:
    """u32 length and bytes."""
    return struct.pack(">I", len(data)) + data


BLIPMQ_PING = bytes.fromhex("00000009070000000000000015")
BLIPMQ_PONG = bytes.fromhex("00000009080000000000000015")


def blipmq_frame(kind: int, cid: int, payload: bytes = b"") -> bytes:
    """A BlipMQ frame (BlipMQ wire 1.1)."""
    return s32(struct.pack(">BQ", kind, cid) + payload)


async def rustlog_ask(wire: Wire, payload: bytes) -> bytes:
    """One RustLog request and its answer (RustLog wire 1.1)."""
    await wire.send(s32(payload))
    return await wire.receive(struct.unpack(">I", await wire.receive(4))[0])


def rustlog_fetch(topic: str, offset: int) -> bytes:
    """A binary Fetch of all there is from an offset on (RustLog wire 1.2)."""
    return b"\2\0\0" + s16(topic) + struct.pack(">IQI", 0, offset, 1 << 20)


def felix_frame(payload: dict[str, object]) -> bytes:
    """A JSON frame in the stock encoder's compact form (Felix wire 2.3)."""
    return b"FLX1\0\1\0\0" + s32(json.dumps(payload, separators=(",", ":")).encode())


class BlipMQ:
    """BlipMQ document, HELLO to POLL; wire 1.7."""

    fetches = False

    @staticmethod
    def connect(port: int):
        return tcp(port)

    @staticmethod
    async def greet(wire: Wire) -> None:
        await wire.send(
            bytes.fromhex("0000000b0100000000000000010001")
            + bytes.fromhex("000000120200000000000000020007")
            + b"dev-key"
        )
        for cid in (1, 2):
            await wire.expect(bytes.fromhex("0000001105") + struct.pack(">QQ", cid, 0))

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        await self.greet(wire)
        payload = b"\1" + s16(address) + value
        await wire.send(s32(b"\3" + struct.pack(">Q", 4) + payload) + bytes.fromhex("00000009070000000000000015"))
        await wire.expect(bytes.fromhex("00000009080000000000000015"))

    async def subscribe(self, wire: Wire, address: str) -> None:
        await self.greet(wire)
        await wire.send(s32(b"\4" + struct.pack(">Q", 3) + s16(address) + b"\1"))
        head = await wire.receive(13)
        assert head == bytes.fromhex("00000011050000000000000003")
        self.subscription = await wire.receive(8)

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        delivery = s32(b"\3" + struct.pack(">Q", 1) + b"\1" + s16(address) + value)
        while True:
            await wire.send(s32(b"\x09" + struct.pack(">Q", 60) + self.subscription))
            with trio.move_on_after(1):
                await wire.expect(delivery)
                return


class FlyMQ:
    """FlyMQ document, PRODUCE and FETCH; wire 2.4."""

    fetches = True

    @staticmethod
    def connect(port: int):
        return tcp(port)

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        payload = s16(address) + s32(b"") + s32(value) + b"\xff\xff\xff\xff"
        await wire.send(b"\xaf\1\1\1" + s32(payload))
        head = s16(address) + struct.pack(">iQ", 0, 0)
        await wire.expect(b"\xaf\1\1\1" + struct.pack(">I", len(head) + 16) + head)
        _time, key, size = struct.unpack(">qii", await wire.receive(16))
        assert (key, size) == (-1, len(value))

    async def subscribe(self, wire: Wire, address: str) -> None: ...

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        """The stock client's FETCH, with the filter suffix by which it shows itself, in the server's layout."""
        request = s16(address) + struct.pack(">iQi", 0, 0, 10) + b"\0\0"
        answer = struct.pack(">IQQ", 1, 1, 0) + s32(b"") + s32(value)
        while True:
            await wire.send(b"\xaf\1\7\1" + s32(request))
            head = await wire.receive(8)
            body = await wire.receive(struct.unpack(">I", head[4:])[0])
            if body == answer:
                return
            assert head[2] == 0xFF or body[:4] == b"\0\0\0\0", body
            await trio.lowlevel.checkpoint()


class RustLog:
    """RustLog wire 1.5."""

    fetches = True

    @staticmethod
    def connect(port: int):
        return tcp(port)

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        await wire.send(s32(b"\5" + s16(address) + struct.pack(">I", 1)))
        await wire.receive(struct.unpack(">I", await wire.receive(4))[0])  # made, or there already
        await wire.send(s32(b"\1" + s16(address) + struct.pack(">II", 0, 1) + s32(value)))
        await wire.expect(bytes.fromhex("0000000d01") + struct.pack(">QI", 0, 1))

    async def subscribe(self, wire: Wire, address: str) -> None: ...

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        answer = b"\2" + struct.pack(">I", 1) + s32(value) + struct.pack(">Q", 1)
        while True:
            await wire.send(s32(b"\2\0\0" + s16(address) + struct.pack(">IQI", 0, 0, 1024)))
            body = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
            if body == answer:
                return
            assert body[0] == 0xFE or body[1:5] == b"\0\0\0\0", body


class Felix:
    """Felix document; wire 2.11. As the client of the document's day: it chooses the subscription's id."""

    fetches = False

    @staticmethod
    def connect(port: int):
        return quic(port, None)

    @staticmethod
    def scope(address: str) -> dict[str, object]:
        return {"tenant_id": "t1", "namespace": "default", "stream": address}

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        payload = base64.b64encode(value).decode()
        request = {"type": "publish", **self.scope(address), "payload": payload, "request_id": 1, "ack": "per_message"}
        await wire.send(felix_frame(request))
        await wire.expect(felix_frame({"type": "publish_ok", "request_id": 1}))

    async def subscribe(self, wire: Wire, address: str) -> None:
        await wire.send(felix_frame({"type": "subscribe", **self.scope(address), "subscription_id": 7}))
        await wire.expect(felix_frame({"type": "subscribed", "subscription_id": 7}))
        await wire.expect(felix_frame({"type": "event_stream_hello", "subscription_id": 7}), 1)

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        events = struct.pack(">QI", 7, 1) + s32(value)
        await wire.expect(b"FLX1\0\1\0\2" + s32(events), 1)


class Fujin:
    """Fujin wire 1.4."""

    fetches = False

    @staticmethod
    def connect(port: int):
        return quic(port, "fujin")

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        await wire.send(bytes.fromhex("0100000000"))
        await wire.send(b"\3" + struct.pack(">I", 1) + s32(address.encode()) + s32(value))
        await wire.expect(bytes.fromhex("020000000100"))

    async def subscribe(self, wire: Wire, address: str) -> None:
        await wire.send(b"\2\1\1" + s32(address.encode()))
        await wire.expect(b"\1\0")

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        await wire.expect(b"\6" + s32(value))


class Fujin05:
    """Fujin wire 6.2: a session for each, that is greeted and bound."""

    fetches = False
    HELLO = bytes.fromhex("000101010000000174 0000000130")
    GREETED = bytes.fromhex("1300010100000007 67617465776179")

    @staticmethod
    def connect(port: int):
        return quic(port, "fujin")

    async def bind(self, wire: Wire) -> None:
        await wire.send(self.HELLO + bytes.fromhex("01000000036d656d00000000"))
        await wire.expect(self.GREETED + bytes.fromhex("1000"))
        for _ in range(int.from_bytes(await wire.receive(4))):
            await wire.receive(int.from_bytes(await wire.receive(4)) + 4)

    async def publish(self, wire: Wire, address: str, value: bytes) -> None:
        await self.bind(wire)
        await wire.send(b"\2" + struct.pack(">I", 1) + s32(address.encode()) + s32(value))
        await wire.expect(bytes.fromhex("030000000100"))

    async def subscribe(self, wire: Wire, address: str) -> None:
        await self.bind(wire)
        await wire.send(b"\x0b" + struct.pack(">I", 1) + b"\1" + s32(address.encode()))
        await wire.expect(bytes.fromhex("01000000010000"))

    async def next(self, wire: Wire, address: str, value: bytes) -> None:
        await wire.expect(b"\x08\0" + s32(value))


class FujinV1(Fujin05):
    HELLO = GREETED = b""

    @staticmethod
    def connect(port: int):
        return quic(port, "fujin/1")


class FujinTcp(Fujin05):
    @staticmethod
    def connect(port: int):
        return tcp(port)


CLIENTS = {"blipmq": BlipMQ, "flymq": FlyMQ, "rustlog": RustLog, "felix": Felix, "fujin": Fujin}
LATER = {"fujin05": Fujin05, "fujinv1": FujinV1, "fujintcp": FujinTcp}
"""What came after the dialects of the documents, by the listener that they are asked at."""
