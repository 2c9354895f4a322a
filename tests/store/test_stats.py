"""The records of `__stats`: what a percentile of a histogram is worth, and what a record may be."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.stats import BUCKETS, EDGES, WHOLE, DamagedStatistics, Deliveries, decode, encode, percentile

LATENCIES = st.lists(st.one_of(st.integers(0, 50), st.integers(0, 4_000_000)), min_size=1, max_size=200)


@given(LATENCIES, st.floats(0.01, 1.0))
def test_a_percentile_is_in_the_bucket_of_the_real_one(latencies: list[int], share: float) -> None:
    counts = Counter(bisect_right(WHOLE, latency) for latency in latencies)
    real = sorted(latencies)[max(math.ceil(share * len(latencies)), 1) - 1]
    bucket = bisect_right(EDGES, real)
    low, high = EDGES[bucket - 1] if bucket else 0, EDGES[bucket]
    assert low <= percentile(counts, share) <= high
    assert not bucket or high / low == pytest.approx(math.sqrt(2))


def test_what_took_longer_than_can_be_told_is_said_to_have_taken_that() -> None:
    assert percentile({BUCKETS - 1: 7}, 0.99) == EDGES[-1] == 2**22


@given(st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 2**60)), st.text(max_size=20))
def test_a_record_comes_back(counts: dict[int, int], name: str) -> None:
    one = Deliveries(1_700_000_040, name, f"{name}.t", "felix", counts)
    assert decode(encode(one)) == one
    assert one.messages == sum(counts.values())


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"minute":60,"route":"r","topic":"t","protocol":"p"}',
        b'{"minute":60,"route":"r","topic":"t","protocol":"p","counts":{"46":1}}',
        b'{"minute":60,"route":"r","topic":"t","protocol":"p","counts":{"-1":1}}',
        b'{"minute":60,"route":"r","topic":"t","protocol":"p","counts":{"1":0}}',
    ],
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(DamagedStatistics):
        decode(value)
