"""Arrow batches become the messages that their rows say, however they are sliced and typed."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.arrow.schema import HEADERS, SCHEMA, TIME
from gateway.errors import InvalidRequest
from gateway.pipeline import messages as module
from gateway.pipeline.messages import columns_of, messages

names = st.text(max_size=5)
pairs = st.lists(st.tuples(names, st.binary(max_size=5)), max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """A batch, perhaps a slice of another, and its rows."""
    count = draw(st.integers(1, 12))
    rows = [
        {
            "value": draw(st.binary(max_size=12)),
            "key": draw(st.none() | st.binary(max_size=6)),
            "headers": draw(st.none() | pairs),
            "expires": draw(st.none() | st.integers(1, 2**40)),
            "topic": draw(st.sampled_from(["a", "b", "c/d"])),
            "partition": draw(st.integers(0, 2)),
        }
        for _ in range(count)
    ]
    kind = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    headers = [None if row["headers"] is None else [{"name": n, "value": v} for n, v in row["headers"]] for row in rows]
    expires = [None if row["expires"] is None else row["expires"] * 1000 for row in rows]
    columns = {
        "value": pa.array([row["value"] for row in rows], kind),
        "key": pa.array([row["key"] for row in rows], kind),
        "headers": pa.array(headers, HEADERS),
        "expires": pa.array(expires, pa.int64()).cast(TIME),
        "topic": pa.array([row["topic"] for row in rows]),
        "partition": pa.array([row["partition"] for row in rows], pa.int32()),
    }
    start = draw(st.integers(0, count - 1))
    stop = draw(st.integers(start + 1, count))
    return pa.record_batch(columns).slice(start, stop - start), rows[start:stop]


@given(batches())
def test_columns_are_the_rows(made: tuple[pa.RecordBatch, list[dict[str, Any]]]) -> None:
    batch, rows = made
    columns = columns_of(batch)
    assert columns.values() == [row["value"] for row in rows]
    for index, row in enumerate(rows):
        assert columns.key(index) == row["key"]
        assert list(columns.headers_of(index)) == (row["headers"] or [])
        assert (columns.expires[index] if columns.expires is not None else 0) == (row["expires"] or 0)


@given(batches(), st.booleans(), st.sampled_from(["", "x"]))
def test_rows_go_where_they_say_in_their_order(
    made: tuple[pa.RecordBatch, list[dict[str, Any]]], partitions: bool, address: str
) -> None:
    batch, rows = made
    expected: dict[tuple[str, int | None], list[bytes]] = {}
    for row in rows:
        place = (address or row["topic"], row["partition"] if partitions else None)
        expected.setdefault(place, []).append(row["value"])
    found = [
        ((one.address, one.partition), one.columns.values()) for one in messages(batch, address, partitions=partitions)
    ]
    assert found == list(expected.items())


def test_pieces_have_the_size_of_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APPEND_MESSAGES", 4)
    monkeypatch.setattr(module, "APPEND_BYTES", 10)
    values = [b"", b"123", b"1234567", b"x" * 50, b"", b"", b"", b"", b""]
    found = [one.columns.values() for one in messages(pa.record_batch({"value": values}), "t")]
    assert found == [[b"", b"123", b"1234567"], [b"x" * 50], [b"", b"", b"", b""], [b""]]


def test_what_was_read_may_be_written_but_not_what_is_no_message() -> None:
    module.check_columns(SCHEMA, "")
    with pytest.raises(InvalidRequest, match="neither of them null"):
        columns_of(pa.record_batch({"value": [b"v"], "headers": pa.array([[{"name": "n", "value": None}]], HEADERS)}))
    texts = pa.record_batch({"value": ["é"], "key": ["k"], "expires": [dt.datetime(2100, 1, 1, tzinfo=dt.UTC)]})
    columns = columns_of(texts)
    assert (columns.value(0), columns.key(0)) == ("é".encode(), b"k")
    with pytest.raises(InvalidRequest, match="the column headers has to be array"):
        columns_of(pa.record_batch({"value": [b"v"], "headers": [["x"]]}))
