"""Which of several addresses is used, as values: no network, no clock."""

from __future__ import annotations

import itertools

from gateway.bridges.breaker import MOST_PROBES, PROBES_TO_RETURN, Preference

THREE = 3
"""Addresses."""


TIME = itertools.count(1)


def probed(preference: Preference, best: int | None) -> bool:
    return preference.probed(best, float(next(TIME)), 0.5)


def answers_until_return(preference: Preference, best: int = 0) -> int:
    count = 1
    while not probed(preference, best):
        count += 1
        assert count < 1_000
    return count


def test_back_to_a_better_one_after_several_answers_in_a_row() -> None:
    one = Preference(THREE)
    one.use(2)
    assert one.order() == [2, 0, 1]
    assert not any(probed(one, best) for best in (0, 0, None, 0, 0, 1, 1, 0))
    assert answers_until_return(one, best=1) == PROBES_TO_RETURN
    one.use(1)
    assert one.order() == [1, 0, 2]


def test_probes_of_several_connections_at_one_moment_count_as_one() -> None:
    one = Preference(THREE)
    one.use(1)
    for _ in range(10):
        assert not one.probed(0, 7.0, 0.5)
    assert not one.probed(0, 8.0, 0.5)
    assert one.probed(0, 9.0, 0.5)
    one.use(0)
    assert one.probed(0, 9.0, 0.5)  # the other connections follow


def test_an_address_that_answers_probes_and_nothing_else_has_to_answer_more_of_them() -> None:
    one = Preference(THREE)
    needed = []
    for _ in range(6):
        one.use(1)
        needed.append(answers_until_return(one))
        one.was_deaf()
    assert needed == [3, 6, 12, 24, 48, MOST_PROBES]
    one.was_useful(0)
    one.use(1)
    assert answers_until_return(one) == PROBES_TO_RETURN
