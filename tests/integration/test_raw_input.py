"""BlipMQ and RustLog against a real process, byte by byte: the observed examples as one conversation, whole and in single bytes;
and everything a peer can do wrong, which harms neither the process nor anybody else's connection.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.integration.raw import s16, s32
from tests.integration.running import Served
from tests.protocols.blipmq import vectors as b
from tests.protocols.rustlog import vectors as r
from tests.protocols.script import hexed

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [bench-key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
storage: {{path: "{}"}}
"""

Said = Sequence[tuple[bytes, bytes]]
"""(what the client sends, all that comes back)."""

HELLO_TWICE = hexed("00 00 00 0b 01 00 00 00 00 00 00 00 0e 00 01")
AUTH_TWICE = hexed("00 00 00 14 02 00 00 00 00 00 00 00 13 00 09 62 65 6e 63 68 2d 6b 65 79")
EARLY_PING = hexed("00 00 00 09 07 00 00 00 00 00 00 00 09")
PUBLISH_ZERO = s32(b"\3" + struct.pack(">Q", 5) + b"\0" + s16("demo") + b"zero")
POLL_ZERO = s32(b"\x09" + struct.pack(">QQ", 0x47, 2))

LADDER: Said = [
    (EARLY_PING, b.answer_to("1.7, PING before auth")),
    (b.answer_to("1.7, AUTH"), b.answer_to("1.7, AUTH before HELLO")),
    (hexed("00 00 00 09 01 00 00 00 00 00 00 00 0b"), b.answer_to("1.7, HELLO empty")),
    (b.answer_to("1.7, HELLO v2"), b.answer_to("1.7, NACK 426")),
    (b.HELLO, b.HELLO_DONE),
    (HELLO_TWICE, b.answer_to("1.7, HELLO twice")),
    (EARLY_PING, b.answer_to("1.7, PING before auth")),
    (hexed("00 00 00 09 02 00 00 00 00 00 00 00 10"), b.answer_to("1.7, NACK of a malformed AUTH")),
    (b.answer_to("1.7, AUTH wrong"), b.answer_to("1.7, NACK of a wrong AUTH")),
    (b.AUTH, b.AUTH_DONE),
    (AUTH_TWICE, b.answer_to("1.7, AUTH twice")),
    (b.PING, b.PONG),
    *((case.data, case.nack) for case in b.REFUSED),
]
DELIVERIES: Said = [
    (b.SUBSCRIBE, b.SUBSCRIBED),
    (b.PUBLISH + b.PING, b.PONG),
    (b.POLL, b.DELIVERY),
    (b.ACK + b.PING, b.PONG),
    (b.ACK, b.UNKNOWN_TAG),
    (PUBLISH_ZERO + b.PING, b.PONG),
    (POLL_ZERO, b.answer_to("1.7, qos0 delivery")),
    (b.POLL + b.PING, b.PONG),
]
LOG: Said = [
    (r.PING, r.PONG),
    (r.LIST, r.LISTED_NONE),
    (r.CREATE_DEMO, r.CREATED),
    (r.CREATE_DEMO, r.CREATE_DEMO_AGAIN),
    (r.CREATE_Z_0, r.INVALID_COUNT),
    (r.DESCRIBE_DEMO, r.DESCRIBED_DEMO),
    (r.DESCRIBE_PARTITION, r.DESCRIBED_PARTITION),
    (r.DESCRIBE_NOPE, r.DESCRIBED_NOPE),
    (r.PRODUCE_THREE, r.PRODUCED_THREE),
    (r.PRODUCE_NOTHING, r.PRODUCED_NOTHING),
    (r.PRODUCE_EMPTY, r.PRODUCED_EMPTY),
    (s32(b"\1" + s16("demo") + struct.pack(">II", 0, 1) + s32(b"k")), hexed("0000000d01 0000000000000004 00000001")),
    (r.PRODUCE_NOPE, r.NOPE),
    (r.FETCH_0_1024, r.FETCHED_FIVE),
    (r.FETCH_0_1, r.FETCHED_ONE),
    (r.FETCH_0_0, r.FETCHED_NONE_0),
    (r.FETCH_500, r.FETCHED_NONE_500),
    (r.OFFSET_FETCH, r.OFFSET_NONE),
    (r.J_OFFSET_FETCH, r.J_OFFSET_NONE),
    (r.COMMIT_2, r.COMMITTED),
    (r.OFFSET_FETCH, r.OFFSET_2),
    (r.J_OFFSET_FETCH, r.J_OFFSET_2),
    (r.J_COMMIT, r.J_COMMITTED),
    (s32(b'{"Fetch":{"topic":"nope","partition":0,"offset":0,"max_bytes":1}}'), r.J_NOPE),
    (s32(b'{"type":"Fetch","topic":"demo","partition":0,"offset":9,"max_bytes":9,"group_id":"new"}'),
     s32(b'{"type":"FetchResponse","records":[],"next_offset":5}')),
    (r.UNKNOWN_TYPE, r.UNKNOWN_TYPE_SAID),
    (r.TRUNCATED, r.TRUNCATED_SAID),
]  # fmt: skip
JSON: Said = [
    (s32(b'{"type":"CreateTopic","topic":"j","partition_count":1}'),
     s32(b'{"type":"CreateTopicResponse","success":true,"partitions_created":1}')),
    (r.J_PRODUCE.replace(b'"demo"', b'"j"').replace(b"\0\0\0\x43", b"\0\0\0\x40"), r.J_PRODUCED),
    (r.J_FETCH.replace(b'"demo"', b'"j"').replace(b"\0\0\0\x54", b"\0\0\0\x51"), r.J_FETCHED),
    (s32(b"{"), s32(b'{"Error":{"message":"failed to parse request: ')),
]  # fmt: skip

