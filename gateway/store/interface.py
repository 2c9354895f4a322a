"""What the rest of the house may ask of a store. Nothing above assumes one process, one commit over everything, or
offsets before completion.

Writing is `submit(unit) -> Ticket`: appends, topic changes and table writes that succeed together. Offsets are given
out by the commit; the ticket is done when the unit is as durable as its topics promise, and everything in it is visible
by then. Reading is by position, from the tail cache if the records are there (`read_cached`, no await) and from disk
otherwise (`read`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import msgspec

from gateway.envelope import BatchMeta, Columns, Run
from gateway.errors import GatewayError
from gateway.store.lost import LostRows

Stored = tuple[int, int, bytes]
"""Base offset, count and bytes of a chunk, as its row says; nobody has looked at the bytes."""


class Durability(enum.Enum):
    """When an append counts as stored."""

    FSYNC = "fsync"  # after the synced commit
    INTERVAL = "interval"  # after the unsynced write; synced within the interval
    NONE = "none"  # after the write; never synced by us
    MEMORY = "memory"  # no disk; a new epoch at each start


@attrs.frozen
class TopicConfig:
    """The settings of a topic. None means without limit."""

    partitions: int = 1
    durability: Durability = Durability.FSYNC
    interval: float = 0.005
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    schema: str = ""


@attrs.define(eq=False)
class PartitionState:
    """What is readable of one partition: offsets [start, end)."""

    start: int = 0
    end: int = 0
    bytes: int = 0
    last_time_ms: int = 0


@attrs.define(eq=False)
class TopicState:
    """A topic that exists. `epoch` changes when it is deleted and made again, or forgotten (memory)."""

    name: str
    epoch: int
    config: TopicConfig
    partitions: list[PartitionState]


# --- a unit ---


class Append(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Records for one partition, in this order."""

    topic: str
    partition: int
    columns: Columns
    meta: BatchMeta
    first_index: int = 0
    """Index of the first record inside its batch, when a batch was spread over partitions contiguously."""
    indexes: Sequence[int] | None = None
    """The index of each record inside its batch, when it was spread by key."""
    as_read: Run | None = None
    """A copy from another log keeps the batches and times of what was read there: these count, and not the other fields."""


def copied(run: Run) -> Append:
    """Append what was read, as it was read."""
    return Append(run.topic, run.partition, run.columns, run.batches[0][2], as_read=run)


class MakeTopic(msgspec.Struct, frozen=True):
    """Make a topic; what exists is kept."""

    topic: str
    config: TopicConfig


class AlterTopic(msgspec.Struct, frozen=True):
    """Change settings; partitions never shrink."""

    topic: str
    config: TopicConfig


class DropTopic(msgspec.Struct, frozen=True):
    """Drop a topic and its records."""

    topic: str
    seen: tuple[int, int] | None = None
    """Its epoch and the sum of its partitions' ends: only while they are this, so that nothing goes that nobody has looked at."""


class Put(msgspec.Struct, frozen=True):
    """Write a table's row, or delete it (value None).

    `placed`: behind the value comes where each append of the unit went, which nobody knows before the commit
    (`read_placements`). A unit that appends to memory topics has no places when it is written: its row has none.

    `at_start`: nobody reads it before the store is opened again; until then `scan` and `get` may miss it.
    """

    table: str
    key: bytes
    value: bytes | None
    placed: bool = False
    at_start: bool = False


class Require(msgspec.Struct, frozen=True):
    """The unit applies only while this row has this value (None: is absent)."""

    table: str
    key: bytes
    value: bytes | None


Operation = Append | MakeTopic | AlterTopic | DropTopic | Put | Require


