"""One budget for those who write and those whose answers wait: neither takes all of it from the other."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.requests import Fetch, ReadTotals
from gateway.transport.driver import shortened
from gateway.transport.limits import LEAST_SHARE, PATIENCE, Budget, Unfinished

LIMIT = 1000
A_QUARTER, HALF = LIMIT // 4, LIMIT // 2


@given(answers=st.integers(0, 5 * LIMIT), held=st.integers(0, A_QUARTER - 1))
def test_writers_have_a_quarter_however_many_answers_wait(answers: int, held: int) -> None:
    budget = Budget(LIMIT)
    budget.change(held, answers)
    assert not budget.spent(writer=True)
    assert budget.spent(writer=False) is (held + answers >= LIMIT)


@given(held=st.integers(0, 3 * A_QUARTER), answers=st.integers(0, A_QUARTER - 1))
def test_readers_have_a_quarter_however_much_is_to_be_stored(held: int, answers: int) -> None:
    budget = Budget(LIMIT)
    budget.change(held, answers)
    assert not budget.spent(writer=False)
    assert budget.spent(writer=True) is (held + answers >= 3 * A_QUARTER)


def test_who_waits_is_called_when_there_is_room_for_what_he_does() -> None:
    budget = Budget(LIMIT)
    called: list[str] = []
    budget.change(A_QUARTER, LIMIT)
    budget.wait(1, lambda: called.append("writer"), writer=True)
    budget.wait(2, lambda: called.append("reader"), writer=False)
    budget.change(0, -1)
    assert not called
    budget.change(-1)
    assert called == ["writer"]
    budget.change(0, -HALF)
    assert called == ["writer", "reader"]
    budget.change(0, -1)
    assert called == ["writer", "reader"], "once"


def test_beginnings_of_frames_are_not_kept_for_ever_where_answers_leave_writers_little() -> None:
    budget = Budget(LIMIT)
    budget.change(A_QUARTER, HALF)
    cut: list[int] = []

    def evict() -> None:
        cut.append(1)
        budget.unfinished(1, None)
        budget.change(-A_QUARTER)

    budget.unfinished(1, Unfinished(A_QUARTER, 0.0, evict))
    assert budget.spent(writer=True)
    assert budget.relief_at == PATIENCE
    budget.relieve(PATIENCE)
    assert cut
    assert budget.relief_at == math.inf


def test_a_fetch_that_is_shortened_asks_for_little_and_everything_else_is_as_it_was() -> None:
    large, small, other = Fetch(1, "t", 0, 5, 100, 8 << 20), Fetch(2, "t", 0, 5, 100, 10), ReadTotals(3)
    assert list(shortened([large, small, other])) == [Fetch(1, "t", 0, 5, 100, LEAST_SHARE), small, other]