GREETING = b.HELLO + b.AUTH
BAD: Sequence[tuple[str, str, bytes, bytes]] = [
    # protocol, what is wrong, what is sent, all that comes back before the end of the connection
    *(("blipmq", f"length {length}", struct.pack(">I", length), b"") for length in b.LENGTHS_THAT_CLOSE),
    ("blipmq", "a type that is none", b.PING[:4] + b"\xee" + b.PING[5:], b""),
    ("blipmq", "HTTP", b"GET / HTTP/1.1\r\n\r\n", b""),
    ("blipmq", "TLS", hexed("16 03 01 02 00 01 00 01 fc 03 03") + bytes(100), b""),
    ("blipmq", "good ones before a bad one", GREETING + b.PING + b"\0\0\0\x09\x0a" + bytes(8) + b.PING,
     b.HELLO_DONE + b.AUTH_DONE + b.PONG),
    ("rustlog", "no length", r.PING + r.ZERO + r.PING, r.PONG + r.ZERO_SAID),
    ("rustlog", "too long", r.OVERSIZE + bytes(1000), r.OVERSIZE_SAID),
    ("rustlog", "HTTP", b"GET / HTTP/1.1\r\n\r\n",
     s32(b"\xfe\0\1" + s16("Frame error: frame too large: 1195725856 bytes (max: 10485760)"))),
]  # fmt: skip
NOT_UTF8: Sequence[tuple[str, bytes, bytes]] = [
    ("blipmq", GREETING + s32(b"\3" + struct.pack(">Q", 30) + b"\1\0\1\xff"),
     b.HELLO_DONE + b.AUTH_DONE + b.answer_to("1.7, NACK short PUBLISH")),
    ("blipmq", b.HELLO + s32(b"\2" + struct.pack(">Q", 16) + b"\0\1\xff"),
     b.HELLO_DONE + b.answer_to("1.7, NACK of a malformed AUTH")),
    ("rustlog", s32(b"\7\0\1\xff"),
     s32(b"\xfe\0\2" + s16("Decode error: decode error: invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0"))),
]  # fmt: skip
IMPOSSIBLE: Sequence[bytes] = [
    s32(b"\1" + s16("demo") + struct.pack(">II", 0, 0xFFFFFFFF)),
    s32(b"\1" + s16("demo") + struct.pack(">II", 0, 0x7FFFFFFF) + bytes(100)[:2]),
]
IMPOSSIBLE_SAID = s32(b"\xfe\0\2" + s16("Decode error: decode error: truncated record length"))
MOST_MEMORY = 100 << 20


@pytest.fixture
def served(tmp_path: Path):
    """A gateway with both."""
    gateway = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    gateway.start()
    yield gateway
    if gateway.running:
        gateway.end(signal.SIGKILL)


@asynccontextmanager
async def dialled(served: Served, protocol: str) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream("127.0.0.1", served.ports[protocol]) as stream:
        yield stream


async def exactly(stream: trio.SocketStream, wanted: bytes, sent: bytes = b"") -> None:
    """These bytes come next."""
    got = b""
    while len(got) < len(wanted):
        more = await stream.receive_some(len(wanted) - len(got))
        assert more, f"closed after {got!r} instead of {wanted!r}"
        got += more
    assert got == wanted, sent


