"""Runs become Arrow columns: the same messages, whatever the shape of keys, headers, expiries and batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Delivery, Headers, Origin, Run
from gateway.errors import InvalidRequest
from gateway.pipeline.columns import DELIVERIES, batches, record_batch
from gateway.pipeline.schema import SCHEMA, chosen
from gateway.store.chunk import decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
HEADERS = st.lists(st.tuples(texts, st.binary(max_size=3)), max_size=3).map(tuple)


@st.composite
def runs(draw: Any) -> list[Run]:
    made = []
    base, time = draw(st.integers(0, 5)), 1_700_000_000_000
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 5))

        def column(cells: st.SearchStrategy[Any], count: int = count) -> Any:
            return draw(st.none() | st.lists(cells, min_size=count, max_size=count))

        size = draw(st.none() | st.integers(0, 3))
        value = st.binary(max_size=6) if size is None else st.binary(min_size=size, max_size=size)
        columns = Columns.of(
            draw(st.lists(value, min_size=count, max_size=count)),
            column(st.none() | st.binary(max_size=3)),
            column(HEADERS),
            column(st.sampled_from([0, 1, 1_700_000_000_001])),
        )
        times = sorted(draw(st.lists(st.integers(time, time + 9), min_size=count, max_size=count)))
        firsts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=2))})
        metas = [
            (
                first,
                draw(st.integers(0, 300)),
                BatchMeta(
                    draw(st.sampled_from([b"sixteen-bytes-id", b"another-sixteen-", b"", b"odd"])),
                    Origin(draw(texts), "here", draw(texts), "c"),
                    draw(texts),
                    draw(st.sampled_from(Delivery)),
                ),
            )
            for first in firsts
        ]
        run = Run("t", 3, base, columns, times, metas)
        if draw(st.booleans()):  # as it comes from disk; otherwise from memory
            run = decode(encode(run), "t", 3, base, count)
            start = draw(st.integers(0, count - 1))
            run = run.slice(start, draw(st.integers(start + 1, count)))
        made.append(run)
        base, time = base + count, times[-1]
    return made


def expected(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "timestamp": one.timestamp_ms,
            "expires": one.expires_ms or None,
            "key": one.key,
            "value": one.value,
            "headers": [{"name": name, "value": value} for name, value in one.headers],
            "id": one.id,
            "protocol": one.origin.protocol,
            "listener": one.origin.listener,
            "principal": one.origin.principal,
            "route": one.route,
            "delivery": DELIVERIES[one.delivery],
        }
        for one in run.envelopes()
    ]


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    found = batch.to_pylist()
    for row in found:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
        row["expires"] = round(row["expires"].timestamp() * 1000) if row["expires"] else None
    return found


@settings(deadline=None)  # the first to_pylist imports pandas
@given(runs())
def test_a_row_is_what_the_envelope_says(given_runs: list[Run]) -> None:
    batch = record_batch(given_runs)
    assert batch.schema == SCHEMA
    assert rows(batch) == [row for run in given_runs for row in expected(run)]


def test_batches_end_at_a_number_of_rows_or_bytes() -> None:
    meta = BatchMeta(b"sixteen-bytes-id", Origin("p", "l"))
    headers: Headers = (("a", b"1"),)
    many = [
        Run("t", 0, 10 * i, Columns.of([b"12345678"] * 10, headers=[headers] * 10), [5] * 10, [(0, 0, meta)])
        for i in range(7)
    ]
    assert [batch.num_rows for batch in batches(many, rows=20)] == [20, 20, 20, 10]
    assert [batch.num_rows for batch in batches(many, size=300)] == [30, 30, 10]
    (whole,) = batches(many, chosen(["offset", "value"]))
    assert whole.to_pydict() == {"offset": list(range(70)), "value": [b"12345678"] * 70}


def test_a_column_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no column valu; there are topic"):
        chosen(["offset", "valu"])
