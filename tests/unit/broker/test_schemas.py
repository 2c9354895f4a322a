"""The registry: versions, turns, restarts, and what publishing asks of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from gateway import model
from gateway import requests as r
from gateway.broker.administration import schemas as module
from gateway.envelope import Columns
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound, SchemaViolation, Throttled, TooLarge
from tests.unit.broker.support import Bench, RecordingCaller, open_bench, publish

ORDER = json.dumps(
    {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
).encode()
ORDER_2 = json.dumps({**json.loads(ORDER), "required": ["id", "n"]}).encode()
AVRO = b'{"type":"record","name":"P","fields":[{"name":"id","type":"long"}]}'
PROTO = b'syntax = "proto3"; package shop; message Order { int64 id = 1; string name = 2; }'


async def register(bench: Bench, number: int, name: str, kind: str, definition: bytes) -> Any:
    return await bench.ask(RecordingCaller(), r.RegisterSchema(number, name, kind, definition))


async def get(bench: Bench, name: str = "", version: int | None = None) -> list[tuple[str, int, r.SchemaKind]]:
    found = await bench.ask(RecordingCaller(), r.GetSchemas(1, name, version))
    assert isinstance(found, r.Schemas), found
    return [(info.name, info.version, info.kind) for info in found.schemas]


async def problems(bench: Bench, name: str, value: bytes) -> list[str]:
    return list((await bench.ask(RecordingCaller(), r.ValidateSchema(1, name, value))).problems)


async def test_versions_are_counted_from_one(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        first = await register(bench, 1, "orders", "json", ORDER)
        assert first == r.Schemas([r.SchemaInfo("orders", 1, r.SchemaKind.JSON, ORDER, "backward")])
        second = await register(bench, 2, "orders", "json", ORDER_2)
        assert [info.version for info in second.schemas] == [2]
        same = await register(bench, 3, "orders", "json", ORDER_2)  # as producers do at every start
        assert [info.version for info in same.schemas] == [2]
        await register(bench, 4, "people", "avro", AVRO)
        assert await get(bench, "orders") == [("orders", 1, r.SchemaKind.JSON), ("orders", 2, r.SchemaKind.JSON)]
        assert await get(bench) == [*await get(bench, "orders"), ("people", 1, r.SchemaKind.AVRO)]
        assert await get(bench, "orders", 0) == [("orders", 2, r.SchemaKind.JSON)]
        assert await get(bench, "orders", 1) == [("orders", 1, r.SchemaKind.JSON)]
        assert await get(bench, "none") == []
        for version, text in ((0, "no schema found for topic: none"), (1, "no schema found for topic: none")):
            missing = await bench.ask(RecordingCaller(), r.GetSchemas(1, "none", version))
            assert (type(missing), missing.message) == (NotFound, text)
        missing = await bench.ask(RecordingCaller(), r.GetSchemas(1, "orders", 9))
        assert (type(missing), missing.message) == (NotFound, "schema not found: orders v9")


@pytest.mark.parametrize(
    ("kind", "definition", "good", "bad"),
    [
        ("json", ORDER, b'{"id":"a"}', b'{"id":1}'),
        ("avro", AVRO, b"\x02", b""),
        ("protobuf", PROTO, b"\x08\x01", b"\xff"),
        ("proto", PROTO, b"\x08\x01", b"\x18\x01"),
    ],
)
async def test_each_kind_is_checked_before_and_after_a_restart(
    tmp_path: Path, kind: str, definition: bytes, good: bytes, bad: bytes
) -> None:
    async with open_bench(tmp_path) as bench:
        (info,) = (await register(bench, 1, "s", kind, definition)).schemas
        assert info.kind.value == {"proto": "protobuf"}.get(kind, kind)
        assert (await problems(bench, "s", good), bool(await problems(bench, "s", bad))) == ([], True)
    async with open_bench(tmp_path) as bench:
        assert (await problems(bench, "s", good), bool(await problems(bench, "s", bad))) == ([], True)
        assert set(bench.schemas.checking("s", Columns.of([bad, good, bad]))()) == {0, 2}


async def test_an_unknown_schema_accepts_everything_when_asked_and_nothing_when_required(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        assert await problems(bench, "none", b"anything") == []
        with pytest.raises(NotFound, match="no schema found for topic: none"):
            bench.schemas.checking("none", Columns.of([b"anything"]))()


async def test_a_version_can_be_named(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await register(bench, 1, "orders", "json", ORDER)
        await register(bench, 2, "orders", "json", ORDER_2)
        old_only = Columns.of([b'{"id":"a"}'])
        assert bench.schemas.checking("orders-v1", old_only)() == {}
        found = bench.schemas.checking("orders", old_only)()
        assert found[0].problems == ("missing required field: n",)
        assert found[0].message == "schema validation failed: missing required field: n"
        for odd in ("orders-v3", "orders-v", "orders-vx", "-v1", "orders-v²"):
            with pytest.raises(NotFound):
                bench.schemas.checking(odd, old_only)()


async def test_deleting_one_version_never_gives_its_number_again(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await register(bench, 1, "orders", "json", ORDER)
        await register(bench, 2, "orders", "json", ORDER_2)
        assert await bench.ask(RecordingCaller(), r.DeleteSchema(3, "orders", 2)) == r.DONE
        missing = await bench.ask(RecordingCaller(), r.DeleteSchema(4, "orders", 2))
        assert (type(missing), missing.message) == (NotFound, "schema not found: orders v2")
    async with open_bench(tmp_path) as bench:
        await register(bench, 1, "orders", "json", ORDER_2)
        assert [version for _name, version, _kind in await get(bench, "orders")] == [1, 3]
        assert await bench.ask(RecordingCaller(), r.DeleteSchema(2, "orders", 0)) == r.DONE
        assert await get(bench, "orders") == []
        assert not bench.store.table(module.TABLE)
        assert isinstance(await bench.ask(RecordingCaller(), r.DeleteSchema(3, "orders", 0)), NotFound)
        (info,) = (await register(bench, 4, "orders", "avro", AVRO)).schemas
        assert info.version == 1


@pytest.mark.parametrize(
    ("name", "kind", "definition", "refusal", "text"),
    [
        ("s", "xml", b"", InvalidRequest, "unsupported schema type: xml"),
        ("", "json", b"{}", InvalidRequest, "1 to 255 bytes"),
        ("s" * 256, "json", b"{}", InvalidRequest, "1 to 255 bytes"),
        ("a\0b", "json", b"{}", InvalidRequest, "printable"),
        ("s", "json", b"[]", InvalidRequest, "must be an object"),
        ("s", "json", b" " * 70_000, TooLarge, "at most 65536 bytes"),
        ("s", "avro", b"{}", InvalidRequest, "invalid schema"),
        ("s", "protobuf", b"message {", InvalidRequest, "schema.proto:1:9"),
        ("s", "protobuf", b'syntax = "proto3";', InvalidRequest, "no message"),
        ("s", "protobuf", b'import "/etc/passwd";', InvalidRequest, "/etc/passwd"),
    ],
)
async def test_what_is_no_schema_is_refused_and_not_kept(
    tmp_path: Path, name: str, kind: str, definition: bytes, refusal: type[GatewayError], text: str
) -> None:
    async with open_bench(tmp_path) as bench:
        outcome = await register(bench, 1, name, kind, definition)
        assert isinstance(outcome, refusal)
        assert text in outcome.message
        assert str(tmp_path) not in outcome.message
        assert not bench.store.table(module.TABLE)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("json", ORDER), ("json", json.dumps({"required": ["other"]}).encode())),
        (("json", ORDER), ("avro", AVRO)),
        (("avro", AVRO), ("avro", AVRO.replace(b"long", b"string"))),
        (("protobuf", PROTO), ("protobuf", PROTO.replace(b"int64 id", b"string id"))),
    ],
)
async def test_what_breaks_readers_is_a_conflict(
    tmp_path: Path, first: tuple[str, bytes], second: tuple[str, bytes]
) -> None:
    async with open_bench(tmp_path) as bench:
        await register(bench, 1, "s", *first)
        outcome = await register(bench, 2, "s", *second)
        assert isinstance(outcome, Conflict)
        assert len(await get(bench, "s")) == 1


async def test_versions_of_one_name_follow_the_order_they_were_asked_in(tmp_path: Path) -> None:
    # the first takes another process, the others a thread or nothing at all
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        definitions = [PROTO.replace(b"Order {", b"Order { int32 f%d = %d; " % (n, n)) for n in range(10, 14)]
        for number, extra in enumerate(successors(definitions)):
            bench.handlers[r.RegisterSchema](caller, r.RegisterSchema(number, "s", "protobuf", extra))
        bench.handlers[r.DeleteSchema](caller, r.DeleteSchema(90, "s", 2))
        await bench.idle()
        assert [caller.answers[number].schemas[0].version for number in range(4)] == [1, 2, 3, 4]  # type: ignore[union-attr]
        assert caller.answers[90] == r.DONE
        assert [version for _name, version, _kind in await get(bench, "s")] == [1, 3, 4]


def successors(definitions: list[bytes]) -> list[bytes]:
    """Each with the fields of those before: every one is a compatible successor."""
    fields = b"".join(d.partition(b"Order { ")[2].partition(b"; ")[0] + b"; " for d in definitions).split(b"; ")[:-1]
    return [PROTO.replace(b"Order {", b"Order { " + b"; ".join(fields[: n + 1]) + b"; ") for n in range(len(fields))]


async def test_their_number_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_VERSIONS", 2)
    async with open_bench(tmp_path) as bench:
        for number in range(2):
            await register(bench, number, "s", "json", b'{"title":"%d"}' % number)
        assert isinstance(await register(bench, 2, "s", "json", b"{}"), Throttled)
        monkeypatch.setattr(module, "MOST_SCHEMAS", 2)
        assert isinstance(await register(bench, 3, "t", "json", b"{}"), Throttled)
        await bench.ask(RecordingCaller(), r.DeleteSchema(4, "s", 1))
        assert isinstance(await register(bench, 5, "t", "json", b"{}"), r.Schemas)


# --- publishing ---


async def test_a_topic_can_require_its_schema(tmp_path: Path) -> None:
    settings = model.TopicSettings(schema="orders")
    config = model.Config(listeners={}, routes=(model.IDENTITY,), topics={"strict": settings})
    async with open_bench(tmp_path, config=config) as bench:
        caller = RecordingCaller()
        assert isinstance(await bench.ask(caller, publish(1, "strict", b"{}")), NotFound)  # until there is one
        await register(bench, 2, "orders", "json", ORDER)
        assert isinstance(await bench.ask(caller, publish(3, "strict", b"{}")), SchemaViolation)
        mixed = await bench.ask(caller, publish(4, "strict", b'{"id":"a"}', b"{}", b'{"id":"b"}'))
        assert {index: type(error) for index, error in mixed.refused.items()} == {1: SchemaViolation}
        assert bench.values("strict") == [b'{"id":"a"}', b'{"id":"b"}']


async def test_a_publish_can_name_a_schema(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        await register(bench, 1, "people", "avro", AVRO)
        value = io.BytesIO()
        fastavro.schemaless_writer(value, json.loads(AVRO), {"id": 300})
        assert isinstance(await bench.ask(caller, publish(2, "t", value.getvalue(), schema="people")), r.Published)
        assert isinstance(await bench.ask(caller, publish(3, "t", b"", schema="people")), SchemaViolation)
        assert isinstance(await bench.ask(caller, publish(4, "t", b"x", schema="none")), NotFound)
        assert bench.values("t") == [value.getvalue()]
