"""The bench's own checker: a bench that could not see a loss would prove nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.bench.figures import Workload
from gateway.cli.bench import HEAD, BenchSource, Checker
from gateway.envelope import BatchMeta, Columns, Origin, Run

MARK = b"8 bytes!"
PLAN = Workload(messages=25, size=300, batch=4, window=1, connections=2)


def run(values: Sequence[bytes], partition: int = 0) -> Run:
    return Run("t", partition, 0, Columns.of(values), [0] * len(values), [(0, 0, BatchMeta(b"", Origin("", "")))])


def messages(number: int) -> list[bytes]:
    """All that one connection would publish."""
    source = BenchSource(MARK, number, PLAN)
    found = []
    while batch := source.take():
        assert len(batch) <= PLAN.batch
        found += batch
    return found


def test_the_sources_together_make_what_was_asked_for() -> None:
    first, second = messages(0), messages(1)
    assert (len(first), len(second)) == (13, 12)
    assert {len(value) for value in first + second} == {PLAN.size}
    assert len(set(first + second)) == 25


def test_a_smallest_message_is_all_head() -> None:
    assert len(BenchSource(MARK, 0, Workload(messages=1, size=HEAD.size, batch=1)).take()[0]) == HEAD.size


def checked(*runs: Run) -> Checker:
    checker = Checker(MARK, PLAN)
    for each in runs:
        checker.show(each)
    return checker


def test_everything_read_in_order_leaves_nothing() -> None:
    first, second = messages(0), messages(1)
    checker = checked(run(first[:5]), run(second), run([b"somebody else's", b"x" * 100]), run(first[5:]))
    assert (checker.left, checker.damaged, checker.repeated, checker.disordered) == (0, 0, 0, 0)


@pytest.mark.parametrize("lost", [0, 5, 12])
def test_a_message_that_is_missing_is_left(lost: int) -> None:
    first, second = messages(0), messages(1)
    assert checked(run(first[:lost] + first[lost + 1 :]), run(second)).left == 1


def test_a_changed_byte_is_damage() -> None:
    first = messages(0)
    changed = first[3][:-1] + bytes([first[3][-1] ^ 1])
    assert checked(run([*first[:3], changed, *first[4:]])).damaged == 1


def test_a_second_copy_is_a_repeat_and_hides_no_loss() -> None:
    first, second = messages(0), messages(1)
    checker = checked(run([*first[:-1], first[0]]), run(second))
    assert (checker.repeated, checker.left) == (1, 1)


def test_order_is_per_connection_and_partition() -> None:
    first = messages(0)
    assert checked(run([first[1], first[0]])).disordered == 1
    assert checked(run([first[1]], 0), run([first[0]], 1)).disordered == 0


def test_what_was_refused_is_not_waited_for() -> None:
    checker = checked(run(messages(0)[:-1]), run(messages(1)))
    checker.expect_fewer(1)
    assert checker.left == 0
