"""Chunks: whatever goes in comes out, and no changed byte goes unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Delivery, Origin, Run
from gateway.errors import CorruptChunk
from gateway.store.chunk import decode, encode

texts = st.text(max_size=12)
via = st.lists(st.text("0123456789abcdef", max_size=4), max_size=3).map(tuple)
origins = st.builds(Origin, texts, texts, texts, st.sampled_from(("", "\0", "\0001\0a\0")) | texts, via)
metas = st.builds(BatchMeta, st.binary(max_size=16), origins, texts, st.sampled_from(Delivery))
headers = st.lists(st.tuples(texts, st.binary(max_size=9)), max_size=3).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    count = draw(st.integers(1, 20))

    def column(of):
        return draw(st.none() | st.lists(of, min_size=count, max_size=count))

    columns = Columns.of(
        draw(st.lists(st.binary(max_size=40), min_size=count, max_size=count)),
        column(st.none() | st.binary(max_size=9)),
        column(headers),
        column(st.integers(0, 2**50)),
    )
    cuts = sorted(draw(st.sets(st.integers(1, count), max_size=4)) | {0})
    shared = draw(st.lists(metas, min_size=1, max_size=3))
    batches = [(cut, draw(st.integers(0, 2**31)), draw(st.sampled_from(shared))) for cut in cuts if cut < count]
    times = sorted(draw(st.lists(st.integers(0, 2**50), min_size=count, max_size=count)))
    if draw(st.booleans()):
        times = [times[0]] * count
    return Run("t", 3, draw(st.integers(0, 2**43)), columns, times, batches)


def facts(run: Run) -> object:
    columns = run.columns
    return (
        run.topic,
        run.partition,
        run.base_offset,
        list(run.times),
        list(run.batches),
        columns.values(),
        None if columns.keys is None else list(columns.keys),
        None if columns.headers is None else list(columns.headers),
        None if columns.expires is None else list(columns.expires),
    )


@given(runs())
def test_what_goes_in_comes_out(run: Run) -> None:
    assert facts(decode(encode(run), "t", 3, run.base_offset, run.count)) == facts(run)


@given(runs(), st.data())
def test_a_slice_decodes_to_the_slice(run: Run, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, run.count))
    stop = data.draw(st.integers(start, run.count))
    decoded = decode(encode(run), "t", 3, run.base_offset, run.count)
    if start < stop:
        assert facts(decoded.slice(start, stop)) == facts(run.slice(start, stop))
        assert list(decoded.slice(start, stop).envelopes()) == list(run.slice(start, stop).envelopes())


@given(runs(), st.data())
def test_what_was_a_chunk_becomes_one_again_undecoded(run: Run, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, run.count - 1))
    stop = data.draw(st.integers(start + 1, run.count))
    piece = decode(encode(run), "t", 3, run.base_offset, run.count).slice(start, stop)
    assert encode(piece) == encode(run.slice(start, stop))


@given(runs(), st.data())
def test_any_changed_bit_is_noticed(run: Run, data: st.DataObject) -> None:
    blob = bytearray(encode(run))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptChunk) as caught:
        decode(bytes(blob), "t", 3, run.base_offset, run.count)
    assert (caught.value.first, caught.value.next_offset) == (run.base_offset, run.next_offset)


@given(runs(), st.integers(0, 400))
def test_any_cut_is_noticed(run: Run, length: int) -> None:
    blob = encode(run)
    if length < len(blob):
        with pytest.raises(CorruptChunk):
            decode(blob[:length], "t", 3, run.base_offset, run.count)


def test_a_chunk_under_another_key_is_refused() -> None:
    meta = BatchMeta(b"i" * 16, Origin("p", "l"))
    blob = encode(Run("t", 0, 7, Columns.of([b"a", b"b"]), [1, 1], [(0, 0, meta)]))
    decode(blob, "t", 0, 7, 2)
    for base, count in ((8, 2), (7, 1), (7, 3)):
        with pytest.raises(CorruptChunk):
            decode(blob, "t", 0, base, count)


def test_the_layout_is_frozen() -> None:
    """Stores in the field hold these bytes: a change here needs a new layout version."""
    meta = BatchMeta(bytes(range(16)), Origin("flymq", "main", "ann", "c1"), "orders", Delivery.AT_LEAST_ONCE)
    columns = Columns.of([b"one", b"three"], [None, b"k"], [(), (("h", b"v"),)], [0, 99])
    blob = encode(Run("t", 0, 5, columns, [1000, 1001], [(0, 0, meta), (1, 9, meta)]))
    assert blob.hex() == FROZEN


FROZEN = (
    "4743010ffc1bd4680500000000000000e803000000000000e903000000000000000000000000000002000000620000001000"
    "00000b0000001a0000000000000001000000010000000200000005000000666c796d71040000006d61696e03000000616e6e"
    "020000006331060000006f7264657273000000000110000102030405060708090a0b0c0d0e0f000000000000000000000000"
    "0100000009000000000000000700000010000000000000036f6e65000000057468726565000000000100000000016b040000"
    "001200000000000000010000000100000001000000687600000000000000006300000000000000e803000000000000e90300"
    "0000000000"
)
