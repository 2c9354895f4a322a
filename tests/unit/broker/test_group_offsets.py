"""How far a group is behind, where that can be said."""

from __future__ import annotations

import attrs
import pytest

from gateway.broker.consume.group_offsets import encode_key, lag_of, positions, row_of


@attrs.frozen
class Partition:
    start: int
    end: int


@attrs.frozen
class Topic:
    partitions: tuple[Partition, ...]


@pytest.mark.parametrize(("committed", "lag"), [(0, 6), (4, 6), (5, 5), (10, 0), (12, 0)])
def test_what_is_trimmed_and_what_is_not_there_yet_is_not_behind(committed: int, lag: int) -> None:
    assert lag_of(committed, Partition(4, 10)) == lag


def test_partitions_that_are_gone_are_left_out() -> None:
    rows = [(encode_key(topic, "g", number), row_of(1)) for topic, number in (("t", 0), ("t", 1), ("gone", 0))]
    (found,) = positions(rows, {"t": Topic((Partition(0, 3),))})
    assert (found.topic, found.partition, found.lag) == ("t", 0, 2)
