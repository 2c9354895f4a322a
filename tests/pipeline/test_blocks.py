"""Chunks taken apart many at a time give the rows that they give one by one, and a damaged one is named all the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.arrow.blocks import checked
from gateway.arrow.columns import block_batch, record_batch
from gateway.arrow.schema import COLUMNS, SCHEMA, chosen
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import CorruptChunk
from gateway.store.chunk import decode, encode
from gateway.store.interface import Stored
from gateway.store.position import Position
from tests.pipeline.shapes import runs

EVERYTHING = 1 << 40
MIXED = st.booleans().flatmap(lambda usual: runs(usual=usual))


def stored(given_runs: list[Run]) -> list[Stored]:
    return [(run.base_offset, run.count, encode(run)) for run in given_runs]


def contiguous(given_runs: list[Run]) -> list[Run]:
    """Slices leave gaps, which are the reader's to find; here every run follows the one before it."""
    made: list[Run] = []
    for run in given_runs:
        base = made[-1].next_offset if made else run.base_offset
        made.append(Run(run.topic, run.partition, base, run.columns, run.times, run.batches))
    return made


@settings(deadline=None)
@given(MIXED, st.data())
def test_a_block_is_its_runs(given_runs: list[Run], data: Any) -> None:
    chunks = stored(contiguous(given_runs))
    decoded = [decode(blob, "t", 3, base, count) for base, count, blob in chunks]
    first, last = decoded[0].base_offset, decoded[-1].next_offset
    start = data.draw(st.integers(first, decoded[0].next_offset - 1))
    end = data.draw(st.integers(max(start, decoded[-1].base_offset) + 1, last + 3))
    columns = data.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
    (block,) = checked([chunks], Position("t", 3, start), end)
    for schema in (SCHEMA, chosen(columns)):
        found = block_batch(block, schema)
        found.validate(full=True)
        wanted = record_batch(decoded, schema).slice(start - first, min(end, last) - start)
        assert found.equals(wanted)
    assert (block.next_offset, block.wanted) == (min(end, last), found.num_rows)


@settings(deadline=None)
@given(runs(), st.data())
def test_a_damaged_chunk_is_named_after_what_is_good_before_it(given_runs: list[Run], data: Any) -> None:
    chunks = stored(contiguous(given_runs))
    number = data.draw(st.integers(0, len(chunks) - 1))
    base, count, blob = chunks[number]
    place = data.draw(st.integers(0, len(blob) - 1))
    cut = data.draw(st.booleans())
    damaged = (
        blob[:place]
        if cut
        else blob[:place] + bytes([blob[place] ^ 1 << data.draw(st.integers(0, 7))]) + blob[place + 1 :]
    )
    chunks[number] = base, count, damaged
    blocks = checked([chunks], Position("t", 3, chunks[0][0]), EVERYTHING)
    if number:
        assert block_batch(next(blocks)).num_rows == base - chunks[0][0]
    with pytest.raises(CorruptChunk) as caught:
        next(blocks)
    assert (caught.value.first, caught.value.next_offset) == (base, base + count)


@pytest.mark.parametrize(("base", "count"), [(1, 0), (0, 1)])
def test_a_row_that_says_something_else_than_its_chunk_is_damage(base: int, count: int) -> None:
    run = Run("t", 0, 10, Columns.of([b"a", b"b"]), [5, 5], [(0, 0, BatchMeta(b"i" * 16, Origin("p", "l")))])
    with pytest.raises(CorruptChunk):
        list(checked([[(10 + base, 2 + count, encode(run))]], Position("t", 0, 10), EVERYTHING))


def test_no_columns_are_as_many_rows() -> None:
    run = Run("t", 0, 0, Columns.of([b"a", b"b", b"c"]), [5] * 3, [(0, 0, BatchMeta(b"i" * 16, Origin("p", "l")))])
    (block,) = checked([[(0, 3, encode(run))]], Position("t", 0, 1), EVERYTHING)
    assert block_batch(block, chosen([])).num_rows == 2


def chunk(base: int, count: int = 3) -> Stored:
    meta = BatchMeta(b"i" * 16, Origin("p", "l"))
    run = Run("t", 0, base, Columns.of([b"x"] * count), [5] * count, [(0, 0, meta)])
    return base, count, encode(run)


def test_what_was_read_before_is_not_read_again() -> None:
    merged = [[chunk(0), chunk(3)], [chunk(0, 9), chunk(9)]]
    found = [block_batch(block) for block in checked(merged, Position("t", 0, 1), 11)]
    assert [batch.column("offset").to_pylist() for batch in found] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


@pytest.mark.parametrize("then", [[[chunk(4)]], [[chunk(3)], [chunk(7)]], [[chunk(3), chunk(7)]]])
def test_a_gap_is_damage_only_in_a_log_that_has_none(then: list[list[Stored]]) -> None:
    with pytest.raises(CorruptChunk) as caught:
        list(checked([[chunk(0)], *then], Position("t", 0, 0), 99))
    where = (caught.value.first, caught.value.next_offset)
    assert where == ((3, 4) if len(then) == 1 and len(then[0]) == 1 else (6, 7))
    blocks = checked([[chunk(0)], *then], Position("t", 0, 0, dense=False), 99)
    offsets = [offset for block in blocks for offset in block_batch(block).column("offset").to_pylist()]
    bases = [0, *[base for some in then for base, _count, _blob in some]]
    assert offsets == [base + index for base in bases for index in range(3)]


@pytest.mark.parametrize("dense", [True, False])
def test_what_brings_nothing_new_is_damage(dense: bool) -> None:
    with pytest.raises(CorruptChunk) as caught:
        list(checked([[chunk(0), chunk(3)], [chunk(3)]], Position("t", 0, 0, dense=dense), 99))
    assert (caught.value.first, caught.value.next_offset) == (6, 7)
