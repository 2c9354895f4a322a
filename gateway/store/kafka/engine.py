"""The store on Kafka: the `Store` interface over a producer that keeps the order, transactions, and what is read back.

submit ─► gates (order by topic) ─┬─► one append ──────────────► Sender ───────► offset ─┐
                                  ├─► several, rows, conditions ► one transaction ► ... ─┼─► visible ─► ticket
                                  └─► topics made or dropped ──► KafkaCluster ─► the above ───┘

the log of the state ─► Follower ─► Tables      (all gateways read the same rows in the same order)
followed partitions  ─► Follower ─► tails ─► on_visible
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import trio

from gateway.envelope import Run, total_count
from gateway.errors import (
    CommitFailed,
    ConditionFailed,
    GatewayError,
    InvalidRequest,
    OffsetOutOfRange,
    OutcomeUnknown,
    ShuttingDown,
    StoreReadOnly,
    TooLarge,
    TurnMissed,
    UnknownPartition,
    UnknownTopic,
    Unsupported,
)
from gateway.recorder import Recorder
from gateway.store.hot import CacheBudget
from gateway.store.interface import (
    Append,
    Capabilities,
    Durability,
    Placement,
    Put,
    ReadResult,
    Stored,
    StoreHealth,
    Ticket,
    TopicConfig,
    TopicState,
    Unit,
    packed_placements,
)
from gateway.store.kafka.cluster import KafkaCluster, Known
from gateway.store.kafka.following import MESSAGES, ROWS, STATE_FETCHES, Follower, end_of
from gateway.store.kafka.gates import GateMode, Gates
from gateway.store.kafka.names import kafka_name, topic_name
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reading import KafkaPartition, ReadBounds, ReaderPool
from gateway.store.kafka.records import heaviest, records
from gateway.store.kafka.sending import Sender
from gateway.store.kafka.slots import SLOTS, Slots, member_name
from gateway.store.kafka.tables import MARK, Change, PlaceInLine, Tables, place_key, record_key
from gateway.store.kafka.tail import FollowedLog, FollowedTopic
from gateway.store.kafka.topic_rows import TOPICS, read_topic_row, topic_row
from gateway.store.kafka.transactions import Transactions
from gateway.store.lost import NOTHING_LOST, LostRows

STATE = ""
"""The gate of all tables: no topic is called so."""
COMMIT_BYTES = 8 << 20
"""A transaction ends here and leaves the units behind it to the next."""
ROW_BYTES = 1 << 10
"""What a row counts of that: it is the loop's time that they cost, and not their bytes."""
POLL_SECONDS = 1.0
"""How often Kafka is asked which topics there are."""
GONE_AFTER = 3
"""Looks that find a topic no more, until it is taken for gone."""
LOOK_AGAIN = 1.0
TURN_TIMEOUTS = 4
"""After so many times `timeout` whoever stands in line is told so: time for two that hang to be fenced, one after the other."""
ABORT_SECONDS = 15.0
"""Beyond its own time-out Kafka takes this long to end the transaction of a gateway that froze."""


class _Job(msgspec.Struct, eq=False):
    needs: Sequence[tuple[str, GateMode]]
    go: Callable[[], None]
    ticket: Ticket
    admin: frozenset[str]
    """The topics that it makes, changes or drops."""
    whole: bool
    """Whether the unit takes a transaction of Kafka."""
    blocked: int = 0


@attrs.define(eq=False)
class _Planned:
    """What a transaction does for one unit."""

    job: _Job
    placed: list[list[tuple[int, int]]] = attrs.Factory(list)
    placements: Sequence[Placement] = ()
    error: GatewayError | None = None
    rows: list[tuple[str, bytes, bytes | None]] = attrs.Factory(list)
    on_their_way: bool = False
    """Whether these rows may be in the log."""


