"""Which offsets a Kafka has of another log, as text beside a group's offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocols.kafka.wire.copied import MOST_RANGES, MOST_TEXT, CopiedRanges

OFFSETS = st.lists(st.integers(0, 2**40) | st.integers(0, 300), max_size=200)


@given(OFFSETS, OFFSETS)
def test_it_knows_what_it_was_told_in_whatever_order(first: list[int], then: list[int]) -> None:
    copied = CopiedRanges().and_these(first).and_these(then)
    assert all(offset in copied for offset in first + then)
    assert [offset for offset in range(301) if offset in copied] == sorted({one for one in first + then if one <= 300})
    assert copied.next_offset == max(first + then, default=-1) + 1
    assert CopiedRanges.from_text(copied.next_offset, copied.to_text()).ranges == copied.ranges


def test_of_too_many_the_oldest_are_forgotten_and_none_is_invented() -> None:
    offsets = range(0, 6 * MOST_RANGES, 2)
    copied = CopiedRanges().and_these(offsets)
    assert len(copied.ranges) == MOST_RANGES
    assert copied.ranges[-1] == (offsets[-1], offsets[-1] + 1)
    assert not any(offset in copied for offset in range(1, 6 * MOST_RANGES, 2))
    text = copied.to_text()
    assert len(text) <= MOST_TEXT
    assert CopiedRanges.from_text(copied.next_offset, text).ranges == copied.ranges
    far_apart = CopiedRanges().and_these(range(0, MOST_RANGES << 40, 1 << 40))
    text = far_apart.to_text()
    assert len(text) <= MOST_TEXT
    kept = CopiedRanges.from_text(far_apart.next_offset, text).ranges
    assert kept
    assert kept == far_apart.ranges[-len(kept) :]


@pytest.mark.parametrize("text", ["?", "AA==", "AAA=", "gA==", "gICAgICAgICAgICAgIA=", "BQEF"])
def test_what_somebody_else_wrote_there_is_an_error(text: str) -> None:
    with pytest.raises(InvalidRequest):
        CopiedRanges.from_text(3, text)


@given(st.integers(0, 2**62), st.binary(max_size=60))
def test_whatever_stands_there_it_is_ranges_or_an_error(next_offset: int, noise: bytes) -> None:
    import base64

    try:
        copied = CopiedRanges.from_text(next_offset, base64.b64encode(noise).decode())
    except InvalidRequest:
        return
    assert all(0 <= start < stop <= next_offset for start, stop in copied.ranges)
