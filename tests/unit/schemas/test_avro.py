"""Avro: what decodes is good, and nothing that would take the process down reaches the decoder."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro import _read_py
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.schemas import avro as module
from gateway.schemas.avro import AvroSchema
from gateway.schemas.compatibility import avro_incompatibilities


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def dumps(schema: Any) -> bytes:
    return json.dumps(schema).encode()


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


ORDER = record(
    "shop.Order",
    id="long",
    kind={"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]},
    lines={"type": "array", "items": record("Line", n="int", note=["null", "string"])},
    tags={"type": "map", "values": "bytes"},
    hash={"type": "fixed", "name": "Hash", "size": 4},
    at={"type": "long", "logicalType": "timestamp-millis"},
)
VALUE = {
    "id": 1 << 40, "kind": "OLD", "lines": [{"n": 1, "note": "x"}, {"n": 2, "note": None}], "tags": {"a": b"\0"},
    "hash": b"abcd", "at": 5,
}  # fmt: skip


def test_a_value_is_good_as_a_whole_and_in_no_part() -> None:
    schema = AvroSchema(dumps(ORDER))
    value = encoded(ORDER, VALUE)
    assert schema.problems(value) == []
    for cut in range(len(value)):
        assert schema.problems(value[:cut]), cut
    assert schema.problems(value + b"\0") == ["bytes are left over after the value"]


def test_times_outside_every_calendar_are_numbers() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    assert AvroSchema(dumps(schema)).problems(encoded("long", (1 << 63) - 1)) == []


@pytest.mark.parametrize("value", [b"\x04\xff\xff", b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 12])
def test_lengths_that_lie_and_text_that_is_none(value: bytes) -> None:
    (problem,) = AvroSchema(b'"string"').problems(value)
    assert problem.startswith("not a value of the schema: ")


def nulls(levels: int) -> list[dict[str, Any]]:
    """Records of two of the record before: two to the power of `levels` fields in the last, and no bytes."""
    kinds = ["null", *(f"n{level}" for level in range(levels))]
    return [record(f"n{level}", a=kinds[level], b=kinds[level]) for level in range(levels)]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (5, "invalid schema"),
        ({"type": "nonsense"}, "invalid schema"),
        ({"type": "array"}, "invalid schema"),
        ({"type": "record", "name": 5, "fields": []}, "invalid schema"),
        (record("N", n="N"), "contains itself without an end"),
        (record("N", m=record("M", n="N")), "contains itself without an end"),
        ({"type": "array", "items": "null"}, "at least one byte"),
        ({"type": "array", "items": record("E")}, "at least one byte"),
        ({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, "at least one byte"),
        ({"type": "fixed", "name": "Z", "size": -1}, "a fixed type has at most"),
        ({"type": "fixed", "name": "Z", "size": 1 << 40}, "a fixed type has at most"),
        (["null", *({"type": "fixed", "name": f"F{n}", "size": 1} for n in range(70))], "a union has at most"),
        (nulls(11), "a record has at most"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_bounded_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        AvroSchema(dumps(schema))
    assert text in refusal.value.message


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        AvroSchema(b'{"type":"array","items":' * 100_000 + b'"int"' + b"}" * 100_000)


def test_a_primitive_may_be_written_without_quotes() -> None:
    assert AvroSchema(b"string").problems(b"\x04hi") == []
    with pytest.raises(InvalidRequest, match="not JSON"):
        AvroSchema(b"strange")


def test_a_value_that_nests_without_end_is_refused() -> None:
    # the compiled reader would run out of stack here, and take the process with it
    schema = AvroSchema(dumps(record("Node", next=["null", "Node"])))
    assert schema.problems(b"\x02\x02\x00") == []
    assert schema.problems(b"\x02" * 1_000_000) == ["nested too deeply"]


def test_the_plain_reader_is_where_it_was() -> None:
    schema = fastavro.parse_schema(record("Node", next=["null", "Node"]))
    assert _read_py.schemaless_reader(io.BytesIO(b"\x02\x00"), schema, None) == {"next": {"next": None}}
    with pytest.raises(RecursionError):
        _read_py.schemaless_reader(io.BytesIO(b"\x02" * 100_000), schema, None)


@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_list(value: bytes) -> None:
    for schema in (ORDER, record("Node", next=["null", "Node"], tags={"type": "map", "values": "Node"})):
        assert all(isinstance(problem, str) for problem in AvroSchema(dumps(schema)).problems(value))


WORDS = st.sampled_from(
    [
        "type",
        "name",
        "fields",
        "items",
        "values",
        "size",
        "symbols",
        "record",
        "array",
        "map",
        "fixed",
        "enum",
        "null",
        "int",
        "R",
    ]
)
SCHEMAS = st.recursive(
    WORDS | st.integers() | st.none(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(WORDS, children, max_size=4) | children.map(lambda c: record("R", a=c, b="int")) | children.map(lambda c: {"type": "array", "items": c}),
    max_leaves=12,
)  # fmt: skip


@given(SCHEMAS, st.binary(max_size=20))
def test_any_schema_ends_in_a_refusal_or_a_list(schema: Any, value: bytes) -> None:
    try:
        known = AvroSchema(dumps(schema))
    except InvalidRequest:
        return
    known.problems(value)


# --- compatibility ---


def with_default(schema: dict[str, Any], name: str, kind: Any, default: Any) -> dict[str, Any]:
    return {**schema, "fields": [*schema["fields"], {"name": name, "type": kind, "default": default}]}


P = record("P", id="int")
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
NODE = record("Node", next=["null", "Node"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (P, P, []),
        (P, record("P", id="long"), []),
        (P, record("P"), []),
        (P, with_default(P, "x", "string", ""), []),
        (P, record("P", id="int", x="string"), ["new required field: the top.x"]),
        (P, record("P", id="string"), ["type mismatch at the top.id: int cannot be read as string"]),
        (record("P", id="long"), P, ["type mismatch at the top.id: long cannot be read as int"]),
        (P, record("Q", id="int"), ["record P was renamed to Q"]),
        (P, {**record("Q", id="int"), "aliases": ["P"]}, []),
        (P, {"type": "record", "name": "P", "fields": [{"name": "number", "type": "int", "aliases": ["id"]}]}, []),
        (P, record("P", id=["null", "int"]), []),
        (record("P", id=["null", "int"]), P, ["type mismatch at the top.id: null cannot be read as int"]),
        ("int", ["null", "string"], ["int cannot be read any more at the top"]),
        ("string", "bytes", []),
        (ENUM, {**ENUM, "symbols": ["A", "B", "C"]}, []),
        (ENUM, {**ENUM, "symbols": ["A"]}, ["symbols are gone at the top: B"]),
        (ENUM, {**ENUM, "symbols": ["A"], "default": "A"}, []),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, ["type mismatch at the top[]: int cannot be read as string"]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, []),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, ["fixed type changed at the top"]),
        (NODE, NODE, []),
    ],
)  # fmt: skip
def test_backward_compatibility(old: Any, new: Any, expected: list[str]) -> None:
    assert avro_incompatibilities(dumps(old), dumps(new)) == expected


def test_a_long_value_is_read_by_the_reader_that_lets_others_run() -> None:
    schema = AvroSchema(b'{"type":"array","items":"string"}')
    count = module.LARGEST_AT_ONCE // 4
    value = encoded({"type": "array", "items": "string"}, ["abcd"] * count)
    assert len(value) > module.LARGEST_AT_ONCE
    assert schema.problems(value) == []
    assert schema.problems(value + b"\0") == ["bytes are left over after the value"]
    assert schema.problems(value[:-2]) != []
    assert schema.problems(b"\0" * (module.LARGEST_VALUE + 1)) == ["too large to validate"]
