"""Columns cut into pieces are the messages they were."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import OBJECT, Columns, _moved


@given(st.lists(st.binary(max_size=20), max_size=80), st.integers(0, 80), st.integers(0, 80))
def test_a_slice_holds_its_messages(values: list[bytes], start: int, stop: int) -> None:
    start = min(start, len(values))
    keys = [value[:1] or None for value in values]
    piece = Columns.of(values, keys).slice(start, stop)
    assert (piece.count, piece.values(), piece.keys) == (len(values[start:stop]), values[start:stop], keys[start:stop])
    again = Columns.of(values[start:stop])
    assert (piece.packed, piece.ends) == (again.packed, again.ends)


@given(st.integers(0, 1100), st.integers(1, 70))
def test_messages_of_one_size_are_told_apart(size: int, count: int) -> None:
    values = [bytes((number,)) * size for number in range(count)]
    assert Columns.of(values).values() == values


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=60))
def test_positions_up_to_the_largest_are_moved_one_by_one(ends: list[int]) -> None:
    least, most = min(ends), max(ends)
    for by in (-least, (1 << 32) - 1 - most):
        assert list(_moved(array("I", ends), by)) == [end + by for end in ends]


def test_keys_and_headers_count_by_what_they_are_in_memory():
    keys = [b"k" * 10, None, b""]
    headers = [(("name", b"value"),) * 2, (), ()]
    plain = Columns.of([b"", b"", b""])
    assert plain.beside_values() == 0
    assert Columns(plain.packed, plain.ends, keys).beside_values() == 2 * OBJECT + 10
    assert Columns(plain.packed, plain.ends, keys, headers).beside_values() == (2 + 6) * OBJECT + 10 + 2 * 9


@given(st.integers(0, 1100), st.one_of(st.integers(0, 200), st.sampled_from((4096, 4097))), st.integers(-1, 300))
def test_messages_of_one_size_are_known_for_it(size: int, count: int, other: int) -> None:
    values = [bytes(size)] * count
    if 0 <= other < count:
        values[other] = bytes(size + 1)
    sizes = {len(value) for value in values}
    assert Columns.of(values).step == (sizes.pop() + 4 if len(sizes) == 1 else 0)


def test_sizes_that_only_add_up_alike_are_not_one_size() -> None:
    assert Columns.of([b"a", b"ccc", b"bb", b"bb"]).step == 0
    assert Columns.of([b"bb", b"a", b"ccc"]).step == 0
    assert Columns.of([]).step == 0
