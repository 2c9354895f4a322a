"""Records of the log as Arrow columns, without an object per message.

A chunk's columns lie in it much as Arrow wants them: bytes back to back and an index of ends. So a column is made by
joining buffers and shifting indexes; only what is said once per batch (who sent it, by which route) passes through
Python, and is then repeated by index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.blocks import Block
from gateway.arrow.cells import Group, RunGroup
from gateway.arrow.schema import HEADERS, SCHEMA, TIME
from gateway.envelope import PREFIX, BatchMeta, Delivery, Run

BATCH_ROWS = 32_768
BATCH_BYTES = 16 << 20
"""How much one record batch holds: enough that its fixed cost does not matter, little enough for a small executor."""

LONGEST = (1 << 31) - 1
"""Bytes of the longest Arrow cell: its types count in 32 bits."""

DELIVERIES: Mapping[Delivery, str] = {
    Delivery.AT_MOST_ONCE: "at_most_once",
    Delivery.AT_LEAST_ONCE: "at_least_once",
}


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
    return _made(RunGroup(runs), schema)


def block_batch(block: Block, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return _made(block, schema).slice(block.skip, block.wanted)


def _made(group: Group, schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):  # nothing but their number is asked for
        return pa.RecordBatch.from_struct_array(pa.array([{}] * group.count, pa.struct([])))
    return pa.record_batch([_MAKERS[field.name](group) for field in schema], schema=schema)


def _binary(ends: Any, data: bytes | memoryview | pa.Buffer, valid: Any = None) -> pa.Array:
    # a binary array of cells that lie back to back
    offsets = np.empty(len(ends) + 1, dtype=np.int32)
    offsets[0] = 0
    offsets[1:] = ends
    mask = None
    if valid is not None and not valid.all():
        mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(ends), [mask, pa.py_buffer(offsets), pa.py_buffer(data)])


@functools.lru_cache(maxsize=64)
def _repeated(text: str, most: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), most)


def _constant(text: str, count: int) -> pa.Array:
    # one text for every row: batches are of few sizes, so that of the one before mostly does
    return _repeated(text, 1 << (count - 1).bit_length()).slice(0, count)


def _said(group: Group, what: Callable[[BatchMeta], str]) -> pa.Array:
    # a column of something that is said once per batch
    found = group.stretches
    texts: dict[str, int] = {}
    index = [texts.setdefault(what(one), len(texts)) for one in found.senders]
    if len(texts) == 1:
        return _constant(next(iter(texts)), group.count)
    by_stretch = np.array(index, dtype=np.int32)[found.sender]
    return pa.array(list(texts), pa.string()).take(pa.array(np.repeat(by_stretch, found.lengths)))


def _values(group: Group) -> pa.Array:
    # each value lies behind its length; those four bytes are left out
    ends = group.ends()
    step, rest = divmod(int(ends[-1]), group.count)
    if not rest and np.array_equal(ends, np.arange(1, group.count + 1, dtype=np.int64) * step):
        data = np.empty((group.count, step - PREFIX), dtype=np.uint8)
        at = 0
        for piece, count in group.packed():
            data[at : at + count] = np.frombuffer(piece, dtype=np.uint8).reshape(count, step)[:, PREFIX:]
            at += count
        return _binary(np.arange(1, group.count + 1, dtype=np.int64) * (step - PREFIX), pa.py_buffer(data))
    packed = b"".join([piece for piece, _count in group.packed()])
    # without an end it miscounts what a long value leaves over for short ones
    return pc.binary_slice(_binary(ends, packed), PREFIX, LONGEST)


def _keys(group: Group) -> pa.Array:
    found = group.keys()
    if found is None:
        return pa.nulls(group.count, pa.binary())
    ends, valid, data = found
    return _binary(ends, b"".join(data), valid)


def _headers(group: Group) -> pa.Array:
    # rows of (count, then name length, value length, name, value): read pair by pair, all rows at once
    found = group.headers()
    if found is None:
        return pa.ListArray.from_arrays(
            pa.array(np.zeros(group.count + 1, dtype=np.int32)), pa.array([], HEADERS.value_type)
        )
    ends, valid, parts = found
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
    cells = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), cells)


def _u32(data: Any, at: Any) -> Any:
    # little-endian integers at many places
    parts = [data[at + i].astype(np.int64) << (8 * i) for i in range(4)]
    return parts[0] | parts[1] | parts[2] | parts[3]


def _ids(group: Group) -> pa.Array:
    # the id of the batch, and the index in it (u32 big-endian)
    found = group.stretches
    inner = np.arange(group.count, dtype=np.int64) + np.repeat(found.inners - found.starts, found.lengths)
    if isinstance(found.ids, np.ndarray):
        rows = np.empty(group.count, dtype=[("id", found.ids.dtype), ("index", ">u4")])
        rows["id"] = np.repeat(found.ids, found.lengths)
        rows["index"] = inner
        return _binary(np.arange(1, group.count + 1, dtype=np.int64) * rows.itemsize, pa.py_buffer(rows))
    ids = pa.array(found.ids, pa.binary()).take(pa.array(np.repeat(np.arange(len(found.ids)), found.lengths)))
    index = _binary(np.arange(1, group.count + 1, dtype=np.int64) * 4, pa.py_buffer(inner.astype(">u4")))
    return pc.binary_join_element_wise(ids, index, b"")


def _expiries(group: Group) -> pa.Array:
    expires = group.expiries()
    if expires is None:
        return pa.nulls(group.count, TIME)
    return pa.array(expires * 1000, mask=expires == 0).cast(TIME)


_MAKERS: Mapping[str, Callable[[Group], pa.Array]] = {
    "topic": lambda group: _constant(group.topic, group.count),
    "partition": lambda group: pa.repeat(pa.scalar(group.partition, pa.int32()), group.count),
    "offset": lambda group: pa.array(group.offsets()),
    "timestamp": lambda group: pa.array(group.times() * 1000).cast(TIME),
    "expires": _expiries,
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "id": _ids,
    "protocol": lambda group: _said(group, lambda meta: meta.origin.protocol),
    "listener": lambda group: _said(group, lambda meta: meta.origin.listener),
    "principal": lambda group: _said(group, lambda meta: meta.origin.principal),
    "route": lambda group: _said(group, lambda meta: meta.route),
    "delivery": lambda group: _said(group, lambda meta: DELIVERIES[meta.delivery]),
}
