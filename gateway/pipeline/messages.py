"""Arrow batches as messages to publish: the other direction of `columns`.

The columns are `value` and, where they are there, `key`, `headers`, `expires`, `topic` and `partition`. What only the log
can say of a message (its offset, its id, who sent it) may be among them, so that what was read can be written, and is left
out.

Apart from the sink, which knows Spark: this knows Arrow alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.schema import COLUMNS, HEADERS
from gateway.envelope import PREFIX, Columns, Headers
from gateway.errors import InvalidRequest

APPEND_MESSAGES = 10_000
APPEND_BYTES = 4 << 20
"""About how much one append carries: enough to be worth its commit."""

_TEXTS = (pa.types.is_string, pa.types.is_large_string)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary)
KINDS: Mapping[str, tuple[Sequence[Any], str]] = {
    "value": ((*_TEXTS, *_BYTES), "binary or string"),
    "key": ((*_TEXTS, *_BYTES, pa.types.is_null), "binary or string"),
    "headers": (
        (pa.types.is_list, pa.types.is_large_list, pa.types.is_null),
        "array<struct<name string, value binary>>",
    ),
    "expires": ((pa.types.is_timestamp, pa.types.is_null), "timestamp"),
    "topic": (_TEXTS, "string"),
    "partition": ((pa.types.is_integer, pa.types.is_null), "int"),
}


@attrs.frozen
class MessagesToSend:
    """Messages for one address; None: the partition is chosen by key."""

    address: str
    partition: int | None
    columns: Columns


def check_columns(schema: pa.Schema, address: str) -> None:
    """Raise InvalidRequest for columns that cannot be published. `address`: where to, if the option topic says so."""
    if "value" not in schema.names:
        raise InvalidRequest(f"the column value is needed, the message's payload; there are {', '.join(schema.names)}")
    if not address and "topic" not in schema.names:
        raise InvalidRequest("where to? give the option topic, or a column topic")
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"a message has no column {', '.join(unknown)}; there are {', '.join(KINDS)}")
    for name, (kinds, wanted) in KINDS.items():
        if name in schema.names and not any(kind(schema.field(name).type) for kind in kinds):
            raise InvalidRequest(f"the column {name} has to be {wanted}, not {schema.field(name).type}")


def messages(batch: pa.RecordBatch, address: str = "", *, partitions: bool = False) -> Iterator[MessagesToSend]:
    """A batch by address, in pieces of the size of an append; the order within an address stays.

    With an `address` the column topic does not count; only with `partitions` does the column of that name.
    """
    columns = [name for name in (() if address else ("topic",)) if name in batch.schema.names]
    if partitions and "partition" in batch.schema.names:
        columns.append("partition")
    for place, rows in _groups(batch, columns):
        to = address or place.get("topic")
        if not to:
            raise InvalidRequest("a row has no topic")
        number = place.get("partition")
        for piece in _pieces(rows):
            yield MessagesToSend(to, int(number) if number is not None else None, columns_of(piece))


def columns_of(batch: pa.RecordBatch) -> Columns:
    """The messages of a batch. Raises InvalidRequest for a value that is null."""
    values = _binary(batch.column("value"))
    if values.null_count:
        raise InvalidRequest("a value is null: a message has at least an empty one")
    packed, ends = _packed(values)
    return Columns(packed, ends, _keys(batch), _headers(batch), _expires(batch))


def _groups(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    # rows by what these columns say, in the order in which each appears first
    if not batch.num_rows:
        return
    if not names:
        yield {}, batch
        return
    places = pa.StructArray.from_arrays([batch.column(name) for name in names], list(names))
    coded = pa.array(range(batch.num_rows))
    keys = [tuple(row.values()) for row in places.to_pylist()] if len(names) > 1 else None
    column = pa.array([repr(key) for key in keys]) if keys is not None else batch.column(names[0])
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = encoded.indices.to_numpy()
    firsts = sorted((int(np.argmax(indices == code)), code) for code in range(len(encoded.dictionary)))
    for first, code in firsts:
        place = dict(zip(names, [batch.column(name)[first].as_py() for name in names], strict=True))
        yield place, batch if len(firsts) == 1 else batch.take(coded.filter(pa.array(indices == code)))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    start = 0
    sizes = pc.binary_length(_binary(batch.column("value"))).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes, dtype=np.int64)
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + APPEND_BYTES, side="right"))
        stop = min(max(fitting, start + 1), start + APPEND_MESSAGES, batch.num_rows)
        yield batch.slice(start, stop - start)
        start = stop


def _binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _packed(values: pa.Array) -> tuple[bytes, array[int]]:
    # each value behind its length, and where each ends, without an object per value
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset : values.offset + count + 1]
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    ends = (np.cumsum(lengths, dtype=np.int64) + PREFIX * np.arange(1, count + 1)).astype(np.uint32)
    prefixes = lengths.astype(">u4").view(np.uint8).reshape(count, PREFIX)
    found = array("I")
    found.frombytes(ends.tobytes())
    if count and (lengths == lengths[0]).all():
        return np.concatenate([prefixes, data.reshape(count, lengths[0])], axis=1).tobytes(), found
    packed = np.empty(len(data) + PREFIX * count, dtype=np.uint8)
    heads = ends.astype(np.int64) - lengths - PREFIX
    is_value = np.ones(len(packed), dtype=bool)
    for byte in range(PREFIX):
        packed[heads + byte] = prefixes[:, byte]
        is_value[heads + byte] = False
    packed[is_value] = data
    return packed.tobytes(), found


def _keys(batch: pa.RecordBatch) -> list[bytes | None] | None:
    if "key" not in batch.schema.names or batch.column("key").null_count == batch.num_rows:
        return None
    keys: list[bytes | None] = _binary(batch.column("key")).to_pylist()
    return keys


def _headers(batch: pa.RecordBatch) -> list[Headers] | None:
    if "headers" not in batch.schema.names or pa.types.is_null(batch.column("headers").type):
        return None
    column = batch.column("headers")
    try:
        column = column.cast(HEADERS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequest(f"the column headers has to be {KINDS['headers'][1]}: {error}") from None
    if not len(column.flatten()):
        return None
    return [_pairs(row) for row in column.to_pylist()]


def _pairs(row: Sequence[Mapping[str, Any]] | None) -> Headers:
    pairs = tuple((pair["name"], pair["value"]) for pair in row or ())
    if any(name is None or value is None for name, value in pairs):
        raise InvalidRequest("a header has a name and a value, neither of them null")
    return pairs


def _expires(batch: pa.RecordBatch) -> list[int] | None:
    if "expires" not in batch.schema.names or batch.column("expires").null_count == batch.num_rows:
        return None
    column = batch.column("expires").cast(pa.timestamp("ms", tz="UTC"), safe=False)
    expires: list[int] = column.cast(pa.int64()).fill_null(0).to_pylist()
    return expires
