"""What a stream has to send, against the array that it takes the place of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.quic import unsent
from gateway.transport.quic.unsent import Unsent

SIZES = st.one_of(st.integers(1, 60), st.sampled_from((unsent.SMALL - 1, unsent.SMALL, unsent.FULL, 3 * unsent.FULL)))


@given(st.lists(st.tuples(SIZES, st.integers(0, 100), st.integers(0, 100), st.integers(0, 100)), max_size=30))
def test_it_is_what_the_array_was(steps: list[tuple[int, int, int, int]]) -> None:
    ours, array = Unsent(), bytearray()
    for number, (size, first, last, acknowledged) in enumerate(steps):
        data = bytes((number + place) % 251 for place in range(size))
        ours += data
        array += data
        start, stop = sorted((len(array) * first // 100, len(array) * last // 100))
        assert ours[start:stop] == array[start:stop]
        assert b"".join(ours.views(start, stop)) == array[start:stop]
        gone = len(array) * acknowledged // 100
        del ours[:gone]
        del array[:gone]
        assert len(ours) == len(array)
        assert ours[0 : len(array)] == array


def test_what_is_large_is_not_copied() -> None:
    ours, large = Unsent(), bytes(unsent.SMALL)
    ours += b"before"
    ours += large
    ours += b"behind"
    assert [view.obj is large for view in ours.views(0, len(ours))] == [False, True, False]


def test_small_pieces_are_put_together() -> None:
    ours = Unsent()
    for _ in range(1000):
        ours += b"answer"
    assert len(ours.views(0, len(ours))) == 1


def test_what_is_acknowledged_is_let_go() -> None:
    ours = Unsent()
    for _ in range(100):
        ours += bytes(unsent.SMALL)
        del ours[: unsent.SMALL]
    assert len(ours) == len(ours._pieces) == len(ours._ends) == 0
