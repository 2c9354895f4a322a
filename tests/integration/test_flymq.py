"""Every operation of FlyMQ against the real process, with bytes written by hand."""

from __future__ import annotations

import gzip
import json
import signal
import struct
import time
from collections.abc import Iterator

import pytest
import trio

from tests.integration.flymq_raw import Flymq, fetch, flymq, frame, i32, produce, s8, u64
from tests.integration.raw import CLIENTS, felix_frame, s16, s32, tcp
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  document: {{protocol: flymq, bind: "127.0.0.1:0", dialect: document}}
  flymq:    {{protocol: [flymq, rustlog], bind: "127.0.0.1:0"}}
  stock:    {{protocol: flymq, bind: "127.0.0.1:0", dialect: stock}}
  holding:  {{protocol: flymq, bind: "127.0.0.1:0", fetch_hold: 10m}}
  users:    {{protocol: flymq, bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: s3cret-root}}}}}}
  blipmq:   {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, backoff: 1ms..2ms, max_deliveries: 2}}
  rustlog:  {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:    {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:    {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}"}}
topics:
  "strict.*": {{schema: person}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the whole module; its topics are told apart by name."""
    directory = tmp_path_factory.mktemp("flymq")
    served = Served(directory, CONFIG.format(data=directory / "data"))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


async def a_session(client: Flymq, prefix: str, *, document: bool) -> None:
    """The core and the groups in the document's layouts, then what only a shipped client can read."""
    topic, flag = f"{prefix}.t", b"\1\0\0"
    assert await client.ask(3, s16(topic) + i32(4)) == flag
    assert await client.ask(3, s16(topic) + i32(2)) == flag
    before = int(time.time() * 1000)
    answer = await client.ask(1, produce(topic, b"keyed", b"user-123"))
    stamp = int.from_bytes(answer[len(topic) + 14 : len(topic) + 22], "big")
    assert answer == s16(topic) + i32(3) + u64(0) + u64(stamp) + i32(8) + i32(5)  # FNV-1a of the key modulo 4
    assert before <= stamp <= int(time.time() * 1000)
    for offset, value in enumerate((b"one", b"", b"three")):
        answer = await client.ask(1, produce(topic, value, partition=2))
        assert answer[: len(topic) + 14] == s16(topic) + i32(2) + u64(offset)
        assert answer[-8:] == i32(-1) + i32(len(value))
    assert await client.ask(2, s16(topic) + i32(3) + u64(0)) == s32(b"user-123") + s32(b"keyed")
    assert await client.ask(10, s16(topic) + i32(2) + u64(0)) == s32(b"") + s32(b"one")
    for op in (7, 11):
        answer = await client.ask(op, fetch(topic, 1, 10, 2))
        records = s32(b"") + s32(b"") + u64(1) + s32(b"") + s32(b"three") + u64(2)
        assert answer == b"\0\0\0\2" + records + u64(3)
        assert await client.ask(op, fetch(topic, 3, 10, 2)) == b"\0\0\0\0" + u64(3)
        assert await client.ask(op, fetch(topic, 0, 0, 2)) == await client.ask(op, fetch(topic, 0, -5, 2))
    parts = [(0, 0), (0, 0), (0, 3), (0, 1)]
    described = b"".join(struct.pack(">iiQQ", number, 0, *ends) for number, ends in enumerate(parts))
    assert await client.ask(4, s16(topic)) == s16(topic) + b"\0\0\0\4" + described
    assert s16(topic) in await client.ask(8)
    at = s16(topic) + s16("g") + i32(2)
    assert await client.refused(0x60, at) == f"consumer group not found: {topic}:g"
    for mode, offset in (("earliest", 0), ("latest", 3), ("commit", 0), ("", 3)):
        assert await client.ask(5, at + s16(mode)) == u64(offset), mode
    assert await client.ask(6, at + u64(1)) == flag
    assert await client.ask(5, at + s16("commit")) == u64(1)
    assert await client.ask(0x60, at) == u64(1)
    assert await client.ask(0x64, at) == u64(1) + u64(1) + u64(3) + u64(2)
    assert await client.ask(0x61, at + s16("latest")) == flag
    assert await client.ask(0x60, at) == u64(3)
    assert await client.ask(0x61, at + s16("offset") + u64(2)) == flag
    entry = s16(topic) + s16("g") + b"\0\0\0\1" + b"\0\0\0\1" + i32(2) + u64(2)
    assert await client.ask(0x63, s16(topic) + s16("g")) == entry
    assert entry in await client.ask(0x62)
    assert await client.ask(0x66, at + u64(stamp)) == u64(0)
    assert await client.ask(0x66, at + u64(stamp + 3_600_000)) == u64(3)
    assert await client.ask(0x65, s16(topic) + s16("g")) == flag
    assert await client.refused(0x63, s16(topic) + s16("g")) == f"consumer group not found: {topic}:g"
    assert await client.ask(0x70, s16("anyone") + s16("x")) == (
        b"\1\0\0" + s16("anyone") + b"\0\0\0\0" if document else b"\1" + b"\0" * 10
    )
    assert (await client.refused(0x76)) == "authentication is not enabled"
    assert await client.ask(9, s16(topic)) == flag
    assert await client.ask(9, s16(topic)) == flag
    assert await client.refused(7, fetch(topic)) == f"topic not found: {topic}"


async def test_a_session_in_the_document_and_in_auto(gateway: Served):
    ports = gateway.ports
    with trio.fail_after(20):
        for listener in ("document", "flymq"):
            async with flymq(ports[listener]) as client:
                await a_session(client, listener, document=listener == "document")


async def test_what_shows_a_stock_client_and_what_it_then_reads(gateway: Served):
    ports = gateway.ports
    stock_fetch = b"\0\0\0\1" + u64(1) + u64(0) + s32(b"") + s32(b"v")
    document_fetch = b"\0\0\0\1" + s32(b"") + s32(b"v") + u64(0) + u64(1)
    with trio.fail_after(20):
        async with flymq(ports["flymq"]) as client:
            await client.ask(1, produce("t", b"v"))
            assert await client.ask(7, fetch("t")) == document_fetch
            assert await client.ask(7, fetch("t") + b"\0\0") == stock_fetch  # the filter suffix
            assert await client.ask(7, fetch("t")) == stock_fetch  # for good
            await client.wire.send(frame(2, s16("t") + i32(0) + u64(9)))
            assert await client.read() == (0xFF, 1, i32(1) + s16("EOF"))
        signs = [
            (5, s16("t") + s16("g") + i32(0) + s8("latest"), 1, s16, False),
            (8, b"", 0, s16, False),
            (0x53, s16("t"), 1, s16, True),
        ]
        for op, payload, flags, _, coded in signs:
            async with flymq(ports["flymq"]) as client:
                await client.ask(op, payload, flags)
                assert await client.ask(7, fetch("t")) == stock_fetch
                await client.wire.send(frame(0xEE))
                text = b"unknown opcode: 238"
                expected = (0xFF, 1, i32(1) + struct.pack(">H", len(text)) + text) if coded else (0xFF, 0, text)
                assert await client.read() == expected
        async with flymq(ports["stock"]) as client:
            assert await client.ask(7, fetch("t")) == stock_fetch
            assert await client.ask(3, s16("t") + i32(1)) == b"\1"
            assert await client.ask(0x70, s16("anyone") + s16("x")) == b"\1" + s16("anyone") + b"\0\0\0\0\0\0"
            await client.wire.send(frame(7, fetch("nope")))
            assert await client.read() == (0xFF, 0, b"topic not found: nope")
        async with flymq(ports["document"]) as client:
            await client.ask(8, b"", 0)
            assert await client.ask(7, fetch("t") + b"\0\0") == document_fetch


async def test_frames_that_are_wrong_and_frames_in_one_read(gateway: Served):
    ports = gateway.ports
    with trio.fail_after(30):
        async with flymq(ports["flymq"]) as client:
            whole = b"".join(frame(1, produce("p", b"%d" % n)) + frame(8) + frame(0x99) for n in range(50))
            await client.wire.send(whole)
            kinds = [(await client.read())[0] for _ in range(150)]
            assert kinds == [1, 8, 0xFF] * 50
            packed = gzip.compress(produce("p", b"squeezed", b"k"))
            await client.ask(1, packed, 3)
            assert (await client.values("p"))[-2:] == [b"49", b"squeezed"]
            assert await client.refused(1, b"not gzip", 3) == "invalid binary format: bad gzip payload"
            bomb = gzip.compress(bytes(40 << 20))
            assert await client.refused(1, bomb, 3)
            for flags in (5, 7, 9):  # lz4, zstd, snappy: no shipped implementation has them
                assert await client.refused(1, produce("p", b"x"), flags)
            for cut in (0, 1, 5, 8):
                assert await client.refused(1, produce("p", b"x")[:cut]) == "buffer too small"
            assert await client.refused(1, produce("p", b"x", partition=-2)) == "partition -2 out of range"
            assert await client.refused(1, produce("p", b"x", partition=7)) == "partition 7 out of range"
            assert await client.refused(3, s16("q") + i32(-1)) == "invalid partition count: -1"
            assert await client.refused(2, s16("p") + i32(-1) + u64(0)) == "partition -1 out of range"
            assert await client.refused(7, fetch("p", partition=9)) == "partition 9 not found"
            assert await client.refused(2, s16("p") + i32(0) + u64(1 << 63)) == "EOF"
            for name in ("", "a/../b", "/a", "a/", "a//b", "a\\b", "nul\0", "__ours", "x" * 513, "."):
                assert await client.refused(1, produce(name, b"x")), name
                assert await client.refused(3, s16(name) + i32(1)), name
                assert await client.refused(6, s16(name) + s16("g") + i32(0) + u64(0)), name
            for group in ("", "a\0b", "g" * 513):
                assert await client.refused(6, s16("p") + s16(group) + i32(0) + u64(0)), group
            assert await client.refused(6, s16("p") + s16("g") + i32(-1) + u64(0))
            assert await client.refused(0x43, s16("txn-nobody") + s16("p") + s32(b"x")) == (
                "transaction not found: txn-nobody"
            )
            assert s16("q") not in await client.ask(8)
        for broken in (b"\xae\1\1\1" + bytes(4), b"\xaf\2\1\1" + bytes(4), b"\xaf\1\1\1\2\0\0\1"):
            async with flymq(ports["flymq"]) as client:
                await client.wire.send(frame(8) + broken)
                assert (await client.read())[0] == 8
                await client.wire.closed()
        async with flymq(ports["flymq"]) as client:  # exactly 32 MiB is a message
            value = bytes(33554432 - len(produce("big", b"")))
            await client.wire.send(frame(1, produce("big", value)))
            op, _, answer = await client.read()
            assert (op, answer[-4:]) == (1, i32(len(value))), answer
            answer = await client.ask(2, s16("big") + i32(0) + u64(0))
            assert len(answer) == 8 + len(value)


async def test_schemas(gateway: Served):
    person = (
        b'{"type":"object","required":["name"],"properties":{"name":{"type":"string"}},"additionalProperties":false}'
    )
    avro = b'{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'
    proto = b'syntax = "proto3"; message M { int32 a = 1; string b = 2; }'
    stored = s32(person) + s8("backward")
    ports = gateway.ports
    with trio.fail_after(30):
        async with flymq(ports["flymq"]) as client:
            assert await client.ask(0x10, s16("person") + s8("json") + s32(person)) == s16("person") + s8("json") + i32(
                1
            )
            wider = person.replace(b'"properties":{', b'"properties":{"age":{"type":"integer"},')
            assert (await client.ask(0x10, s16("person") + s16("json") + s32(wider)))[-4:] == i32(2)
            stricter = person.replace(b'["name"]', b'["name","born"]')
            assert "incompatible" in (await client.refused(0x10, s16("person") + s8("json") + s32(stricter))).lower()
            for kind, definition in (("avro", avro), ("protobuf", proto)):
                assert (await client.ask(0x10, s16(kind) + s8(kind) + s32(definition)))[-4:] == i32(1)
            assert await client.refused(0x10, s16("x") + s8("xml") + s32(b"<a/>")) == "unsupported schema type: xml"
            bomb = b'{"type":"object","properties":' * 5000 + b"{}" + b"}" * 5000
            assert await client.refused(0x10, s16("bomb") + s8("json") + s32(bomb))
            answer = await client.ask(0x11, s16("person") + i32(1))
            head = i32(1) + s16("person") + s8("json") + i32(1)
            assert answer.startswith(head), answer
            assert answer.endswith(stored)
            assert await client.refused(0x11, s16("none") + i32(0)) == "no schema found for topic: none"
            assert await client.refused(0x11, s16("person") + i32(9)) == "schema not found: person v9"
            listed = {s16("person-v1") + s8("json") + i32(1), s16("person-v2") + s8("json") + i32(2)}
            answer = await client.ask(0x12, s16("person"))
            assert answer[:4] == i32(2)
            assert all(entry in answer for entry in listed)
            assert (await client.ask(0x12))[:4] == i32(4)
            cases = [
                ("person", b'{"name":"Ada"}', b'{"name":1}'),
                ("avro", b"\x02", b""),
                ("protobuf", b"\x08\x05\x12\x01x", b"\x12\x09x"),
            ]
            for schema, good, bad in cases:
                assert await client.ask(0x13, s16(schema) + s32(good)) == b"\1" + i32(0)
                assert (await client.ask(0x13, s16(schema) + s32(bad)))[:1] == b"\0"
                orders = (s16("made") + s16(schema) + s32(good), s16("made") + s32(good) + s16(schema))
                for payload in orders:
                    assert (await client.ask(0x14, payload))[:6] == s16("made")
                text = await client.refused(0x14, s16("made") + s16(schema) + s32(bad))
                assert text.startswith("schema validation failed"), text
            assert len(await client.values("made")) == 6
            await client.ask(0x15, s16("avro") + i32(0))
            assert await client.refused(0x11, s16("avro") + i32(0)) == "no schema found for topic: avro"
            # a topic that requires its schema, whoever publishes to it
            assert await client.ask(1, produce("strict.a", b'{"name":"Ada"}'))
            assert (await client.refused(1, produce("strict.a", b"no"))).startswith("schema validation failed")
            txn = await client.ask(0x40)
            name = txn[:-1]
            assert (await client.refused(0x43, name + s16("strict.a") + s32(b"no"))).startswith("schema validation")
            assert await client.ask(0x41, name) == name + b"\1"
            assert await client.refused(0x30, s16("strict.a") + s32(b"no") + u64(1))
            assert await client.refused(0x35, s16("strict.a") + s32(b"no") + u64(10_000))
            async with tcp(ports["rustlog"]) as wire:
                await wire.send(
                    s32(b"\1" + s16("strict.a") + struct.pack(">II", 0, 2) + s32(b'{"name":"B"}') + s32(b"no"))
                )
                size = int.from_bytes(await wire.receive(4), "big")
                assert (await wire.receive(size))[0] == 0xFE
            async with tcp(ports["blipmq"]) as wire:
                blip = CLIENTS["blipmq"]()
                await blip.greet(wire)
                await wire.send(s32(b"\3" + u64(4) + b"\1" + s16("strict.a") + b"no"))
                refusal = await wire.receive(int.from_bytes(await wire.receive(4), "big"))
                assert refusal[0] == 6, refusal
            async with CLIENTS["felix"].connect(ports["felix"]) as wire:
                payload = {"type": "publish", **CLIENTS["felix"].scope("strict.a"), "payload": "bm8=", "request_id": 3}
                await wire.send(felix_frame(payload))
                size = (await wire.receive(12))[-4:]
                refusal = json.loads(await wire.receive(int.from_bytes(size, "big")))
                assert (refusal["type"], refusal["request_id"]) == ("publish_error", 3), refusal
            async with CLIENTS["fujin"].connect(ports["fujin"]) as wire:
                await wire.send(b"\1\0\0\0\0\3" + i32(1) + s32(b"strict.a") + s32(b"no"))
                assert await wire.receive(6) == b"\2" + i32(1) + b"\1"
            assert await client.values("strict.a") in ([b'{"name":"Ada"}'], [b'{"name":"Ada"}', b'{"name":"B"}'])


async def test_dead_letters_that_a_blipmq_reader_left(gateway: Served):
    blip, ports = CLIENTS["blipmq"](), gateway.ports
    with trio.fail_after(30):
        async with flymq(ports["flymq"]) as client:
            async with tcp(ports["blipmq"]) as wire:
                await blip.subscribe(wire, "dead")
                for value in (b"one", b"two"):
                    await client.ask(1, produce("dead", value, b"k"))
                letters = b""
                while letters[:4] != i32(2):  # polled again and again, never acknowledged
                    await wire.send(s32(b"\x09" + u64(60) + blip.subscription))
                    with trio.move_on_after(0.1):
                        await wire.receive(1)
                    letters = await client.ask(0x20, s16("dead") + i32(10))
            # the reader is gone: a POLL that it left open would take what is replayed, and give up on that as well
            entry = s16("0:0") + s32(b"one")
            assert letters[4 : 4 + len(entry)] == entry
            assert (await client.ask(0x20, s16("dead") + i32(1)))[:4] == i32(1)
            assert await client.ask(0x21, s16("dead") + s16("0:0")) == b"\1" + s16("OK")
            assert await client.ask(0x21, s16("dead") + u64(1)) == b"\1" + s16("OK")  # newer clients: an offset
            assert await client.ask(0x21, s16("dead") + s16("0:77")) == b"\0" + s16("message not found")
            assert await client.values("dead") == [b"one", b"two", b"one", b"two"]
            assert await client.ask(2, s16("dead") + i32(0) + u64(2)) == s32(b"k") + s32(b"one")
            assert await client.values("dead.dlq") == [b"one", b"two"]
            assert await client.ask(0x22, s16("dead")) == b"\1" + s16("OK")
            assert await client.ask(0x20, s16("dead") + i32(10)) == i32(0)
            assert await client.ask(0x20, s16("never-heard-of") + i32(10)) == i32(0)


async def test_an_empty_fetch_waits_and_somebody_behind_it_does_not(gateway: Served):
    ports = gateway.ports
    with trio.fail_after(60):  # which is less than a fetch is held
        async with flymq(ports["holding"]) as reader, flymq(ports["flymq"]) as writer:
            await writer.ask(3, s16("hold") + i32(1))
            await reader.wire.send(frame(7, fetch("hold")))
            await writer.ask(1, produce("hold", b"now"))
            assert (await reader.read())[2][:4] == i32(1)
            await reader.wire.send(frame(7, fetch("hold", 1)) + frame(8))
            assert await reader.read() == (7, 1, i32(0) + u64(1))
            assert (await reader.read())[0] == 8


async def test_groups_are_those_of_rustlog(gateway: Served):
    ports = gateway.ports
    with trio.fail_after(20):
        async with flymq(ports["flymq"]) as client, tcp(ports["flymq"]) as rust:  # one port, told apart
            for value in (b"a", b"b", b"c"):
                await client.ask(1, produce("shared", value))
            await client.ask(6, s16("shared") + s16("team") + i32(0) + u64(2))
            await rust.send(s32(b"\2" + s16("team") + s16("shared") + struct.pack(">IQI", 0, 0, 1024)))
            await rust.expect(s32(b"\2" + i32(1) + s32(b"c") + u64(3)))
            await client.ask(0x65, s16("") + s16("team"))
            assert await client.refused(0x60, s16("shared") + s16("team") + i32(0))


def stock_fetch(answer: bytes) -> tuple[int, list[tuple[int, bytes, bytes]]]:
    """(next offset, [(offset, key, value)]) of the layout that shipped clients read."""
    count, following = struct.unpack_from(">IQ", answer)
    position, found = 12, []
    for _ in range(count):
        offset, key_size = struct.unpack_from(">QI", answer, position)
        key = answer[position + 12 : position + 12 + key_size]
        position += 12 + key_size
        (size,) = struct.unpack_from(">I", answer, position)
        found.append((offset, key, answer[position + 4 : position + 4 + size]))
        position += 4 + size
    assert position == len(answer)
    return following, found


async def test_filters_of_both_fetches(gateway: Served):
    records = [
        (b"k0", b'{"a":{"b":1}}'),
        (b"", b"Plain Text"),
        (b"ORDER-7", b'{"a":{}}'),
        (b"", b"text 42"),
        (b"", b""),
    ]
    wanted = {
        "": [0, 1, 2, 3, 4],
        "$.a": [0, 2],
        "$.a.b": [0],
        "TEXT": [1, 3],
        "order": [2],  # keys are looked at too
        "^text [0-9]+$": [3],
        "nothing like it": [],
        "(": [],
        ":{": [0, 2],  # no pattern: a text
    }
    with trio.fail_after(30):
        async with flymq(gateway.ports["flymq"]) as client:
            for key, value in records:
                await client.ask(1, produce("sieve", value, key))
            for op in (7, 11):
                for text, offsets in wanted.items():
                    following, found = stock_fetch(await client.ask(op, fetch("sieve", most=10) + s16(text)))
                    assert found == [(offset, *records[offset]) for offset in offsets], text
                    assert following == 5, text  # a reader goes on behind what did not match
                following, found = stock_fetch(await client.ask(op, fetch("sieve", most=1) + s16("text")))
                assert (following, [offset for offset, _, _ in found]) == (2, [1])
                for bad in (r"\pL{20}", "x" * 2000):
                    await client.wire.send(frame(op, fetch("sieve") + s16(bad)))
                    assert (await client.read())[0] == 0xFF, bad
        async with flymq(gateway.ports["document"]) as client:  # the same filter, the document's layout
            answer = await client.ask(7, fetch("sieve") + s16("42"))
            assert answer == b"\0\0\0\1" + s32(b"") + s32(b"text 42") + u64(3) + u64(5)


async def test_an_answer_stays_below_what_clients_can_read(gateway: Served):
    value, sent = bytes(1 << 20), 30
    with trio.fail_after(60):
        async with flymq(gateway.ports["stock"]) as client:
            for _ in range(sent):
                await client.ask(1, produce("heavy", value))
            for suffix in (b"", s16("")):
                offset = answers = 0
                while offset < sent:
                    answer = await client.ask(7, fetch("heavy", offset, 1000) + suffix)
                    assert len(answer) <= 24 << 20
                    following, found = stock_fetch(answer)
                    assert [at for at, _, _ in found] == list(range(offset, following))
                    assert all(got == value for _, _, got in found)
                    assert following > offset
                    offset, answers = following, answers + 1
                assert answers > 1


async def test_keys_up_to_their_limit(gateway: Served):
    largest = b"k" * 65_535
    with trio.fail_after(30):
        async with flymq(gateway.ports["flymq"]) as client:
            for flags, packed in ((1, bytes), (3, gzip.compress)):
                payload = packed(produce("keys", b"v", largest + b"k"))
                assert await client.refused(1, payload, flags) == "key too large: 65536 bytes, at most 65535"
            assert s16("keys") not in await client.ask(8)  # not even the topic was made
            whole = [produce("keys", b"1"), produce("keys", b"2", largest + b"k"), produce("keys", b"3", largest)]
            await client.wire.send(b"".join(frame(1, payload) for payload in whole))
            assert [(await client.read())[0] for _ in whole] == [1, 0xFF, 1]
            assert await client.values("keys") == [b"1", b"3"]
            assert await client.ask(2, s16("keys") + i32(0) + u64(1)) == s32(largest) + s32(b"3")
