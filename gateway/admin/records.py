"""What is in the log, message by message: browsed, searched, counted over time, and as each protocol would carry it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Annotated, Any

import attrs
import msgspec
import trio

from gateway.admin.access import Role
from gateway.admin.content import Content, Decode, HeaderSent, HeaderShown, content_of
from gateway.admin.inside import Inside
from gateway.admin.log import Named
from gateway.admin.operation import Asked, Large, Nothing, Query, Small, Streamed, operation
from gateway.envelope import BatchMeta, Columns, Delivery, Envelope, Headers, Origin, Run
from gateway.errors import NotFound, RequestError, UnknownPartition, UnknownTopic
from gateway.protocols.registry import Carries, ProtocolSpec, carried, protocols
from gateway.routing.fidelity import Fidelity, Way, fidelity
from gateway.store.interface import PartitionState
from gateway.wire.anatomy import FramePart

MOST_RECORDS = 100
"""Messages in one answer."""
MOST_SCANNED = 20_000
"""Records looked at in one answer when they are searched by key."""
SCAN_BYTES = 16 << 20
MOST_BARS = 120
MOST_COUNTED = 16
"""Partitions whose messages are counted over time; of more, the first."""
MOST_DOWNLOADED = 100_000
LINES = "application/x-ndjson"
THIS, ONE_WAY = "this message", Way.BRIDGE
FRAME_BYTES = 4 << 10
"""What is shown of a frame at most."""


class RecordShown(msgspec.Struct, frozen=True):
    """One message of the log, with everything that is known about it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    expires_ms: int
    key: Content | None
    headers: Sequence[HeaderShown]
    value: Content
    origin: Origin
    route: str
    delivery: str
    id: str


class RecordsAsked(Query, frozen=True, kw_only=True):
    topic: Named
    partition: Small = 0
    offset: Large | None = None
    """From this one on; without it and a time, the newest."""
    time_ms: Large | None = None
    """From the first one stored at or after it."""
    key: str | None = None
    """Only those with this key; at most so many are looked at, and `following` says where to go on."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_RECORDS)] = 20


class RecordsFound(msgspec.Struct, frozen=True):
    records: Sequence[RecordShown]
    start: int
    """The log's first offset."""
    end: int
    """The offset behind its last."""
    following: int
    """The offset to ask for next."""
    previous: int | None
    """Where a page would begin that ends where this one begins."""


class DownloadAsked(Query, frozen=True, kw_only=True):
    topic: Named
    partition: Small = 0
    start: Large = 0
    end: Large | None = None
    """Without one, as it is now; at most so many messages are sent."""


class VolumeAsked(Query, frozen=True, kw_only=True):
    topic: Named
    bars: Annotated[int, msgspec.Meta(ge=1, le=MOST_BARS)] = 60


class Volume(msgspec.Struct, frozen=True):
    """Messages over the log's life. `counted`: False where the store's offsets do not count messages."""

    counted: bool
    start_ms: int
    step_ms: int
    messages: Sequence[int]
    partitions: int
    """So many of the topic's partitions are in it."""


class PlaceAsked(Query, frozen=True, kw_only=True):
    topic: Named
    offset: Large
    partition: Small = 0


