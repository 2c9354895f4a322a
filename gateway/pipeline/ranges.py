"""Which offsets to read: from options and what the log holds to ranges, one for each task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs
import pyarrow as pa

from gateway.arrow.blocks import Block, checked
from gateway.arrow.columns import BATCH_BYTES, BATCH_ROWS, batches, block_batch
from gateway.envelope import Run
from gateway.errors import CorruptChunk, OffsetOutOfRange, StoreError, UnknownPartition, UnknownTopic
from gateway.errors import Status as _Status
from gateway.pipeline.options import EARLIEST, FROM_THE_START, LATEST, ReadOptions, Where
from gateway.store.position import Position
from gateway.store.reader import ReadableLog, StoredPartition, StoredTopic

P = TypeVar("P", Run, Block)


class HistoryGone(StoreError):
    """Records that were to be read are no longer there."""

    status = _Status.OUT_OF_RANGE


class Damaged(StoreError):
    """Records that were to be read are damaged."""

    status = _Status.CORRUPT


@attrs.frozen
class Range:
    """Offsets [start, end) of one partition of a topic, in one of its lives."""

    topic: str
    partition: int
    start: int
    end: int
    epoch: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


def selected(topics: Mapping[str, StoredTopic], options: ReadOptions, *, all_named: bool = True) -> list[StoredTopic]:
    """The topics that the options mean. A name (not a glob) that there is not is an error, if `all_named`."""
    missing = sorted(set(options.topics.names) - set(topics))
    if missing and all_named:
        raise UnknownTopic(f"there is no topic {', '.join(missing)} in {options.where}")
    found = [topics[name] for name in options.topics.among(list(topics))]
    for topic in found:
        for number in sorted((options.topics.only or {}).get(topic.name, ())):
            _there("assign", topic, number)
    return found


def meant(topic: StoredTopic, options: ReadOptions) -> list[StoredPartition]:
    """Its partitions that the options mean."""
    return [one for one in topic.partitions if options.topics.has(topic.name, one.number)]


def _there(option: str, topic: StoredTopic, number: int) -> None:
    if number >= len(topic.partitions):
        raise UnknownPartition(f"{option}: {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {number}")


def starts(reader: ReadableLog, topic: StoredTopic, options: ReadOptions, default: Where) -> list[int]:
    """Where to begin in each partition that is meant."""
    where = options.starting if options.starting is not None else default
    return _resolved(reader, topic, options, where, "startingOffsets")


def ends(reader: ReadableLog, topic: StoredTopic, options: ReadOptions) -> list[int]:
    return _resolved(reader, topic, options, options.ending, "endingOffsets")


def _resolved(reader: ReadableLog, topic: StoredTopic, options: ReadOptions, where: Where, option: str) -> list[int]:
    named = where.named.get(topic.name, {})
    for number in named:
        _there(option, topic, number)
    found = []
    for partition in meant(topic, options):
        told = partition.number in named
        offset = named.get(partition.number, where.everywhere)
        if where.times and (told or not where.named):
            time = offset
            offset = reader.offset_for_time(topic.name, partition.number, time)
            if option == "startingOffsets" and options.strict_times and offset >= partition.end:
                raise OffsetOutOfRange(
                    f"{topic.name}/{partition.number} has nothing from {time} ms on (startingOffsetsByTimestampStrategy)",
                    first=partition.start,
                    next_offset=partition.end,
                )
        elif offset == EARLIEST:
            offset = partition.start
        elif offset == LATEST:
            offset = partition.end
        elif offset > partition.end:
            raise OffsetOutOfRange(
                f"{option}: {topic.name}/{partition.number} ends at {partition.end}, before {offset}",
                first=partition.start,
                next_offset=partition.end,
            )
        found.append(offset)
    return found


def whole(reader: ReadableLog, options: ReadOptions) -> list[Range]:
    return [
        Range(topic.name, partition.number, start, end, topic.epoch)
        for topic in selected(reader.topics(), options)
        for partition, start, end in zip(
            meant(topic, options),
            starts(reader, topic, options, FROM_THE_START),
            ends(reader, topic, options),
            strict=True,
        )
        if start < end
    ]


def cut(ranges: Sequence[Range], records: int, least: int = 0) -> list[Range]:
    """Ranges of at most so many offsets, so that several tasks share a long partition; and `least` ranges in all."""
    if least:
        total = sum(one.end - one.start for one in ranges)
        records = max(1, min(records, -(-total // least)))
    return [
        attrs.evolve(one, start=start, end=min(start + records, one.end))
        for one in ranges
        for start in range(one.start, one.end, records)
    ]


def records(reader: ReadableLog, what: Range, *, fail_on_data_loss: bool = True) -> Iterator[Run]:
    """The records of a range. What is gone (retention, a topic made anew) is HistoryGone, or left out."""
    read = functools.partial(reader.read_chunks, what.topic, what.partition, epoch=what.epoch)
    return _pieces(reader, what, read, fail_on_data_loss)


def record_batches(
    reader: ReadableLog,
    what: Range,
    schema: pa.Schema,
    *,
    rows: int = BATCH_ROWS,
    size: int = BATCH_BYTES,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The records of a range as Arrow, in batches of about so many rows or bytes. What is gone as in `records`."""
    if not reader.has_chunks:
        yield from batches(records(reader, what, fail_on_data_loss=fail_on_data_loss), schema)
        return

    def read(start: int, end: int) -> Iterator[Block]:
        chunks = reader.read_stored(what.topic, what.partition, start, end, rows, size, epoch=what.epoch)
        return checked(chunks, Position(what.topic, what.partition, start, dense=reader.dense_offsets), end)

    for block in _pieces(reader, what, read, fail_on_data_loss):
        yield block_batch(block, schema)


def _pieces(
    reader: ReadableLog, what: Range, read: Callable[[int, int], Iterator[P]], fail_on_data_loss: bool
) -> Iterator[P]:
    offset = what.start
    while offset < what.end:
        try:
            if reader.topic(what.topic).epoch != what.epoch:
                raise UnknownTopic("made again")
            for piece in read(offset, what.end):
                yield piece
                offset = piece.next_offset
        except CorruptChunk as error:
            raise Damaged(
                f"{error.message}. What lies before and from offset {error.next_offset} on can be read, by endingOffsets and "
                "startingOffsets; `gateway store check` names everything that is damaged"
            ) from error
        except UnknownTopic as error:
            if fail_on_data_loss:
                raise HistoryGone(
                    f"{what}: the topic was deleted, or deleted and made again, before it was read. {WAY_ON}"
                ) from error
            return
        except OffsetOutOfRange as error:
            if fail_on_data_loss:
                raise HistoryGone(f"{what}: the log begins at {error.first} now. {WAY_ON}") from error
            offset = max(error.first, offset + 1)  # always on: retention may be as fast as we are
        else:
            if not reader.dense_offsets:  # the last offsets of a range may be a gap
                return
            if offset < what.end:
                start, end = reader.bounds(what.topic, what.partition)
                raise OffsetOutOfRange(f"{what}: the log holds [{start}, {end})", first=start, next_offset=end)


WAY_ON = "Retention was faster than this reader; with failOnDataLoss=false it goes on with what is left."
