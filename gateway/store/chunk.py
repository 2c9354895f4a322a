"""The chunk: the records of one partition in one commit, as the bytes of one row of the log.

Layout version 1, frozen; all integers little-endian:

    0   2  magic "GC"                 16  8  time of the first record, ms (i64)   44  4  bytes of the dictionary
    2   1  layout version             24  8  time of the last record, ms (i64)    48  4  bytes of the packed values
    3   1  which columns are there    32  8  latest expiry, ms; 0: never (i64)    52  4  bytes of the key column
    4   4  CRC32C of all but itself   40  4  count of records                     56  4  bytes of the header column
    8   8  offset of the first record                                             60  4  zero
    64  dictionary · end index (u32 each) · packed values · keys · headers · expiries (i64 each) · times (i64 each)

The dictionary says once what many records share: sources (protocol, listener, principal, client, route), batches (id, source,
delivery), and stretches (first record, its index inside the batch, batch). Before the client of what came by other gateways
there are a zero byte, how many they were, and each of them, with a zero byte behind each. Keys are an end index, one byte each
for "there is a key", and the bytes; headers are an end index and, for each record, a count and (name length, value length,
name, value). The expiry and time columns are left out when no record expires or all have one time.

Pure functions, importable without trio: a Spark executor decodes with the same code as the gateway.
"""

from __future__ import annotations

import functools
import itertools
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import google_crc32c

from gateway.envelope import BatchMeta, Columns, Delivery, Headers, Origin, Run
from gateway.errors import CorruptChunk

T = TypeVar("T")

LAYOUT_VERSION = 1
MAGIC = b"GC"

KEYS, HEADERS, EXPIRES, TIMES = 1, 2, 4, 8
KNOWN_COLUMNS = KEYS | HEADERS | EXPIRES | TIMES

HEAD = struct.Struct("<2sBBIQqqqIIIIII")
SUMMED_FROM = 8
"""The checksum covers the four bytes before it and everything behind it."""
_REST = struct.Struct("<QqqqIIIIII")
"""A head, as it is behind that."""
_STARTS = [
    (start, google_crc32c.value(start)) for start in [bytes((*MAGIC, LAYOUT_VERSION, columns)) for columns in range(16)]
]
"""How a chunk begins, by which columns are there, and the checksum of that."""
_U32 = struct.Struct("<I")
_PAIR = struct.Struct("<II")
BATCH = struct.Struct("<IBB")
"""Source, delivery, length of the id."""
STRETCH = struct.Struct("<III")
"""First record, index inside the batch, batch; before it all, how many sources, batches and stretches there are."""
_BIG_ENDIAN = sys.byteorder == "big"
_JOINED = 16 << 10
"""Below this one copy more is cheaper than a checksum of each part."""
RawColumn = tuple[int, bytes, bytes, bytes]
"""Where the first cell begins; where each one ends (u32 each, counted alike); a byte each for "it is there" (empty: all
are); the bytes of the cells."""


class LazyColumn(Sequence[T], Generic[T]):
    """A column that is decoded where it is looked at: fetching one record of a big chunk must not decode the others."""

    __slots__ = ("_decode", "_loaded", "_raw", "_start", "_stop")

    def __init__(
        self,
        decode: Callable[[int, int], list[T]],
        start: int,
        stop: int,
        raw: Callable[[int, int], RawColumn] | None = None,
    ) -> None:
        self._decode = decode
        self._raw = raw
        self._start = start
        self._stop = stop
        self._loaded: list[T] | None = None

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if self._loaded is None and step == 1:
                return LazyColumn(self._decode, self._start + start, self._start + max(start, stop), self._raw)
            return self._load()[index]
        if self._loaded is not None:
            return self._loaded[index]
        position = index if index >= 0 else index + len(self)
        if not 0 <= position < len(self):
            raise IndexError(index)
        return self._decode(self._start + position, self._start + position + 1)[0]

    def __iter__(self) -> Iterator[T]:
        return iter(self._load())

    def raw(self) -> RawColumn | None:
        """The column as it is stored, for those who work on whole columns; None where it has no such form."""
        return self._raw(self._start, self._stop) if self._raw is not None else None

    def _load(self) -> list[T]:
        if self._loaded is None:
            self._loaded = self._decode(self._start, self._stop)
        return self._loaded