class MessageSent(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is nowhere in the log."""

    topic: str
    value: bytes
    protocol: str = ""
    """The protocol by which the message came."""
    key: bytes | None = None
    headers: Sequence[HeaderSent] = ()


class FieldFate(msgspec.Struct, frozen=True):
    """What becomes of a field: `kept`, `mapped`, `lost`, or `absent` where there was none."""

    name: str
    fate: str
    note: str = ""


class FrameShown(msgspec.Struct, frozen=True):
    """A frame, or the first bytes of a long one, and its parts."""

    title: str
    size: int
    data: bytes
    parts: Sequence[FramePart]
    fields: Sequence[FieldFate] = ()
    """What becomes of its fields here, where that is something else than in the protocol's other frames."""


class Tongue(msgspec.Struct, frozen=True):
    """A message as clients of one protocol get it."""

    protocol: str
    address: str
    served: bool
    """Whether a listener speaks it here."""
    frames: Sequence[FrameShown]
    fields: Sequence[FieldFate]
    promise: str
    problem: str = ""
    """Why it cannot be carried."""


class Tongues(msgspec.Struct, frozen=True):
    """The same message in every language."""

    record: RecordShown
    tongues: Sequence[Tongue]


class Records:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._store = inside.store

    @operation("GET", "/v1/records", Role.READ)
    async def records(self, asked: Asked[RecordsAsked, None]) -> RecordsFound:
        """Messages of one partition: from an offset, from a time, the newest, or by key."""
        query = asked.query
        bounds = await self._bounds(query.topic, query.partition)
        start, end = bounds.start, bounds.end
        if query.time_ms is not None:
            first = await self._store.offset_for_time(query.topic, query.partition, query.time_ms)
        elif query.offset is not None:
            first = max(query.offset, start)
        else:
            first = start if query.key is not None else max(start, end - query.limit)
        wanted = query.key.encode() if query.key is not None else None
        found: list[Envelope] = []
        position, scanned = first, 0
        while position < end and len(found) < query.limit and scanned < MOST_SCANNED:
            most = query.limit - len(found) if wanted is None else 1_000
            result = await self._store.read(query.topic, query.partition, position, most, SCAN_BYTES, 0)
            if result.next_offset <= position:
                break
            position = result.next_offset
            for run in result.runs:
                scanned += run.count
                for index in range(run.count):
                    if wanted is None or run.columns.key(index) == wanted:
                        found += run.slice(index, index + 1).envelopes()
        if len(found) > query.limit:
            position = found[query.limit].offset
            del found[query.limit :]
        shown = await self._shown(query.topic, found)
        previous = max(start, first - query.limit) if first > start else None
        return RecordsFound(shown, start, end, position, previous)

    @operation("GET", "/v1/download", Role.READ, media=(LINES,))
    async def download(self, asked: Asked[DownloadAsked, None]) -> Streamed:
        """A range of one partition as JSON, a message a line, bytes in base64."""
        query = asked.query
        bounds = await self._bounds(query.topic, query.partition)
        end = min(query.end if query.end is not None else bounds.end, bounds.end)
        return Streamed(self._lines(query, max(query.start, bounds.start), end), LINES, filename="messages.jsonl")

    async def _lines(self, query: DownloadAsked, position: int, end: int) -> AsyncGenerator[bytes]:
        left = MOST_DOWNLOADED
        while position < end and left > 0:
            most = min(left, end - position, 1_000)
            result = await self._store.read(query.topic, query.partition, position, most, SCAN_BYTES, 0)
            if result.next_offset <= position:
                break
            position = result.next_offset
            for run in result.runs:
                left -= run.count
                for one in run.envelopes():
                    if one.offset < end:  # so many messages may reach beyond it, where some offsets have none
                        yield msgspec.json.encode(one) + b"\n"
                await trio.lowlevel.checkpoint()

    @operation("GET", "/v1/volume", Role.READ)
    async def volume(self, asked: Asked[VolumeAsked, None]) -> Volume:
        """How many messages a topic got over its log's life, bar by bar."""
        topic, bars = asked.query.topic, asked.query.bars
        await self._inside.bulk.look_again(topic)
        state = self._store.topics.get(topic)
        if state is None:
            raise UnknownTopic(f"there is no topic {topic}")
        counted = self._store.capabilities.dense_offsets
        full = [(n, one) for n, one in enumerate(state.partitions[:MOST_COUNTED]) if one.end > one.start]
        if not counted or not full:
            return Volume(counted, 0, 60_000, (), len(full))
        begins = []
        for number, one in full:
            result = await self._store.read(topic, number, one.start, 1, 1, 0)
            begins += [run.times[0] for run in result.runs[:1]]
        first = min(begins, default=0)
        last = max(one.last_time_ms for _number, one in full)
        # whole minutes; where the log is short, one of them
        step = max(1, -(-(last - first + 1) // (bars * 60_000))) * 60_000
        first -= first % step
        count = min(bars + 1, (last - first) // step + 1)
        messages = [0] * count
        for number, one in full:
            before = one.start
            for bar in range(count):
                at = first + (bar + 1) * step
                after = one.end if at > last else await self._store.offset_for_time(topic, number, at)
                after = min(max(after, before), one.end)
                messages[bar] += after - before
                before = after
        return Volume(counted, first, step, messages, len(full))

    @operation("GET", "/v1/languages", Role.READ)
    async def languages(self, asked: Asked[PlaceAsked, None]) -> Tongues:
        """A stored message as each protocol carries it: the frame byte by byte, and what becomes of every field."""
        query = asked.query
        bounds = await self._bounds(query.topic, query.partition)
        if not bounds.start <= query.offset < bounds.end:
            raise NotFound(
                f"{query.topic}/{query.partition} has no offset {query.offset}: it has {bounds.start} to {bounds.end - 1}"
            )
        result = await self._store.read(query.topic, query.partition, query.offset, 1, SCAN_BYTES, 0)
        if not result.runs or result.runs[0].base_offset != query.offset:
            raise NotFound(f"there is no message at offset {query.offset}")
        return await self._tongues(result.runs[0].slice(0, 1))

    @operation("POST", "/v1/languages", Role.READ)
    async def translate(self, asked: Asked[Nothing, MessageSent]) -> Tongues:
        """A message that is not in the log, such as one that was tapped, as each protocol carries it."""
        body = asked.body
        headers: list[Headers] = [tuple((one.name, one.value) for one in body.headers)]
        columns = Columns.of(
            [body.value], [body.key] if body.key is not None else None, headers if body.headers else None
        )
        now = int(self._inside.now() * 1000)
        meta = BatchMeta(bytes(16), Origin(body.protocol, ""), "", Delivery.AT_LEAST_ONCE)
        return await self._tongues(Run(body.topic, 0, 0, columns, [now], [(0, 0, meta)]))

    # --- inside ---

    async def _bounds(self, topic: str, partition: int) -> PartitionState:
        await self._inside.bulk.look_again(topic)
        state = self._store.topics.get(topic)
        if state is None:
            raise UnknownTopic(f"there is no topic {topic}")
        if partition >= len(state.partitions):
            raise UnknownPartition(f"{topic} has {len(state.partitions)} partitions")
        return state.partitions[partition]

    async def _shown(self, topic: str, envelopes: Sequence[Envelope]) -> Sequence[RecordShown]:
        state = self._store.topics.get(topic)
        schema = state.config.schema if state is not None else ""
        kind, decode = "", None
        if schema:
            try:
                found, decode = self._inside.house.schemas.decoding(schema)
                kind = found.value
            except NotFound:
                pass  # named in the configuration and not registered yet
        if decode is None:
            return [_record(one, "", None) for one in envelopes]
        return await trio.to_thread.run_sync(lambda: [_record(one, kind, decode) for one in envelopes])

    async def _tongues(self, run: Run) -> Tongues:
        specs = protocols()
        source = run.meta_of(0)[0].origin.protocol
        (record,) = await self._shown(run.topic, list(run.envelopes()))
        return Tongues(
            record, [self._tongue(spec, run, source, specs) for spec in specs.values() if spec.shows is not None]
        )

    def _tongue(self, spec: ProtocolSpec, run: Run, source: str, specs: Mapping[str, ProtocolSpec]) -> Tongue:
        address, served = self._address(spec.name, run.topic)
        rows = carried(specs)
        # what it has is what it can lose, whatever its protocol could have given it
        columns = run.columns
        has = attrs.evolve(
            rows.get(source, spec.carries),
            key=columns.key(0) is not None,
            headers=bool(columns.headers_of(0)),
            expiry=bool(columns.expires and columns.expires[0]),
            partition=True,
            offset=True,
            time=True,
        )

        def through(carries: Carries) -> Fidelity:
            return fidelity(THIS, spec.name, {THIS: has, spec.name: carries}, ONE_WAY)

        found, size, problem = through(spec.carries), len(columns.value(0)), ""
        if not spec.carries.holds(size):
            least, most = spec.carries.min_value, spec.carries.max_value
            problem = f"{spec.name} carries values of {least} to {most} bytes: this one has {size}"
        frames: list[FrameShown] = []
        assert spec.shows is not None
        carrying = {row for row in rows if row.split()[0] == spec.name and rows[row].holds(size)}
        try:
            for one in spec.shows(run, address) if carrying else ():
                row = f"{spec.name} {one.dialect}".strip()
                if row in carrying:
                    absent: dict[str, Any] = dict.fromkeys(one.without, False)
                    fates = _fates(through(attrs.evolve(rows[row], **absent))) if one.dialect else ()
                    frames.append(FrameShown(one.title, len(one.frame), one.frame[:FRAME_BYTES], one.parts, fates))
        except RequestError as error:
            problem = error.message
        return Tongue(spec.name, address, served, frames, _fates(found), found.promise, problem)

    def _address(self, protocol: str, topic: str) -> tuple[str, bool]:
        for listener in self._inside.config.listeners.values():
            if protocol in listener.protocols:
                address = self._inside.table.address_of(protocol, listener.name, topic)
                if address is not None:
                    return address, True
        return topic, False


def _fates(found: Fidelity) -> Sequence[FieldFate]:
    return [FieldFate(one.name, one.fate.value, one.note) for one in found.fields]


def _record(one: Envelope, kind: str, decode: Decode | None) -> RecordShown:
    return RecordShown(
        one.topic,
        one.partition,
        one.offset,
        one.timestamp_ms,
        one.expires_ms,
        content_of(one.key, most=1024) if one.key is not None else None,
        [HeaderShown(name, content_of(value, most=1024)) for name, value in one.headers[:100]],
        content_of(one.value, kind, decode),
        one.origin,
        one.route,
        one.delivery.name.lower(),
        one.id.hex(),
    )
