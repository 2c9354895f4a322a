"""One budget for those who write and those whose answers wait: neither takes all of it from the other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport import limits
from gateway.transport.limits import PATIENCE, Budget, Unfinished

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


def test_what_is_not_given_while_it_is_full_is_given_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEAST_SHARE", 100)
    budget = Budget(LIMIT)
    budget.change(0, 2 * LIMIT)
    called: list[int] = []
    for number in range(20):
        budget.wait_while_full(number, lambda number=number: called.append(number))
    budget.forget(0)
    budget.change(0, -1)
    assert called == [1]
    budget.change(0, -250)
    assert called == [1, 2, 3, 4]
    budget.change(0, -LIMIT)
    assert called == list(range(1, 20)), "all, whoever of them has gone"


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
