"""The ack window against a plain set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.errors import StoreDamaged, Throttled
from gateway.store.ack_window import AckWindow

LOW, SPAN = 1000, 64
offsets = st.integers(LOW - 5, LOW + 120)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = AckWindow(LOW, SPAN)
        self.settled = set(range(LOW - 10, LOW))
        self.attempts: dict[int, int] = {}
        self.high = LOW

    def low(self) -> int:
        return next(offset for offset in range(LOW, LOW + 1000) if offset not in self.settled)

    @rule(offset=offsets)
    def hand_out(self, offset: int) -> None:
        if offset not in self.settled and offset - self.low() >= SPAN:
            with pytest.raises(Throttled):
                self.window.hand_out(offset)
            return
        if offset in self.settled:
            assert self.window.hand_out(offset) == 0
            return
        self.attempts[offset] = self.attempts.get(offset, 0) + 1
        assert self.window.hand_out(offset) == self.attempts[offset]
        self.high = max(self.high, offset + 1)

    @rule(offset=offsets)
    def settle(self, offset: int) -> None:
        assert self.window.settle(offset) == (offset not in self.settled)
        self.settled.add(offset)
        self.attempts.pop(offset, None)
        self.high = max(self.high, offset + 1)

    @rule()
    def settle_next(self) -> None:
        self.settle(self.low())

    @rule(first=offsets, count=st.integers(-2, 40))
    def settle_range(self, first: int, count: int) -> None:
        those = set(range(first, first + count))
        assert self.window.settle_range(first, first + count) == len(those - self.settled)
        self.settled |= those
        for offset in those:
            self.attempts.pop(offset, None)
            self.high = max(self.high, offset + 1)

    @rule(end=st.integers(LOW, LOW + 110))
    def forget_from(self, end: int) -> None:
        assert self.window.forget_from(end) == (self.high > end)
        if self.high > end:
            self.settled = {offset for offset in self.settled if offset < end}
            self.attempts = {offset: tries for offset, tries in self.attempts.items() if offset < end}
            self.high = end

    @rule()
    def store_and_load(self) -> None:
        data = self.window.to_bytes()
        self.window = AckWindow.from_bytes(data, SPAN)
        assert self.window.to_bytes() == data
        self.high = max([*(s + 1 for s in self.settled), *(a + 1 for a in self.attempts), LOW])

    @invariant()
    def agrees(self) -> None:
        window = self.window
        assert window.low == self.low()
        assert dict(window.outstanding) == self.attempts
        assert window.high == self.high
        assert window.span == self.high - self.low()
        for offset in range(LOW - 5, LOW + 130):
            assert window.is_settled(offset) == (offset in self.settled)
        for offset in (LOW, LOW + 30, LOW + 90):
            expected = next(o for o in range(offset, LOW + 1000) if o not in self.settled)
            assert window.first_unsettled(offset) == expected


test_model = Model.TestCase


def test_a_long_run_in_order_stays_small() -> None:
    window = AckWindow(0)
    for offset in range(100_000):
        window.hand_out(offset)
        assert window.settle(offset)
    assert window.settle_range(100_000, 10_000_000) == 9_900_000
    assert (window.low, window.span, len(window.to_bytes())) == (10_000_000, 0, 17)


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_a_window(data: bytes) -> None:
    try:
        window = AckWindow.from_bytes(data)
    except StoreDamaged:
        return
    assert window.span >= 0
    AckWindow.from_bytes(window.to_bytes())


def test_cut_rows_are_refused() -> None:
    window = AckWindow(5)
    window.settle_range(7, 9)
    window.hand_out(6)
    data = window.to_bytes()
    for length in range(len(data)):
        with pytest.raises(StoreDamaged):
            AckWindow.from_bytes(data[:length])
