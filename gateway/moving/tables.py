"""What is kept beside the records, as the other store is to have it: where a row names an offset or the life of a topic, the
same place there. Each table there is stands here, with what becomes of it; one that does not is refused by its name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import attrs
import msgspec

from gateway.bridges import bookmark, forward_rows
from gateway.broker import cache, identity, ownership
from gateway.broker.administration import accounts, acls, cluster, schemas
from gateway.broker.consume import cursors, group_offsets, names, readers
from gateway.broker.publish import deduplication, delays
from gateway.bulk import appends, redrive
from gateway.errors import Unsupported
from gateway.moving.places import CopyReader
from gateway.store import moved
from gateway.store.ack_window import AckWindow
from gateway.store.moved import OffsetMap

Row = tuple[bytes, bytes]
_NUMBER = struct.Struct(">Q")


@attrs.frozen(eq=False)
class Translation:
    """What the places of one store are in the other."""

    maps: Mapping[tuple[str, int], OffsetMap]
    epochs: Mapping[str, tuple[int, int]]
    """Of each topic: the source's and the target's."""
    shared: bool
    """Whether several gateways may serve the target."""
    left: Counter[str] = attrs.Factory(Counter)
    """By table: rows of topics that were dropped or made again, or of records that are gone. Nobody would look at them."""

    def map(self, topic: str, partition: int) -> OffsetMap:
        return self.maps.get((topic, partition)) or OffsetMap()

    def epoch(self, topic: str, epoch: int) -> int | None:
        """The target's; None for a life that is over."""
        source, target = self.epochs.get(topic, (None, 0))
        return target if source == epoch else None

    def window(self, topic: str, partition: int, data: bytes) -> AckWindow:
        """What a consumer has settled, in the offsets of the target."""
        before, where = AckWindow.from_bytes(data, 1 << 62), self.map(topic, partition)
        after = AckWindow(where.onwards(before.low), 1 << 62)
        for first, end in before.settled_ranges:
            for _source, target, count in where.targets(first, end):
                after.settle_range(target, target + count)
        for offset, tries in before.outstanding.items():
            target_offset = where.exactly(offset)
            if target_offset is not None:
                for _ in range(tries):
                    after.hand_out(target_offset)
        return after


def _as_it_is(rows: Iterator[Row], _translation: Translation) -> Iterator[Row]:
    return rows


def _not_taken_along(_rows: Iterator[Row], _translation: Translation) -> Iterator[Row]:
    return iter(())


def _groups(rows: Iterator[Row], translation: Translation) -> Iterator[Row]:
    for key, value in rows:
        topic, _group, partition = group_offsets.decode_key(key)
        if topic in translation.epochs:
            offset = translation.map(topic, partition).onwards(group_offsets.offset_of(value))
            yield key, group_offsets.row_of(offset)
        else:
            translation.left[group_offsets.TABLE] += 1


def _forwards(rows: Iterator[Row], translation: Translation) -> Iterator[Row]:
    for key, value in rows:
        found = list(forward_rows.stored_cursors([(key, value)])) if key != identity.KEY else []
        if not found:
            yield key, value
            continue
        ((forward, topic, partition, _row),) = found
        epoch, window, tally = forward_rows.read_cursor(value, 1 << 62)
        there = translation.epoch(topic, epoch)
        if there is None:
            translation.left[identity.TABLE] += 1
            continue
        after = translation.window(topic, partition, window.to_bytes())
        # the account goes on: what became of the messages is what it was, and it began so many offsets before
        settled = tally.acknowledged + tally.filtered + tally.expired + tally.dead_lettered + tally.trimmed
        settled += tally.skipped - tally.repeated
        begun = attrs.evolve(tally, start=after.low + after.settled_above - settled, absent=0)
        put = forward_rows.cursor_row(forward, topic, partition, there, after, begun)
        assert put.value is not None
        yield put.key, put.value


def _redriven(rows: Iterator[Row], translation: Translation) -> Iterator[Row]:
    for key, value in rows:
        topic, epoch, partition, offset = redrive.read_key(key)
        there = translation.epoch(topic, epoch)
        went = translation.map(topic, partition).exactly(offset)
        if there is None or went is None:
            translation.left[redrive.TABLE] += 1
        else:
            yield redrive.row_key(topic, there, partition, went), value


def _appends(rows: Iterator[Row], translation: Translation) -> Iterator[Row]:
    for key, value in rows:
        yield key, appends.moved_row(value, lambda topic, number, at: translation.map(topic, number).onwards(at))


_SIMPLE: dict[str, Callable[[Iterator[Row], Translation], Iterator[Row]]] = {
    group_offsets.TABLE: _groups,
    identity.TABLE: _forwards,
    redrive.TABLE: _redriven,
    appends.APPENDS: _appends,
    **dict.fromkeys(
        (
            accounts.TABLE,
            acls.TABLE,
            appends.TABLE,
            cache.TABLE,
            cluster.TABLE,
            cursors.COUNTERS,
            deduplication.TABLE,
            delays.TABLE,
            bookmark.TABLE,
            schemas.TABLE,
        ),
        _as_it_is,
    ),
    # who serves the log now, and what the log itself knows of its topics, is nobody else's
    **dict.fromkeys(
        (cluster.SERVING, ownership.TABLE, readers.TABLE, "topics", moved.TABLE, names.FORMER_HOMES, names.NAMES),
        _not_taken_along,
    ),
}
_TOGETHER = (cursors.SUBSCRIPTIONS, cursors.CURSORS)
KNOWN_TABLES = _SIMPLE.keys() | {*_TOGETHER}
COPIED_TABLES = sorted(
    {name for name, how in _SIMPLE.items() if how is not _not_taken_along} | {*_TOGETHER, names.NAMES}
)
"""Of which the target is to have what the source has, and nothing else."""


def refuse_unknown(reader: CopyReader) -> None:
    """Raise where a row could not be brought along."""
    tables = reader.tables()
    unknown = sorted(set(tables) - KNOWN_TABLES)
    if unknown:
        raise Unsupported(f"nobody here knows what the table {unknown[0]} is: it was written by another version")


def translated_rows(reader: CopyReader, translation: Translation) -> Iterator[tuple[str, bytes, bytes]]:
    """Every row that the target is to have: table, key, value."""
    for table in reader.tables():
        if table in _SIMPLE:
            for key, value in _SIMPLE[table](reader.rows(table), translation):
                yield table, key, value
    yield from _subscriptions(reader, translation)


def _subscriptions(reader: CopyReader, translation: Translation) -> Iterator[tuple[str, bytes, bytes]]:
    rows = dict(reader.rows(cursors.SUBSCRIPTIONS)), dict(reader.rows(cursors.CURSORS))
    for number, row, windows in cursors.read_subscriptions(*rows):
        epoch = translation.epoch(row.topic, row.epoch)
        if epoch is None:
            translation.left[cursors.SUBSCRIPTIONS] += 1
            continue
        put = cursors.subscription_row(number, msgspec.structs.replace(row, epoch=epoch))
        assert put.value is not None
        yield put.table, put.key, put.value
        for partition, window in windows.items():
            after = translation.window(row.topic, partition, window).to_bytes()
            yield cursors.CURSORS, cursors.cursor_key(number, partition), after
        if translation.shared and row.name:
            yield names.NAMES, names.name_key(row.topic, row.name), _NUMBER.pack(number)
