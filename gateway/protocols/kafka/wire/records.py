"""Messages as Kafka's records, and records as messages.

Key, value, headers and time are a record's own. What is beside them in a message that is copied from a gateway's log goes
into a header: which message it is, for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from gateway.envelope import NO_HEADERS, BatchMeta, Columns, Copies, Headers, Origin, Run
from gateway.librdkafka.codes import NO_TEXT, headers_of

MESSAGE_ID = "gateway.id"
"""The header with a message's id: that of its batch in hexadecimal, and where it is in the batch."""
UNREADABLE: Headers = (("gateway.unreadable", b"headers"),)
"""What stands for headers whose names are no text: here a name is."""
_META = BatchMeta(b"", Origin("kafka", ""))


class LibraryRecord(Protocol):
    """A message of the library's."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def topic(self) -> str: ...


def ids_of(copies: Copies) -> Iterator[Headers]:
    """For each message, the header that says which it is."""
    for _offset, batch_id, index, count in copies.ranges:
        name = batch_id.hex()
        for number in range(index, index + count):
            yield ((MESSAGE_ID, f"{name}:{number}".encode()),)


def runs_of(records: Sequence[LibraryRecord]) -> Iterator[Run]:
    """As runs of neighbours, in order: each is of one partition, and without a gap in its offsets."""
    first = 0
    for at in range(1, len(records) + 1):
        before = records[at - 1]
        if at < len(records):
            here = records[at]
            follows = here.partition() == before.partition() and here.offset() == before.offset() + 1
            if follows and here.topic() == before.topic():
                continue
        yield run_of(records[first:at])
        first = at


def run_of(records: Sequence[LibraryRecord]) -> Run:
    """Neighbours as one run. A record without a value (a tombstone) is a message with an empty one."""
    keys = [record.key() for record in records]
    headers = [_headers(record) for record in records]
    columns = Columns.of(
        [record.value() or b"" for record in records],
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
    )
    times = [max(0, record.timestamp()[1]) for record in records]
    first = records[0]
    return Run(first.topic(), first.partition(), first.offset(), columns, times, ((0, 0, _META),))


def _headers(record: LibraryRecord) -> Headers:
    try:
        found: Sequence[tuple[str, bytes | None]] | None = headers_of(record)
    except NO_TEXT:
        return UNREADABLE
    return tuple((name, value or b"") for name, value in found or NO_HEADERS)


def size_of(record: LibraryRecord) -> int:
    return len(record.value() or b"") + len(record.key() or b"") + 64
