"""Appends with an idempotence key: through the one publish path, the key in the same commit as the messages.

A row for each (producer, epoch, sequence) says where its messages went, and one for each producer how far it is. Rows of
an epoch go when the producer begins the next one, and those of a producer that has not been heard of for a week.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import msgspec
import trio

from gateway.broker.publish.appending import Appending
from gateway.broker.publish.pipeline import Pipeline
from gateway.broker.publish.publication import Prepared
from gateway.broker.service import Caller, Clock
from gateway.bulk.wire import LONGEST_PRODUCER, Appended, AppendRequest, Producer, Refusal, Stretch, columns_of
from gateway.envelope import Batch, Columns
from gateway.errors import ConditionFailed, Conflict, GatewayError, InvalidRequest, OutcomeUnknown, RequestError
from gateway.store.interface import Placement, Put, Require, Store, Unit, packed_placements, read_placements

TABLE = "producers"
APPENDS = "producer_appends"
REMEMBERED_MS = 7 * 24 * 3600 * 1000
SWEEP_SECONDS = 3600.0
ROWS_AT_A_TIME = 500
_PLACE = struct.Struct(">qq")


class Refused(RequestError):
    """Some messages of an append are refused, so nothing of it is stored."""

    def __init__(self, error: GatewayError, refused: Sequence[Refusal]) -> None:
        super().__init__(error.message)
        self.error = error
        self.refused = refused


class _AppendRow(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of an append; the placements stand behind it in the row."""

    digest: bytes
    parts: Sequence[tuple[str, int, int]]
    """(topic, partition, count) of each append of the unit."""
    filtered: int = 0