def encode(run: Run) -> bytes:
    """A run of at least one record as a chunk."""
    columns = run.columns
    times = run.times
    present = 0
    dictionary = _encode_dictionary(run.batches)
    keys = headers = expires = stamps = b""
    latest_expiry = 0
    if columns.keys is not None:
        present |= KEYS
        keys = _encode_keys(columns.keys)
    if columns.headers is not None:
        present |= HEADERS
        headers = _encode_headers(columns.headers)
    if columns.expires is not None:
        present |= EXPIRES
        column = array("q", columns.expires)
        expires = _bytes_of(column)
        latest_expiry = max(column) if min(column) else 0
    if times[0] != times[-1]:  # store time never goes back, so equal ends mean that all are equal
        present |= TIMES
        stamps = _bytes_of(array("q", times))
    ends = columns.ends.tobytes() if not _BIG_ENDIAN else _bytes_of(columns.ends)
    rest = _REST.pack(
        run.base_offset,
        times[0],
        times[-1],
        latest_expiry,
        columns.count,
        len(dictionary),
        len(columns.packed),
        len(keys),
        len(headers),
        0,
    )
    start, checksum = _STARTS[present]
    if len(columns.packed) < _JOINED:
        body = b"".join((rest, dictionary, ends, columns.packed, keys, headers, expires, stamps))
        return b"".join((start, google_crc32c.extend(checksum, body).to_bytes(4, "little"), body))
    parts = (rest, dictionary, ends, columns.packed, keys, headers, expires, stamps)
    for part in parts:
        if part:
            checksum = google_crc32c.extend(checksum, part)
    return b"".join((start, checksum.to_bytes(4, "little"), *parts))


def decode(blob: bytes, topic: str, partition: int, base: int, count: int) -> Run:
    """The run in a chunk that its row says holds `count` records from `base` on. Raises CorruptChunk if it does not."""
    if len(blob) < HEAD.size:
        raise CorruptChunk(topic, partition, base, base + count)
    (magic, version, present, checksum, offset, first, last, _latest, found, names, values, keys, headers, zero) = (
        HEAD.unpack_from(blob)
    )
    values_at = HEAD.size + names + 4 * found
    keys_at = values_at + values
    fixed = (8 * found if present & EXPIRES else 0) + (8 * found if present & TIMES else 0)
    if (
        magic != MAGIC
        or version != LAYOUT_VERSION
        or (offset, found) != (base, count)
        or present & ~KNOWN_COLUMNS
        or zero
        or not found
        or last < first
        or len(blob) != keys_at + keys + headers + fixed
    ):
        raise CorruptChunk(topic, partition, base, base + count)
    front, packed, rest = blob[SUMMED_FROM:values_at], blob[values_at:keys_at], blob[keys_at:]
    summed = google_crc32c.extend(google_crc32c.value(blob[:4] + front), packed)
    if (google_crc32c.extend(summed, rest) if rest else summed) != checksum:
        raise CorruptChunk(topic, partition, base, base + count)
    return Run(
        topic,
        partition,
        base,
        Columns(
            packed,
            _array_of("I", front[len(front) - 4 * found :]),
            _KeyColumn(rest, found).column() if present & KEYS else None,
            _HeaderColumn(rest, keys, found).column() if present & HEADERS else None,
            _array_of("q", rest[keys + headers : keys + headers + 8 * found]) if present & EXPIRES else None,
        ),
        _array_of("q", rest[len(rest) - 8 * found :]) if present & TIMES else [first] * found,
        _Dictionary(front, HEAD.size - SUMMED_FROM).column(),
    )


def _bytes_of(column: array[int]) -> bytes:
    if _BIG_ENDIAN:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _array_of(kind: str, data: bytes) -> array[int]:
    column = array(kind)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column


def _raw_cells(data: bytes, ends_at: int, cells_at: int, start: int, stop: int, there: bytes) -> RawColumn:
    # cells [start, stop) of a column whose end index and cells begin at these places
    ends = data[ends_at + 4 * start : ends_at + 4 * stop]
    first = _U32.unpack_from(data, ends_at + 4 * (start - 1))[0] if start else 0
    last = _U32.unpack_from(ends, len(ends) - 4)[0] if ends else first
    return first, ends, there, data[cells_at + first : cells_at + last]


# --- the dictionary ---


