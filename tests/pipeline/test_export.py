"""Messages for other tools: CSV, JSON lines and Parquet, with payloads decoded, and what cannot be decoded named."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow.parquet as pq
import pytest

from gateway.broker.administration.schemas import SchemaRow
from gateway.errors import InvalidRequest, NotFound
from gateway.pipeline.decoding import Avro, Definition, Undecodable, header_text, registered
from gateway.pipeline.export import decoding_for, export
from gateway.pipeline.frames import messages_at
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.spread import TaskFailed
from gateway.requests import SchemaKind
from gateway.store.interface import Put, Unit
from tests.pipeline.stored import Log, filled

FIRST = {"type": "record", "name": "order", "fields": [{"name": "amount", "type": "int"}]}
SECOND = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "amount", "type": "int"}, {"name": "note", "type": ["null", "bytes"]}],
}


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


async def everything(log: Log) -> None:
    rows = [
        Put("schemas", b"order\0" + struct.pack(">I", number), msgspec.msgpack.encode(row))
        for number, row in [
            (1, SchemaRow(SchemaKind.AVRO, json.dumps(FIRST).encode())),
            (2, SchemaRow(SchemaKind.AVRO, json.dumps(SECOND).encode())),
        ]
    ]
    rows.append(Put("schemas", b"order\0" + struct.pack(">I", 0), struct.pack(">I", 2)))
    rows.append(
        Put("schemas", b"plain\0" + struct.pack(">I", 1), msgspec.msgpack.encode(SchemaRow(SchemaKind.JSON, b"{}")))
    )
    await log.store.submit(Unit(puts=rows)).wait()
    await log.create("texts")
    await log.append(
        "texts", [b'a "quoted",\ncell', "é".encode(), b""], keys=[b"k", b"\xff", None], headers=[(("h", b"1"),), (), ()]
    )
    await log.create("json")
    await log.append("json", [b'{"a": 1, "b": {"c": "x"}}', b'{"a": 2.5}'])
    await log.create("avro", schema="order")
    await log.append("avro", [avro(FIRST, {"amount": 7}), avro(SECOND, {"amount": 8, "note": b"\xff"})])
    await log.create("bad")
    await log.append("bad", [b'{"a": 1}', b"\xff", b"{"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path / "store", everything)
    return tmp_path / "store"


def run(spark: Any, store: Path, to: Path, topic: str, form: str, decode: str, **more: Any) -> Any:
    messages, topics = messages_at(str(store)), TopicSelection((topic,))
    decoding = decoding_for(decode, messages, topics)
    return export(spark, messages, to, form=form, decoding=decoding, topics=topics, **more)


def lines(directory: Path) -> list[Any]:
    text = "".join(path.read_text() for path in sorted(directory.glob("part-*")))
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda one: one["offset"])


@pytest.mark.spark
def test_csv_and_json_lines(spark: Any, store: Path, tmp_path: Path) -> None:
    assert run(spark, store, tmp_path / "csv", "texts", "csv", "text").messages == 3
    text = "".join(path.read_text() for path in sorted((tmp_path / "csv").glob("part-*.csv")))
    found = list(csv.DictReader(io.StringIO(text)))
    assert [row["value"] for row in found] == ['a "quoted",\ncell', "é", ""]
    assert [row["key"] for row in found] == ["k", "base64:/w==", ""]
    assert found[0]["headers"] == '[["h","1"]]'
    assert found[0]["timestamp"].startswith("2023-11-14T22:13:20.000+00:00")
    assert run(spark, store, tmp_path / "lines", "json", "jsonl", "json", where="offset > 0").messages == 1
    (line,) = lines(tmp_path / "lines")
    assert (line["value"], line["key"], line["headers"], line["route"]) == ({"a": 2.5}, None, [], "orders")


@pytest.mark.spark
def test_parquet_with_columns_from_json_and_avro_by_its_schema(spark: Any, store: Path, tmp_path: Path) -> None:
    run(spark, store, tmp_path / "json", "json", "parquet", "json")
    rows = sorted(pq.read_table(tmp_path / "json").to_pylist(), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == [{"a": 1.0, "b": {"c": "x"}}, {"a": 2.5, "b": None}]
    # the schema changed between the two messages
    assert run(spark, store, tmp_path / "avro", "avro", "jsonl", "avro").messages == 2
    assert [line["value"] for line in lines(tmp_path / "avro")] == [{"amount": 7}, {"amount": 8, "note": "ÿ"}]


@pytest.mark.spark
def test_what_cannot_be_decoded_is_named_or_left_out(spark: Any, store: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match=r"Undecodable: bad/0 offset 1: not JSON"):
        run(spark, store, tmp_path / "out", "bad", "jsonl", "json")
    assert not (tmp_path / "out").exists()
    done = run(spark, store, tmp_path / "out", "bad", "jsonl", "json", skip_undecodable=True)
    assert (done.messages, done.undecodable) == (1, 2)
    assert done.first_problem.startswith("bad/0 offset 1: not JSON")
    assert [line["value"] for line in lines(tmp_path / "out")] == [{"a": 1}]


def test_schemas_that_are_registered(store: Path) -> None:
    assert [one.version for one in registered(str(store), "order")] == [2, 1]
    assert [one.version for one in registered(str(store), "order", 1)] == [1]
    with pytest.raises(NotFound, match="no schema order version 9 is registered"):
        registered(str(store), "order", 9)
    with pytest.raises(NotFound, match="no schema ord is registered"):
        registered(str(store), "ord")
    with pytest.raises(InvalidRequest, match="the schema plain is json, not Avro"):
        registered(str(store), "plain")
    with pytest.raises(InvalidRequest, match="the topic json has no schema: say --schema NAME"):
        decoding_for("avro", messages_at(str(store)), TopicSelection(("json",)))


def test_avro_takes_the_newest_version_under_which_a_value_is_whole() -> None:
    versions = [Definition("order", 2, json.dumps(SECOND).encode()), Definition("order", 1, json.dumps(FIRST).encode())]
    decode = Avro(versions)
    assert decode(avro(SECOND, {"amount": 1, "note": None})) == '{"amount":1,"note":null}'
    assert decode(avro(FIRST, {"amount": 1})) == '{"amount":1}'
    with pytest.raises(Undecodable, match=r"not order: version 2: .*; version 1: "):
        decode(b"\x02\x02\x02")


def test_headers_as_text() -> None:
    assert header_text(None) == "[]"
    assert header_text([{"name": "é", "value": b"\xff"}]) == '[["é",{"base64":"/w=="}]]'