async def everything(stream: trio.SocketStream) -> bytes:
    return b"".join([piece async for piece in stream])


async def held(stream: trio.SocketStream, said: Said) -> None:
    for sent, wanted in said:
        await stream.send_all(sent)
        await exactly(stream, wanted, sent)


async def in_single_bytes(stream: trio.SocketStream, said: Said) -> None:
    """Every byte in a segment of its own (the kernel is told not to wait)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exactly, stream, b"".join(wanted for _sent, wanted in said))
        for sent, _wanted in said:
            for index in range(len(sent)):
                await stream.send_all(sent[index : index + 1])


async def test_the_observed_examples(served: Served) -> None:
    with trio.fail_after(180):
        async with dialled(served, "rustlog") as stream:
            await held(stream, [*LOG, *JSON[:-1]])
            await stream.send_all(JSON[-1][0])
            size = struct.unpack(">I", await stream.receive_some(4))[0]
            assert size > len(JSON[-1][1]) - 4
            await exactly(stream, JSON[-1][1][4:])
        async with dialled(served, "rustlog") as stream:
            reading = [(sent, wanted) for sent, wanted in LOG if sent[4] not in (1, 5) and wanted[4] not in (6, 7, 8)]
            later = [one for one in reading if one[1] not in (r.OFFSET_NONE, r.J_OFFSET_NONE)]
            await in_single_bytes(stream, later)
        async with dialled(served, "blipmq") as stream:
            await held(stream, [*LADDER, *DELIVERIES])
        async with dialled(served, "blipmq") as stream:
            await in_single_bytes(stream, LADDER)


async def test_bad_input_harms_nobody(served: Served) -> None:
    with trio.fail_after(180):
        async with dialled(served, "blipmq") as blipmq, dialled(served, "rustlog") as rustlog:
            await held(blipmq, [(GREETING, b.HELLO_DONE + b.AUTH_DONE)])
            await held(rustlog, [(r.CREATE_DEMO, r.CREATED)])
            before = served.memory
            for protocol, name, sent, wanted in BAD:
                async with dialled(served, protocol) as stream:
                    await stream.send_all(sent)
                    assert await everything(stream) == wanted, (protocol, name)
            for protocol, sent, wanted in NOT_UTF8:
                async with dialled(served, protocol) as stream:
                    await held(stream, [(sent, wanted)])
            for sent in IMPOSSIBLE:
                await held(rustlog, [(sent, IMPOSSIBLE_SAID)])
            for protocol in ("blipmq", "rustlog"):  # the length of a long frame, and then nothing, or the end
                for _ in range(50):
                    async with dialled(served, protocol) as stream:
                        await stream.send_all(struct.pack(">I", 10_000_000) + b"\1" + bytes(1000))
            await held(blipmq, [(b.PING, b.PONG)])
            await held(rustlog, [(r.PING, r.PONG)])
            assert served.memory - before < MOST_MEMORY
        assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0


async def test_who_asks_for_more_than_it_reads_does_not_fill_the_memory(served: Served) -> None:
    big = bytes(1 << 20)
    value = b"\3" + struct.pack(">Q", 4) + b"\1" + s16("big") + big
    with trio.fail_after(180):
        async with dialled(served, "rustlog") as stream, dialled(served, "blipmq") as other:
            await held(stream, [(s32(b"\5" + s16("big") + struct.pack(">I", 1)), r.CREATED)])
            await held(other, [(GREETING, b.HELLO_DONE + b.AUTH_DONE)])
            await held(other, [(s32(b"\4" + struct.pack(">Q", 3) + s16("big") + b"\1"), b.SUBSCRIBED)])
            for _ in range(6):
                await held(other, [(s32(value) + b.PING, b.PONG)])
            before = served.memory
            fetch = s32(b"\2\0\0" + s16("big") + struct.pack(">IQI", 0, 0, 9_000_000))
            asked = 500  # three gigabytes
            await stream.send_all(fetch * asked)
            await other.send_all(b.POLL * asked)
            async with dialled(served, "rustlog") as third:  # its answers come while those are held back
                for _ in range(20):
                    await held(third, [(r.PING, r.PONG)])
            assert served.memory - before < MOST_MEMORY
            await exactly(stream, struct.pack(">IBI", 5 + 6 * (4 + len(big)) + 8, 2, 6))
            await exactly(other, struct.pack(">IBQ", len(value), 3, 1))
