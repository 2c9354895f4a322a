"""What another gateway forwards twice is stored once: a window per source over the offsets its messages had there.

A gateway that forwards says of each message the offset it was read from and its envelope's id. The window is a ring of
marks, one for each of the last `SLOTS` offsets, made from those ids: a message is known if its offset's mark is its own.
The sender keeps less than that between the oldest message it may send again and the newest, so that the window forgets
nothing that can come again. A mark that is another's is nobody's loss: the message is stored. So a log that was restored
from a copy, and gives its offsets to other messages, loses none.

The ring is stored in segments, in the unit that appends the messages: both are there after a crash, or neither. What a
plain client sends never has such marks, and a source belongs to the listener and the principal it came by.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
from msgspec.structs import replace

from gateway.broker.publish import Publisher
from gateway.broker.service import Caller, Clock, Handler, Prepared
from gateway.envelope import Batch, Copies
from gateway.errors import GatewayError, InvalidRequest, Throttled
from gateway.recorder import DoorCounts, Recorder
from gateway.requests import Publish, Published, Request
from gateway.routing.table import RoutingTable
from gateway.store.interface import Durability, Placement, Put, Store, Ticket, Unit

TABLE = "copies"
SLOTS = 1 << 16
SEGMENT = 128
"""Marks in a row of the table, and in a piece of memory."""
MAX_SEGMENTS = 32_768
"""Of all windows together (32 MiB); beyond, the window that was unused for the longest is forgotten."""
KEEP_MS = 7 * 86_400_000
"""A source that has sent nothing for this long is forgotten at the next start."""
TOUCH_MS = 3_600_000
"""How often it is written down that a source is in use."""

_KEY = struct.Struct(">16sH")
_USED = struct.Struct(">Q")
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
"""Odd, and far from small: marks of neighbours in a batch have nothing in common."""


def marks_of(copies: Copies) -> list[int]:
    """A number for each message that no other message at its offset has; never 0."""
    marks: list[int] = []
    for _offset, batch_id, index, count in copies.ranges:
        mark = int.from_bytes(batch_id[:8], "big") ^ int.from_bytes(batch_id[8:], "big") * 3
        marks += [(mark + number * _STEP) & _MASK or 1 for number in range(index, index + count)]
    return marks


def offsets_of(copies: Copies) -> list[int]:
    """The offset of each message in its own log."""
    return [number for offset, _id, _index, count in copies.ranges for number in range(offset, offset + count)]


@attrs.define(eq=False)
class Window:
    """One source."""

    segments: dict[int, array[int]] = attrs.Factory(dict)
    """The ring, as far as it was ever used."""
    storing: set[int] = attrs.Factory(set)
    """Slots of messages that are on their way into the log."""
    used_ms: int = 0
    written_ms: int = 0

    def mark(self, slot: int) -> int:
        """What is noted in a slot; 0 is nothing."""
        segment = self.segments.get(slot // SEGMENT)
        return segment[slot % SEGMENT] if segment is not None else 0

    def note(self, slot: int, mark: int) -> None:
        """Note a mark."""
        segment = self.segments.get(slot // SEGMENT)
        if segment is None:
            segment = self.segments[slot // SEGMENT] = array("Q", bytes(8 * SEGMENT))
        segment[slot % SEGMENT] = mark

    def rows(self, slots: Iterable[int]) -> dict[int, bytes]:
        """The stored form of the segments these slots are in."""
        numbers = dict.fromkeys(slot // SEGMENT for slot in slots)
        return {number: self.segments[number].tobytes() for number in numbers}


class CopyService:
    """Takes every Publish; those that say what they copy are looked up before they are stored."""

    def __init__(
        self, store: Store, publisher: Publisher, table: RoutingTable, clock: Clock, recorder: Recorder
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._table = table
        self._clock = clock
        self._recorder = recorder
        self._windows: dict[bytes, Window] = {}
        """In the order they were last used."""
        self._held = 0
        """Segments of all of them."""
        self._duplicates: Counter[str] = Counter()

    def handlers(self) -> Mapping[type[Request], Handler]:
        """Publish, in front of the publisher."""
        return {Publish: self.publish}

    async def start(self) -> None:
        """Read every window of earlier processes."""
        first = b""
        while page := await self._store.scan(TABLE, first, 256):
            for key, value in page:
                self._load(key, value)
            first = page[-1][0] + b"\0"
        self._windows = dict(sorted(self._windows.items(), key=lambda one: one[1].used_ms))
        oldest = self._clock.now_ms() - KEEP_MS
        for source in [source for source, window in self._windows.items() if window.used_ms < oldest]:
            self._forget(source)
        self._held = sum(len(window.segments) for window in self._windows.values())

    def doors(self, doors: Iterable[DoorCounts]) -> Iterable[DoorCounts]:
        """The accounting at the door, with what came twice."""
        for door in doors:
            twice = self._duplicates[door.route]
            yield attrs.evolve(door, received=door.received + twice, duplicate=twice) if twice else door

    # --- the handler ---

    def publish(self, caller: Caller, request: Publish) -> None:
        """Store a batch, without what is stored already."""
        batch = request.batch
        copies = batch.copies
        if copies is None or self._proxied(caller, batch):
            self._publisher.publish(caller, request)
            return
        if copies.count != batch.columns.count:
            raise InvalidRequest("not as many copies as messages")
        source = _source(caller, copies)
        window = self._windows.pop(source, None) or Window()
        if window.segments:
            self._windows[source] = window  # the last one used is the last in line
        marks = marks_of(copies)
        slots = [offset % SLOTS for offset in offsets_of(copies)]
        storing = window.storing
        if storing and not storing.isdisjoint(slots):
            raise Throttled("these messages are being stored")  # nobody knows yet how that ends
        fresh: list[int] = []
        here: dict[int, int] = {}
        for index, slot in enumerate(slots):
            mark = marks[index]
            if window.mark(slot) != mark and here.get(slot) != mark:
                here[slot] = mark
                fresh.append(index)
        if len(fresh) < len(slots):
            self._count(caller, batch, sorted(set(range(len(slots))) - set(fresh)))
        if not fresh:
            caller.answer(request.id, Published(batch.address, self._clock.now_ms()))
            return
        kept = batch if len(fresh) == len(slots) else replace(batch, columns=batch.columns.pick(fresh))
        prepared = self._publisher.prepare(caller, kept, request.schema, request.create)
        refused = prepared.finish([Placement(0, 0)] * len(prepared.appends)).refused
        taken = [slots[index] for number, index in enumerate(fresh) if number not in refused]
        held = len(window.segments)
        for number, index in enumerate(fresh):
            if number not in refused:
                window.note(slots[index], marks[index])
        storing.update(taken)
        if len(window.segments) > held:
            self._windows[source] = window
            self._held += len(window.segments) - held
            self._make_room()
        puts = self._puts(source, window, taken) if self._durable(prepared) else []

        def done(ticket: Ticket) -> None:
            storing.difference_update(taken)
            if ticket.error is not None:
                for slot in taken:
                    window.note(slot, 0)
                caller.answer(request.id, ticket.error)
                return
            caller.answer(request.id, _placed(prepared.finish(ticket.placements), fresh, len(slots)))

        self._publisher.commit((prepared,), puts).on_done(done)

    # --- inside ---

    def _proxied(self, caller: Caller, batch: Batch) -> bool:
        """Whether a broker elsewhere answers: nothing is stored here that could come twice."""
        try:
            plan = self._table.writer(
                caller.listener.protocol, caller.listener.name, batch.address, caller.origin.principal
            )
        except GatewayError:
            return False  # refused further on, where that is counted
        routes = (plan.route,) if plan.route is not None else plan.candidates
        return any(route.proxy is not None for route in routes)

    def _make_room(self) -> None:
        while self._held > MAX_SEGMENTS:
            idle = next((source for source, window in self._windows.items() if not window.storing), None)
            if idle is None:  # all of them are at work: soon one is not
                break
            self._held -= len(self._windows[idle].segments)
            self._forget(idle)

    def _forget(self, source: bytes) -> None:
        """Forget all of a source: at worst what it sends again is stored again."""
        rows = [_KEY.pack(source, number) for number in self._windows.pop(source).segments]
        self._store.submit(Unit(puts=[Put(TABLE, key, None) for key in (source, *rows)], synced=False))

    def _puts(self, source: bytes, window: Window, slots: Sequence[int]) -> list[Put]:
        puts = [Put(TABLE, _KEY.pack(source, number), value) for number, value in window.rows(slots).items()]
        window.used_ms = self._clock.now_ms()
        if window.used_ms >= window.written_ms + TOUCH_MS:
            window.written_ms = window.used_ms
            puts.append(Put(TABLE, source, _USED.pack(window.used_ms)))
        return puts

    def _durable(self, prepared: Prepared) -> bool:
        """What goes to memory is gone after a crash, and may be stored again then."""
        created = {create.topic: create.config for create in prepared.creates}
        for append in prepared.appends:
            state = self._store.topics.get(append.topic)
            config = state.config if state is not None else created[append.topic]
            if config.durability is not Durability.MEMORY:
                return True
        return False

    def _count(self, caller: Caller, batch: Batch, indexes: Sequence[int]) -> None:
        columns = batch.columns.pick(indexes)
        plan = self._table.writer(
            caller.listener.protocol, caller.listener.name, batch.address, caller.origin.principal
        )
        for route, chosen in plan.split(columns)[0]:
            part = columns if chosen is None else columns.pick(chosen)
            self._duplicates[route.name] += part.count
            self._recorder.received(route.name, caller.listener.name, part.count, part.value_bytes)
            self._recorder.dropped(route.name, "duplicate", part.count)

    def _load(self, key: bytes, value: bytes) -> None:
        window = self._windows.setdefault(key[:16], Window())
        if len(key) == _KEY.size:
            _source_bytes, number = _KEY.unpack(key)
            window.segments[number] = array("Q", value)
        else:
            window.used_ms = window.written_ms = _USED.unpack(value)[0]


def _source(caller: Caller, copies: Copies) -> bytes:
    """Nobody else can make the window of a source forget or believe anything."""
    owner = f"{caller.listener.name}\0{caller.origin.principal}\0".encode()
    return hashlib.blake2b(owner + copies.source, digest_size=16).digest()


def _placed(reply: Published, fresh: Sequence[int], count: int) -> Published:
    """The reply for the whole batch: what came twice has no place of its own here."""
    if len(fresh) == count:
        return reply
    refused = {fresh[index]: error for index, error in reply.refused.items()}
    return Published(reply.topic_address, reply.timestamp_ms, reply.partition, reply.base_offset, refused=refused)
