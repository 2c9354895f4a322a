"""Nobody holds up the others, as in `test_held`, over the dialects of Fujin that bind: each command with the largest input that is legal,
and as many as one read has of those that are short, over the streams that carry them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import trio

from gateway.protocols.fujin.wire.bound_frames import BoundOp
from tests.integration.held import Watched
from tests.integration.raw import Fujin05, Wire, quic, s32, tcp
from tests.integration.test_held import CONFIG, never_held

SERVED = CONFIG.replace(
    "\nadmin:",
    """
  tcp: {{protocol: fujin, bind: "127.0.0.1:0", transport: tcp}}
  websocket: {{protocol: fujin, bind: "127.0.0.1:0", transport: websocket}}
admin:""",
)
READ = 1 << 20
LAST = b"\xde\xad\xbe\xef"
SENTINEL = bytes((BoundOp.UNSUBSCRIBE,)) + LAST + b"\xff"
"""The answer to what no subscription has comes when all before it was worked on, and is known by its number."""


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def op(kind: BoundOp, *fields: bytes) -> bytes:
    return bytes((kind,)) + u32(1) + b"".join(fields)


ROUTE, NONE = s32(b"fujin"), s32(b"")
PAIRS = u16(65_534) + (s32(b"k") + s32(b"")) * 32_767
ID = s32(struct.pack(">BII", 1, 1, 1))
SETTLED = u32(50_000) + ID * 50_000


def bound_cases() -> Iterator[tuple[BoundOp, bytes]]:
    """What is sent at once to a session that is bound."""

    def many(one: bytes) -> bytes:
        return one * (READ // len(one))

    yield BoundOp.PRODUCE, many(op(BoundOp.PRODUCE, ROUTE, s32(b"x")))
    yield BoundOp.PRODUCE, many(op(BoundOp.PRODUCE, s32(b"f\xff"), s32(b"x")))
    yield BoundOp.HPRODUCE, many(op(BoundOp.HPRODUCE, ROUTE, u16(2), s32(b"k"), s32(b"v"), s32(b"x")))
    yield BoundOp.HPRODUCE, op(BoundOp.HPRODUCE, ROUTE, PAIRS, s32(b"x")) * 4
    yield BoundOp.HPRODUCE, many(op(BoundOp.HPRODUCE, ROUTE, u16(1), s32(b"k"), s32(b"x")))
    yield BoundOp.BEGIN, many(op(BoundOp.BEGIN, s32(b"f\xff")))
    yield BoundOp.COMMIT, many(op(BoundOp.COMMIT))
    yield BoundOp.ROLLBACK, many(op(BoundOp.ROLLBACK))
    yield BoundOp.BEGIN, (op(BoundOp.BEGIN, ROUTE) + op(BoundOp.ROLLBACK)) * 5_000
    tx_produce = op(BoundOp.TX_PRODUCE, s32(b"x"))
    yield BoundOp.TX_PRODUCE, op(BoundOp.BEGIN, ROUTE) + many(tx_produce) + op(BoundOp.COMMIT)
    headered = op(BoundOp.TX_HPRODUCE, u16(2), s32(b"k"), s32(b"v"), s32(b"x"))
    yield BoundOp.TX_HPRODUCE, op(BoundOp.BEGIN, ROUTE) + headered * 20_000 + op(BoundOp.ROLLBACK)
    for kind in (BoundOp.FETCH, BoundOp.HFETCH):
        yield kind, many(op(kind, b"\0", ROUTE, u32(0)))
        yield kind, op(kind, b"\1", ROUTE, u32(0xFFFF_FFFF)) * 1_000
    for kind in (BoundOp.SUBSCRIBE, BoundOp.HSUBSCRIBE):
        yield kind, op(kind, b"\1", ROUTE) * 2_000
        yield kind, op(kind, b"\1", s32(b"f\xff" * 30_000)) * 16
        yield kind, b"".join(op(BoundOp.UNSUBSCRIBE, bytes((number,))) for number in range(255))
    yield BoundOp.SUBSCRIBE, op(BoundOp.SUBSCRIBE, b"\0", ROUTE)
    for kind in (BoundOp.ACK, BoundOp.NACK):
        yield kind, op(kind, b"\0", SETTLED)
        yield kind, many(op(kind, b"\xfe", u32(0)))
        yield kind, many(op(kind, b"\0", u32(1), ID))
    yield BoundOp.UNSUBSCRIBE, many(op(BoundOp.UNSUBSCRIBE, b"\xfe"))
    yield BoundOp.PONG, bytes((BoundOp.PONG,)) * READ


async def bound(wire: Wire) -> None:
    await wire.send(Fujin05.HELLO + bytes.fromhex("01000000036d656d00000000"))
    await wire.expect(Fujin05.GREETED + bytes.fromhex("1000"))
    for _ in range(int.from_bytes(await wire.receive(4))):
        await wire.receive(int.from_bytes(await wire.receive(4)) + 4)


async def through(stream: trio.SocketStream, data: bytes) -> None:
    """Send, and read what comes until the last is answered."""
    found = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data + SENTINEL)
        while LAST not in found:
            more = await stream.receive_some(1 << 18)
            assert more, f"closed behind {found!r}"
            found = found[-8:] + more


async def test_the_dialects_that_bind(tmp_path: Path) -> None:
    cases = list(bound_cases())
    assert {kind for kind, _ in cases} == set(BoundOp) - {BoundOp.HELLO, BoundOp.BIND, BoundOp.DISCONNECT}

    async def ask_all(gateway: Watched) -> None:
        port = gateway.ports["tcp"]
        for number, (kind, data) in enumerate(cases):
            async with tcp(port) as wire:
                await bound(wire)
                await gateway.longest("HELLO and BIND")
                await through(wire._stream, data)
                await gateway.longest(f"{kind.name} ({number})")
        pairs = u16(5_000) + (s32(b"a") + s32(b"b")) * 5_000
        refused = b"\1" + s32(b"mem") + u16(0) + pairs
        async with tcp(port) as wire:
            await wire.send(Fujin05.HELLO)
            await wire.expect(Fujin05.GREETED)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.send, refused * 20 + op(BoundOp.DISCONNECT))
                while await wire._stream.receive_some(1 << 18):
                    pass
            await gateway.longest("BIND that is refused")
        async with quic(gateway.ports["quic"], "fujin") as wire:
            await wire.send(b"\1" + u32(0) + b"\4" + u32(1))
            await wire.receive(6)
            await wire.send(b"\x20" * (4 << 20) + b"\6" + u32(2))
            await wire.receive(6)
            await gateway.longest("what is passed over in a transaction")

    await never_held(tmp_path, ask_all, SERVED)


async def test_over_websocket(tmp_path: Path) -> None:
    def frame(kind: int, data: bytes) -> bytes:
        mask = b"\0\0\0\0"
        if len(data) < 126:
            return bytes((kind, 0x80 | len(data))) + mask + data
        return bytes((kind, 0x80 | 127)) + struct.pack(">Q", len(data)) + mask + data

    cases = [
        ("pings", frame(0x89, b"") * 60_000),
        ("pongs", frame(0x8A, b"") * 60_000),
        ("empty messages", frame(0x82, b"") * 60_000),
        ("single bytes", frame(0x82, b"\x63") * 60_000),
        ("a long one in pieces", frame(0x02, b"") + frame(0x00, b"\x63") * 60_000 + frame(0x80, b"")),
    ]

    async def ask_all(gateway: Watched) -> None:
        for name, data in cases:
            async with await trio.open_tcp_stream("127.0.0.1", gateway.ports["websocket"]) as stream:
                await stream.send_all(
                    b"GET /fujin HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                )
                assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 101")
                hello = Fujin05.HELLO + bytes.fromhex("01000000036d656d00000000")
                await gateway.longest("the upgrade")
                await through_frames(stream, frame(0x82, hello) + data + frame(0x82, SENTINEL))
                await gateway.longest(name)

    async def through_frames(stream: trio.SocketStream, data: bytes) -> None:
        found = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            while LAST not in found:
                more = await stream.receive_some(1 << 18)
                assert more, f"closed behind {found!r}"
                found = found[-8:] + more

    await never_held(tmp_path, ask_all, SERVED)