def _encode_dictionary(batches: Sequence[tuple[int, int, BatchMeta]]) -> bytes:
    if len(batches) == 1:  # as in every chunk of somebody who waits for his answers
        first, inner, meta = batches[0]
        source = _source(meta.origin, meta.route)
        row = BATCH.pack(0, meta.delivery, len(meta.id))
        return b"".join((STRETCH.pack(1, 1, 1), source, row, meta.id, STRETCH.pack(first, inner, 0)))
    sources: dict[tuple[Origin, str], int] = {}
    known: dict[int, int] = {}  # the batches are alive while we look, so their identity names them
    rows: list[bytes] = []
    stretches: list[bytes] = []
    origin: Origin | None = None
    route = ""
    place = 0
    for first, inner, meta in batches:
        batch = known.get(id(meta))
        if batch is None:
            if meta.origin is not origin or meta.route != route:
                origin, route = meta.origin, meta.route
                place = sources.setdefault((origin, route), len(sources))
            batch = known[id(meta)] = len(known)
            rows.append(BATCH.pack(place, meta.delivery, len(meta.id)) + meta.id)
        stretches.append(STRETCH.pack(first, inner, batch))
    names = itertools.starmap(_source, sources)
    return b"".join((STRETCH.pack(len(sources), len(rows), len(stretches)), *names, *rows, *stretches))


@functools.lru_cache(maxsize=1024)
def _source(who: Origin, route: str) -> bytes:
    # nearly every chunk has one of those that the chunks before it had
    client = who.client
    if who.via or client.startswith("\0"):
        client = "\0".join(("", str(len(who.via)), *who.via, client))
    texts = [text.encode() for text in (who.protocol, who.listener, who.principal, client, route)]
    return b"".join([_U32.pack(len(text)) + text for text in texts])


class _Dictionary:
    """Where the batches of a chunk are described."""

    __slots__ = ("_at", "_data", "_loaded", "stretches")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._loaded: list[tuple[int, int, BatchMeta]] | None = None
        self.stretches: int = STRETCH.unpack_from(data, at)[2]

    def column(self) -> LazyColumn[tuple[int, int, BatchMeta]]:
        """The stretches with their batches, not decoded yet."""
        return LazyColumn(self._decode, 0, self.stretches)

    def _decode(self, start: int, stop: int) -> list[tuple[int, int, BatchMeta]]:
        if self._loaded is None:
            sources, batches, stretches = STRETCH.unpack_from(self._data, self._at)
            metas, at = _decode_metas(self._data, self._at + STRETCH.size, sources, batches)
            rows = STRETCH.iter_unpack(self._data[at : at + stretches * STRETCH.size])
            self._loaded = [(first, inner, metas[batch]) for first, inner, batch in rows]
        return self._loaded[start:stop]


class _LastSources:
    """The sources of the chunk before: those of the next are mostly the same bytes."""

    raw = b"\xff"
    count = 0
    known: Sequence[tuple[Origin, str]] = ()


DELIVERIES = {one.value: one for one in Delivery}


def _decode_metas(front: bytes, at: int, sources: int, batches: int) -> tuple[list[BatchMeta], int]:
    last = _last
    if sources == last.count and front.startswith(last.raw, at):
        known = last.known
        at += len(last.raw)
    else:
        known, at = decode_sources(front, at, sources)
    metas: list[BatchMeta] = []
    for _ in range(batches):
        source, delivery, size = BATCH.unpack_from(front, at)
        at += BATCH.size
        origin, route = known[source]
        metas.append(BatchMeta(front[at : at + size], origin, route, DELIVERIES[delivery]))
        at += size
    return metas, at


def decode_sources(front: bytes, begin: int, sources: int) -> tuple[Sequence[tuple[Origin, str]], int]:
    """The sources that are described from `begin` on, and where that ends."""
    known: list[tuple[Origin, str]] = []
    at = begin
    for _ in range(sources):
        texts: list[str] = []
        for _ in range(5):
            (size,) = _U32.unpack_from(front, at)
            texts.append(front[at + 4 : at + 4 + size].decode())
            at += 4 + size
        client = texts[3]
        via: list[str] = []
        if client.startswith("\0"):
            _, count, rest = client.split("\0", 2)
            *via, client = rest.split("\0", int(count))
        known.append((Origin(texts[0], texts[1], texts[2], client, tuple(via)), texts[4]))
    global _last
    found = _LastSources()
    found.raw, found.count, found.known = front[begin:at], sources, known
    _last = found  # one assignment: readers in threads see the old or the new
    return known, at


_last = _LastSources()


# --- keys ---


