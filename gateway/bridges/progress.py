"""How far a forward is in one partition: what is settled, why, and what of that is on disk.

The cursor is one row, (forward, topic, partition) to the topic's epoch and an `AckWindow`. It is written one unit at a
time, together with the dead letters that settle a message: both happen or neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import attrs
import msgspec

from gateway.bridges.lanes import Entry
from gateway.broker.service import Timers
from gateway.envelope import Run
from gateway.errors import GatewayError, StoreDamaged
from gateway.recorder import ConsumerCounts
from gateway.store.ack_window import MAX_SPAN, AckWindow
from gateway.store.interface import Append, CreateTopic, Put, Store, Ticket, Unit

TABLE = "forwards"
WRITE_BEHIND = 0.02
"""A few settled messages wait this long for more before the cursor is written."""
TRY_AGAIN = 1.0
"""After a write that failed: the store is read-only."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    window: bytes
    tally: tuple[int, int, int, int, int, int] | None = None


def known_row(forward: str) -> Put:
    """That a forward exists: from now on a topic without a cursor is one that is new."""
    return Put(TABLE, forward.encode(), b"1")


IDENTITY = b"\0store"
"""The key of a row that tells this store from all others; no forward's name has such a character."""


def source_of(store: Store, forward: str, topic: str, epoch: int, partition: int) -> bytes:
    """What tells a log, and who reads it, from all others: other gateways know by it what they were sent before."""
    identity = store.table(TABLE).get(IDENTITY, b"")
    text = b"\0".join((identity, forward.encode(), topic.encode(), b"%d %d" % (epoch, partition)))
    return hashlib.blake2b(text, digest_size=16).digest()


def row_key(forward: str, topic: str, partition: int) -> bytes:
    """A cursor's key. Names have no control characters, so nothing else makes the same one."""
    return b"\0".join((forward.encode(), topic.encode(), str(partition).encode()))


@attrs.define(eq=False)
class Tally:
    """What became of the messages since the forward began with the partition at `start`."""

    start: int
    acknowledged: int = 0
    filtered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    trimmed: int = 0


def cursor_row(forward: str, topic: str, partition: int, epoch: int, window: AckWindow, tally: Tally) -> Put:
    """Write a cursor, with the account of how it came there."""
    row = _Row(epoch, window.to_bytes(), attrs.astuple(tally))
    return Put(TABLE, row_key(forward, topic, partition), msgspec.msgpack.encode(row))


def read_cursor(value: bytes, max_span: int) -> tuple[int, AckWindow, Tally]:
    """A row's epoch, window and account."""
    try:
        row = msgspec.msgpack.decode(value, type=_Row)
    except msgspec.DecodeError as error:
        raise StoreDamaged("a forward's cursor cannot be read") from error
    window = AckWindow.from_bytes(row.window, max_span)
    tally = Tally(*row.tally) if row.tally is not None else Tally(window.low, acknowledged=window.settled_above)
    return row.epoch, window, tally


def counts_of(forward: str, topic: str, partition: int, end: int, window: AckWindow, tally: Tally) -> ConsumerCounts:
    """The account of one partition whose log ends at `end`. A cursor beyond that has passed what is not there."""
    return ConsumerCounts(
        kind="forward",
        name=forward,
        start=tally.start,
        end=end,
        acknowledged=tally.acknowledged,
        backlog=max(0, end - window.low - window.settled_above),
        filtered=tally.filtered,
        expired=tally.expired,
        dead_lettered=tally.dead_lettered,
        trimmed=tally.trimmed,
        topic=topic,
        partition=partition,
    )


def stored_cursors(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str, int, bytes]]:
    """(forward, topic, partition, row) of every cursor in the table."""
    for key, value in rows:
        names = key.decode().split("\0")
        if len(names) == 3:
            yield names[0], names[1], int(names[2]), value


def stored_floor(store: Store) -> Callable[[str, int], int | None]:
    """How far retention may go by what is written: until the forwards themselves are there to ask."""
    lows: dict[tuple[str, int], int] = {}
    for _forward, topic, partition, value in stored_cursors(store.table(TABLE).items()):
        low = read_cursor(value, MAX_SPAN)[1].low
        lows[topic, partition] = min(low, lows.get((topic, partition), low))
    return lambda topic, partition: lows.get((topic, partition))


@attrs.frozen(eq=False)
class Letter:
    """A message that is given up."""

    entry: Entry
    reason: str
    topic: str
    """Where it goes; empty: where its topic's dead letters are."""


