"""The sans-IO toolbox and the columns, held to models."""

from __future__ import annotations

import enum
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.envelope import BatchIds, Columns, index_packed, pack
from gateway.errors import Truncated
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import IllegalTransition, Machine
from gateway.wire.ordering import LONG, ReplyQueue, answer_of, sends
from gateway.wire.reader import InvalidText, Reader

values = st.lists(st.binary(max_size=20), max_size=30)


@given(values)
def test_packing_is_length_and_value_back_to_back(data: list[bytes]):
    packed, ends = pack(data)
    assert packed == b"".join(struct.pack(">I", len(value)) + value for value in data)
    assert list(ends) == list(index_packed(packed, len(data)))
    assert Columns.of(data).values() == data


@given(values, st.integers(0, 5), st.integers(-8, 8))
def test_an_index_accepts_only_what_fills_the_bytes_exactly(data: list[bytes], extra: int, cut: int):
    packed, _ends = pack(data)
    changed = packed[: len(packed) + min(cut, 0)] + b"\0" * max(cut, 0)
    if extra == 0 and changed == packed:
        return
    count = len(data) + extra
    try:
        ends = index_packed(changed, count)
    except Truncated:
        return
    assert len(ends) == count
    assert (ends[-1] if count else 0) == len(changed)


@given(values, st.data())
def test_slices_picks_and_concatenations_are_those_of_lists(data: list[bytes], draw: st.DataObject):
    keys = [value[:1] or None for value in data]
    columns = Columns.of(data, keys)
    start = draw.draw(st.integers(0, len(data)))
    stop = draw.draw(st.integers(start, len(data)))
    part = columns.slice(start, stop)
    assert (part.values(), list(part.keys or [])) == (data[start:stop], keys[start:stop])
    joined = Columns.concat([columns.slice(0, start), Columns.of(data[start:])])
    assert joined.values() == data
    if joined.keys is not None:
        assert list(joined.keys) == keys[:start] + [None] * (len(data) - start)
    chosen = draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=5)) if data else []
    assert columns.pick(chosen).values() == [data[index] for index in chosen]


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0, 1, 7, 300])), max_size=9))
@example([(17, 100)] * 300)
@example([(5, 1100)] * 3)
def test_many_columns_end_where_their_messages_do(parts: list[tuple[int, int]]):
    lists = [[bytes([at % 256]) * size] * count for at, (count, size) in enumerate(parts)]
    lists.append([b"", b"of", b"another", b"size"] * 3)
    for some in (lists, lists[:-1]):
        joined = Columns.concat([Columns.of(values) for values in some])
        whole = [value for values in some for value in values]
        assert joined.ends == Columns.of(whole).ends
        assert joined.values() == whole


def test_batch_ids_are_unique_and_sort_by_time():
    ids = BatchIds()
    made = [ids.next(1_700_000_000_000 + number // 3) for number in range(99)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {len(one) for one in made} == {16}


@given(st.permutations(range(8)))
def test_replies_leave_in_the_order_of_their_slots(order: list[int]):
    queue = ReplyQueue()
    slots = [queue.take() for _ in order]
    left: list[bytes] = []
    for number in order:
        queue.fill(slots[number], b"%d" % number if number != 3 else b"")
        left += queue.ready()
    assert left == [b"%d" % number for number in range(8) if number != 3]
    with pytest.raises(RuntimeError):
        queue.fill(slots[0], b"again")


def test_a_long_answer_leaves_as_it_lies_in_memory():
    queue = ReplyQueue()
    queue.put(b"before")
    stored = b"x" * LONG
    queue.fill(queue.take(), answer_of([b"head", memoryview(stored)], 4 + LONG))
    queue.put(b"behind")
    assert queue.size == 6 + 4 + LONG + 6
    before, head, long, behind = queue.ready()
    assert (before, head, behind) == (b"before", b"head", b"behind")
    assert isinstance(long, memoryview)
    assert long.obj is stored
    assert queue.size == 0
    assert answer_of([b"head", memoryview(b"short")], 9) == b"headshort"


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=20), st.sampled_from([0, LONG]), st.booleans())
def test_what_leaves_together_is_put_together_unless_it_is_long(pieces: list[bytes], more: int, notify: bool):
    pieces[0] += bytes(more)
    size = sum(map(len, pieces))
    made = sends(7, pieces, size, notify=notify)
    assert b"".join(one.data for one in made) == b"".join(pieces)
    assert len(made) == (1 if size <= LONG else len(pieces))
    assert [one.notify for one in made] == [False] * (len(made) - 1) + [notify]


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=20), st.integers(1, 12))
def test_a_buffer_gives_back_every_byte_in_order(pieces: list[bytes], wanted: int):
    buffer = ReceiveBuffer()
    got = b""
    for piece in pieces:
        whole = buffer.feed(piece)
        taken = len(whole) // 2
        got += whole[:taken]
        if whole:
            buffer.keep(whole[taken:], wanted)
    buffer.wanted = 0
    assert got + buffer.feed(b"") == b"".join(pieces)


class State(enum.Enum):
    A = 1
    B = 2


class Event(enum.Enum):
    GO = 1
    STOP = 2


def test_a_pair_that_is_not_in_the_table_is_refused_and_changes_nothing():
    machine = Machine({(State.A, Event.GO): State.B}, State.A)
    assert not machine.allows(Event.STOP)
    with pytest.raises(IllegalTransition):
        machine.step(Event.STOP)
    assert machine.state is State.A
    assert machine.step(Event.GO) is State.B


def test_a_reader_checks_before_it_allocates():
    reader = Reader(b"\xff\xff\xff\xff" + b"\0" * 8)
    with pytest.raises(Truncated):
        reader.count32(1)
    with pytest.raises(Truncated):
        Reader(b"\0\5abc").text16("topic")
    with pytest.raises(InvalidText, match="topic"):
        Reader(b"\0\1\xff").text16("topic")
    fields = Reader(struct.pack(">BHIiQq", 1, 2, 3, -4, 5, -6))
    assert [fields.u8(), fields.u16(), fields.u32(), fields.i32(), fields.u64(), fields.i64()] == [1, 2, 3, -4, 5, -6]
    assert fields.left == 0
