"""What another gateway forwards twice is stored once: a window per source over the offsets its messages had there.

A gateway that forwards says of each message the offset it was read from and its envelope's id. The window is a ring of
marks, one for each of the last `SLOTS` offsets, made from those ids: a message is known if its offset's mark is its own.
The sender keeps less than that between the oldest message it may send again and the newest, so that the window forgets
nothing that can come again. A mark that is another's is nobody's loss: the message is stored. So a log that was restored
from a copy, and gives its offsets to other messages, loses none.

The ring is stored in segments, in the unit that appends the messages: both are there after a crash, or neither. The unit
requires that the segments are as they were when it was found out what is new: of two gateways on one log that are sent the
same, and of two batches of which the first could not be stored, one is told to send again, and then it is known. What a
plain client sends never has such marks, and a source belongs to the listener and the principal it came by.

Whoever forwards may send a batch before the one before it is answered, and says so: which message it comes after. It is
taken when that message is noted, and its unit requires that this is still so when it is stored: what comes after something
that could not be stored is not stored either, so that nothing overtakes what is sent again. And only over the connection by which
the source's last batch came: whoever has lost a connection sends again over another one, and what is still read from the first,
whose beginning may have been refused, has no place between that.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Mapping

import attrs

from gateway.broker.publish.door import Doors
from gateway.broker.publish.publication import Publication
from gateway.broker.service import Caller, Clock
from gateway.envelope import Copies
from gateway.errors import ConditionFailed, GatewayError, InvalidRequest, OutOfTurn, Throttled
from gateway.store.interface import Put, Require, Store, Unit

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
        mark = _mark_of_batch(batch_id)
        marks += [(mark + number * _STEP) & _MASK or 1 for number in range(index, index + count)]
    return marks


def _mark(batch_id: bytes, index: int) -> int:
    return (_mark_of_batch(batch_id) + index * _STEP) & _MASK or 1


def _mark_of_batch(batch_id: bytes) -> int:
    return int.from_bytes(batch_id[:8], "big") ^ int.from_bytes(batch_id[8:], "big") * 3


def offsets_of(copies: Copies) -> list[int]:
    return [number for offset, _id, _index, count in copies.ranges for number in range(offset, offset + count)]


@attrs.define(eq=False)
class Window:
    segments: dict[int, array[int]] = attrs.Factory(dict)
    """The ring, as far as it was ever used."""
    fleeting: dict[int, array[int]] = attrs.Factory(dict)
    """A second one, for what went to memory: it is in no row, and no row's condition may have it."""
    storing: set[int] = attrs.Factory(set)
    """Slots of messages that are on their way into the log."""
    used_ms: int = 0
    written_ms: int = 0
    by: int | None = None
    """The connection that the last batch came by, unless it was refused, or came to another gateway."""
    stale: bool = False
    """Another gateway has written it meanwhile, or nobody knows what became of a write: it is read again before it is used."""

    @property
    def held(self) -> int:
        return len(self.segments) + len(self.fleeting)

    def knows(self, slot: int, mark: int) -> bool:
        return _noted(self.segments, slot) == mark or (bool(self.fleeting) and _noted(self.fleeting, slot) == mark)

    def rows(self, numbers: Iterable[int]) -> dict[int, bytes | None]:
        """The stored form of segments; one in which nothing is noted has no row."""
        found: dict[int, bytes | None] = {}
        for number in numbers:
            segment = self.segments.get(number)
            found[number] = segment.tobytes() if segment is not None and any(segment) else None
        return found


