"""What Arrow columns are made of: some records of one partition, each of their columns as a few buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from gateway.envelope import BatchMeta, Columns, Delivery, Run
from gateway.store.chunk import LazyColumn

Cells = tuple[Any, Any, list[bytes]]
"""Ends (int64), validity (bool, or None: all are there), the bytes."""


@attrs.frozen(eq=False)
class Stretches:
    """Messages that follow each other in one batch: where each stretch begins, its first index in its batch, the id of
    that, and its sender.
    """

    starts: Any
    lengths: Any
    inners: Any
    ids: Any
    """Ids of the stretches' batches: an array of bytes of one size, or a list where they are of several."""
    sender: Any
    senders: Sequence[BatchMeta]
    """One batch for each (origin, route, delivery) there is."""


class Group(Protocol):
    """Some records of one partition, in order."""

    topic: str
    partition: int
    count: int

    @property
    def stretches(self) -> Stretches:
        """Where the messages come from."""
        ...

    def offsets(self) -> Any:
        """The offset of each record (int64)."""
        ...

    def times(self) -> Any:
        """Store time of each record in milliseconds (int64)."""
        ...

    def expiries(self) -> Any | None:
        """In milliseconds (int64), 0 for never; None: none expires."""
        ...

    def ends(self) -> Any:
        """Where each packed value ends (int64), over all of them."""
        ...

    def packed(self) -> Iterator[tuple[memoryview, int]]:
        """The packed values in pieces, and how many are in each."""
        ...

    def keys(self) -> Cells | None:
        """None where no record has a key."""
        ...

    def headers(self) -> Cells | None:
        """In the chunk's layout. None: no record has any."""
        ...


def shifted(ends: Any, counts: Any) -> Any:
    """Ends of several stretches, each counted from where it begins, as ends of their concatenation."""
    ends = ends.astype(np.int64)
    if len(counts) == 1:
        return ends
    sizes = ends[np.cumsum(counts) - 1]
    return ends + np.repeat(np.cumsum(sizes) - sizes, counts)


def ids_of(ids: Sequence[bytes]) -> Any:
    """Ids as an array, if they are of one size."""
    size = len(ids[0])
    return np.frombuffer(b"".join(ids), dtype=f"V{size}") if size and {len(one) for one in ids} == {size} else ids


class RunGroup:
    """Runs as one group: they may come from anywhere, and each is looked at by itself."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.topic = runs[0].topic
        self.partition = runs[0].partition
        self.counts = [run.count for run in runs]
        self.count = sum(self.counts)
        self._stretches: Stretches | None = None

    @property
    def stretches(self) -> Stretches:
        if self._stretches is None:
            self._stretches = find_stretches(self.runs, self.count)
        return self._stretches

    def offsets(self) -> Any:
        first = self.runs[0].base_offset
        if self.runs[-1].next_offset - first == self.count:
            return np.arange(first, first + self.count, dtype=np.int64)
        return np.concatenate([np.arange(run.base_offset, run.next_offset, dtype=np.int64) for run in self.runs])

    def times(self) -> Any:
        edges = [(run.times[0], run.times[-1]) for run in self.runs]
        if all(first == last for first, last in edges):  # store time never goes back: all between are the same
            return np.repeat(np.array([first for first, _last in edges], dtype=np.int64), self.counts)
        return np.concatenate([np.asarray(run.times, dtype=np.int64) for run in self.runs])

    def expiries(self) -> Any | None:
        if all(run.columns.expires is None for run in self.runs):
            return None
        return np.concatenate(
            [
                np.zeros(run.count, dtype=np.int64)
                if run.columns.expires is None
                else np.asarray(run.columns.expires, dtype=np.int64)
                for run in self.runs
            ]
        )

    def ends(self) -> Any:
        own = np.frombuffer(b"".join([run.columns.ends for run in self.runs]), dtype=np.uint32)
        return shifted(own, self.counts)

    def packed(self) -> Iterator[tuple[memoryview, int]]:
        for run in self.runs:
            yield memoryview(run.columns.packed), run.count

    def keys(self) -> Cells | None:
        return self._cells(lambda columns: columns.keys, _loose_keys)

    def headers(self) -> Cells | None:
        return self._cells(lambda columns: columns.headers, _loose_headers)

    def _cells(self, column: Callable[[Columns], Sequence[Any] | None], loose: Callable[[Any], Cells]) -> Cells | None:
        # a column of optional cells, as ends, validity and bytes
        firsts: list[int] = []
        ends: list[bytes] = []
        valid: list[bytes] = []
        data: list[bytes] = []
        found = False
        for run, count in zip(self.runs, self.counts, strict=True):
            cells = column(run.columns)
            found = found or cells is not None
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
        if not found:
            return None
        counted = np.frombuffer(b"".join(ends), dtype="<u4")
        if any(firsts):
            counted = counted - np.repeat(np.array(firsts, dtype=np.uint32), self.counts)
        return shifted(counted, self.counts), np.frombuffer(b"".join(valid), dtype=bool), data


def find_stretches(runs: Sequence[Run], count: int) -> Stretches:
    """Where the batches of consecutive runs begin and end; the runs hold `count` records together."""
    firsts: list[int] = []
    inners: list[int] = []
    ids: list[bytes] = []
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
            ids.append(meta.id)
            sender.append(index)
        base += run.count
    starts = np.array(firsts, dtype=np.int64)
    lengths = np.diff(starts, append=count)
    return Stretches(starts, lengths, np.array(inners, dtype=np.int64), ids_of(ids), np.array(sender), senders)


def _loose_keys(keys: Sequence[bytes | None]) -> Cells:
    # keys of a run that was never a chunk: it comes from memory, not from disk
    ends = np.cumsum([len(key) if key is not None else 0 for key in keys])
    return ends, np.array([key is not None for key in keys]), [key for key in keys if key is not None]


def _loose_headers(rows: Sequence[Any]) -> Cells:
    # headers of a run that was never a chunk, in the chunk's layout
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
