"""Runs become Arrow columns: the same messages, whatever the shape of keys, headers, expiries and batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from gateway.arrow.columns import DELIVERIES, batches, record_batch
from gateway.arrow.schema import SCHEMA, chosen
from gateway.envelope import BatchMeta, Columns, Headers, Origin, Run
from gateway.errors import InvalidRequest
from tests.pipeline.shapes import runs


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