def _noted(ring: Mapping[int, array[int]], slot: int) -> int:
    """What is noted in a slot; 0 is nothing."""
    segment = ring.get(slot // SEGMENT)
    return segment[slot % SEGMENT] if segment is not None else 0


def _note(ring: dict[int, array[int]], slot: int, mark: int) -> None:
    segment = ring.get(slot // SEGMENT)
    if segment is None:
        segment = ring[slot // SEGMENT] = array("Q", bytes(8 * SEGMENT))
    segment[slot % SEGMENT] = mark


@attrs.define(eq=False)
class _Claim:
    """What of one batch is new: until it is known how that ends, nobody else may store it."""

    source: bytes
    by: int
    """The connection."""
    window: Window
    marks: dict[int, tuple[int, int]]
    """Slot and mark of each new message, by its index in the batch."""
    slots: Iterable[int] = ()
    """Slots that nobody else may write until it is known how this batch ends."""
    before: dict[int, int] = attrs.Factory(dict)
    """What was noted in the slots that it has written."""
    fleeting: bool = False
    """They are of the second ring."""
    after: int | None = None
    """The slot of what it comes after, which is noted and may not be stored yet."""


class Deduplication:
    """Two steps: before the messages are looked at what came twice is left out, and when all is decided the marks of the
    others go into the unit that appends them.
    """

    def __init__(self, store: Store, clock: Clock, doors: Doors) -> None:
        self._store = store
        self._clock = clock
        self._doors = doors
        self._windows: dict[bytes, Window] = {}
        """By source, in the order they were last used."""
        self._held = 0
        """Segments of all windows together."""
        self._alone = store.capabilities.single_writer
        store.on_rows(TABLE, self._written_elsewhere)

    async def start(self) -> None:
        first = b""
        while page := await self._store.scan(TABLE, first, 256):
            for key, value in page:
                self._load(self._windows.setdefault(key[:16], Window()), key, value)
            first = page[-1][0] + b"\0"
        self._windows = dict(sorted(self._windows.items(), key=lambda one: one[1].used_ms))
        oldest = self._clock.now_ms() - KEEP_MS
        for source in [source for source, window in self._windows.items() if window.used_ms < oldest]:
            self._forget(source)
        self._held = sum(len(window.segments) for window in self._windows.values())

    def leave_out(self, publication: Publication) -> None:
        """Leave out what is stored already. What a broker elsewhere answers is not stored here: it could not come twice."""
        copies = publication.batch.copies
        if copies is None:
            return
        if any(part.route.proxy is not None for part in publication.parts):
            if copies.after is not None:
                raise OutOfTurn("nobody here knows what a broker elsewhere has")
            return
        if copies.count != publication.batch.columns.count:
            raise InvalidRequest("not as many copies as messages")
        source = _source(publication.caller, copies)
        window = self._windows.pop(source, None) or Window()
        # a dict keeps this order by itself: the first of it is what room is made with
        self._windows[source] = window  # the last one used is the last in line
        slots = [offset % SLOTS for offset in offsets_of(copies)]
        if not window.storing.isdisjoint(slots) or (window.stale and window.storing):
            raise Throttled("these messages are being stored")  # nobody knows yet how that ends
        if window.stale:
            self._read_again(source, window)
        claim = _Claim(source, publication.caller.id, window, {})
        if copies.after is not None:
            slot, mark = copies.after[0] % SLOTS, _mark(*copies.after[1:])
            if not window.knows(slot, mark):
                self._leave(source, window)
                raise OutOfTurn("what it comes after is not here")
            if window.by != publication.caller.id:
                raise OutOfTurn("what it comes after is sent over another connection by now")
            claim.after = slot
        here: dict[int, int] = {}
        for index, (slot, mark) in enumerate(zip(slots, marks_of(copies), strict=True)):
            if not window.knows(slot, mark) and here.get(slot) != mark:
                here[slot] = mark
                claim.marks[index] = slot, mark
        for part in publication.parts:
            came = part.columns.count
            part.keep([at for at in range(came) if part.member(at) in claim.marks])
            self._doors.drop(part.route.name, came - part.columns.count, "duplicate")
        window.by = publication.caller.id
        claim.slots = here
        window.storing.update(here)
        publication.claim = claim
        publication.ended.append(lambda error: self._ended(claim, error))

    def remember(self, publication: Publication) -> None:
        claim = publication.claim
        if claim is None:
            return
        window, refused, after = claim.window, publication.refused, claim.after
        durable = publication.durable(self._store)
        in_rows = durable and not (after is not None and _noted(window.fleeting, after))
        if after in window.storing and publication.appends and not in_rows:
            raise OutOfTurn(
                "what it comes after is not stored yet"
            )  # and nothing that is stored with this could require it
        claim.marks = {index: place for index, place in claim.marks.items() if index not in refused}
        held = window.held
        claim.fleeting = not durable
        ring = window.segments if durable else window.fleeting
        numbers = dict.fromkeys(slot // SEGMENT for slot, _mark in claim.marks.values())
        known = window.rows(numbers if after is None else {after // SEGMENT: None, **numbers})
        for slot, mark in claim.marks.values():
            claim.before[slot] = _noted(ring, slot)
            _note(ring, slot, mark)  # known before it is stored: the slots are claimed until that is sure
        if window.held > held:
            self._held += window.held - held
            self._make_room()
        # in the same unit as the messages: after a crash either both are there or neither
        if claim.marks and durable:
            publication.puts += self._puts(claim, numbers)
            if publication.plain:  # others are units of several batches, of which one may build on another
                publication.requires += [
                    Require(TABLE, _KEY.pack(claim.source, number), value)
                    for number, value in known.items()
                    if value is not None or not self._alone  # who alone writes makes the first row of a segment
                ]

    @staticmethod
    def refusal(publication: Publication, error: GatewayError) -> GatewayError:
        """What whoever sent it is told when it could not be stored."""
        if publication.claim is not None and isinstance(error, ConditionFailed):
            return Throttled("what came before, or came to another gateway, is not what was known: send it again")
        return error

    # --- inside ---

    def _ended(self, claim: _Claim, error: GatewayError | None) -> None:
        window = claim.window
        window.storing.difference_update(claim.slots)
        if error is not None:
            if claim.after is None and window.by == claim.by:  # what follows another comes after what is not here
                window.by = None
            for slot, mark in claim.before.items():
                _note(window.fleeting if claim.fleeting else window.segments, slot, mark)
            # the row that says when it was used last may not have been written either
            window.written_ms = 0
            window.stale = not self._alone
        self._leave(claim.source, window)

    def _leave(self, source: bytes, window: Window) -> None:
        if not window.held and not window.storing and not window.stale:  # nothing of it was taken
            self._windows.pop(source, None)

    def _make_room(self) -> None:
        while self._held > MAX_SEGMENTS:
            idle = next((source for source, window in self._windows.items() if not window.storing), None)
            if idle is None:  # all of them are at work: soon one is not
                break
            self._held -= self._windows[idle].held
            self._forget(idle)

    def _forget(self, source: bytes) -> None:
        # forget all of a source: at worst what it sends again is stored again
        rows = [_KEY.pack(source, number) for number in self._windows.pop(source).segments]
        self._store.submit(Unit(puts=[Put(TABLE, key, None) for key in (source, *rows)], synced=False))

    def _puts(self, claim: _Claim, numbers: Iterable[int]) -> list[Put]:
        window = claim.window
        rows = window.rows(numbers)
        puts = [Put(TABLE, _KEY.pack(claim.source, number), value, at_start=True) for number, value in rows.items()]
        window.used_ms = self._clock.now_ms()
        if window.used_ms >= window.written_ms + TOUCH_MS:
            window.written_ms = window.used_ms
            puts.append(Put(TABLE, claim.source, _USED.pack(window.used_ms), at_start=True))
        return puts

    def _written_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        # another gateway has stored something of these sources, or forgotten them
        for key, value in rows.items():
            source = key[:16]
            window = self._windows.pop(source, None) or Window()
            window.by = None
            if window.storing:
                window.stale = True
            elif not window.stale:
                held = len(window.segments)
                self._load(window, key, value)
                self._held += len(window.segments) - held
            if window.held or window.storing or window.stale:
                self._windows[source] = window

    def _read_again(self, source: bytes, window: Window) -> None:
        # where others write too all rows are in memory
        table = self._store.table(TABLE)
        self._held -= len(window.segments)
        window.segments.clear()
        for key in (source, *(_KEY.pack(source, number) for number in range(SLOTS // SEGMENT))):
            self._load(window, key, table.get(key))
        self._held += len(window.segments)
        window.stale = False

    @staticmethod
    def _load(window: Window, key: bytes, value: bytes | None) -> None:
        # one of its rows; None: there is no such row
        if len(key) != _KEY.size:
            window.used_ms = window.written_ms = _USED.unpack(value)[0] if value is not None else 0
            return
        number = _KEY.unpack(key)[1]
        if value is None:
            window.segments.pop(number, None)
        else:
            window.segments[number] = array("Q", value)


def _source(caller: Caller, copies: Copies) -> bytes:
    # nobody else can make the window of a source forget or believe anything
    owner = f"{caller.listener.name}\0{caller.origin.principal}\0".encode()
    return hashlib.blake2b(owner + copies.source, digest_size=16).digest()
