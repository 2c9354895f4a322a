"""Nobody holds up the others: every operation of every protocol with the largest input that is legal, and some that are not,
against a gateway with 100 000 groups and 20 000 topics, whose event loop is watched.

What is measured is the processor time of the loop's thread in one step of one task. It grows with what the step does, and little
with what else the machine does. What this is to find takes as long each time: what was seen once is looked for again.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
import pytest
import trio

from gateway.broker.consume.cursors import FIRST_NUMBER, cursor_row, stored, subscription_row
from gateway.broker.consume.group_offsets import TABLE, encode_key, row_of
from gateway.bulk.wire import APPEND, JSON, MOST_APPENDED, MSGPACK
from gateway.envelope import Columns
from gateway.observe.lag import EVERY
from gateway.protocols.blipmq.wire.frames import FrameType
from gateway.protocols.felix.wire.codec import ClientMessage
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.fujin.wire.frames import Op as FujinOp
from gateway.protocols.rustlog.wire.binary import REQUEST_TYPES
from gateway.requests import Redelivery, Subscribe
from gateway.store.ack_window import AckWindow
from gateway.store.interface import Durability, MakeTopic, Put, Store, Ticket, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions, open_store
from tests.integration.flymq_raw import fetch, frame, names, produce, s8, u64, user
from tests.integration.held import Watched, watched
from tests.integration.raw import Wire, blipmq_frame, felix_frame, quic, s16, s32, tcp

MOST = 0.05
TRIES = 3
GROUPS, TOPICS, SUBSCRIPTIONS = 100_000, 20_000, 48_000
FLYMQ_FRAME, RUSTLOG_FRAME, FELIX_FRAME, BLIPMQ_FRAME = 32 << 20, 10_485_760, 16 << 20, 16 << 20
i32, i64 = struct.Struct(">i").pack, struct.Struct(">q").pack

CONFIG = """
version: 1
listeners:
  flymq:   {{protocol: flymq, bind: "127.0.0.1:0"}}
  users:   {{protocol: flymq, bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: "long enough"}}}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [key]}}}}
  quic:    {{protocol: [felix, fujin], bind: "127.0.0.1:0", tls: self-signed, ping: {{interval: 10m}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""


async def do(store: Store, unit: Unit) -> None:
    done = trio.Event()
    tickets: list[Ticket] = []
    store.submit(unit).on_done(lambda ticket: (tickets.append(ticket), done.set()))
    await done.wait()
    assert tickets[0].error is None


async def subscribe_all(directory: Path) -> None:
    """Subscriptions, as many as a listener has."""
    request = Subscribe(0, "orders", acknowledge=True, redelivery=Redelivery(), durable_grace=600.0)
    async with open_store(directory, StoreOptions()) as store:
        await do(store, Unit(creates=[MakeTopic("orders", TopicConfig(durability=Durability.INTERVAL))]))
        row = stored(request, "orders", store.topics["orders"].epoch, "blipmq", "key", 1)
        puts: list[Put] = []
        for number in range(FIRST_NUMBER, FIRST_NUMBER + SUBSCRIPTIONS):
            puts += [subscription_row(number, row), cursor_row(number, 0, AckWindow(0).to_bytes())]
        await do(store, Unit(puts=puts))


async def fill(directory: Path) -> None:
    """Groups and topics, as many as clients may make."""
    async with open_store(directory, StoreOptions()) as store:
        config = TopicConfig(durability=Durability.INTERVAL)
        await do(
            store,
            Unit(creates=[MakeTopic(name, config) for name in ("orders", "big", "felix", "fujin", "rust", "json")]),
        )
        await do(
            store, Unit(creates=[MakeTopic("wide", TopicConfig(partitions=1_000, durability=Durability.INTERVAL))])
        )
        await do(store, Unit(creates=[MakeTopic(f"topic-{number:06}", config) for number in range(TOPICS)]))
        await do(
            store,
            Unit(
                puts=[Put(TABLE, encode_key("orders", f"group-{number:06}", 0), row_of(1)) for number in range(GROUPS)]
            ),
        )


async def never_held(
    directory: Path,
    ask_all: Callable[[Watched], Awaitable[None]],
    config: str = CONFIG,
    fill: Callable[[Path], Awaitable[None]] = fill,
) -> None:
    """Ask for all of it, of a new gateway; what held the loop for too long, again: what an operation does, it does each time."""
    least: dict[str, tuple[float, str]] = {}
    for number in range(TRIES):
        path = directory / str(number)
        await fill(path)
        with trio.fail_after(300):
            async with watched(config.format(data=path)) as gateway:
                await gateway.longest("the start, which is nobody's request")
                gateway.held.clear()
                await ask_all(gateway)
                await seen_by_the_metric(gateway)
        held = {name: found for name, found in gateway.held.items() if found[0] >= MOST}
        least = {name: min(found, least[name]) for name, found in held.items() if name in least} if number else held
        if not least:
            return
    pytest.fail(
        "; ".join(f"{name} held the event loop for {held * 1000:.0f} ms ({by})" for name, (held, by) in least.items())
    )


async def seen_by_the_metric(gateway: Watched) -> None:
    """What a step has held was no shorter on the wall, and at most one look's distance of it is before the look that was late."""
    await gateway.looked()
    longest, by = max(gateway.held.values(), default=(0.0, ""))
    if longest > EVERY:
        assert gateway.lags().later_than(longest - EVERY), f"{by} held the loop, and the metric has not seen it"


async def flymq_answer(wire: Wire) -> bytes:
    head = await wire.receive(8)
    return head + await wire.receive(struct.unpack(">I", head[4:])[0])


async def sized_answer(wire: Wire) -> bytes:
    return await wire.receive(struct.unpack(">I", await wire.receive(4))[0])


async def felix_answer(wire: Wire) -> bytes:
    head = await wire.receive(12)
    return head + await wire.receive(struct.unpack(">I", head[8:])[0])


async def ask(wire: Wire, gateway: Watched, name: str, data: bytes, read, answers: int = 1) -> bytes:
    """Send, wait for so many answers, and look how long the loop was held meanwhile."""
    answer = b""

    async def send() -> None:
        await wire.send(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for _ in range(answers):
            answer = await read(wire)
    await gateway.longest(name)
    return answer


def long_names() -> bytes:
    """A list of as many names as a frame has room for."""
    count = (FLYMQ_FRAME - 70_000) // 2
    return struct.pack(">I", count) + b"\0\0" * count


def flymq_cases() -> Iterator[tuple[int, bytes]]:
    """(operation, payload)."""
    room = bytes(FLYMQ_FRAME - 200)
    text = s16("x" * 60_000)
    yield Op.PRODUCE, produce("orders", room)
    yield Op.CONSUME, s16("orders") + i32(0) + u64(0)
    yield Op.CONSUME_ZERO_COPY, s16("orders") + i32(0) + u64(0)
    yield Op.CREATE_TOPIC, s16("new") + i32(1_000)
    yield Op.METADATA, s16("wide")
    yield Op.SUBSCRIBE, s16("orders") + s16("g" * 500) + i32(0) + s8("earliest")
    yield Op.COMMIT, s16("orders") + s16("g" * 500) + i32(0) + u64(7)
    for op in (Op.FETCH, Op.FETCH_BINARY):
        for pattern in ("zzzz", "(a|b|c|d|e)*zzz$", "\\pL{2}x", "$.a.b.c", "(?i)Äö+"):
            yield (
                op,
                fetch("big", 0, 100_000) + s16("")[:0] + struct.pack(">H", len(pattern.encode())) + pattern.encode(),
            )
        yield op, fetch("orders", 1, 100_000)
    yield Op.LIST_TOPICS, b""
    yield Op.REGISTER_SCHEMA, s16("s") + s8("json") + s32(b'{"type":"array","items":{"required":["a"]}}')
    yield Op.REGISTER_SCHEMA, s16("long") + s8("json") + s32(b'{"enum":[' + b"1," * 15_000_000 + b"1]}")
    yield Op.GET_SCHEMA, s16("s") + struct.pack(">I", 0)
    yield Op.LIST_SCHEMAS, b""
    for document in (b"[" + b"{}," * 300_000 + b"{}]", b"[" * 500_000, b"[" + b"1," * 15_000_000 + b"1]"):
        yield Op.VALIDATE_SCHEMA, s16("s") + s32(document)
        yield Op.PRODUCE_WITH_SCHEMA, s16("orders") + s16("s") + s32(document)
    yield Op.DELETE_SCHEMA, s16("s") + struct.pack(">I", 0)
    yield Op.FETCH_DLQ, s16("orders") + i32(1 << 30)
    yield Op.REPLAY_DLQ, s16("orders") + s16("0:0")
    yield Op.PURGE_DLQ, s16("orders")
    yield Op.PRODUCE_DELAYED, s16("orders") + s32(room) + i64(1_000)
    yield Op.CANCEL_DELAYED, s16("orders") + text
    yield Op.PRODUCE_WITH_TTL, s16("orders") + s32(room) + i64(1_000)
    yield Op.TXN_BEGIN, b""
    yield Op.TXN_PRODUCE, text + s16("orders") + s32(room[:-60_000])
    yield Op.TXN_COMMIT, text
    yield Op.TXN_ROLLBACK, text
    yield Op.CLUSTER_JOIN, text
    yield Op.CLUSTER_STATUS, b""
    yield Op.CLUSTER_METADATA, b""
    yield Op.CLUSTER_LEAVE, b""
    yield Op.GET_OFFSET, s16("orders") + s16("group-000001") + i32(0)
    yield Op.RESET_OFFSET, s16("orders") + s16("group-000001") + i32(0) + s8("earliest")
    yield Op.LIST_GROUPS, b""
    for topic in ("", "orders"):
        yield Op.DESCRIBE_GROUP, s16(topic) + s16("group-050000")
    yield Op.GET_LAG, s16("orders") + s16("group-000001") + i32(0)
    yield Op.DELETE_GROUP, s16("") + s16("group-050000")
    yield Op.SEEK_TO_TIMESTAMP, s16("orders") + s16("group-000001") + i32(0) + i64(1)
    yield Op.AUTH, s16("root") + s16("long enough")
    yield Op.WHOAMI, b""
    for op in (Op.USER_CREATE, Op.USER_UPDATE, Op.PASSWORD_CHANGE):
        yield op, s16("u") + s16("pass word") + s16("") + long_names() + b"\1"
    yield Op.USER_CREATE, user("somebody", "long enough", roles=["consumer"])
    yield Op.USER_GET, s16("somebody")
    yield Op.USER_LIST, b""
    yield Op.USER_DELETE, s16("somebody")
    yield Op.ACL_SET, s16("orders") + b"\1" + long_names() + names([])
    yield Op.ACL_GET, s16("orders")
    yield Op.ACL_LIST, b""
    yield Op.ACL_DELETE, s16("orders")
    yield Op.ROLE_LIST, b""
    yield Op.DELETE_TOPIC, s16("orders")


async def test_flymq(tmp_path: Path) -> None:
    cases = list(flymq_cases())
    assert {op for op, _ in cases} == set(Op) - {Op.AUTH_RESPONSE, Op.ERROR}, "an operation is not tried here"

    async def ask_all(gateway: Watched) -> None:
        async with tcp(gateway.ports["flymq"]) as plain, tcp(gateway.ports["users"]) as known:
            await ask(known, gateway, "login", frame(Op.AUTH, s16("root") + s16("long enough")), flymq_answer)
            values = [bytes([65 + number % 26]) * (200 << 10) for number in range(100)]
            many = b"".join(frame(Op.PRODUCE, produce("big", value)) for value in values)
            await ask(plain, gateway, "20 MB in one go", many, flymq_answer, 100)
            many = frame(Op.PRODUCE, produce("orders", b"")) * 100_000
            await ask(plain, gateway, "100 000 messages", many, flymq_answer, 100_000)
            for number, (op, payload) in enumerate(cases):
                wire = known if op in range(Op.AUTH, Op.ERROR) else plain
                await ask(wire, gateway, f"{op.name} ({number})", frame(op, payload), flymq_answer)
                if len(payload) > 1 << 20:
                    await ask(
                        wire,
                        gateway,
                        f"{op.name} ({number}), gzip",
                        frame(op, gzip.compress(payload, 1), 3),
                        flymq_answer,
                    )
            await ask(
                plain, gateway, "gzip of zeros", frame(Op.WHOAMI, gzip.compress(bytes(FLYMQ_FRAME)), 3), flymq_answer
            )
            for op, times in ((Op.WHOAMI, 16_000), (Op.LIST_TOPICS, 20), (Op.CLUSTER_STATUS, 5), (Op.METADATA, 8_000)):
                await ask(plain, gateway, f"{op.name} {times} times", frame(op) * times, flymq_answer, times)

    await never_held(tmp_path, ask_all)


def rustlog_cases() -> Iterator[tuple[int | str, bytes]]:
    """(operation, payload)."""

    def binary(op: int, *fields: bytes) -> bytes:
        return bytes((op,)) + b"".join(fields)

    def typed(name: str, **fields: object) -> bytes:
        return json.dumps({"type": name, **fields}).encode()

    room = RUSTLOG_FRAME - 200
    where = s16("rust") + i32(0)
    read = s16("") + where + u64(0) + b"\xff\xff\xff\xff"
    uneven = b"".join([s32(b"x" * (number % 2)) for number in range(room // 5)])
    for count, records in (
        (100_000, uneven[:450_000]),
        (room // 4, bytes(room // 4 * 4)),
        (room // 5, uneven),
        (1, s32(bytes(room))),
    ):
        yield 1, binary(1, where, struct.pack(">I", count), records)
    yield 2, binary(2, read)
    yield 3, binary(3, s16("g"), where, u64(1))
    yield 4, binary(4, s16("g"), where)
    yield 5, binary(5, s16("made"), struct.pack(">I", 1_000))
    yield 6, binary(6)
    for op in (7, 8):
        yield op, binary(op, s16("wide"), i32(999))
    yield 9, binary(9)
    yield 255, binary(255)
    for records in (b'""', b'"AAAA"'):
        for count in (100_000, room // (len(records) + 1)):
            head = b'{"type":"Produce","topic":"rust","partition":0,"records":['
            yield "Produce", head + b",".join([records] * (count - 40)) + b"]}"
    for records in (b"[]", b"[1,2,3]"):
        for count in (100_000, room // (len(records) + 1)):
            head = b'{"Produce":{"topic":"rust","partition":0,"records":['
            yield "seed Produce", head + b",".join([records] * (count - 40)) + b"]}}"
    for count in (2_000_000, room // 4):
        numbers = b",".join([b"%d" % (number % 256) for number in range(count)])
        yield "seed Produce", b'{"Produce":{"topic":"rust","partition":0,"records":[[' + numbers + b"]]}}"
    yield "seed Produce", b"{" + b",".join([b'"%d":1' % number for number in range(room // 12)]) + b"}"
    yield "seed Produce", b"[" * room
    for topic in ("rust", "json"):
        at = {"topic": topic, "partition": 0}
        yield "Fetch", typed("Fetch", **at, offset=0, max_bytes=1 << 30)
        yield "seed Fetch", json.dumps({"Fetch": {**at, "offset": 0, "max_bytes": 1 << 30}}).encode()
    yield "OffsetCommit", typed("OffsetCommit", group="g", topic="rust", partition=0, offset=1)
    yield "OffsetFetch", typed("OffsetFetch", group="g", topic="rust", partition=0)
    yield "CreateTopic", typed("CreateTopic", topic="other", partition_count=1_000)
    yield "ListTopics", typed("ListTopics")
    yield "DescribeTopic", typed("DescribeTopic", topic="wide")
    yield "DescribePartition", typed("DescribePartition", topic="wide", partition=999)
    yield "MetricsFetch", typed("MetricsFetch")
    yield "Ping", typed("Ping")


async def test_rustlog(tmp_path: Path) -> None:
    cases = list(rustlog_cases())
    assert {op for op, _ in cases if isinstance(op, int)} == set(REQUEST_TYPES), "an operation is not tried here"

    async def ask_all(gateway: Watched) -> None:
        async with tcp(gateway.ports["rustlog"]) as wire:
            for number, (op, payload) in enumerate(cases):
                await ask(wire, gateway, f"{op} ({number})", s32(payload), sized_answer)
            await ask(wire, gateway, "100 000 pings", s32(b"\xff") * 100_000, sized_answer, 100_000)
            await ask(wire, gateway, "lists", s32(b"\6") * 20, sized_answer, 20)
            await ask(
                wire, gateway, "offsets", s32(b"\4" + s16("g") + s16("rust") + i32(0)) * 10_000, sized_answer, 10_000
            )

    await never_held(tmp_path, ask_all)


async def test_blipmq(tmp_path: Path) -> None:
    tried = {FrameType.PONG, FrameType.HELLO, FrameType.AUTH}

    async def ask_all(gateway: Watched) -> None:
        async with tcp(gateway.ports["blipmq"]) as wire:
            hello = blipmq_frame(1, 1, b"\0\1") + blipmq_frame(2, 2, s16("key"))
            await ask(wire, gateway, "login", hello, sized_answer, 2)
            ping = blipmq_frame(FrameType.PING, 5)
            subscription = (
                await ask(wire, gateway, "subscribe", blipmq_frame(4, 3, s16("orders") + b"\1"), sized_answer)
            )[9:]
            for name, payload, times in (
                ("PUBLISH", b"\0" + s16("orders") + bytes(BLIPMQ_FRAME - 100), 1),
                ("PUBLISH", b"\1" + s16("orders"), 50_000),
                ("SUBSCRIBE", s16("orders") + b"\1", 1_000),
                ("POLL", subscription, 1_000),
                ("ACK", subscription, 5_000),
                ("NACK", subscription, 5_000),
                ("PING", b"", 50_000),
            ):
                kind = FrameType[name]
                tried.add(kind)
                data = blipmq_frame(kind, 9, payload) * times + ping
                await wire.send(data)
                cid = 0
                while cid != 5:
                    answer = await sized_answer(wire)
                    cid = struct.unpack_from(">Q", answer, 1)[0] if answer[0] == FrameType.PONG else 0
                await gateway.longest(name)

    await never_held(tmp_path, ask_all)
    assert tried == set(FrameType), "a frame is not tried here"


def felix_binary(flags: int, payload: bytes) -> bytes:
    return b"FLX1\0\1" + struct.pack(">H", flags) + s32(payload)


async def test_felix(tmp_path: Path) -> None:
    where = {"tenant_id": "t1", "namespace": "default"}
    head = struct.pack(">QB", 7, 2) + s16("t1") + s16("default") + s16("felix")
    room = FELIX_FRAME - 200
    uneven = b"".join([s32(b"x" * (number % 2)) for number in range(room // 5)])
    cases: list[tuple[str, bytes]] = [
        (f"{count} in binary", felix_binary(9, head + struct.pack(">I", count) + values))
        for count, values in (
            (100_000, uneven[:450_000]),
            (room // 4, bytes(room // 4 * 4)),
            (room // 5, uneven),
            (1, s32(bytes(room))),
        )
    ]
    batch = b'{"type":"publish_batch","tenant_id":"t1","namespace":"default","stream":"felix",'
    batch += b'"request_id":1,"ack":"per_batch","payloads":['
    cases += [
        ("publish_batch", felix_binary(0, batch + b",".join([b'""'] * count) + b"]}"))
        for count in (99_000, room // 3 - 100)
    ]
    long = "A" * (room // 4 * 4 - 400)
    ack = {"request_id": 1, "ack": "per_message"}
    cases += [
        ("publish", felix_frame({"type": "publish", **where, "stream": "felix", "payload": long, **ack})),
        (
            "cache_put",
            felix_frame({"type": "cache_put", **where, "cache": "c", "key": "k", "value": long, "request_id": 1}),
        ),
        ("cache_get", felix_frame({"type": "cache_get", **where, "cache": "c", "key": "k", "request_id": 1})),
        ("subscribe", felix_frame({"type": "subscribe", **where, "stream": "felix", "start": "earliest"})),
        ("auth", felix_frame({"type": "auth", "tenant_id": "t1", "token": long})),
    ]
    tried = {name for name, _ in cases}
    assert tried >= {kind.__struct_config__.tag for kind in ClientMessage.__args__}, "a message is not tried here"

    async def ask_all(gateway: Watched) -> None:
        for name, data in cases:
            async with quic(gateway.ports["quic"], None) as wire:
                await ask(wire, gateway, name, data, felix_answer)
        async with quic(gateway.ports["quic"], None) as wire:
            one = felix_binary(9, head + struct.pack(">I", 1) + s32(b"x"))
            await ask(wire, gateway, "20 000 batches of one", one * 20_000, felix_answer, 20_000)

    await never_held(tmp_path, ask_all)


async def test_fujin(tmp_path: Path) -> None:
    def number(value: int) -> bytes:
        return struct.pack(">I", value)

    def written(values: Sequence[bytes]) -> bytes:
        return b"".join(b"\3" + number(cid) + s32(b"fujin") + s32(value) for cid, value in enumerate(values))

    def reply(size: int):
        async def read(wire: Wire) -> bytes:
            return await wire.receive(size)

        return read

    writer = b"\1" + number(0)
    few, many = [bytes((16 << 20) - 100)], [b"x"] * 50_000
    transaction = b"\4" + number(1) + written(many[:50_000]) + b"\5" + number(1)
    rolled_back = b"\4" + number(1) + written(many[:1_000]) + b"\6" + number(1)
    reader = b"\2\2\0" + s32(b"fujin")
    ids = s32(bytes(16)) * (((1 << 20) - 9) // 20)
    settled = number(1) + number(len(ids) // 20) + ids

    async def ask_all(gateway: Watched) -> None:
        for name, data, size in (
            ("one long", writer + written(few), 6),
            ("many", writer + written(many), 6 * len(many)),
            ("a transaction", writer + transaction, 6 * (len(many) + 2)),
            ("one rolled back", writer + rolled_back, 6 * 1_002),
            ("FETCH", reader + b"\7" + number(1) + number(0xFFFF_FFFF), 2),
            ("ACK", reader + b"\x08" + settled, 6),
            ("NACK", reader + b"\x09" + settled, 6),
        ):
            async with quic(gateway.ports["quic"], "fujin") as wire:
                await ask(wire, gateway, name, data, reply(size))

    await never_held(tmp_path, ask_all)
    assert len(FujinOp) == 12, "an operation is not tried here"


async def test_appends_of_the_admin_address(tmp_path: Path) -> None:
    def body(values: Sequence[bytes], **more: object) -> bytes:
        columns = Columns.of(values)
        request = {"address": "orders", "producer": "p", "packed": columns.packed, "count": columns.count, **more}
        return msgspec.msgpack.encode(request)

    many = [b"x" * (number % 2) for number in range(MOST_APPENDED)]
    cases = [
        ("one", body([bytes(23 << 20)]), 200),
        ("many", body(many, sequence=1, keys=many), 200),
        ("spread", body(many, sequence=2, address="wide", keys=[b"%d" % number for number in range(len(many))]), 200),
        ("too many", body([b""] * 5_000_000), 413),
        ("empty headers", body([b""], headers=[()] * 20_000_000), 413),
        ("a million headers", body([b""], headers=[[("", b"")] * 1_000_000]), 413),
        ("a list", b"[" + b"1," * 12_000_000 + b"1]", 413),
    ]

    async def ask_all(gateway: Watched) -> None:
        address = f"http://127.0.0.1:{gateway.ports['admin']}"
        async with httpx.AsyncClient(trust_env=False, timeout=120, base_url=address) as client:
            await client.get("/readyz")
            await gateway.longest("modules, which are loaded when somebody asks")
            gateway.held.clear()
            for name, data, status in cases:
                media = JSON if data.startswith(b"[") else MSGPACK
                answer = await client.post(APPEND, content=data, headers={"Content-Type": media})
                assert answer.status_code == status, answer.text
                await gateway.longest(name)

    await never_held(tmp_path, ask_all)


async def test_who_looks_at_all_subscriptions(tmp_path: Path) -> None:
    paths = ("/metrics", "/readyz", "/", "/consumers", "/v1/consumers?skip=40000&limit=200", "/v1/audit", "/v1/pulse")

    async def ask_all(gateway: Watched) -> None:
        address = f"http://127.0.0.1:{gateway.ports['admin']}"
        async with httpx.AsyncClient(trust_env=False, timeout=120, base_url=address) as client:
            for path in ("/readyz", "/", "/metrics"):
                await client.get(path)
            await gateway.longest("modules, which are loaded when somebody asks")
            gateway.held.clear()
            for path in paths:
                answer = await client.get(path)
                assert answer.status_code == 200, answer.text
                await gateway.longest(path)
            found = (await client.get("/v1/consumers")).json()
            assert found["total"] == SUBSCRIPTIONS

    await never_held(tmp_path, ask_all, fill=subscribe_all)


async def test_what_holds_the_loop_is_seen_here_and_by_the_metric(tmp_path: Path) -> None:
    async with watched(CONFIG.format(data=tmp_path)) as gateway:
        with trio.fail_after(120):
            await gateway.looked(3)
            await gateway.longest("the start")
            gateway.held.clear()
            edge, hold = 0.5, 0.5 + EVERY + 0.1
            before = gateway.lags().later_than(edge)
            await gateway.hold(hold)
            await gateway.longest("on purpose")
            assert gateway.held["on purpose"][0] >= hold - 0.01
            await gateway.looked()
            assert gateway.lags().later_than(edge) > before
            await seen_by_the_metric(gateway)
