"""Many chunks at once, as they are stored: what they say of themselves is read as one table, and a column of all of them
is cut out without a decoded chunk in between.

It is the layout of `gateway.store.chunk`, read by numpy: where a chunk is small, an object for each would cost more than
its records do. A column nobody asks for is not looked at, but the checksum of each chunk always is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from gateway.arrow.cells import Cells, Stretches, find_stretches, shifted
from gateway.envelope import BatchMeta, Origin
from gateway.errors import CorruptChunk
from gateway.store.chunk import (
    BATCH,
    DELIVERIES,
    EXPIRES,
    HEAD,
    HEADERS,
    KEYS,
    KNOWN_COLUMNS,
    LAYOUT_VERSION,
    MAGIC,
    STRETCH,
    SUMMED_FROM,
    TIMES,
    decode,
    decode_sources,
)
from gateway.store.interface import Stored
from gateway.store.position import Position

_HEADS = np.dtype(
    [
        ("magic", "V2"),
        ("version", "u1"),
        ("present", "u1"),
        ("checksum", "<u4"),
        ("base", "<u8"),
        ("first", "<i8"),
        ("last", "<i8"),
        ("expiry", "<i8"),
        ("count", "<u4"),
        ("names", "<u4"),
        ("values", "<u4"),
        ("keys", "<u4"),
        ("headers", "<u4"),
        ("zero", "<u4"),
    ]
)
ID_SIZE = 16
_BATCHES = np.dtype([("source", "<u4"), ("delivery", "u1"), ("size", "u1"), ("id", f"V{ID_SIZE}")])
_DICTIONARY = HEAD.size + STRETCH.size
"""Where the sources of a chunk are described."""


def checked(chunks: Iterable[Sequence[Stored]], position: Position, end: int) -> Iterator[Block]:
    """Blocks of what was read, from a position on and before `end`. Raises CorruptChunk at a damaged chunk or where one is
    missing, after all before it.
    """
    topic, partition = position.topic, position.partition
    for some in chunks:
        heads, good = _looked_at(some)
        bases = heads["base"][:good].astype(np.int64)
        ends = bases + heads["count"][:good]
        breaks = np.flatnonzero(bases[1:] != ends[:-1]) + 1
        for first, stop in itertools.pairwise([0, *breaks.tolist(), good]):
            if first < stop:
                skip = position.skip(int(bases[first]), int(ends[stop - 1]))
                yield Block(topic, partition, some[first:stop], heads[first:stop], skip, end)
        if good < len(some):
            base, count, _blob = some[good]
            raise CorruptChunk(topic, partition, base, base + count)


def _looked_at(chunks: Sequence[Stored]) -> tuple[Any, int]:
    # what chunks say of themselves, and how many of them, from the first on, are what was written
    blobs = [blob for _base, _count, blob in chunks]
    heads = np.frombuffer(b"".join([blob[: HEAD.size].ljust(HEAD.size, b"\0") for blob in blobs]), dtype=_HEADS)
    present, counts = heads["present"], heads["count"].astype(np.int64)
    stamps = ((present & EXPIRES) != 0).astype(np.int64) + ((present & TIMES) != 0)
    sizes = HEAD.size + heads["names"].astype(np.int64) + heads["values"] + heads["keys"] + heads["headers"]
    good = (
        (heads["magic"] == np.void(MAGIC))
        & (heads["version"] == LAYOUT_VERSION)
        & ((present & ~np.uint8(KNOWN_COLUMNS)) == 0)
        & (heads["zero"] == 0)
        & (counts > 0)
        & (heads["last"] >= heads["first"])
        & (heads["base"] == np.array([base for base, _count, _blob in chunks], dtype=np.uint64))
        & (counts == np.array([count for _base, count, _blob in chunks]))
        & (np.array([len(blob) for blob in blobs]) == sizes + counts * (4 + 8 * stamps))
    )
    sound = len(chunks) if good.all() else int(np.argmin(good))
    value, extend = google_crc32c.value, google_crc32c.extend
    for index, (blob, checksum) in enumerate(zip(blobs[:sound], heads["checksum"].tolist(), strict=False)):
        if extend(value(blob[:4]), blob[SUMMED_FROM:]) != checksum:
            return heads, index
    return heads, sound


class Block:
    """Consecutive chunks of one partition, found to be whole, and which of their records are meant."""

    def __init__(self, topic: str, partition: int, chunks: Sequence[Stored], heads: Any, skip: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.chunks = chunks
        self.base_offset = chunks[0][0]
        self.blobs = [blob for _base, _count, blob in chunks]
        self.counts = heads["count"].astype(np.int64)
        self.count = int(self.counts.sum())
        self.skip = skip
        """Records before those that are meant."""
        self.next_offset = min(self.base_offset + self.count, end)
        self.wanted = self.next_offset - self.base_offset - self.skip
        """How many records are meant."""
        self._heads = heads
        self._values_at = HEAD.size + heads["names"].astype(np.int64) + 4 * self.counts
        self._keys_at = self._values_at + heads["values"]
        self._headers_at = self._keys_at + heads["keys"]
        self._stamps_at = self._headers_at + heads["headers"]
        self._stretches: Stretches | None = None

    # --- columns ---

    @property
    def stretches(self) -> Stretches:
        if self._stretches is None:
            self._stretches = self._find() or find_stretches(self._runs(), self.count)
        return self._stretches

    def offsets(self) -> Any:
        return np.arange(self.base_offset, self.base_offset + self.count, dtype=np.int64)

    def times(self) -> Any:
        heads = self._heads
        stamped = (heads["present"] & TIMES) != 0
        if not stamped.any():
            return np.repeat(heads["first"], self.counts)
        begins = self._stamps_at + np.where((heads["present"] & EXPIRES) != 0, 8 * self.counts, 0)
        return self._stamps(stamped, begins, heads["first"].tolist())

    def expiries(self) -> Any | None:
        there = (self._heads["present"] & EXPIRES) != 0
        return self._stamps(there, self._stamps_at, [0] * len(self.blobs)) if there.any() else None

    def ends(self) -> Any:
        return shifted(self._u32(self._spans(self._values_at - 4 * self.counts, 4 * self.counts)), self.counts)

    def packed(self) -> Iterator[tuple[memoryview, int]]:
        for blob, begin, end, count in zip(
            self.blobs, self._values_at.tolist(), self._keys_at.tolist(), self.counts.tolist(), strict=True
        ):
            yield memoryview(blob)[begin:end], count

    def keys(self) -> Cells | None:
        """The keys: ends, a byte for each that is there, bytes."""
        there = (self._heads["present"] & KEYS) != 0
        if not there.any():
            return None
        ends = self._ends(self._keys_at, there)
        flags = b"".join(self._or_zeros(self._keys_at + 4 * self.counts, self.counts, there))
        sizes = np.where(there, self._heads["keys"] - 5 * self.counts, 0)
        cells = self._spans(self._keys_at + 5 * self.counts, sizes)
        return ends, np.frombuffer(flags, dtype=bool), cells

    def headers(self) -> Cells | None:
        """The headers: ends, bytes; a record of a chunk that has none is not there."""
        there = (self._heads["present"] & HEADERS) != 0
        if not there.any():
            return None
        ends = self._ends(self._headers_at, there)
        sizes = np.where(there, self._heads["headers"] - 4 * self.counts, 0)
        cells = self._spans(self._headers_at + 4 * self.counts, sizes)
        return ends, np.repeat(there, self.counts), cells

    # --- pieces of all chunks ---

    def _spans(self, begins: Any, sizes: Any) -> list[bytes]:
        return [
            blob[begin:end]
            for blob, begin, end in zip(self.blobs, begins.tolist(), (begins + sizes).tolist(), strict=True)
        ]

    def _or_zeros(self, begins: Any, sizes: Any, there: Any) -> list[bytes]:
        # as `_spans`, but zeros for a chunk that has not got it
        found = self._spans(begins, sizes)
        if not there.all():
            for index in np.flatnonzero(~there).tolist():
                found[index] = bytes(int(sizes[index]))
        return found

    def _ends(self, begins: Any, there: Any) -> Any:
        return shifted(self._u32(self._or_zeros(begins, 4 * self.counts, there)), self.counts)

    @staticmethod
    def _u32(parts: Sequence[bytes]) -> Any:
        return np.frombuffer(b"".join(parts), dtype="<u4")

    def _stamps(self, there: Any, begins: Any, otherwise: Sequence[int]) -> Any:
        # a column of times, one of its own for each record, or the same for all of a chunk
        parts = self._or_zeros(begins, 8 * self.counts, there)
        for index in np.flatnonzero(~there).tolist():
            parts[index] = otherwise[index].to_bytes(8, "little", signed=True) * int(self.counts[index])
        return np.frombuffer(b"".join(parts), dtype="<i8")

    # --- the dictionaries ---

    def _runs(self) -> Sequence[Any]:
        return [decode(blob, self.topic, self.partition, base, count) for base, count, blob in self.chunks]

    def _find(self) -> Stretches | None:
        # the stretches, if all ids have sixteen bytes, as the gateway makes them: the tables are of one width then
        told = self._u32([blob[HEAD.size : _DICTIONARY] for blob in self.blobs]).reshape(-1, 3).astype(np.int64)
        sources, batches, stretches = told[:, 0], told[:, 1], told[:, 2]
        stretches_at = HEAD.size + self._heads["names"].astype(np.int64) - STRETCH.size * stretches
        batches_at = stretches_at - _BATCHES.itemsize * batches
        if (batches_at < _DICTIONARY).any():
            return None
        known = _Sources()
        places: list[int] = []
        for blob, count, end in zip(self.blobs, sources.tolist(), batches_at.tolist(), strict=True):
            place = known.place(blob, count, end)
            if place is None:
                return None
            places.append(place)
        rows = np.frombuffer(b"".join(self._spans(batches_at, stretches_at - batches_at)), dtype=_BATCHES)
        if (rows["size"] != ID_SIZE).any():
            return None
        table = self._u32(self._spans(stretches_at, STRETCH.size * stretches)).reshape(-1, 3).astype(np.int64)
        # what a chunk counts from its own beginning, counted from that of the block
        source = rows["source"] + np.repeat(np.array(places, dtype=np.int64), batches)
        who, sender = np.unique(source * 256 + rows["delivery"], return_inverse=True)
        senders = [known.sender(*divmod(one, 256)) for one in who.tolist()]
        starts = table[:, 0] + np.repeat(np.cumsum(self.counts) - self.counts, stretches)
        batch = table[:, 2] + np.repeat(np.cumsum(batches) - batches, stretches)
        lengths = np.diff(starts, append=self.count)
        return Stretches(starts, lengths, table[:, 1], rows["id"][batch], sender[batch], senders)


class _Sources:
    """Who sent the batches of some chunks: mostly one chunk says it in the same bytes as the one before it."""

    def __init__(self) -> None:
        self._known: list[tuple[Origin, str]] = []
        self._places: dict[tuple[int, bytes], int] = {}

    def place(self, blob: bytes, count: int, end: int) -> int | None:
        """Where the sources of a chunk are in the list of all, if they end where they must."""
        raw = blob[_DICTIONARY:end]
        place = self._places.get((count, raw))
        if place is None:
            found, at = decode_sources(blob, _DICTIONARY, count)
            if at != end:
                return None
            place = self._places[count, raw] = len(self._known)
            self._known += found
        return place

    def sender(self, source: int, delivery: int) -> BatchMeta:
        origin, route = self._known[source]
        return BatchMeta(b"", origin, route, DELIVERIES[delivery])


assert _HEADS.itemsize == HEAD.size and _BATCHES.itemsize == BATCH.size + ID_SIZE  # noqa: PT018
