"""Dead letters are published again: each at most once, however often it is asked for.

That a letter was redriven is written in the same commit that publishes its message; the letter itself stays until its
topic is purged. A message goes back into the topic it came from, as of the route it came by (so a `forward` of that route
delivers it), or by the routes to another address. How often it died goes with it: what died too often stays where it is.

Apart from the service, which serves requests: what makes this harmless to repeat is a table of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio
from msgspec.structs import replace

from gateway.broker.letters import PREFIX, Facts, split_headers
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.pipeline import Pipeline
from gateway.broker.publish.publication import TRANSFORM, Prepared
from gateway.broker.service import Caller, Clock
from gateway.bulk.wire import Redrive, Redriven
from gateway.envelope import Batch, BatchIds, Columns, Run
from gateway.errors import ConditionFailed, Conflict, InvalidRequest, RequestError, StoreReadOnly, UnknownTopic
from gateway.requests import Published
from gateway.store.interface import Append, Put, Require, Store, Ticket, Unit

TABLE = "redriven"
MOST = 1_000
"""Letters in one request."""
LETTER_BYTES = 64 << 20
MAX_OFFSET = 1 << 60
MOST_PARTITIONS = 1 << 30
ROWS_AT_A_TIME = 500
_LIFE, _OFFSET = struct.Struct(">q"), struct.Struct(">iq")


@attrs.frozen
class _Letter:
    run: Run
    facts: Facts
    columns: Columns
    """The message as it goes out again."""


@attrs.frozen(eq=False)
class _UnderWay:
    offset: int
    target: str
    ticket: Ticket


def _life(topic: str, epoch: int) -> bytes:
    return topic.encode() + b"\0" + _LIFE.pack(epoch)


def row_key(topic: str, epoch: int, partition: int, offset: int) -> bytes:
    """The row of a letter that was redriven."""
    return _life(topic, epoch) + _OFFSET.pack(partition, offset)


def read_key(key: bytes) -> tuple[str, int, int, int]:
    """The opposite of `row_key`."""
    life, place = key[: -_OFFSET.size], key[-_OFFSET.size :]
    partition, offset = _OFFSET.unpack(place)
    return life[: -_LIFE.size - 1].decode(), _LIFE.unpack(life[-_LIFE.size :])[0], partition, offset


class Redrives:
    def __init__(self, store: Store, pipeline: Pipeline, appending: Appending, clock: Clock) -> None:
        self._store = store
        self._pipeline = pipeline
        self._appending = appending
        self._clock = clock
        self._ids = BatchIds()
        self._lock = trio.Lock()

    async def redrive(self, caller: Caller, asked: Redrive) -> Sequence[Redriven]:
        """Publish letters again, in their order, or say why not. Raises for a topic that is not what it was."""
        with suppress(StoreReadOnly):  # what it is to write will not be taken either
            await self._store.refresh_ends([asked.topic])
        state = self._store.topics.get(asked.topic)
        if state is None:
            raise UnknownTopic(f"there is no topic {asked.topic}")
        if state.epoch != asked.epoch:
            raise Conflict(f"{asked.topic} was purged and made again: look at it again")
        if not 0 <= asked.partition < len(state.partitions):
            raise InvalidRequest(f"{asked.topic} has no partition {asked.partition}")
        if len(asked.offsets) > MOST:
            raise InvalidRequest(f"at most {MOST} letters in one request, not {len(asked.offsets)}")
        if asked.edited is not None and len(asked.offsets) != 1:
            raise InvalidRequest("what is edited is one letter at a time")
        if not all(0 <= offset <= MAX_OFFSET for offset in asked.offsets):
            raise InvalidRequest("offsets count from 0")
        async with self._lock:
            begun = [await self._begin(caller, asked, offset) for offset in asked.offsets]
            return [await self._end(one) if isinstance(one, _UnderWay) else one for one in begun]

    async def done(self, topic: str, epoch: int, partition: int, first: int, limit: int) -> Sequence[int]:
        """Offsets from `first` on of letters that were redriven, at most so many."""
        if partition > MOST_PARTITIONS:
            raise InvalidRequest(f"{topic} has no partition {partition}")
        life = _life(topic, epoch)
        rows = await self._store.scan(TABLE, life + _OFFSET.pack(partition, first), limit)
        found = [(key, _OFFSET.unpack(key[-_OFFSET.size :])) for key, _value in rows if key.startswith(life)]
        return [offset for _key, (number, offset) in found if number == partition]

    async def forget(self) -> None:
        lives = {_life(topic.name, topic.epoch) for topic in self._store.topics.values()}
        first = b""
        while rows := await self._store.scan(TABLE, first, ROWS_AT_A_TIME):
            gone = [key for key, _value in rows if key[: -_OFFSET.size] not in lives]
            if gone:
                await self._store.submit(Unit(puts=[Put(TABLE, key, None) for key in gone])).wait()
            first = rows[-1][0] + b"\0"

    # --- inside ---

    async def _begin(self, caller: Caller, asked: Redrive, offset: int) -> Redriven | _UnderWay:
        # submit a letter's message; the commits of many letters are shared
        key = row_key(asked.topic, asked.epoch, asked.partition, offset)
        before = await self._store.get(TABLE, key)
        if before is not None:
            return Redriven(offset, "before", before.decode())
        self._store.lost.check(TABLE, key, f"whether letter {offset} was sent again")
        try:
            letter = await self._letter(asked, offset)
            if letter is None:
                return Redriven(offset, "gone", message="there is no letter at this offset any more")
            target = asked.to or letter.facts.topic
            _check(letter, asked, target, self._clock.now_ms())
            if asked.dry_run:
                self._check_target(asked, target)
                return Redriven(offset, "would", target)
            prepared = await self._again(caller, asked, letter, target)
        except RequestError as error:
            return Redriven(offset, "refused", asked.to, error.message)
        rows = [Put(TABLE, key, target.encode())]
        return _UnderWay(offset, target, self._appending.commit([prepared], rows, [Require(TABLE, key, None)]))

    async def _end(self, one: _UnderWay) -> Redriven:
        try:
            await one.ticket.wait()
        except ConditionFailed:
            return Redriven(one.offset, "before", one.target)
        return Redriven(one.offset, "done", one.target)

    async def _letter(self, asked: Redrive, offset: int) -> _Letter | None:
        state = self._store.topics[asked.topic].partitions[asked.partition]
        if not state.start <= offset < state.end:
            return None
        result = await self._store.read(asked.topic, asked.partition, offset, 1, LETTER_BYTES, 0)
        if not result.runs or result.runs[0].base_offset != offset:
            return None  # a log may have offsets without a message: the next one is another letter
        run = result.runs[0]
        columns = run.columns
        own, facts = split_headers(columns.headers_of(0))
        # the count goes with the message, so that one that dies again and again is seen
        headers = (*own, (PREFIX + "count", str(facts.count).encode()))
        expires = [facts.expires_ms] if facts.expires_ms else None
        if asked.edited is not None:
            edited, died = asked.edited, headers[-1]
            kept = tuple(one for one in edited.headers if not one[0].startswith(PREFIX))
            changed = Columns.of([edited.value], [edited.key], [(*kept, died)], expires)
            return _Letter(run, facts, changed)
        return _Letter(run, facts, Columns.of([columns.value(0)], [columns.key(0)], [headers], expires))

    def _check_target(self, asked: Redrive, target: str) -> None:
        if not asked.to and target not in self._store.topics:
            raise UnknownTopic(f"the topic {target} is gone: name another place with --to")

    async def _again(self, caller: Caller, asked: Redrive, letter: _Letter, target: str) -> Prepared:
        if asked.to:
            prepared = await self._pipeline.prepare(caller, Batch(asked.to, letter.columns))
            if prepared.refused:
                self._appending.discard([prepared])
                raise next(iter(prepared.refused.values()))
            return prepared
        self._check_target(asked, target)
        partitions = len(self._store.topics[target].partitions)
        partition = letter.facts.partition if letter.facts.partition < partitions else 0
        now = self._clock.now_ms()
        meta = replace(letter.run.meta_of(0)[0], id=self._ids.next(now))
        parts = ((meta.route, 1, letter.columns.value_bytes),)
        self._appending.adopt(parts)
        append = Append(target, partition, letter.columns, meta)
        return Prepared([append], (), lambda _placed: Published(target, now), parts, self._clock.now())


def _check(letter: _Letter, asked: Redrive, target: str, now_ms: int) -> None:
    # raise unless a letter may go out again
    if not letter.facts.reason:
        raise InvalidRequest("this is no dead letter: it has no reason")
    if not target:
        raise InvalidRequest("it does not say which topic it came from: name a place with --to")
    if letter.facts.reason == TRANSFORM and not asked.to:
        raise Conflict("its route could not transform it: publish it by the routes, with --to")
    if 0 < letter.facts.expires_ms <= now_ms:
        raise Conflict("it has expired meanwhile: nobody would get it")
    if letter.facts.count > asked.max_replays:
        raise Conflict(f"it died {letter.facts.count} times, and --max-replays is {asked.max_replays}")