class DeadLetterMaker(Protocol):
    """What is needed of the dead-letter service."""

    def dead_letter_append(
        self,
        run: Run,
        index: int,
        *,
        reason: str,
        attempts: int,
        first_error: str,
        last_error: str,
        topic: str = "",
    ) -> tuple[Sequence[CreateTopic], Append]:
        """The operations that put one message into the dead letters."""
        ...


class Progress:
    """The cursor of one partition, and its writing."""

    def __init__(
        self,
        put: Callable[[AckWindow, Tally], Put],
        window: AckWindow,
        tally: Tally,
        store: Store,
        timers: Timers,
        now: Callable[[], float],
        dead_letters: DeadLetterMaker,
        saved: Callable[[Sequence[Letter]], None],
    ) -> None:
        self.window = window
        self.tally = tally
        self.unsaved = 0
        """Acknowledged messages that a crash would send again."""
        self.error = ""
        self.on_disk = window.low
        """Retention may go no further."""
        self._put = put
        self._store = store
        self._timers = timers
        self._now = now
        self._dead_letters = dead_letters
        self._saved = saved
        self._letters: list[Letter] = []
        self._dirty = False
        self._writing = False
        self._cancel: Callable[[], None] | None = None
        self.closed = False

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be written."""
        return not (self._dirty or self._writing or self._letters)

    def acknowledged(self, entries: Sequence[Entry]) -> None:
        """The target has them."""
        for entry in entries:
            self.window.settle(entry.offset)
        self.tally.acknowledged += len(entries)
        self.unsaved += len(entries)
        self._dirty = True

    def passed(self, first: int, next_offset: int) -> int:
        """Messages that are not to be delivered; returns how many were not settled before."""
        count = self.window.settle_range(first, next_offset)
        self._dirty = self._dirty or count > 0
        return count

    def tried(self, entries: Sequence[Entry]) -> None:
        """Remember attempts in vain: a restart must not give a message that fails all its attempts again."""
        for entry in entries:
            if entry.attempts and not self.window.is_settled(entry.offset):
                while self.window.outstanding.get(entry.offset, 0) < entry.attempts:
                    self.window.hand_out(entry.offset)
                self._dirty = True

    def give_up(self, letter: Letter) -> None:
        """Put a message into the dead letters; it counts as settled when that is written."""
        self._letters.append(letter)

    def save_soon(self, *, at_once: bool) -> None:
        """See to it that what changed is written."""
        if self._writing or self.closed or self.settled:
            return
        if at_once or self._letters:
            self.save()
        elif self._cancel is None:
            self._cancel = self._timers.call_at(self._now() + WRITE_BEHIND, self.save)

    def save(self) -> None:
        """Write the cursor, with the letters there are."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        if self._writing or self.closed or self.settled:
            return
        letters, self._letters = self._letters, []
        window, tally = self.window, self.tally
        creates: list[CreateTopic] = []
        appends: list[Append] = []
        if letters:
            window = AckWindow.from_bytes(self.window.to_bytes())
            tally = attrs.evolve(tally, dead_lettered=tally.dead_lettered + len(letters))
            for letter in letters:
                window.settle(letter.entry.offset)
                made, append = self._letter(letter)
                creates += (one for one in made if one not in creates)
                appends.append(append)
        unsaved, low = self.unsaved, window.low
        self._writing, self._dirty = True, False
        unit = Unit(
            creates=creates, appends=appends, puts=[self._put(window, tally)], synced=None if letters else False
        )
        self._store.submit(unit).on_done(lambda ticket: self._written(ticket, letters, unsaved, low))

    def _letter(self, letter: Letter) -> tuple[Sequence[CreateTopic], Append]:
        entry = letter.entry
        return self._dead_letters.dead_letter_append(
            entry.run,
            entry.index,
            reason=letter.reason,
            attempts=entry.attempts,
            first_error=entry.first_error or letter.reason,
            last_error=entry.last_error or letter.reason,
            topic=letter.topic,
        )

    def _written(self, ticket: Ticket, letters: Sequence[Letter], unsaved: int, low: int) -> None:
        self._writing = False
        error: GatewayError | None = ticket.error
        if error is not None:
            self.error = f"its cursor cannot be written: {error.message}"
            self._letters = [*letters, *self._letters]
            self._dirty = True
            if self._cancel is None and not self.closed:
                self._cancel = self._timers.call_at(self._now() + TRY_AGAIN, self.save)
            return
        self.error = ""
        self.unsaved -= unsaved
        self.on_disk = low
        for letter in letters:
            self.window.settle(letter.entry.offset)
        self.tally.dead_lettered += len(letters)
        self._saved(letters)
