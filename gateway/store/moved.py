"""What a store that another one is copied into says of the copy, in a table of its own: from where, how far, and where each
record went. It is for those who copy, who audit, and who must not serve a store that is not all there yet.

    head             whose copy it is, and whether it is whole
    topic   (name)   the life of the source's topic that is copied
    commit  (number) what went where, in one commit with the records
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import attrs
import msgspec

from gateway.errors import StoreInUse
from gateway.store.interface import Placement, Put, Store, read_placements

TABLE = "moved"
HEAD = b"head"
_TOPIC, _COMMIT = b"topic\0", b"commit\0"
_NUMBER, _SIZE = struct.Struct(">Q"), struct.Struct(">I")


class CopyHead(msgspec.Struct, frozen=True):
    source: str
    by: str = ""
    """The process that copies: another one that takes over is the only one from then on."""
    whole: bool = False


CopiedPart = tuple[str, int, int, int]
"""(topic, partition, source's offset, count) of records that follow each other, as one append of the commit."""


def head_row(head: CopyHead) -> bytes:
    return msgspec.json.encode(head)


async def refuse_unfinished(store: Store) -> None:
    """Raise StoreInUse for a store that a copy is being made into."""
    found = await store.get(TABLE, HEAD)
    head = msgspec.json.decode(found, type=CopyHead) if found is not None else None
    if head is not None and not head.whole:
        raise StoreInUse(
            f"a copy of {head.source} into this store is not finished: go on with it by the same `gateway store copy`"
        )


def topic_key(topic: str) -> bytes:
    return _TOPIC + topic.encode()


def commit_put(number: int, parts: Sequence[CopiedPart]) -> Put:
    """Goes with the appends of these parts, and says in the end where each of them went."""
    data = msgspec.msgpack.encode(parts)
    return Put(TABLE, _COMMIT + _NUMBER.pack(number), _SIZE.pack(len(data)) + data, placed=True)


class OffsetMap:
    """Where the records of one partition went."""

    def __init__(self) -> None:
        self.next: int | None = None
        """Where the source is read on; None: nothing of it was read."""
        self.records = 0
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._counts: list[int] = []

    def add(self, source: int, target: int, count: int) -> None:
        """Records that follow what was added before."""
        self.next = source + count
        self.records += count
        if self._sources and (source, target) == (
            self._sources[-1] + self._counts[-1],
            self._targets[-1] + self._counts[-1],
        ):
            self._counts[-1] += count
        else:
            self._sources.append(source)
            self._targets.append(target)
            self._counts.append(count)

    @property
    def end(self) -> int:
        """Behind the last record, at the target."""
        return self._targets[-1] + self._counts[-1] if self._targets else 0

    @property
    def first(self) -> int | None:
        """The source's offset of the first record that was copied."""
        return self._sources[0] if self._sources else None

    def exactly(self, offset: int) -> int | None:
        """Where the record at this offset went, if there was one."""
        at = bisect_right(self._sources, offset) - 1
        if at >= 0 and offset < self._sources[at] + self._counts[at]:
            return self._targets[at] + offset - self._sources[at]
        return None

    def onwards(self, offset: int) -> int:
        """Where whoever reads on from this offset finds the same record first."""
        found = self.exactly(offset)
        if found is not None:
            return found
        at = bisect_right(self._sources, offset)
        return self._targets[at] if at < len(self._targets) else self.end

    def targets(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(source's offset, target's offset, count) of what there is in [first, end) of the source."""
        for source, target, count in zip(self._sources, self._targets, self._counts, strict=True):
            begin, stop = max(source, first), min(source + count, end)
            if begin < stop:
                yield begin, target + begin - source, stop - begin


@attrs.define(eq=False)
class CopyProgress:
    """All that the table says."""

    head: CopyHead | None = None
    epochs: dict[str, int] = attrs.Factory(dict)
    """Of the source's topics that are copied."""
    maps: dict[tuple[str, int], OffsetMap] = attrs.Factory(dict)
    commits: int = 0

    @property
    def records(self) -> int:
        return sum(one.records for one in self.maps.values())

    def map(self, topic: str, partition: int) -> OffsetMap:
        return self.maps.setdefault((topic, partition), OffsetMap())

    def add(self, parts: Sequence[CopiedPart], placements: Sequence[Placement]) -> None:
        """Note what a commit has copied, and where each part of it lies now."""
        self.commits += 1
        for (topic, partition, offset, count), placed in zip(parts, placements, strict=True):
            self.map(topic, partition).add(offset, placed.base_offset, count)


def read_progress(rows: Iterable[tuple[bytes, bytes]]) -> CopyProgress:
    """From the rows in the order of their keys."""
    found = CopyProgress()
    for key, value in rows:
        if key == HEAD:
            found.head = msgspec.json.decode(value, type=CopyHead)
        elif key.startswith(_TOPIC):
            found.epochs[key[len(_TOPIC) :].decode()] = int(value)
        else:
            end = _SIZE.size + _SIZE.unpack_from(value)[0]
            found.add(
                msgspec.msgpack.decode(value[_SIZE.size : end], type=list[CopiedPart]), read_placements(value[end:])
            )
    return found