def _stored_ends(raw: RawColumn) -> bytes:
    # the end index of cells that were stored before, counted from their own beginning
    first, ends, _there, _cells = raw
    return _bytes_of(array("I", map((-first).__add__, _array_of("I", ends)))) if first else ends


def _encode_keys(keys: Sequence[bytes | None]) -> bytes:
    raw = keys.raw() if isinstance(keys, LazyColumn) else None
    if raw is not None:  # from a chunk to a chunk: no need to look at them one by one
        return b"".join((_stored_ends(raw), raw[2], raw[3]))
    there = [key for key in keys if key is not None]
    ends = array("I", itertools.accumulate([0 if key is None else len(key) for key in keys]))
    return b"".join((_bytes_of(ends), bytes([key is not None for key in keys]), *there))


class _KeyColumn:
    """Where the keys of a chunk are."""

    __slots__ = ("_count", "_data", "_ends")

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._ends: array[int] | None = None

    def column(self) -> LazyColumn[bytes | None]:
        """The column, not decoded yet."""
        return LazyColumn(self._decode, 0, self._count, self._raw)

    def _raw(self, start: int, stop: int) -> RawColumn:
        there = self._data[4 * self._count + start : 4 * self._count + stop]
        return _raw_cells(self._data, 0, 5 * self._count, start, stop, there)

    def _decode(self, start: int, stop: int) -> list[bytes | None]:
        if self._ends is None:
            self._ends = _array_of("I", self._data[: 4 * self._count])
        data, ends = self._data, self._ends
        there = data[4 * self._count + start : 4 * self._count + stop]
        base = 5 * self._count
        begins = itertools.chain((ends[start - 1] if start else 0,), ends[start:stop])
        return [
            data[base + begin : base + end] if yes else None
            for begin, end, yes in zip(begins, ends[start:stop], there, strict=False)
        ]


# --- headers ---


def _encode_headers(headers: Sequence[Headers]) -> bytes:
    raw = headers.raw() if isinstance(headers, LazyColumn) else None
    if raw is not None:
        return _stored_ends(raw) + raw[3]
    seen: dict[Headers, bytes] = {}  # records of one producer mostly repeat their headers
    rows: list[bytes] = []
    for pairs in headers:
        row = seen.get(pairs)
        if row is None:
            row = seen[pairs] = _encode_pairs(pairs)
        rows.append(row)
    return b"".join((_bytes_of(array("I", itertools.accumulate(map(len, rows)))), *rows))


def _encode_pairs(pairs: Headers) -> bytes:
    parts = [_U32.pack(len(pairs))]
    for name, value in pairs:
        raw = name.encode()
        parts += (_PAIR.pack(len(raw), len(value)), raw, value)
    return b"".join(parts)


class _HeaderColumn:
    """Where the headers of a chunk are."""

    __slots__ = ("_at", "_count", "_data", "_ends", "_seen")

    def __init__(self, data: bytes, at: int, count: int) -> None:
        self._data = data
        self._at = at
        self._count = count
        self._ends: array[int] | None = None
        self._seen: dict[bytes, Headers] = {}

    def column(self) -> LazyColumn[Headers]:
        """The column, not decoded yet."""
        return LazyColumn(self._decode, 0, self._count, self._raw)

    def _raw(self, start: int, stop: int) -> RawColumn:
        return _raw_cells(self._data, self._at, self._at + 4 * self._count, start, stop, b"")

    def _decode(self, start: int, stop: int) -> list[Headers]:
        if self._ends is None:
            self._ends = _array_of("I", self._data[self._at : self._at + 4 * self._count])
        ends, base = self._ends, self._at + 4 * self._count
        begins = itertools.chain((ends[start - 1] if start else 0,), ends[start:stop])
        return [self._row(base + begin, base + end) for begin, end in zip(begins, ends[start:stop], strict=False)]

    def _row(self, begin: int, end: int) -> Headers:
        row = self._data[begin:end]
        pairs = self._seen.get(row)
        if pairs is None:
            pairs = self._seen[row] = _decode_pairs(row)
        return pairs


def _decode_pairs(row: bytes) -> Headers:
    (count,) = _U32.unpack_from(row)
    at = 4
    pairs: list[tuple[str, bytes]] = []
    for _ in range(count):
        name, value = _PAIR.unpack_from(row, at)
        at += _PAIR.size
        pairs.append((row[at : at + name].decode(), row[at + name : at + name + value]))
        at += name + value
    return tuple(pairs)
