"""Runs of the log as Arrow columns, without an object per message.

A chunk's columns lie in it much as Arrow wants them: bytes back to back and an index of ends. So a column is made by
joining buffers and shifting indexes; only what is said once per batch (who sent it, by which route) passes through
Python, and is then repeated by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.envelope import PREFIX, BatchMeta, Columns, Delivery, Run
from gateway.pipeline.schema import HEADERS, SCHEMA, TIME
from gateway.store.chunk import LazyColumn

BATCH_ROWS = 32_768
BATCH_BYTES = 16 << 20
"""How much one record batch holds: enough that its fixed cost does not matter, little enough for a small executor."""

LONGEST = (1 << 31) - 1
"""No Arrow cell of these types is longer."""

DELIVERIES: Mapping[Delivery, str] = {
    Delivery.AT_MOST_ONCE: "at_most_once",
    Delivery.AT_LEAST_ONCE: "at_least_once",
}

Cells = tuple[Any, Any, list[bytes]]
"""Ends (int64), validity (bool, or None: all are there), the bytes."""


def batches(
    runs: Iterable[Run], schema: pa.Schema = SCHEMA, rows: int = BATCH_ROWS, size: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Record batches of about `rows` rows or `size` bytes; consecutive runs must be of one partition."""
    held: list[Run] = []
    count = taken = 0
    for run in runs:
        held.append(run)
        count += run.count
        taken += len(run.columns.packed)
        if count >= rows or taken >= size:
            yield record_batch(held, schema)
            held, count, taken = [], 0, 0
    if held:
        yield record_batch(held, schema)