class _Head(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    sequence: int
    timestamp_ms: int


def _key(producer: str, epoch: int, sequence: int) -> bytes:
    # a name has no NUL, so no key of one is the beginning of another's
    return producer.encode() + b"\0" + _PLACE.pack(epoch, sequence)


class Appends:
    def __init__(self, store: Store, pipeline: Pipeline, appending: Appending, clock: Clock) -> None:
        self._store = store
        self._pipeline = pipeline
        self._appending = appending
        self._clock = clock
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def append(self, caller: Caller, body: AppendRequest) -> Appended:
        """Store the messages, or say where they are if they were stored before. Raises what refuses them."""
        columns = columns_of(body)
        if not 0 < len(body.producer) <= LONGEST_PRODUCER or "\0" in body.producer:
            raise InvalidRequest(f"a producer's name has 1 to {LONGEST_PRODUCER} characters, none of them NUL")
        if not (0 <= body.epoch < 1 << 62 and 0 <= body.sequence < 1 << 62):
            raise InvalidRequest("epoch and sequence count from 0")
        async with self._turn(body.producer):
            return await self._append(caller, body, columns)

    async def producer(self, name: str) -> Producer:
        head = await self._head(name)
        return Producer(head.epoch, head.sequence, head.timestamp_ms) if head is not None else Producer()

    async def run(self) -> None:
        while True:
            await self.sweep()
            await trio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        before = self._clock.now_ms() - REMEMBERED_MS
        first = b""
        while rows := await self._store.scan(TABLE, first, ROWS_AT_A_TIME):
            for key, value in rows:
                if msgspec.msgpack.decode(value, type=_Head).timestamp_ms < before:
                    async with self._turn(key.decode()):
                        await self._forget(key.decode(), value)
            first = rows[-1][0] + b"\0"

    # --- inside ---

    def _turn(self, producer: str) -> trio.Lock:
        # appends of one producer are made one after the other; its lock is there for as long as somebody has or wants it
        return self._locks.setdefault(producer, trio.Lock())

    async def _append(self, caller: Caller, body: AppendRequest, columns: Columns) -> Appended:
        digest = _digest(body, columns)
        head = await self._head(body.producer)
        if head is not None and body.epoch < head.epoch:
            raise Conflict(f"{body.producer} is in epoch {head.epoch}: epoch {body.epoch} is over")
        key = _key(body.producer, body.epoch, body.sequence)
        stored = await self._store.get(APPENDS, key)
        if stored is not None:
            return _repeated(body, stored, digest)
        prepared = await self._prepare(caller, body, columns)
        parts = [(append.topic, append.partition, append.columns.count) for append in prepared.appends]
        taken = sum(messages for _route, messages, _size in prepared.parts)
        row = _AppendRow(digest, parts, columns.count - taken)  # nothing was refused, so what is missing was filtered
        sequence = max(body.sequence, head.sequence) if head is not None and head.epoch == body.epoch else body.sequence
        new = msgspec.msgpack.encode(_Head(body.epoch, sequence, self._clock.now_ms()))
        puts = [
            Put(APPENDS, key, _encode(row), placed=True),
            Put(TABLE, body.producer.encode(), new),
        ]
        if head is not None and head.epoch < body.epoch:
            puts += [Put(APPENDS, old, None) for old in await self._rows(body.producer, body.epoch)]
        ticket = self._appending.commit([prepared], puts, [Require(APPENDS, key, None)])
        try:
            placements = await ticket.wait()
        except ConditionFailed:
            # whoever asked before went away, and its commit was under way: it is through now
            stored = await self._store.get(APPENDS, key)
            if stored is None:
                raise OutcomeUnknown("the same append is under way elsewhere") from None
            return _repeated(body, stored, digest)
        return _appended(row, placements)

    async def _prepare(self, caller: Caller, body: AppendRequest, columns: Columns) -> Prepared:
        batch = Batch(body.address, columns, partition=body.partition)
        prepared = await self._pipeline.prepare(caller, batch, create=body.create)
        refused = prepared.refused
        if refused:
            self._appending.discard([prepared])
            shown = [Refusal(index, error.message) for index, error in sorted(refused.items())]
            raise Refused(refused[shown[0].index], shown)
        return prepared

    async def _head(self, producer: str) -> _Head | None:
        row = await self._store.get(TABLE, producer.encode())
        if row is None:
            self._store.lost.check(TABLE, producer.encode(), f"the last append of {producer}")
        return msgspec.msgpack.decode(row, type=_Head) if row is not None else None

    async def _rows(self, producer: str, before_epoch: int) -> list[bytes]:
        # the keys of earlier epochs' appends, not more than a commit should carry: what stays goes with the next
        rows = await self._store.scan(APPENDS, _key(producer, 0, 0), ROWS_AT_A_TIME)
        return [key for key, _value in rows if _key(producer, 0, 0) <= key < _key(producer, before_epoch, 0)]

    async def _forget(self, producer: str, head: bytes) -> None:
        while keys := await self._rows(producer, 1 << 62):
            await self._store.submit(Unit(puts=[Put(APPENDS, key, None) for key in keys])).wait()
        await self._store.submit(
            Unit(puts=[Put(TABLE, producer.encode(), None)], requires=[Require(TABLE, producer.encode(), head)])
        ).wait()


def _digest(body: AppendRequest, columns: Columns) -> bytes:
    # of what is to be stored: the same key with something else is a mistake that must not pass as a repetition
    made = hashlib.blake2b(columns.packed, digest_size=16)
    made.update(
        msgspec.msgpack.encode(
            (body.address, body.protocol, body.listener, body.partition, body.keys, body.headers, body.expires)
        )
    )
    return made.digest()


def _encode(row: _AppendRow) -> bytes:
    data = msgspec.msgpack.encode(row)
    return len(data).to_bytes(4, "big") + data


def moved_row(value: bytes, place: Callable[[str, int, int], int]) -> bytes:
    """What is kept of an append whose messages are elsewhere now: `place` says where what was there in a partition is."""
    size = 4 + int.from_bytes(value[:4], "big")
    row = msgspec.msgpack.decode(value[4:size], type=_AppendRow)
    placements = [
        Placement(place(topic, partition, one.base_offset), one.timestamp_ms)
        for (topic, partition, _count), one in zip(row.parts, read_placements(value[size:]), strict=False)
    ]
    return value[:size] + packed_placements(placements)


def _repeated(body: AppendRequest, stored: bytes, digest: bytes) -> Appended:
    size = 4 + int.from_bytes(stored[:4], "big")
    row = msgspec.msgpack.decode(stored[4:size], type=_AppendRow)
    if row.digest != digest:
        raise Conflict(
            f"{body.producer} appended something else as epoch {body.epoch}, sequence {body.sequence}: what is repeated "
            "has to be the same, in the same order"
        )
    return msgspec.structs.replace(_appended(row, read_placements(stored[size:])), duplicate=True)


def _appended(row: _AppendRow, placements: Sequence[Placement]) -> Appended:
    places = [
        Stretch(topic, partition, placement.base_offset, count)
        for (topic, partition, count), placement in zip(row.parts, placements, strict=False)
    ]
    stored = sum(count for _topic, _partition, count in row.parts)
    time = placements[0].timestamp_ms if placements else 0
    return Appended(stored, time, places, filtered=row.filtered)
