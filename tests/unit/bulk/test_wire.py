"""Messages and errors come out of the API's bodies as they went in, in either encoding; what contradicts itself is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.bulk import wire
from gateway.envelope import Columns, pack
from gateway.errors import GatewayError, Truncated

pairs = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    values = draw(st.lists(st.binary(max_size=9), max_size=8))

    def column(of: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(of, min_size=len(values), max_size=len(values)))

    return Columns.of(values, column(st.none() | st.binary(max_size=5)), column(pairs), column(st.integers(0, 2**40)))


def facts(made: Columns) -> object:
    return made.values(), made.keys, made.headers, made.expires


@given(columns(), st.booleans(), st.booleans())
def test_an_append_comes_out_as_it_went_in(made: Columns, packed: bool, as_json: bool) -> None:
    values: dict[str, Any] = {"packed": made.packed, "count": made.count} if packed else {"values": made.values()}
    body = wire.AppendRequest(
        address="t", producer="p", keys=made.keys, headers=made.headers, expires=made.expires, **values
    )  # fmt: skip
    codec: Any = msgspec.json if as_json else msgspec.msgpack
    assert facts(wire.columns_of(codec.decode(codec.encode(body), type=wire.AppendRequest))) == facts(made)


@given(st.binary(max_size=40), st.integers(0, 6))
def test_packed_values_that_lie_are_refused(packed: bytes, count: int) -> None:
    body = wire.AppendRequest(address="t", producer="p", packed=packed, count=count)
    try:
        made = wire.columns_of(body)
    except Truncated:
        return
    assert (pack(made.values())[0], made.count) == (packed, count)


MANY = wire.MOST_APPENDED + 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"values": [b""] * MANY}, "length <= 25000"),
        ({"keys": [None] * MANY}, "length <= 25000"),
        ({"headers": [()] * MANY}, "length <= 25000"),
        ({"expires": [0] * MANY}, "length <= 25000"),
        ({"headers": [[("", b"")] * 200_001]}, "at most 200000 headers together, not 200001"),
        ({"headers": [[("", b"")] * 15] * 13_334}, "not 200010"),
        ({"headers": [[("", b"")] * 50_001] * 4}, "not 200004"),
    ],
)
def test_what_would_become_far_more_than_it_is_is_refused_before_it_is_made(columns: Any, said: str) -> None:
    body = msgspec.msgpack.encode({"address": "t", "producer": "p", **columns})

    def take() -> None:
        wire.check_size(body, wire.MSGPACK)
        msgspec.msgpack.decode(body, type=wire.AppendRequest)

    with pytest.raises((errors.TooLarge, msgspec.ValidationError), match=said):
        take()


@pytest.mark.parametrize("media", [wire.MSGPACK, wire.JSON])
@pytest.mark.parametrize(
    ("kind", "body", "column"),
    [
        (wire.AppendRequest, {"address": "t", "producer": "p", "expires": [0] * MANY}, "expires"),
        (wire.Redrive, {"topic": "t.dlq", "epoch": 0, "partition": 0, "offsets": [0] * MANY}, "offsets"),
    ],
)
def test_a_column_of_too_many_is_too_much_and_anything_else_makes_no_sense(
    media: str, kind: Any, body: dict[str, Any], column: str
) -> None:
    codec: Any = msgspec.json if media == wire.JSON else msgspec.msgpack
    with pytest.raises(msgspec.ValidationError) as long:
        codec.decode(codec.encode(body), type=kind)
    assert str(wire.undecodable(long.value)) == f"a request has at most 25000 values in a column: {column} has more"
    assert isinstance(wire.undecodable(long.value), errors.TooLarge)
    with pytest.raises(msgspec.ValidationError) as odd:
        codec.decode(codec.encode({**body, column: "x"}), type=kind)
    assert isinstance(wire.undecodable(odd.value), errors.InvalidRequest)


def test_so_is_json_of_too_many_values() -> None:
    with pytest.raises(errors.TooLarge, match="at most 1000000 values"):
        wire.check_size(b"[" + b"0," * (wire.MOST_COMMAS + 1) + b"0]", wire.JSON)


def test_as_many_headers_as_an_append_may_have() -> None:
    headers = [[("a", b"1")] * 15] * 1_000 + [[("a", b"1")] * 10_000]
    body = wire.AppendRequest(address="t", producer="p", values=[b""] * 1_001, headers=headers)
    for media, codec in ((wire.MSGPACK, msgspec.msgpack), (wire.JSON, msgspec.json)):
        data = codec.encode(body)
        wire.check_size(data, media)
        assert wire.columns_of(codec.decode(data, type=wire.AppendRequest)).count == 1_001


ERRORS = [
    errors.UnknownTopic("there is no topic t"),
    errors.OffsetOutOfRange(first=3, next_offset=9),
    errors.CorruptChunk("t", 1, 3, 9),
    errors.SchemaViolation(problems=["a is missing"]),
    errors.CommitFailed(),
    errors.StoreReadOnly("0 MiB free"),
    errors.Denied(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_on_the_other_side(error: GatewayError) -> None:
    sent = msgspec.json.encode(wire.problem_of(error))
    found = wire.error_of(msgspec.json.decode(sent, type=wire.Problem))
    assert (type(found), found.message, found.status) == (type(error), error.message, error.status)
    for name in ("first", "next_offset"):
        assert getattr(found, name, None) == getattr(error, name, None)