class KafkaStore:
    """The store of a gateway that is one of many."""

    def __init__(
        self, options: KafkaOptions, now_ms: Callable[[], int], recorder: Recorder, nursery: trio.Nursery
    ) -> None:
        self._options = options
        self._now_ms = now_ms
        self._recorder = recorder
        self._nursery = nursery
        self._topics: dict[str, FollowedTopic] = {}
        self._by_kafka: dict[str, FollowedTopic] = {}
        self.topics: Mapping[str, TopicState] = self._topics
        self.health = StoreHealth(writable=True)
        self.cluster = KafkaCluster(options)
        self.tables = Tables()
        self._gates = Gates()
        self._sender = Sender(options, self._arrived)
        self.member = secrets.token_bytes(16)
        self._transactions = Transactions(options, self.member)
        self._transacting = trio.CapacityLimiter(1)
        self._units: list[_Job] = []
        self._unit_waits = trio.Event()
        self._pool = ReaderPool(options)
        self._budget = CacheBudget(options.tail_cache)
        self._slots: Slots | None = None
        self._handed_out: frozenset[int] = frozenset()
        self._assigned: Callable[[frozenset[int]], None] = lambda _slots: None
        self._state: Follower | None = None
        self._tails: Follower | None = None
        self._visible: list[Callable[[Iterable[tuple[str, int]]], None]] = []
        self._around: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._row_callbacks: dict[str, list[Callable[[Mapping[bytes, bytes | None]], None]]] = {}
        self._read_until = 0
        """Below this everything in the state's log is decided and in the tables, from what Kafka says."""
        self._known_until = 0
        """The same, where only own records follow, which Kafka need not be asked about."""
        self._deciding = False
        """Whether there is something under way for which this gateway stands in line."""
        self._stood = -1
        """Where in the log it has said so, since it has left for the last time."""
        self._left_at = -1
        """Where in the log it has left, or would have."""
        self._line_moved = trio.Event()
        self._reading_on: list[tuple[int, trio.Event]] = []
        self._pending = 0
        self._idle = trio.Event()
        self._closing = False
        self._started = False
        """Whether all rows of before have been read: from then on it is told what changes."""
        self._watched: Counter[str] = Counter()
        self._grown: dict[FollowedLog, trio.Event] = {}
        """Readers that wait for what is known to be in a partition that is followed."""
        self._absent: Counter[str] = Counter()
        """Topics that were there, and how many looks in a row have not found them."""
        self._missing: dict[str, float] = {}
        """Topics that Kafka has just said it does not have."""
        recorder.writable(True)

    # --- a life ---

    async def start(self) -> None:
        """Read all that is shared. Raises StoreReadOnly if Kafka is not there."""
        begin, end = await self._in_thread(self.cluster.create_state)
        self._state = Follower(self._options, self._took_state, ROWS, **STATE_FETCHES)
        self._state.add([(self._options.state_topic, 0, begin)])
        self._tails = Follower(self._options, self._took_tails, MESSAGES, **{"fetch.wait.max.ms": 100})
        # what is in the tables must be all that was written before this start: whoever asks by them decides
        await self._reached(end, 2 * self._options.timeout + ABORT_SECONDS)
        self._started = True
        await self._look(whole=True)
        await self._ask_ends(list(self._topics.values()))

    async def run(self) -> None:
        """Transactions, what becomes of topics, healing, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._transact)
            nursery.start_soon(self._keep_looking)

    async def finish(self) -> None:
        # what is pending is committed first
        self._closing = True
        while self._pending:
            self._idle = trio.Event()
            await self._idle.wait()

    def close(self) -> None:
        """Blocks."""
        self._sender.close()
        for one in (self._slots, self._state, self._tails):
            if one is not None:
                one.close()
        self._pool.close()

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await trio.to_thread.run_sync(work, *args, abandon_on_cancel=True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(dense_offsets=False, single_writer=False, memory_topics=False)

    def hold(self) -> None:
        pass

    def release(self, by: int) -> None:
        pass

    def on_visible(self, callback: Callable[[Iterable[tuple[str, int]]], None]) -> None:
        self._visible.append(callback)

    def around_tickets(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._around.append((before, after))

    def set_retention_floor(self, floor: Callable[[str, int], int | None]) -> None:
        """Kafka trims by its own settings and asks nobody."""

    def on_rows(self, table: str, callback: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        self._row_callbacks.setdefault(table, []).append(callback)

    def _announce(self, keys: Sequence[tuple[str, int]]) -> None:
        if keys:
            for callback in self._visible:
                callback(keys)

    @property
    def lost(self) -> LostRows:
        # Kafka keeps its own whole
        return NOTHING_LOST

    # --- writing: the way in ---

    def submit(self, unit: Unit, done: Callable[[Ticket], None] | None = None, /) -> Ticket:
        ticket = Ticket(unit, done)
        if self._closing:
            ticket.finish(error=ShuttingDown("the store is closing"))
        elif not self.health.writable:
            ticket.finish(error=StoreReadOnly(self.health.reason))
        else:
            self._pending += 1
            self._gates.enter(self._job(ticket))
        return ticket

    def _job(self, ticket: Ticket) -> _Job:
        unit = ticket.unit
        appends = unit.appends
        admin = {one.topic for one in unit.alters} | {one.topic for one in unit.deletes}
        # a topic that is just being made, or dropped, is looked at again when that is over
        admin |= {one.topic for one in unit.creates if one.topic not in self._topics or self._gates.changing(one.topic)}
        rows = bool(unit.puts or unit.requires)
        # one append, or one row, is atomic by itself; anything more takes a transaction, and that costs a round trip or three
        whole = bool(unit.requires) or len(appends) > 1 or (rows and (bool(appends) or len(unit.puts) > 1))
        mode = GateMode.UNIT if whole else GateMode.PLAIN
        needs = [(topic, GateMode.ADMIN) for topic in admin]
        needs += [(topic, mode) for topic in dict.fromkeys(one.topic for one in appends) if topic not in admin]
        if rows:
            needs.append((STATE, mode))
        job = _Job(needs, lambda: self._go(job), ticket, frozenset(admin), whole)
        return job

    def _go(self, job: _Job) -> None:
        if job.admin:
            self._nursery.start_soon(self._administer, job)
        else:
            self._execute(job)

    def _execute(self, job: _Job) -> None:
        unit = job.ticket.unit
        try:
            self._check(unit)
        except GatewayError as error:
            self._end([(job, (), error)])
            return
        if job.whole:
            self._units.append(job)
            self._unit_waits.set()
        elif unit.appends:
            self._send(job, unit.appends[0])
        elif unit.puts:
            self._send_row(job, unit.puts[0])
        else:
            self._end([(job, (), None)])

    def _check(self, unit: Unit) -> None:
        for append in unit.appends:
            topic = self._topics.get(append.topic)
            if topic is None:
                raise UnknownTopic
            if not 0 <= append.partition < len(topic.logs):
                raise UnknownPartition
            if heaviest(append.columns, self._options.largest) > self._options.largest:
                raise TooLarge(
                    f"a record on Kafka has at most {self._options.largest} bytes, key and headers among them"
                )
        for put in unit.puts:
            if put.value is not None and len(put.key) + len(put.value) > self._options.largest:
                raise TooLarge(f"a row on Kafka has at most {self._options.largest} bytes")

    def _end(self, ended: Sequence[tuple[_Job, Sequence[Placement], GatewayError | None]]) -> None:
        # units are through: those that waited for them go, and whoever submitted them hears it
        for before, _after in self._around:
            before()
        for job, placements, error in ended:
            self._pending -= 1
            self._gates.leave(job)
            job.ticket.finish(placements, error)
        for _before, after in self._around:
            after()
        if not self._pending:
            self._idle.set()

    # --- writing: one append, one row ---

    def _time(self, log: FollowedLog) -> int:
        return max(self._now_ms(), log.state.last_time_ms)

    def _send(self, job: _Job, append: Append) -> None:
        topic = self._topics[append.topic]
        log = topic.logs[append.partition]
        count = append.columns.count
        time_ms = self._time(log)
        if not count:
            self._end([(job, [Placement(log.state.end, time_ms)], None)])
            return
        done = functools.partial(self._sent, job, topic, append.partition, count)
        self._sender.send(topic.kafka, append.partition, records(append, time_ms), count, done)

    def _sent(
        self,
        job: _Job,
        topic: FollowedTopic,
        partition: int,
        count: int,
        placed: Sequence[tuple[int, int]],
        error: GatewayError | None,
    ) -> None:
        if error is not None:
            self._failed(error)
            self._end([(job, (), error)])
            return
        first, last = placed[0], placed[-1]
        # one record for each offset between the two: if not, somebody else's are among them
        if last[0] - first[0] != count - 1:
            self._nursery.start_soon(self._find_scattered, job, topic, partition, count, placed)
            return
        self._grow(topic, partition, last)
        self._announce([(topic.name, partition)])
        self._end([(job, [Placement(first[0], first[1])], None)])

    async def _find_scattered(
        self, job: _Job, topic: FollowedTopic, partition: int, count: int, placed: Sequence[tuple[int, int]]
    ) -> None:
        # records of others came between those of one append: which offsets are its own is read back
        first, last = placed[0], placed[-1]
        self._grow(topic, partition, last)
        if len(placed) == count:
            offsets = [offset for offset, _time in placed]
        else:
            batch = job.ticket.unit.appends[0].meta.id
            offsets = []
            at = first[0]
            try:
                while at <= last[0]:
                    result = await self.read(topic.name, partition, at, 1 << 20, 1 << 24, 0)
                    for run in result.runs:
                        offsets += [
                            run.base_offset + index
                            for index in range(run.count)
                            if run.base_offset + index <= last[0] and run.meta_of(index)[0].id == batch
                        ]
                    at = result.next_offset
            except GatewayError:
                offsets = []
        self._announce([(topic.name, partition)])
        found = offsets if len(offsets) == count else None
        self._end([(job, [Placement(first[0], first[1], found)], None)])

    def _grow(self, topic: FollowedTopic, partition: int, last: tuple[int, int], marker: int = 0) -> None:
        state = topic.logs[partition].state
        state.end = max(state.end, last[0] + 1 + marker)
        state.last_time_ms = max(state.last_time_ms, last[1])

    def _send_row(self, job: _Job, put: Put) -> None:
        def done(placed: Sequence[tuple[int, int]], error: GatewayError | None) -> None:
            if error is None:
                self._row_written(placed[0][0], put.table, put.key, put.value)
            else:
                self._failed(error)
            self._end([(job, (), error)])

        self._write_row(put.table, put.key, put.value, done)

    def _write_row(self, table: str, key: bytes, value: bytes | None, done: Any) -> None:
        self.tables.writing(table, key)

        def written(placed: Sequence[tuple[int, int]], error: GatewayError | None) -> None:
            done(placed, error)
            self._heard_of([(table, key)])

        self._sender.send(
            self._options.state_topic, 0, [(value, record_key(table, key), None, self._now_ms())], 1, written
        )

    def _row_written(self, offset: int, table: str, key: bytes, value: bytes | None) -> None:
        if offset == self._known_until:
            self._known_until = offset + 1
        self.tables.written(offset, table, key, value)

    def _heard_of(self, rows: Iterable[tuple[str, bytes]]) -> None:
        # whoever has written them knows how that ended: what others have written behind them is told behind that
        behind = [change for row in rows if (change := self.tables.wrote(*row)) is not None]
        if behind:
            self._tell_rows(behind)

    def _arrived(self, calls: Sequence[Callable[[], None]]) -> None:
        for before, _after in self._around:
            before()
        for call in calls:
            call()
        for _before, after in self._around:
            after()

    # --- writing: units ---

    async def _transact(self) -> None:
        # one transaction after the other, each with all that waits
        while True:
            if not self._units:
                self._unit_waits = trio.Event()
                await self._unit_waits.wait()
            self._deciding = True
            if jobs := self._taken():
                planned = [_Planned(job) for job in jobs]
                try:
                    await self._commit(planned)
                except GatewayError as error:
                    if not (self._transactions.fenced or isinstance(error, TurnMissed)):
                        self._failed(error)
                    for one in planned:
                        one.error = one.error or error
                if self._transactions.fenced:
                    self._taken_for_dead()
                self._end([(one.job, one.placements, one.error) for one in planned])
                self._heard_of(row[:2] for one in planned if one.on_their_way for row in one.rows)
            if self._lingers:
                await self._leave()
            self._deciding = False

    def _taken(self) -> Sequence[_Job]:
        # what goes into the next transaction
        taken, size = 0, 0
        for job in self._units:
            taken += 1
            unit = job.ticket.unit
            size += sum(len(one.columns.packed) for one in unit.appends) + ROW_BYTES * len(unit.puts)
            if size > COMMIT_BYTES:
                break
        jobs, self._units = self._units[:taken], self._units[taken:]
        return jobs

    async def _in_turn(self, work: Callable[..., Any], *args: Any) -> Any:
        # what is done with the transactions, one after the other
        return await trio.to_thread.run_sync(work, *args, limiter=self._transacting)

    async def _commit(self, planned: Sequence[_Planned]) -> None:
        run, work = self._in_turn, self._transactions
        began = trio.current_time()
        if await run(work.ready):
            self._stood = -1
        # Whatever touches the log of the state is begun by one gateway at a time: conditions hold only if nobody else decides by
        # the same rows meanwhile, and whoever has something open holds up all who follow that log.
        shared = any(one.job.ticket.unit.requires or one.job.ticket.unit.puts for one in planned)
        if shared:
            await self._take_turn()
        decided_until = self._decide(planned)
        good = [one for one in planned if one.error is None]
        if not good:
            return
        await run(work.begin)
        try:
            offsets = await run(self._write, good, shared)
        except (UnknownTopic, TooLarge):
            if len(planned) == 1:
                raise
            await self._one_by_one([_forgotten(one) for one in good])
            return
        # Rows of others, which need no turn, came between what was looked at and what is written: decided again, with these in
        # the tables. They may be there by now, and were not then.
        if shared and offsets[0] > decided_until:
            try:
                await self._reached(offsets[0], self._options.timeout / 2)
            except GatewayError:
                await run(work.abort)
                raise
            self._decide(good)
            still = [one for one in good if one.error is None]
            if len(still) < len(good):
                await run(work.abort)
                await self._one_by_one([_forgotten(one) for one in still])
                return
        for one in good:
            one.on_their_way = True
            for table, key, _value in one.rows:
                self.tables.writing(table, key)
        if shared:
            self._left(offsets[-1])
        await run(work.commit)
        self._committed(good, offsets)
        size = sum(one.columns.value_bytes for each in good for one in each.job.ticket.unit.appends)
        count = sum(one.columns.count for each in good for one in each.job.ticket.unit.appends)
        self._recorder.committed(count, size, trio.current_time() - began, True)

    # --- standing in line ---

    async def _take_turn(self) -> None:
        # Until this gateway stands first in line, and what was written before it came is here. Nothing is open meanwhile: it can
        # take as long as it likes and holds up nobody but those behind it, who know whom to fence.
        if self._stood < 0:
            self._stood = await self._stand()
        until = trio.current_time() + TURN_TIMEOUTS * self._options.timeout
        first, since = self.tables.line.first, trio.current_time()
        while not self._first():
            now = trio.current_time()
            if now > until:
                raise TurnMissed("what other gateways have begun is not decided yet")
            if self._read_until > self._stood and self.member not in self.tables.line:
                # whoever was tired of waiting has fenced it: what it would begin now Kafka would refuse
                self._stood = -1
                self._transactions.fenced = True
                self._transactions.begin_anew()
                raise TurnMissed("this gateway was taken for dead while it stood in line")
            if first != self.tables.line.first:
                first, since = self.tables.line.first, now
            elif first is not None and first.member != self.member and now - since > self._patience():
                with contextlib.suppress(GatewayError):  # tried again, as long as this is waited for
                    await self._fence_first(first)
                since = trio.current_time()
                continue
            self._line_moved = trio.Event()
            with trio.move_on_after(LOOK_AGAIN):
                await self._line_moved.wait()

    def _first(self) -> bool:
        first = self.tables.line.first
        return self._read_until > self._stood and first is not None and first.member == self.member

    def _patience(self) -> float:
        # How long who stands first may take. No step of his takes longer than the time-out, after which Kafka itself would end
        # what he has begun. Who stands behind others leaves it to them, unless they are gone too.
        return self._options.timeout + LOOK_AGAIN * max(0, self.tables.line.before(self.member) - 1)

    async def _fence_first(self, first: PlaceInLine) -> None:
        # by what the log says now: it may be this gateway that has not heard of it
        await self._reached(await self._in_thread(self.cluster.decided, self._options.state_topic), LOOK_AGAIN)
        if first == self.tables.line.first:
            await self.fence(first.member)

    async def _stand(self) -> int:
        # stand in line, behind all who do; where that is in the log
        written = trio.Event()
        told: list[tuple[Sequence[tuple[int, int]], GatewayError | None]] = []

        def done(placed: Sequence[tuple[int, int]], error: GatewayError | None) -> None:
            told.append((placed, error))
            written.set()

        record = b"", place_key(self.member), None, self._now_ms()
        self._sender.send(self._options.state_topic, 0, [record], 1, done)
        await written.wait()
        ((placed, error),) = told
        if error is not None:
            raise CommitFailed(f"this gateway cannot stand in line: {error.message}")
        return placed[0][0]

    def _left(self, offset: int) -> None:
        self._stood = -1
        self._left_at = offset

    @property
    def _lingers(self) -> bool:
        # whether it stands first and has nothing to do there: what it had was not to be, or what it wrote arrived late
        first = self.tables.line.first
        return first is not None and first.member == self.member and self._read_until > self._left_at

    async def _leave(self) -> None:
        # Not before it is first: until then it harms nobody, and somebody else may have something open.
        with contextlib.suppress(GatewayError):  # tried again as long as it stands there
            self._left(await self._in_turn(self._write_leave))
        if self._transactions.fenced:
            self._taken_for_dead()

    def _write_leave(self) -> int:
        work = self._transactions
        work.ready()
        work.begin()
        placed = work.write(self._options.state_topic, 0, [(None, place_key(self.member), None, 0)])
        work.flush()
        work.commit()
        return placed[0][0]

    def _decide(self, planned: Sequence[_Planned]) -> int:
        # Which of them apply, one behind the other. Returns how far the log of the state is known that this was decided by.
        overlay: dict[tuple[str, bytes], bytes | None] = {}
        for one in planned:
            one.error = self._condition(one.job.ticket.unit, overlay)
        return self._known_until

    async def _one_by_one(self, planned: Sequence[_Planned]) -> None:
        # one of them cannot be stored: in company nothing is known about the others
        for one in planned:
            try:
                await self._commit([one])
            except GatewayError as error:
                one.error = error

    def _condition(self, unit: Unit, overlay: dict[tuple[str, bytes], bytes | None]) -> GatewayError | None:
        # whether a unit applies, behind those before it in the same transaction
        for one in unit.requires:
            key = one.table, one.key
            found = overlay[key] if key in overlay else self.tables.get(*key)
            if found != one.value:
                return ConditionFailed(f"a row of {one.table} has changed")
        for put in unit.puts:
            overlay[put.table, put.key] = put.value
        return None

    def _write(self, planned: Sequence[_Planned], shared: bool) -> list[int]:
        # In a thread: everything into the transaction. Returns where the rows are, and behind them that this gateway has left the
        # line: what is required without a row to write is decided there.
        work = self._transactions
        appended = False
        for one in planned:
            for append in one.job.ticket.unit.appends:
                topic = self._topics.get(append.topic)
                if topic is None:
                    work.abort()
                    raise UnknownTopic
                time_ms = self._time(topic.logs[append.partition])
                one.placed.append(work.write(topic.kafka, append.partition, records(append, time_ms)))
                appended = True
        if appended:
            work.flush()
        offsets: list[tuple[int, int]] = []
        written: list[list[tuple[int, int]]] = []
        for one in planned:
            unit = one.job.ticket.unit
            one.placements = [
                _placement(placed, self._topics[append.topic].logs[append.partition].state.end)
                for placed, append in zip(one.placed, unit.appends, strict=True)
            ]
            for put in unit.puts:
                value = put.value
                if value is not None and put.placed and one.placements:
                    value += packed_placements(one.placements)
                one.rows.append((put.table, put.key, value))
            rows = [(value, record_key(table, key), None, 0) for table, key, value in one.rows]
            if rows:
                written.append(work.write(self._options.state_topic, 0, rows))
        if shared:
            written.append(work.write(self._options.state_topic, 0, [(None, place_key(self.member), None, 0)]))
            work.flush()
            for placed in written:
                offsets += placed
        return [offset for offset, _time in offsets]

    def _committed(self, planned: Sequence[_Planned], offsets: Sequence[int]) -> None:
        changed: dict[tuple[str, int], None] = {}
        places = iter(offsets)
        for one in planned:
            for row in one.rows:
                self.tables.written(next(places), *row)
        for one in planned:
            for append, placed in zip(one.job.ticket.unit.appends, one.placed, strict=True):
                if placed:
                    self._grow(self._topics[append.topic], append.partition, placed[-1], marker=1)
                    changed[append.topic, append.partition] = None
        self._announce(list(changed))

    # --- topics ---

    async def _administer(self, job: _Job) -> None:
        unit = job.ticket.unit
        try:
            self._check_topics(unit)
            for create in unit.creates:
                if create.topic not in self._topics:
                    await self._create(create.topic, create.config)
            for alter in unit.alters:
                await self._alter(alter.topic, alter.config)
            if unit.deletes and (unit.appends or unit.requires):
                raise Unsupported("on Kafka a unit that drops topics does nothing else but write rows")
            for delete in unit.deletes:
                await self._delete(delete.topic, delete.seen)
        except GatewayError as error:
            self._end([(job, (), error)])
            return
        self._execute(job)

    def _check_topics(self, unit: Unit) -> None:
        for create in unit.creates:
            if create.config.partitions < 1:
                raise InvalidRequest("a topic has at least one partition")
            if create.topic not in self._topics and create.config.durability is Durability.MEMORY:
                raise Unsupported("a store on Kafka has no memory topics")
        for alter in unit.alters:
            topic = self._topics.get(alter.topic)
            if topic is None:
                raise UnknownTopic
            if alter.config.partitions < len(topic.logs):
                raise InvalidRequest("partitions never shrink")
            if alter.config.durability is Durability.MEMORY:
                raise Unsupported("a store on Kafka has no memory topics")
        made = {create.topic for create in unit.creates}
        for delete in unit.deletes:
            if delete.topic not in self._topics:
                raise UnknownTopic
            if delete.topic in made:
                raise InvalidRequest("a unit cannot make and drop the same topic")

    async def _create(self, name: str, config: TopicConfig) -> None:
        kafka = kafka_name(self._options.prefix, name)
        found: Known = await self._in_thread(self.cluster.create, kafka, config)
        config = attrs.evolve(config, partitions=found.partitions)
        # behind the topic itself: a gateway that reads the row finds what it is about
        await self._state_row(TOPICS, name.encode(), topic_row(found.epoch, config))
        self._know(name, found, config)

    async def _alter(self, name: str, config: TopicConfig) -> None:
        topic = self._topics[name]
        more = config.partitions > len(topic.logs)
        await self._in_thread(self.cluster.alter, topic.kafka, config, more)
        await self._state_row(TOPICS, name.encode(), topic_row(topic.epoch, config))
        self._know(name, Known(topic.epoch, config.partitions), config)

    async def _delete(self, name: str, seen: tuple[int, int] | None) -> None:
        topic = self._topics[name]
        if seen is not None:
            await self._ask_ends([topic])
            if seen != (topic.epoch, sum(one.end for one in topic.partitions)):
                raise ConditionFailed(f"{name} has changed meanwhile")
        await self._in_thread(self.cluster.delete, topic.kafka)
        await self._state_row(TOPICS, name.encode(), None)
        self._drop(topic)

    async def _state_row(self, table: str, key: bytes, value: bytes | None) -> None:
        written = trio.Event()
        problem: list[GatewayError] = []

        def done(placed: Sequence[tuple[int, int]], error: GatewayError | None) -> None:
            if error is None:
                self._row_written(placed[0][0], table, key, value)
            else:
                self._failed(error)
                problem.append(error)
            written.set()

        self._write_row(table, key, value, done)
        await written.wait()
        if problem:
            raise problem[0]

    def _know(self, name: str, found: Known, config: TopicConfig | None) -> FollowedTopic:
        topic = self._topics.get(name)
        if topic is not None and topic.epoch != found.epoch:
            self._drop(topic)
            topic = None
        if topic is None:
            kafka = kafka_name(self._options.prefix, name)
            topic = FollowedTopic(name, found.epoch, config or TopicConfig(found.partitions), [], kafka, [])
            self._topics[name] = self._by_kafka[kafka] = topic
        before = len(topic.logs)
        if config is not None:
            topic.config = config
        topic.widen(found.partitions)
        self._missing.pop(name, None)
        if len(topic.logs) > before:
            if self._watched[name]:
                self._nursery.start_soon(self._follow, topic)
            self._announce([(name, number) for number in range(before, len(topic.logs))])
        return topic

    def _drop(self, topic: FollowedTopic) -> None:
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
            self._by_kafka.pop(topic.kafka, None)
        self._unfollow(topic)
        self._announce([(topic.name, number) for number in range(len(topic.logs))])

    async def _keep_looking(self) -> None:
        since = 0
        while True:
            await trio.sleep(POLL_SECONDS)
            self._pool.tidy(5.0, trio.current_time())
            if not self.health.writable:
                await self._probe()
            if self._slots is not None and self._slots.absent:
                await self._find_out(self._slots)
            if self._lingers:
                self._unit_waits.set()
            since = (since + 1) % 10
            try:
                await self._look(whole=not since)
            except GatewayError:
                continue

    async def _find_out(self, slots: Slots) -> None:
        # does the group have this gateway, as one that has come back or was never missed?
        with contextlib.suppress(GatewayError):
            if self.member in await self.serving():
                slots.present()

    async def _look(self, *, whole: bool) -> None:
        # Which topics there are, as others make and drop them. `whole`: also whether one was made again.
        found = await self._in_thread(self.cluster.names)
        ours: dict[str, int] = {}
        for kafka, partitions in found.items():
            name = topic_name(self._options.prefix, kafka)
            if name is not None and kafka not in _KAFKAS_OWN and not kafka.startswith(self._options.own):
                ours[name] = partitions
        # what is being changed right now is not judged by an answer that may be older
        absent = [name for name in self._topics if name not in ours and not self._gates.changing(name)]
        self._absent = Counter({name: self._absent[name] + 1 for name in absent})
        for name in absent:
            # a broker that has just come back does not know all yet; who drops by a gateway says it in the log of the state
            if self._absent[name] >= GONE_AFTER:
                self._drop(self._topics[name])
        asked = [
            kafka_name(self._options.prefix, name)
            for name, partitions in ours.items()
            if whole or name not in self._topics or len(self._topics[name].logs) != partitions
        ]
        for begin in range(0, len(asked), 500):
            described = await self._in_thread(self.cluster.describe, asked[begin : begin + 500])
            fresh: list[FollowedTopic] = []
            for kafka, known in described.items():
                name = topic_name(self._options.prefix, kafka)
                if name is None or self._gates.changing(name):
                    continue
                before = self._topics.get(name)
                topic = self._know(name, known, self._stated(name, known))
                if topic is not before:
                    fresh.append(topic)
            if fresh and self._tails is not None:
                await self._ask_ends(fresh)

    def _stated(self, name: str, known: Known) -> TopicConfig | None:
        # what a gateway has said about a topic that Kafka has
        raw = self.tables.get(TOPICS, name.encode())
        if raw is None:
            return None
        row = read_topic_row(raw)
        return attrs.evolve(row.config(), partitions=known.partitions) if row.epoch == known.epoch else None

    def _topics_changed(self, changes: Mapping[bytes, bytes | None]) -> None:
        for key, raw in changes.items():
            name = key.decode()
            topic = self._topics.get(name)
            if raw is None:
                if topic is not None and not self._gates.changing(name):
                    self._drop(topic)
                continue
            row = read_topic_row(raw)
            if not self._gates.changing(name):
                self._know(name, Known(row.epoch, row.partitions), row.config())

    # --- health ---

    def _failed(self, error: GatewayError) -> None:
        # Kafka did not take something: until it takes a probe, nobody else need wait for as long
        if isinstance(error, StoreReadOnly | OutcomeUnknown | CommitFailed) and self.health.writable:
            self.health = StoreHealth(writable=False, reason=error.message)
            self._recorder.writable(False, error.message)

    async def _probe(self) -> None:
        with trio.move_on_after(self._options.timeout):
            answered = trio.Event()
            good: list[bool] = []

            def done(_placed: Sequence[tuple[int, int]], error: GatewayError | None) -> None:
                good.append(error is None)
                answered.set()

            self._sender.send(self._options.state_topic, 0, [(b"", MARK, None, self._now_ms())], 1, done)
            await answered.wait()
            if good[0] and not self.health.writable:
                self.health = StoreHealth(writable=True)
                self._recorder.writable(True)

    # --- what others write ---

    def _took_state(self, messages: Sequence[Any]) -> None:
        changes: Sequence[Change] = ()
        if self._started:
            changes = self.tables.take_in(messages)
        else:
            self.tables.fill(messages)
        until = self._read_until
        for message in reversed(messages):
            following = message.offset() + 1 if message.error() is None else end_of(message)
            if following is not None:
                until = self._read_until = max(until, following)
                break
        self._known_until = max(self._known_until, until)
        self._line_moved.set()
        if not self._deciding and self._lingers:
            self._unit_waits.set()
        if changes:
            self._tell_rows(changes)
        if self._reading_on:
            for offset, event in self._reading_on:
                if offset <= until:
                    event.set()

    def _tell_rows(self, changes: Sequence[Change]) -> None:
        by_table: dict[str, dict[bytes, bytes | None]] = {}
        for table, key, value in changes:
            by_table.setdefault(table, {})[key] = value
        if TOPICS in by_table:
            self._topics_changed(by_table[TOPICS])
        for table, callbacks in self._row_callbacks.items():
            if table in by_table:
                for callback in callbacks:
                    callback(by_table[table])

    async def _reached(self, offset: int, patience: float) -> None:
        # until everything before an offset of the state's log is decided and applied
        if self._read_until >= offset:
            return
        waiting = offset, trio.Event()
        self._reading_on.append(waiting)
        try:
            with trio.move_on_after(patience):
                await waiting[1].wait()
                return
        finally:
            self._reading_on.remove(waiting)
        raise TurnMissed("the log of the state was not read on in time")

    def _took_tails(self, messages: Sequence[Any]) -> None:
        places: dict[tuple[str, int], list[Any]] = {}
        ends: dict[tuple[str, int], int] = {}
        lost: set[str] = set()
        for message in messages:
            key = message.topic(), message.partition()
            ended = end_of(message)
            if ended is not None:
                ends[key] = ended
                places.setdefault(key, [])
            elif message.error() is not None:
                if message.topic() is not None:
                    lost.add(message.topic())
            else:
                places.setdefault(key, []).append(message)
        grown: list[tuple[str, int]] = []
        for (kafka, partition), batch in places.items():
            topic = self._by_kafka.get(kafka)
            if topic is None or partition >= len(topic.logs) or not topic.logs[partition].followed:
                continue
            log = topic.logs[partition]
            found, unreadable = log.decoder.take(batch)
            self._count_unreadable(unreadable)
            following = batch[-1].offset() + 1 if batch else 0
            following = max(following, ends.get((kafka, partition), 0))
            if log.grow(self._budget, found, following):
                grown.append((topic.name, partition))
                waiting = self._grown.pop(log, None)
                if waiting is not None:
                    waiting.set()
        for kafka in lost:
            topic = self._by_kafka.get(kafka)
            if topic is not None:
                self._nursery.start_soon(self._follow_again, topic)
        self._announce(grown)

    def _count_unreadable(self, messages: int) -> None:
        if messages:
            self._recorder.dropped("kafka", "unreadable", messages)

    # --- following ---

    @property
    def slots(self) -> int:
        return SLOTS

    def on_slots(self, callback: Callable[[frozenset[int]], None]) -> None:
        self._assigned = callback
        self._slots = Slots(self._options, self._hand_out, self._transactions.begin_anew, self.member)

    def _hand_out(self, slots: frozenset[int]) -> None:
        self._handed_out = slots
        self._assigned(slots)

    def _taken_for_dead(self) -> None:
        # whoever fenced this gateway goes on with what was its own; what Kafka still hands out to it, it takes again
        self._transactions.fenced = False
        handed_out = self._handed_out
        self._hand_out(frozenset())
        self._hand_out(handed_out)

    async def serving(self) -> Mapping[bytes, frozenset[int]]:
        clients = await self._in_thread(self.cluster.members, self._options.owners_group)
        return {name: slots for client, slots in clients.items() if (name := member_name(client)) is not None}

    @property
    def taken_for_dead(self) -> bool:
        return self._slots is not None and self._slots.absent

    async def fence(self, member: bytes) -> None:
        await self._in_thread(self._transactions.fence, member)

    def current(self, topic: str) -> bool:
        """Whether the ends of a topic's partitions are known as of now."""
        found = self._topics.get(topic)
        if found is None:
            return self._missing.get(topic, 0.0) > trio.current_time()
        return bool(found.logs) and all(log.followed and log.tail.upto >= 0 for log in found.logs)

    async def refresh(self, topic: str) -> None:
        """Ask Kafka whether there is such a topic, and where its partitions end."""
        found = self._topics.get(topic)
        if found is None:
            try:
                kafka = kafka_name(self._options.prefix, topic)
            except InvalidRequest:
                return
            described = await self._in_thread(self.cluster.describe, [kafka])
            if kafka not in described:
                if len(self._missing) > 10_000:
                    self._missing.clear()
                self._missing[topic] = trio.current_time() + LOOK_AGAIN
                return
            if not self._gates.changing(topic):
                found = self._know(topic, described[kafka], self._stated(topic, described[kafka]))
        if found is not None:
            await self._ask_ends([found])
            if not found.logs[0].followed:
                self.watch(topic)  # for a while: who asks will ask again
                self.unwatch(topic)

    async def refresh_ends(self, topics: Iterable[str]) -> None:
        """Ask Kafka, and follow none of them."""
        await self._ask_ends([found for one in topics if (found := self._topics.get(one)) is not None])

    def watch(self, topic: str) -> None:
        self._watched[topic] += 1
        found = self._topics.get(topic)
        if found is not None and self._watched[topic] == 1:
            self._nursery.start_soon(self._follow, found)

    def unwatch(self, topic: str) -> None:
        self._watched[topic] -= 1
        if not self._watched[topic]:
            del self._watched[topic]
            found = self._topics.get(topic)
            if found is not None:
                self._nursery.start_soon(self._let_go, found)

    async def _follow(self, topic: FollowedTopic) -> None:
        with contextlib.suppress(GatewayError):  # then it is followed from where it is known to end
            await self._ask_ends([topic])
        if self._topics.get(topic.name) is not topic or self._tails is None:
            return
        places: list[tuple[str, int, int]] = []
        for number, log in enumerate(topic.logs):
            if not log.followed:
                log.followed = True
                log.tail.begin = log.tail.upto = log.state.end
                places.append((topic.kafka, number, log.state.end))
        if places:
            self._tails.add(places)
            self._announce([(topic.name, number) for _kafka, number, _end in places])

    async def _let_go(self, topic: FollowedTopic) -> None:
        # not at once: who has just read reads again
        await trio.sleep(UNFOLLOW_AFTER)
        if not self._watched[topic.name]:
            self._unfollow(topic)

    def _unfollow(self, topic: FollowedTopic) -> None:
        places = [(topic.kafka, number) for number, log in enumerate(topic.logs) if log.followed]
        for log in topic.logs:
            log.forget(self._budget)
        if places and self._tails is not None:
            self._tails.remove(places)

    async def _follow_again(self, topic: FollowedTopic) -> None:
        self._unfollow(topic)
        await trio.sleep(0.2)
        if self._watched[topic.name] and self._topics.get(topic.name) is topic:
            await self._follow(topic)

    async def _bounds(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        found: dict[tuple[str, int], tuple[int, int]] = await self._in_thread(self.cluster.bounds, places)
        return found

    async def _ask_ends(self, topics: Sequence[FollowedTopic]) -> None:
        places = [(topic.kafka, number) for topic in topics for number in range(len(topic.logs))]
        for begin in range(0, len(places), 5_000):
            found = await self._bounds(places[begin : begin + 5_000])
            for (kafka, number), (first, end) in found.items():
                topic = self._by_kafka.get(kafka)
                if topic is not None and number < len(topic.logs):
                    state = topic.logs[number].state
                    state.start, state.end = first, max(end, state.end)

    # --- reading ---

    def _log(self, topic: str, partition: int) -> tuple[FollowedTopic, FollowedLog]:
        found = self._topics.get(topic)
        if found is None:
            raise UnknownTopic
        if not 0 <= partition < len(found.logs):
            raise UnknownPartition
        return found, found.logs[partition]

    def read_cached(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult | None:
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.logs):
            return None
        log = found.logs[partition]
        if offset >= log.state.end or max_messages <= 0:
            return ReadResult((), offset)
        if offset < log.state.start:
            return None
        result = log.read(offset, max_messages, max_bytes, now_ms)
        return result if result is not None and result.next_offset > offset else None

    async def read(
        self, topic: str, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult:
        found, log = self._log(topic, partition)
        cached = self.read_cached(topic, partition, offset, max_messages, max_bytes, now_ms)
        if cached is not None:
            return cached
        if offset < log.state.start:
            raise OffsetOutOfRange(first=log.state.start, next_offset=log.state.end)

        if log.lags(offset):
            with trio.move_on_after(TAIL_SECONDS):
                while log.lags(offset):
                    await self._grown.setdefault(log, trio.Event()).wait()
            cached = self.read_cached(topic, partition, offset, max_messages, max_bytes, now_ms)
            if cached is not None:
                return cached
        taken: list[Run] = []
        count = size = expired = 0
        following = offset
        while True:
            result = await self._read_kafka(found, partition, following, max_messages - count, max_bytes - size, now_ms)
            taken += result.runs
            following = result.next_offset
            expired += result.expired
            count += total_count(result.runs)
            size += sum(run.columns.value_bytes for run in result.runs)
            # on behind what has expired: nobody is given nothing while there is something
            if not result.expired or count >= max_messages or size >= max_bytes or following >= log.state.end:
                return ReadResult(taken, following, expired)

    async def _read_kafka(
        self, topic: FollowedTopic, partition: int, offset: int, max_messages: int, max_bytes: int, now_ms: int
    ) -> ReadResult:
        log = topic.logs[partition]

        place = KafkaPartition(topic.name, topic.kafka, partition, topic.epoch)
        wanted = ReadBounds(offset, log.state.end, max_messages, max(max_bytes, 1), now_ms)
        try:
            result, unreadable = await self._pool.read(place, wanted)
        except OffsetOutOfRange:
            await self._ask_ends([topic])
            raise OffsetOutOfRange(first=log.state.start, next_offset=log.state.end) from None
        self._count_unreadable(unreadable)
        if self._topics.get(topic.name) is not topic:
            raise UnknownTopic
        return result

    async def read_stored(
        self,
        topic: str,
        partition: int,
        offset: int,  # noqa: ARG002
        max_messages: int,  # noqa: ARG002
        max_bytes: int,  # noqa: ARG002
    ) -> Sequence[Stored]:
        # Kafka has no chunks of ours
        self._log(topic, partition)
        return ()

    async def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        found, log = self._log(topic, partition)
        offset: int | None = await self._in_thread(self.cluster.offset_at, found.kafka, partition, timestamp_ms)
        return log.state.end if offset is None else offset

    def table(self, name: str) -> Mapping[bytes, bytes]:
        return self.tables.table(name)

    async def scan(self, table: str, first: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        return self.tables.scan(table, first, limit)

    async def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables.get(table, key)


_KAFKAS_OWN = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata", "__share_group_state"})
UNFOLLOW_AFTER = 30.0
"""Seconds for which a partition is followed when nobody waits for it any more."""
TAIL_SECONDS = 2.0
"""How long what was acknowledged may take to come by the consumer that follows."""


def _forgotten(one: _Planned) -> _Planned:
    # to be written again: what was written of it is not there
    one.placed, one.rows, one.placements = [], [], ()
    return one


def _placement(placed: Sequence[tuple[int, int]], end: int) -> Placement:
    if not placed:
        return Placement(end, 0)
    (first, time_ms), last = placed[0], placed[-1]
    scattered = last[0] - first != len(placed) - 1
    return Placement(first, time_ms, [offset for offset, _time in placed] if scattered else None)