def record_batch(runs: Sequence[Run], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Runs of one partition as one record batch with the columns of a schema."""
    made = _Group(runs)
    return pa.record_batch([_MAKERS[field.name](made) for field in schema], schema=schema)


class _Group:
    """Some runs, and what several of their columns need."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.counts = [run.count for run in runs]
        self.count = sum(self.counts)
        self._stretches: _Stretches | None = None

    @property
    def stretches(self) -> _Stretches:
        """Where the messages come from."""
        if self._stretches is None:
            self._stretches = _find_stretches(self.runs, self.count)
        return self._stretches

    def said(self, what: Callable[[BatchMeta], str]) -> pa.Array:
        """A column of something that is said once per batch."""
        found = self.stretches
        texts: dict[str, int] = {}
        index = [texts.setdefault(what(one), len(texts)) for one in found.senders]
        if len(texts) == 1:
            return pa.repeat(pa.scalar(next(iter(texts)), pa.string()), self.count)
        by_stretch = np.array(index, dtype=np.int32)[found.sender]
        return pa.array(list(texts), pa.string()).take(pa.array(np.repeat(by_stretch, found.lengths)))


@attrs.frozen(eq=False)
class _Stretches:
    """Messages that follow each other in one batch: how many, their first index in it, the batch, and its sender."""

    starts: Any
    lengths: Any
    inners: Any
    metas: Sequence[BatchMeta]
    sender: Any
    senders: Sequence[BatchMeta]
    """One batch for each (origin, route, delivery) there is."""


def _find_stretches(runs: Sequence[Run], count: int) -> _Stretches:
    firsts: list[int] = []
    inners: list[int] = []
    metas: list[BatchMeta] = []
    sender: list[int] = []
    known: dict[tuple[int, str, Delivery], int] = {}
    senders: list[BatchMeta] = []
    base = 0
    for run in runs:
        for first, inner, meta in run.batches:
            who = (id(meta.origin), meta.route, meta.delivery)  # chunks of one sender mostly share its Origin
            index = known.get(who)
            if index is None:
                index = known[who] = len(senders)
                senders.append(meta)
            firsts.append(base + first)
            inners.append(inner)
            metas.append(meta)
            sender.append(index)
        base += run.count
    starts = np.array(firsts, dtype=np.int64)
    lengths = np.diff(starts, append=count)
    return _Stretches(starts, lengths, np.array(inners, dtype=np.int64), metas, np.array(sender), senders)


def _binary(ends: Any, data: bytes | memoryview | pa.Buffer, valid: Any = None) -> pa.Array:
    """A binary array of cells that lie back to back."""
    offsets = np.empty(len(ends) + 1, dtype=np.int32)
    offsets[0] = 0
    offsets[1:] = ends
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(ends), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


def _values(group: _Group) -> pa.Array:
    """Each value lies behind its length; those four bytes are left out."""
    own_ends = np.frombuffer(b"".join([run.columns.ends for run in group.runs]), dtype=np.uint32)
    size = sum([len(run.columns.packed) for run in group.runs])
    ends = _shifted(own_ends, group.counts)
    step, rest = divmod(size, group.count)
    if not rest and np.array_equal(ends, np.arange(1, group.count + 1, dtype=np.int64) * step):
        data = np.empty((group.count, step - PREFIX), dtype=np.uint8)
        at = 0
        for run, count in zip(group.runs, group.counts, strict=True):
            rows = np.frombuffer(run.columns.packed, dtype=np.uint8).reshape(count, step)
            data[at : at + count] = rows[:, PREFIX:]
            at += count
        return _binary(np.arange(1, group.count + 1, dtype=np.int64) * (step - PREFIX), pa.py_buffer(data))
    packed = b"".join([run.columns.packed for run in group.runs])
    # without an end it miscounts what a long value leaves over for short ones
    return pc.binary_slice(_binary(ends, packed), PREFIX, LONGEST)


def _shifted(ends: Any, counts: Sequence[int]) -> Any:
    """Ends of several stretches, each counted from where it begins, as ends of their concatenation."""
    ends = ends.astype(np.int64)
    if len(counts) == 1:
        return ends
    sizes = ends[np.cumsum(counts) - 1]
    return ends + np.repeat(np.cumsum(sizes) - sizes, counts)


def _cells(group: _Group, column: Callable[[Columns], Sequence[Any] | None], loose: Callable[[Any], Cells]) -> Cells:
    """A column of optional cells, as ends, validity and bytes."""
    firsts: list[int] = []
    ends: list[bytes] = []
    valid: list[bytes] = []
    data: list[bytes] = []
    for run, count in zip(group.runs, group.counts, strict=True):
        cells = column(run.columns)
        raw = cells.raw() if isinstance(cells, LazyColumn) else None
        if cells is None:
            firsts.append(0)
            ends.append(bytes(4 * count))
            valid.append(bytes(count))
        elif raw is None:
            own, there, bodies = loose(cells)
            firsts.append(0)
            ends.append(own.astype("<u4").tobytes())
            valid.append(there.tobytes())
            data += bodies
        else:
            first, index, present, body = raw
            firsts.append(first)
            ends.append(index)
            valid.append(present or b"\1" * count)
            data.append(body)
    counted = np.frombuffer(b"".join(ends), dtype="<u4")
    if any(firsts):
        counted = counted - np.repeat(np.array(firsts, dtype=np.uint32), group.counts)
    return _shifted(counted, group.counts), np.frombuffer(b"".join(valid), dtype=bool), data


def _loose_keys(keys: Sequence[bytes | None]) -> Cells:
    """Keys of a run that was never a chunk: it comes from memory, not from disk."""
    ends = np.cumsum([len(key) if key is not None else 0 for key in keys])
    return ends, np.array([key is not None for key in keys]), [key for key in keys if key is not None]


def _keys(group: _Group) -> pa.Array:
    if all(run.columns.keys is None for run in group.runs):
        return pa.nulls(group.count, pa.binary())
    ends, valid, data = _cells(group, lambda columns: columns.keys, _loose_keys)
    return _binary(ends, b"".join(data), valid)


def _loose_headers(rows: Sequence[Any]) -> Cells:
    """Headers of a run that was never a chunk, in the chunk's layout."""
    encoded = [
        b"".join(
            [
                len(pairs).to_bytes(4, "little"),
                *[
                    len(name.encode()).to_bytes(4, "little") + len(value).to_bytes(4, "little") + name.encode() + value
                    for name, value in pairs
                ],
            ]
        )
        for pairs in rows
    ]
    return np.cumsum([len(row) for row in encoded]), np.ones(len(encoded), dtype=bool), encoded


def _headers(group: _Group) -> pa.Array:
    """Rows of (count, then name length, value length, name, value): read pair by pair, all rows at once."""
    if all(run.columns.headers is None for run in group.runs):
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(group.count + 1, dtype=np.int32)), pa.array([], HEADERS.value_type)
        )
    ends, valid, parts = _cells(group, lambda columns: columns.headers, _loose_headers)
    data = np.frombuffer(b"".join(parts), dtype=np.uint8)
    at = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    counts = np.zeros(group.count, dtype=np.int64)
    counts[valid] = _u32(data, at[valid])
    offsets = np.zeros(group.count + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    bounds = np.empty((int(offsets[-1]), 3), dtype=np.int64)  # where name, value and what follows begin
    at = at + 4
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        here = at[rows]
        name = here + 8
        value = name + _u32(data, here)
        after = value + _u32(data, here + 4)
        bounds[offsets[rows] + number] = np.stack([name, value, after], axis=1)
        at[rows] = after
    pairs = len(bounds)
    if not pairs:
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array([], HEADERS.value_type))
    # name, value, gap, name, value, gap ...: one array over all of it, of which every third cell is a name
    edges = pa.py_buffer(np.ascontiguousarray(bounds.reshape(-1).astype(np.int32)))
    cells = pa.Array.from_buffers(pa.binary(), 3 * pairs - 1, [None, edges, pa.py_buffer(data)])
    names = cells.take(pa.array(np.arange(0, 3 * pairs, 3))).cast(pa.string())
    values = cells.take(pa.array(np.arange(1, 3 * pairs, 3)))
    found = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), found)


