"""Values as typed columns by registered schemas, and what does not fit beside them, for each kind of schema."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
import struct
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import docs
from gateway.broker.administration.schemas import SchemaRow
from gateway.envelope import BatchMeta, Columns
from gateway.errors import InvalidRequest, NotFound, UnknownTopic
from gateway.pipeline.decoding import Definition, Undecodable
from gateway.pipeline.schemas import TopicSchema, ValueReader, decoded, schema_of
from gateway.requests import SchemaKind
from gateway.schemas.protobuf import compile_text
from gateway.store.interface import Append, Put, Unit
from tests.pipeline.stored import META, Log, filled
from tests.pipeline.test_export import avro

OLD = {"type": "record", "name": "order", "fields": [{"name": "amount", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "amount", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "who", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["open", "shut"]}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "line", "fields": [
            {"name": "sku", "type": ["null", "string"]}, {"name": "raw", "type": "bytes"}]}}},
        {"name": "either", "type": ["null", "long", "string"]},
        {"name": "tree", "type": ["null", {"type": "record", "name": "node", "fields": [
            {"name": "next", "type": ["null", "node"]}]}]},
    ],
}  # fmt: skip
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
WHO = uuid.UUID(int=7)
WHOLE = {
    "amount": 3, "at": AT, "price": decimal.Decimal("12.34"), "day": dt.date(2026, 1, 2), "who": WHO, "state": "open",
    "tags": {"a": 1}, "lines": [{"sku": "x", "raw": b"\xff"}, {"sku": None, "raw": b""}], "either": "text",
    "tree": {"next": {"next": None}},
}  # fmt: skip

JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "name": {"type": "string"},
        "on": {"type": "boolean"},
        "place": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {},
        "mixed": {"type": ["string", "integer"]},
    },
    "required": ["id"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}},
}

PROTO = b"""
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int32 amount = 1;
  uint64 big = 2;
  optional string note = 3;
  repeated Line lines = 4;
  map<string, double> prices = 5;
  State state = 6;
  google.protobuf.Timestamp at = 7;
  bytes raw = 8;
  Order before = 9;
}
message Line { string sku = 1; }
enum State { OPEN = 0; SHUT = 1; }
"""


def versions(kind: str, *texts: bytes) -> TopicSchema:
    made = [
        Definition("order", number, text, kind, compile_text(text) if kind == "protobuf" else b"")
        for number, text in enumerate(texts, 1)
    ]
    return TopicSchema(made[::-1])


def rows(schema: TopicSchema, *values: bytes) -> list[Any]:
    data, problems = ValueReader(schema).column(list(values))
    return [row if row is not None else why for row, why in zip(data.to_pylist(), problems.to_pylist(), strict=True)]


def test_avro() -> None:
    schema = versions("avro", json.dumps(OLD).encode(), json.dumps(NEW).encode())
    assert schema.spark.simpleString() == (
        "struct<amount:int,at:timestamp,price:decimal(9,2),day:date,who:string,state:string,tags:map<string,bigint>,"
        "lines:array<struct<sku:string,raw:binary>>,either:string,tree:struct<next:string>>"
    )
    whole, old, wrong = rows(schema, avro(NEW, WHOLE), avro(OLD, {"amount": 9}), b"\xff\xff\xff\xff\xff\xff\xff")
    assert whole == {**WHOLE, "who": str(WHO), "tags": [("a", 1)], "tree": {"next": '{"next":null}'}}
    assert old == {**dict.fromkeys(WHOLE), "amount": 9}
    assert wrong.startswith("not order: version 2: ")
    assert rows(versions("avro", b"long"), avro("long", 5)) == [{"value": 5}]


def test_json() -> None:
    schema = versions("json", json.dumps(JSON).encode())
    assert schema.spark.simpleString() == (
        "struct<id:bigint,ratio:double,name:string,on:boolean,place:struct<x:double,y:double>,tags:array<string>,"
        "counts:map<string,bigint>,any:string,mixed:string>"
    )
    whole = {"id": 1.0, "ratio": 2, "name": "ü", "on": True, "place": {"x": 1}, "tags": ["a"], "counts": {"b": 2},
             "any": {"deep": [1]}, "mixed": 5, "extra": 1}  # fmt: skip
    found = rows(
        schema, json.dumps(whole).encode(), b'{"id": 7}', b'{"id": "x"}', b"{", b'{"id": 99999999999999999999}'
    )
    assert found[0] == {
        "id": 1, "ratio": 2.0, "name": "ü", "on": True, "place": {"x": 1.0, "y": None}, "tags": ["a"], "counts": [("b", 2)],
        "any": '{"deep":[1]}', "mixed": "5",
    }  # fmt: skip
    assert found[1] == {**dict.fromkeys(found[0]), "id": 7}
    assert found[2] == "not order: version 1: type mismatch at id: expected integer, got string"
    assert "not a JSON document" in found[3]
    assert "99999999999999999999 is too large for 64 bits" in found[4]


def test_protobuf() -> None:
    schema = versions("protobuf", PROTO)
    assert schema.spark.simpleString() == (
        "struct<amount:int,big:decimal(20,0),note:string,lines:array<struct<sku:string>>,prices:map<string,double>,"
        "state:string,at:timestamp,raw:binary,before:string>"
    )
    from gateway.schemas.protobuf import ProtobufSchema

    message = ProtobufSchema(schema.versions[0].compiled).message(
        amount=-1, big=2**64 - 1, lines=[{"sku": "x"}], prices={"a": 1.5}, state=1, raw=b"\xff", before={"amount": 4}
    )
    message.at.FromDatetime(AT)
    whole, empty, wrong = rows(schema, message.SerializeToString(), b"", b"\x08")
    assert whole == {
        "amount": -1, "big": decimal.Decimal(2**64 - 1), "note": None, "lines": [{"sku": "x"}], "prices": [("a", 1.5)],
        "state": "SHUT", "at": AT, "raw": b"\xff", "before": '{"amount": 4}',
    }  # fmt: skip
    assert (empty["amount"], empty["note"], empty["state"], empty["at"]) == (0, None, "OPEN", None)
    assert wrong == "not order: version 1: not a message of the schema"
    with pytest.raises(Undecodable, match="unexpected field: 99"):
        ValueReader(schema).row(b"\x98\x06\x01")


def row(name: str, number: int, kind: SchemaKind, text: bytes) -> Put:
    compiled = compile_text(text) if kind is SchemaKind.PROTOBUF else b""
    packed = msgspec.msgpack.encode(SchemaRow(kind, text, compiled))
    return Put("schemas", name.encode() + b"\0" + struct.pack(">I", number), packed)


async def shop(log: Log) -> None:
    puts = [
        row("order", 1, SchemaKind.AVRO, json.dumps(OLD).encode()),
        row("order", 2, SchemaKind.AVRO, json.dumps(NEW).encode()),
        row("event", 1, SchemaKind.JSON, json.dumps(JSON).encode()),
        row("message", 1, SchemaKind.PROTOBUF, PROTO),
    ]
    await log.store.submit(Unit(puts=puts)).wait()
    await log.create("orders", schema="order")
    await log.append("orders", [avro(NEW, WHOLE), avro(OLD, {"amount": 9}), b"\xff\xff\xff\xff\xff\xff\xff"])
    await log.create("events", schema="event")
    await log.append("events", [b'{"id": 7, "tags": ["a"]}', b"nonsense"], keys=[b"k", None])
    await log.create("plain")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schemas") / "store"
    filled(path, shop)
    return path


def test_schemas_of_a_store(store: Path) -> None:
    path = str(store)
    assert [one.version for one in schema_of(path, "orders").versions] == [2, 1]
    assert schema_of(path, "orders", version=1).spark.simpleString() == "struct<amount:int>"
    assert schema_of(path, schema="message").spark.fieldNames()[:2] == ["amount", "big"]
    with pytest.raises(InvalidRequest, match="the topic plain has no schema"):
        schema_of(path, "plain")
    with pytest.raises(InvalidRequest, match="whose schema"):
        schema_of(path)
    with pytest.raises(UnknownTopic):
        schema_of(path, "none")
    with pytest.raises(NotFound, match="no schema none is registered"):
        schema_of(path, schema="none")


@pytest.mark.spark
def test_columns_of_a_frame_and_of_a_stream(spark: Any, store: Path, tmp_path: Path) -> None:
    frame = spark.read.format("gateway").options(path=str(store), topics="orders").load()
    found = decoded(frame, schema_of(str(store), "orders"))
    total = found.good.selectExpr("sum(data.amount)", "max(data.price)", "max(data.tags['a'])").first()
    assert tuple(total) == (12, decimal.Decimal("12.34"), 1)
    assert found.good.columns == [*[name for name in frame.columns if name != "value"], "data"]
    (wrong,) = found.aside.collect()
    assert (wrong.offset, bytes(wrong.value), wrong.topic) == (2, b"\xff" * 7, "orders")
    assert wrong.problem.startswith("not order: version 2: ")
    assert found.everything.count() == 3
    with pytest.raises(InvalidRequest, match="a frame with a column value"):
        decoded(frame.drop("value"), schema_of(str(store), "orders"))

    stream = (
        spark.readStream.format("gateway")
        .schema("offset bigint, key binary, value binary")
        .options(path=str(store), topics="events", startingOffsets="earliest")
    )
    events = decoded(stream.load(), schema_of(str(store), "events"))
    kept: dict[str, list[Any]] = {"good": [], "aside": []}

    def both(batch: Any, _number: int) -> None:
        kept["good"] += batch.where("problem is null").select("offset", "data.id", "data.tags").collect()
        kept["aside"] += batch.where("problem is not null").select("offset", "problem").collect()

    query = (
        events.everything.writeStream.foreachBatch(both)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [tuple(one) for one in kept["good"]] == [(0, 7, ["a"])]
    assert [tuple(one) for one in kept["aside"]] == [(1, "not event: version 1: not a JSON document")]


@pytest.mark.spark
def test_the_recipes_of_the_page(spark: Any, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n([^`]*schema_of\(.*?)```", docs.text("pipeline"), re.DOTALL)
    amount = b'{"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}'

    async def fill(log: Log) -> None:
        await log.store.submit(Unit(puts=[row("amount", 1, SchemaKind.JSON, amount)])).wait()
        for topic in ("orders", "payments"):
            await log.create(topic, schema="amount")
        for number in range(40):
            meta = BatchMeta(
                b"%016d" % (number - (number == 2)), META.origin, META.route
            )  # the third says it is the second again
            columns = Columns.of([b'{"amount": %d}' % number], [b"k%d" % number])
            await log.store.submit(Unit(appends=[Append("orders", 0, columns, meta)])).wait()
            if number % 2:
                await log.append("payments", [b'{"amount": 1}'], keys=[b"k%d" % number])
            log.clock.ms += 30_000
        await log.append("orders", [b"none"])

    filled(tmp_path / "data", fill)
    exec(code.replace('"./', f'"{tmp_path}/').replace('f"./', f'f"{tmp_path}/'), {"spark": spark})
    good = spark.read.parquet(str(tmp_path / "good"))
    assert good.selectExpr("count(*)", "sum(amount)").first() == (40, sum(range(40)))
    assert [one.offset for one in spark.read.parquet(str(tmp_path / "aside")).collect()] == [40]
    assert spark.read.parquet(str(tmp_path / "joined")).count() == 20
    sums = spark.read.parquet(str(tmp_path / "per_minute")).orderBy("minute").collect()
    assert [one.amount for one in sums[:3]] in ([0 + 1, 3, 4 + 5], [0, 1, 3 + 4])  # as the minutes fall
