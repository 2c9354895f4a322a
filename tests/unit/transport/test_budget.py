"""One budget for those who write and those whose answers wait: neither takes all of it from the other."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport import limits
from gateway.transport.limits import PATIENCE, SLOWEST, Budget, Holder

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

    budget.unfinished(1, Holder(A_QUARTER, 0.0, evict))
    assert budget.spent(writer=True)
    assert budget.relief_at == PATIENCE
    budget.relieve_writers(PATIENCE)
    assert cut
    assert budget.relief_at == math.inf


@attrs.define(eq=False)
class Peer:
    """Somebody with answers, who takes as much of them as he is told to."""

    budget: Budget
    size: int
    taken: int = 0
    cut: bool = False

    def __attrs_post_init__(self) -> None:
        self.budget.owing[self] = None
        self.budget.change(0, self.size)

    def take(self, size: int) -> None:
        self.taken += size

    def held(self) -> tuple[int, int]:
        return self.size, self.taken

    def evict_reader(self) -> None:
        self.cut = True
        del self.budget.owing[self]
        self.budget.change(0, -self.size)


def somebody_waits(budget: Budget) -> list[int]:
    called: list[int] = []
    budget.wait_while_full(1, lambda: called.append(1))
    return called


def test_who_takes_nothing_goes_when_somebody_waits_and_who_holds_most_goes_first() -> None:
    budget = Budget(LIMIT)
    large, small = Peer(budget, LIMIT + HALF), Peer(budget, HALF)
    called = somebody_waits(budget)
    assert budget.relieve_readers(0.0), "each has its time"
    assert budget.relieve_readers(PATIENCE - 1)
    assert not any((large.cut, small.cut))
    assert not budget.relieve_readers(PATIENCE)
    assert (large.cut, small.cut) == (True, False), "no more than there has to be room"
    assert called


def test_while_nobody_waits_nobody_is_cut() -> None:
    budget = Budget(LIMIT)
    peers = [Peer(budget, LIMIT) for _ in range(2)]
    for now in (0.0, 10 * PATIENCE):
        assert not budget.relieve_readers(now)
    assert not any(peer.cut for peer in peers)


def test_who_came_while_others_waited_already_has_its_time() -> None:
    budget = Budget(LIMIT)
    early = Peer(budget, HALF)
    somebody_waits(budget)
    budget.change(0, LIMIT + HALF)
    assert budget.relieve_readers(0.0)
    budget.change(0, -LIMIT)
    late = Peer(budget, LIMIT)
    somebody_waits(budget)
    budget.relieve_readers(PATIENCE)
    assert (early.cut, late.cut) == (True, False)


def test_who_reads_slowly_stays_while_there_is_somebody_who_does_not_read() -> None:
    """And however slowly: as long as it is a pace."""
    budget = Budget(LIMIT)
    slow, idle = Peer(budget, LIMIT + HALF), Peer(budget, HALF)
    somebody_waits(budget)
    budget.relieve_readers(0.0)
    slow.take(10)
    budget.relieve_readers(PATIENCE)
    assert (slow.cut, idle.cut) == (False, True)


@pytest.mark.parametrize(("pace", "cut"), [(1.0, False), (0.5, True)])
def test_who_would_hold_it_for_long_goes_though_it_takes_something(pace: float, cut: bool) -> None:
    """Again and again the same pace, as a share of the slowest that is left alone."""
    budget = Budget(LIMIT)
    peer = Peer(budget, 2 * LIMIT)
    somebody_waits(budget)
    for look in range(20):
        budget.relieve_readers(look * PATIENCE)
        peer.take(math.ceil(pace * peer.size * PATIENCE / SLOWEST))
    assert peer.cut is cut


def test_what_comes_behind_what_was_taken_has_its_own_time() -> None:
    budget = Budget(LIMIT)
    peer = Peer(budget, A_QUARTER)
    somebody_waits(budget)
    budget.change(0, 2 * LIMIT - A_QUARTER)
    budget.relieve_readers(0.0)
    peer.take(A_QUARTER)
    peer.size = LIMIT
    budget.relieve_readers(10 * PATIENCE)
    assert not peer.cut
    budget.relieve_readers(11 * PATIENCE)
    assert peer.cut