def _u32(data: Any, at: Any) -> Any:
    """Little-endian integers at many places."""
    parts = [data[at + i].astype(np.int64) << (8 * i) for i in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def _ids(group: _Group) -> pa.Array:
    found = group.stretches
    own = [meta.id for meta in found.metas]
    size = len(own[0])
    inner = np.arange(group.count, dtype=np.int64) + np.repeat(found.inners - found.starts, found.lengths)
    big = inner.astype(">u4").view(np.uint8).reshape(group.count, 4)
    if {len(one) for one in own} == {size}:
        data = np.empty((group.count, size + 4), dtype=np.uint8)
        data[:, :size] = (
            np.repeat(np.frombuffer(b"".join(own), dtype=f"V{size}"), found.lengths)
            .view(np.uint8)
            .reshape(group.count, size)
            if size
            else 0
        )
        data[:, size:] = big
        return _binary(np.arange(1, group.count + 1, dtype=np.int64) * (size + 4), pa.py_buffer(data))
    ids = pa.array(own, pa.binary()).take(pa.array(np.repeat(np.arange(len(own)), found.lengths)))
    index = _binary(np.arange(1, group.count + 1, dtype=np.int64) * 4, pa.py_buffer(np.ascontiguousarray(big)))
    return pc.binary_join_element_wise(ids, index, b"")


def _offsets(group: _Group) -> pa.Array:
    first = group.runs[0].base_offset
    if group.runs[-1].next_offset - first == group.count:
        return pa.array(np.arange(first, first + group.count, dtype=np.int64))
    return pa.array(np.concatenate([np.arange(run.base_offset, run.next_offset, dtype=np.int64) for run in group.runs]))


def _times(group: _Group) -> pa.Array:
    edges = [(run.times[0], run.times[-1]) for run in group.runs]
    if all(first == last for first, last in edges):  # store time never goes back: all between are the same
        times = np.repeat(np.array([first for first, _last in edges], dtype=np.int64), group.counts)
    else:
        times = np.concatenate([np.asarray(run.times, dtype=np.int64) for run in group.runs])
    return pa.array(times * 1000).cast(TIME)


def _expiries(group: _Group) -> pa.Array:
    if all(run.columns.expires is None for run in group.runs):
        return pa.nulls(group.count, TIME)
    parts = [
        np.zeros(run.count, dtype=np.int64)
        if run.columns.expires is None
        else np.asarray(run.columns.expires, dtype=np.int64)
        for run in group.runs
    ]
    expires = np.concatenate(parts)
    return pa.array(expires * 1000, mask=expires == 0).cast(TIME)


_MAKERS: Mapping[str, Callable[[_Group], pa.Array]] = {
    "topic": lambda group: pa.repeat(pa.scalar(group.runs[0].topic, pa.string()), group.count),
    "partition": lambda group: pa.repeat(pa.scalar(group.runs[0].partition, pa.int32()), group.count),
    "offset": _offsets,
    "timestamp": _times,
    "expires": _expiries,
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "id": _ids,
    "protocol": lambda group: group.said(lambda meta: meta.origin.protocol),
    "listener": lambda group: group.said(lambda meta: meta.origin.listener),
    "principal": lambda group: group.said(lambda meta: meta.origin.principal),
    "route": lambda group: group.said(lambda meta: meta.route),
    "delivery": lambda group: group.said(lambda meta: DELIVERIES[meta.delivery]),
}
