"""The rows of what consumer groups have committed: where the groups are, how far behind, and how they are put elsewhere.

For any store that is open, served or not: the rows are the truth, a running gateway's memory of them follows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.broker.consume.reset import targets_of, topic_of
from gateway.errors import UnknownGroup
from gateway.recorder import GroupPosition
from gateway.requests import GroupMove, GroupReset
from gateway.store.interface import Put, Require, Store, Unit

TABLE = "group_offsets"
_VALUE = struct.Struct(">Q")
_TAIL = struct.Struct(">I")


def encode_key(topic: str, group: str, partition: int) -> bytes:
    return encode_names(topic, group) + _TAIL.pack(partition)


def decode_key(key: bytes) -> tuple[str, str, int]:
    (topic, group), rest = decode_names(key, 2)
    return topic, group, _TAIL.unpack(rest)[0]


def encode_names(*names: str) -> bytes:
    """Length-prefixed, so that no two keys collide whatever the names hold."""
    return b"".join(_TAIL.pack(len(part)) + part for part in map(str.encode, names))


def decode_names(key: bytes, count: int) -> tuple[Sequence[str], bytes]:
    """So many names, and what is behind them."""
    names: list[str] = []
    position = 0
    for _ in range(count):
        (size,) = _TAIL.unpack_from(key, position)
        position += _TAIL.size
        names.append(key[position : position + size].decode())
        position += size
    return names, key[position:]


def row_of(offset: int) -> bytes:
    return _VALUE.pack(offset)


def offset_of(row: bytes) -> int:
    offset: int = _VALUE.unpack(row)[0]
    return offset


class Ends(Protocol):
    """A partition, of a store that is served or of one that is read."""

    @property
    def start(self) -> int:
        """The first offset there is."""
        ...

    @property
    def end(self) -> int:
        """The offset that the next record will have."""
        ...


class PartitionedTopic(Protocol):
    @property
    def partitions(self) -> Sequence[Ends]:
        """The partitions, in the order of their numbers."""
        ...


def positions(
    rows: Iterable[tuple[bytes, bytes]],
    topics: Mapping[str, PartitionedTopic],
    *,
    group: str = "",
    topic: str = "",
) -> Sequence[GroupPosition]:
    """What rows of the table say of partitions that exist; of one group, or on one topic, where that is asked for."""
    found = []
    for key, value in rows:
        name, owner, number = decode_key(key)
        if topic in {"", name} and group in {"", owner} and name in topics:
            partitions = topics[name].partitions
            if number < len(partitions):
                one = partitions[number]
                offset = offset_of(value)
                lag = lag_of(offset, one)
                found.append(GroupPosition(owner, name, number, offset, one.start, one.end, lag))
    return found


def topics_of(rows: Iterable[tuple[bytes, bytes]], *, group: str = "", topic: str = "") -> set[str]:
    """Of which rows of the table speak: of one group, or on one topic, where that is asked for."""
    keys = (decode_key(key) for key, _value in rows)
    return {name for name, owner, _number in keys if topic in {"", name} and group in {"", owner}}


def lag_of(offset: int, partition: Ends) -> int:
    """The messages from an offset on, and offsets without one where a log has such: at most so many."""
    return max(0, partition.end - max(offset, partition.start))


async def moves_of(store: Store, asked: GroupReset) -> Sequence[GroupMove]:
    """What a reset would do, partition by partition. Raises what is wrong with it."""
    state = topic_of(store, asked)
    kept = store.table(TABLE)
    rows = [kept.get(encode_key(asked.topic, asked.group, number)) for number in range(len(state.partitions))]
    # where its rows may be lost this is how somebody says where the group is
    if not any(row is not None for row in rows) and not store.lost.touches(TABLE):
        raise UnknownGroup(f"{asked.group} has committed nothing on {asked.topic}")
    moves = []
    for number, after in (await targets_of(store, state, asked)).items():
        row, one = rows[number], state.partitions[number]
        before = offset_of(row) if row is not None else None
        lag = lag_of(after, one)
        skipped = repeated = None
        if before is not None:
            read_to = min(max(before, one.start), one.end)  # what retention took is nothing that this leaves out
            skipped, repeated = max(0, after - read_to), max(0, read_to - after)
        moves.append(GroupMove(number, before, after, one.start, one.end, lag, skipped, repeated))
    return moves


def unit_of(asked: GroupReset, moves: Iterable[GroupMove]) -> Unit:
    rows = [(encode_key(asked.topic, asked.group, one.partition), one) for one in moves]
    requires = [Require(TABLE, key, row_of(one.before) if one.before is not None else None) for key, one in rows]
    return Unit(puts=[Put(TABLE, key, row_of(one.after)) for key, one in rows], requires=requires)