class Unit(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Operations that succeed together. They apply in this order: Require, CreateTopic, AlterTopic, Append, Put, DeleteTopic."""

    appends: Sequence[Append] = ()
    puts: Sequence[Put] = ()
    requires: Sequence[Require] = ()
    creates: Sequence[MakeTopic] = ()
    alters: Sequence[AlterTopic] = ()
    deletes: Sequence[DropTopic] = ()
    synced: bool | None = None
    """None: as durable as the topics it appends to promise, and synced if it appends to none. False: puts may be lost by
    a power cut (cursors that at-least-once may repeat)."""
    source: int = 0
    """Who hands it in. What does nothing but append may be committed before or behind the like of another source, so that who
    has little to store need not wait for who has much. 0: it keeps its place among all."""


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where one Append went."""

    base_offset: int
    timestamp_ms: int
    offsets: Sequence[int] | None = None
    """Where each record went, if they do not follow each other: others may write to the same log."""

    def offset(self, index: int) -> int:
        """Where the record at this index of the append went."""
        return self.base_offset + index if self.offsets is None else self.offsets[index]


_PLACED = struct.Struct("<qq")


def packed_placements(placements: Sequence[Placement]) -> bytes:
    """Placements as bytes, as they stand behind the value of a `Put(placed=True)`."""
    return b"".join([_PLACED.pack(one.base_offset, one.timestamp_ms) for one in placements])


def read_placements(data: bytes) -> Sequence[Placement]:
    """The placements behind such a value."""
    return [Placement(*one) for one in _PLACED.iter_unpack(data)]


class Ticket(msgspec.Struct, eq=False):
    """A submitted unit. Callbacks run in the event loop, after everything in the unit is visible; of units that touch the same
    topic or table, in submit order, as far as one source has handed them in (`Unit.source`).
    """

    unit: Unit
    first: Callable[[Ticket], None] | None = None
    """The callback that comes before all others."""
    done: bool = False
    placements: Sequence[Placement] = ()
    error: GatewayError | None = None
    callbacks: list[Callable[[Ticket], None]] = msgspec.field(default_factory=list)

    def on_done(self, callback: Callable[[Ticket], None]) -> None:
        """Call back when it is done; at once if it is already."""
        if self.done:
            callback(self)
        else:
            self.callbacks.append(callback)

    def finish(self, placements: Sequence[Placement] = (), error: GatewayError | None = None) -> None:
        """The store's side: the unit is committed, or failed as a whole."""
        self.done = True
        self.placements = placements
        self.error = error
        if self.first is not None:
            self.first(self)
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback(self)

    async def wait(self) -> Sequence[Placement]:
        """Wait until it is done; raises its error. For callers that are not on the hot path."""
        import trio  # the reader side of the store is imported without trio

        event = trio.Event()
        self.on_done(lambda _ticket: event.set())
        await event.wait()
        if self.error is not None:
            raise self.error
        return self.placements


# --- reading ---


class ReadResult(msgspec.Struct, frozen=True, eq=False):
    """One contiguous stretch [asked, next_offset). Expired records inside it are left out of the runs."""

    runs: Sequence[Run]
    next_offset: int
    expired: int = 0


@attrs.frozen
class Capabilities:
    """What a store promises; `gateway check` refuses what it cannot serve."""

    dense_offsets: bool = True
    single_writer: bool = True
    memory_topics: bool = True


@attrs.frozen
class StoreHealth:
    """Whether the store takes writes, and why not."""

    writable: bool
    reason: str = ""


class Store(Protocol):
    """A log with tables."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store promises."""
        ...

    @property
    def health(self) -> StoreHealth:
        """Whether it takes writes now."""
        ...

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """Every topic as of the last commit that is visible."""
        ...

    @property
    def lost(self) -> LostRows:
        """What damage has taken along of the tables: who decides by the absence of a row asks here first."""
        ...

    def submit(self, unit: Unit, done: Callable[[Ticket], None] | None = None, /) -> Ticket:
        """Queue a unit. Refusals known at once (read-only, unknown topic) come back in a finished ticket. `done` hears how
        it ended, like who asks the ticket.
        """
        ...

    def hold(self) -> None:
        """Units are coming that should be committed together: wait for the `release` that goes with this. Both are called
        without an await between them.
        """
        ...

    def release(self, by: int) -> None:
        """They are all there. `by`: the connection that hands them in; a store may serve who is alone at once."""
        ...

    def on_visible(self, callback: Callable[[Iterable[tuple[str, int]]], None]) -> None:
        """Call back after each commit, before its tickets, with the (topic, partition) pairs that grew or went away. What others
        write is told of topics that somebody watches.
        """
        ...

    def around_tickets(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call these before and after the tickets of each commit are finished, so that replies can leave together."""
        ...

    def set_retention_floor(self, floor: Callable[[str, int], int | None]) -> None:
        """Ask this before trimming a partition, if it is this store that trims."""
        ...

    def on_rows(self, table: str, callback: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """Call back when somebody else has written rows of a table, with their values now (None: gone). Who has written such a
        row himself, too, hears of that first, from the ticket's callbacks: what he is told here then was written later. Where
        there is one writer nobody else does.
        """
        ...

    @property
    def slots(self) -> int:
        """How many parts there are of what only one writer may do."""
        ...

    @property
    def member(self) -> bytes:
        """What this writer is called among those to whom slots are handed out."""
        ...

    def on_slots(self, callback: Callable[[frozenset[int]], None]) -> None:
        """Call back with the slots that are handed out to this writer, whenever that changes. Who was taken for dead hears of
        none, and then of those that he has all the same.
        """
        ...

    async def serving(self) -> Mapping[bytes, frozenset[int]]:
        """All writers to whom slots may be handed out now, and those that each has: who died or froze a while ago is not among
        them.
        """
        ...

    @property
    def taken_for_dead(self) -> bool:
        """Whether others may have gone on without this writer: for so long nobody has heard of it, and it has not been told yet
        that it still is one of them.
        """
        ...

    async def fence(self, member: bytes) -> None:
        """See to it that nothing becomes stored any more of what a writer has begun. If he lives he hears that he was taken for
        dead.
        """
        ...

    def current(self, topic: str) -> bool:
        """Whether `topics` says all there is to say about this one now: that it exists, where its partitions end."""
        ...

    async def refresh(self, topic: str) -> None:
        """Let `topics` say what was so when this was called, or later."""
        ...

    async def refresh_ends(self, topics: Iterable[str]) -> None:
        """The same of where those of them begin and end that are known, all at once."""
        ...

    def watch(self, topic: str) -> None:
        """`on_visible` is to tell when it grows, whoever writes to it, until the `unwatch` that goes with this."""
        ...

    def unwatch(self, topic: str) -> None: ...

    def read_cached(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult | None:
        """From memory, or None when the disk must be asked. Never waits. `max_bytes` counts values; the first record
        always fits.
        """
        ...

    async def read(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult:
        """From memory or disk. Raises OffsetOutOfRange below the start, CorruptChunk on a damaged range."""
        ...

    async def read_stored(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int
    ) -> Sequence[Stored]:
        """Chunks as they are on disk, whole and not checked, from the one that holds `offset` on; empty when it is not to be
        had so, and `read` must be asked.
        """
        ...

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the end if there is none."""
        ...

    def table(self, name: str) -> Mapping[bytes, bytes]:
        """A small table, kept whole in memory (cursors, schemas, accounts), as of the last commit."""
        ...

    async def scan(self, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Rows of any table in key order from `first` on (large tables: delayed messages, cache)."""
        ...

    async def get(self, table: str, key: bytes) -> bytes | None:
        """One row of any table."""
        ...
