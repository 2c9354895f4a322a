"""Ranges of the log as a stream of bytes: a little is read at a time, the next when that was taken.

The store's own encoding is what costs least, here and there; Arrow is offered where pyarrow is installed. Either is made
in a thread. A slow client holds one piece of at most a few megabytes, and nobody up.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import attrs
import msgspec
import trio

from gateway.bulk import wire
from gateway.envelope import Run
from gateway.errors import CorruptChunk, GatewayError, OffsetOutOfRange, UnknownPartition, UnknownTopic, Unsupported
from gateway.store.chunk import decode, encode
from gateway.store.interface import PartitionState, Store, Stored
from gateway.store.position import Position

READ_BYTES = 2 << 20
"""Values read at a time."""
THREADS = 2
UNLIMITED = 1 << 62

Encode = Callable[[Sequence[Run]], bytes]


@attrs.frozen
class RangeAsked:
    """Offsets [start, end) of a partition; at most about `max_bytes` of values when that is not 0."""

    topic: str
    partition: int
    start: int
    end: int | None = None
    max_bytes: int = 0
    epoch: int | None = None
    """Of the topic that is meant, if not the one of this name that there is."""


class Ranges:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._limiter = trio.CapacityLimiter(THREADS)
        self.dense_offsets = store.capabilities.dense_offsets

    def knows(self, asked: RangeAsked) -> bool:
        """Whether it lies before where its partition is known to end: what others write does not change it."""
        topic = self._store.topics.get(asked.topic)
        if topic is None or not 0 <= asked.partition < len(topic.partitions):
            return False
        return asked.end is not None and asked.end <= topic.partitions[asked.partition].end

    def find(self, asked: RangeAsked) -> PartitionState:
        """The partition, once the range is known to begin in it. Raises UnknownTopic, UnknownPartition, OffsetOutOfRange."""
        topic = self._store.topics.get(asked.topic)
        if topic is None:
            raise UnknownTopic(f"there is no topic {asked.topic}")
        if asked.epoch not in (None, topic.epoch):
            raise UnknownTopic(f"{asked.topic} was deleted and made again")
        if not 0 <= asked.partition < len(topic.partitions):
            raise UnknownPartition(f"{asked.topic} has partitions 0 to {len(topic.partitions) - 1}")
        state = topic.partitions[asked.partition]
        if asked.start < state.start:
            raise OffsetOutOfRange(first=state.start, next_offset=state.end)
        return state

    def _looked_up(self, asked: RangeAsked) -> tuple[RangeAsked, int]:
        # the same, of the topic that there is (it may be deleted and made again while it is read), and where it ends
        state = self.find(asked)
        end = state.end if asked.end is None else min(asked.end, state.end)
        return attrs.evolve(asked, epoch=self._store.topics[asked.topic].epoch), end

    async def chunks(self, asked: RangeAsked) -> AsyncGenerator[bytes]:
        """The range in frames (`gateway.bulk.wire`). An error in the midst of it is its last frame."""
        offset = asked.start
        try:
            async with aclosing(self._framed(asked)) as framed:
                async for frames, next_offset in framed:
                    yield frames
                    offset = next_offset
        except GatewayError as error:
            yield wire.frame(wire.PROBLEM_FRAME, msgspec.json.encode(wire.problem_of(error)))
        else:
            yield wire.frame(wire.END_FRAME, wire.NEXT.pack(offset))

    async def arrow(self, asked: RangeAsked) -> AsyncGenerator[bytes]:
        """The range as an Arrow IPC stream. An error in the midst of it is raised: the stream has no end then."""
        encoder = await trio.to_thread.run_sync(arrow_encoder, limiter=self._limiter)
        yield encoder.begin()
        async with aclosing(self._read(asked)) as read:
            async for runs, _next_offset in read:
                yield await self._made(encoder, runs)
        yield encoder.finish()

    async def _framed(self, asked: RangeAsked) -> AsyncGenerator[tuple[bytes, int]]:
        # frames, and the offset behind them: chunks go out as they lie on disk, only looked at for damage; what is not that
        # simple is read and encoded
        asked, end = self._looked_up(asked)
        offset, left = asked.start, asked.max_bytes or UNLIMITED
        while offset < end and left > 0:
            size = min(READ_BYTES, left)
            self.find(attrs.evolve(asked, start=offset))
            stored = await self._store.read_stored(asked.topic, asked.partition, offset, end - offset, size)
            position = Position(asked.topic, asked.partition, offset, dense=self.dense_offsets)
            frames = await trio.to_thread.run_sync(_stored_frames, position, end, stored, limiter=self._limiter)
            if (
                position.offset == offset
            ):  # nothing is stored so, or what was to be cut is damaged: the slow way says which
                break
            offset, left = position.offset, left - len(frames)
            yield frames, offset
        else:
            return
        rest = attrs.evolve(asked, start=offset, end=end, max_bytes=left)
        async with aclosing(self._read(rest)) as read:
            async for runs, after in read:
                yield await self._made(_frames, runs), after

    async def _read(self, asked: RangeAsked) -> AsyncGenerator[tuple[Sequence[Run], int]]:
        asked, end = self._looked_up(asked)
        position = Position(asked.topic, asked.partition, asked.start, dense=self.dense_offsets)
        left = asked.max_bytes or UNLIMITED
        while position.offset < end and left > 0:
            offset = position.offset
            self.find(attrs.evolve(asked, start=offset))
            place = (asked.topic, asked.partition, offset, end - offset, min(READ_BYTES, left), 0)
            result = self._store.read_cached(*place) or await self._store.read(*place)
            # where offsets are not dense, so many messages may reach beyond the end of what is asked for
            runs = [_continued(position, run, end) for run in result.runs if run.base_offset < end]
            if not runs:
                if self.dense_offsets or result.next_offset <= offset:
                    raise CorruptChunk(asked.topic, asked.partition, offset, end)
                position.offset = result.next_offset  # what is left of a transaction is no message
                continue
            left -= sum(run.columns.value_bytes for run in runs) or 1  # values may be empty, and the bound still be met
            yield runs, position.offset

    async def _made(self, make: Encode, runs: Sequence[Run]) -> bytes:
        return await trio.to_thread.run_sync(make, runs, limiter=self._limiter)


def _continued(position: Position, run: Run, end: int) -> Run:
    # what of a run was not read before, and lies before the end
    stop = min(run.next_offset, end)
    return run.slice(position.skip(run.base_offset, stop), stop - run.base_offset)


def _frames(runs: Sequence[Run]) -> bytes:
    return b"".join([part for run in runs for part in _frame(run.base_offset, run.count, encode(run))])


def _frame(base: int, count: int, chunk: bytes) -> tuple[bytes, bytes, bytes]:
    head = wire.FRAME.pack(wire.PLACE.size + len(chunk), wire.CHUNK_FRAME)
    return head, wire.PLACE.pack(base, count), chunk


def _stored_frames(position: Position, end: int, stored: Sequence[Stored]) -> bytes:
    # frames of the chunks; the first and the last are cut to what is asked for. The others go out as they lie on the disk:
    # whoever takes a chunk apart looks at its checksum, so that a damaged one is found there, and costs nothing here
    parts: list[bytes] = []
    for base, count, blob in stored:
        begin, stop = position.offset, min(base + count, end)
        try:
            skip = position.skip(base, stop)
            if not skip and stop == base + count:
                parts += _frame(base, count, blob)
                continue
            run = decode(blob, position.topic, position.partition, base, count).slice(skip, stop - base)
        except CorruptChunk:
            position.offset = begin  # what is good before it goes out first
            break
        parts += _frame(run.base_offset, run.count, encode(run))
    return b"".join(parts)


class ArrowEncoder:
    """Runs as the messages of one Arrow IPC stream."""

    def __init__(self) -> None:
        try:
            import pyarrow as pa

            from gateway.arrow.columns import batches
            from gateway.arrow.schema import SCHEMA
        except ImportError as error:
            raise Unsupported(
                f"{error}: Arrow needs `pip install 'gateway[pipeline]'` on the gateway; {wire.CHUNKS} does not"
            ) from error
        self._batches = batches
        self._sink = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def begin(self) -> bytes:
        return self._taken()

    def __call__(self, runs: Sequence[Run]) -> bytes:
        for batch in self._batches(runs):
            self._writer.write_batch(batch)
        return self._taken()

    def finish(self) -> bytes:
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def arrow_encoder() -> ArrowEncoder:
    """One for a stream. Raises Unsupported where pyarrow is missing."""
    return ArrowEncoder()
