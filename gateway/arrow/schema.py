"""What a stored message looks like as a row, for Arrow and for Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from gateway.errors import InvalidRequest

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIME),
        pa.field("expires", TIME),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("id", pa.binary()),
        pa.field("protocol", pa.string()),
        pa.field("listener", pa.string()),
        pa.field("principal", pa.string()),
        pa.field("route", pa.string()),
        pa.field("delivery", pa.string()),
    ]
)
"""`expires` is null for what never does, `headers` an empty list where there are none; `id` is the id of the batch and the
message's index in it."""

COLUMNS: Sequence[str] = tuple(SCHEMA.names)


def chosen(names: Sequence[str]) -> pa.Schema:
    """The schema of some of the columns, in that order. Raises InvalidRequest for one there is not."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise InvalidRequest(f"a message has no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(name) for name in names])
