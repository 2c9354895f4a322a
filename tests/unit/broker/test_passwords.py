"""The hash that stands for accounts that are not there."""

from __future__ import annotations

from gateway.broker.administration.passwords import NOBODY, hash_password, matches


def test_an_unknown_name_takes_as_long_as_a_wrong_password() -> None:
    algorithm_and_costs = slice(0, 4)
    assert NOBODY.split("$")[algorithm_and_costs] == hash_password("right").split("$")[algorithm_and_costs]
    assert not matches(NOBODY, "right")
