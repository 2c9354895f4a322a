"""Delayed messages: durable rows in the order they are due, of which only the next few hundred are in memory.

Firing appends the messages and deletes their rows in one unit, so that a crash neither loses one nor delivers it twice.
"""

from __future__ import annotations

import heapq
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence

import attrs

from gateway.broker.offload import Offload
from gateway.broker.ownership import Owners
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.delayed_rows import DelayedRow, decode, due_of, encode, id_of, key_of, key_of_id, rows_of
from gateway.broker.publish.publication import Prepared
from gateway.broker.service import Caller, Clock, Handler, Timers
from gateway.errors import ConditionFailed, GatewayError, InvalidRequest, NotFound, Throttled
from gateway.requests import DONE, CancelDelayed, Delayed, Publish, Request
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "delays"
JOB = "delays"
"""What one gateway at a time does."""
LONGEST_DELAY_MS = 86_400_000
MOST_WAITING = 1_000_000
MOST_BYTES = 4 << 30
"""What all rows together may take on disk."""
MUCH = 1 << 20
"""Bytes of a message that is put into its row in a turn of its own: each copy of the largest takes fourteen milliseconds."""
HEAD = 512
"""Rows in memory at least, if there are so many; at most twice as many."""
FIRED_TOGETHER = 256
_PAGE = 1_000
_LONGEST_SLEEP = 60.0
"""Seconds: the wall clock may be set while we wait."""
_FIRST_RETRY, _LONGEST_RETRY = 0.5, 30.0
_PATIENCE = 3
"""Units that may fail before messages are appended one by one."""


@attrs.frozen
class _Waiting:
    row: DelayedRow
    raw: bytes


class DelayService:
    """Serves CancelDelayed; publishing hands over what is due later."""

    def __init__(
        self,
        store: Store,
        appending: Appending,
        clock: Clock,
        timers: Timers,
        offload: Offload,
        owners: Owners,
        head: int = HEAD,
    ) -> None:
        self._store = store
        self._owners = owners
        store.on_rows(TABLE, self._written_elsewhere)
        owners.on_change(self._arm)
        self._appending = appending
        self._clock = clock
        self._timers = timers
        self._offload = offload
        self._head_size = head
        self._numbers = itertools.count(clock.now_ms() << 20 | secrets.randbits(20))
        """A million a millisecond since the process started: no number of an earlier process comes again, or of another."""
        self._heap: list[bytes] = []
        self._head: dict[bytes, _Waiting] = {}
        self._horizon: bytes | None = None
        """Rows from this key on are on disk only; None: all are in memory."""
        self._firing: set[bytes] = set()
        self._refilling = False
        self._meanwhile: dict[bytes, _Waiting | None] = {}
        """What came (or was cancelled: None) behind the horizon while a page was being read."""
        self._waiting = 0
        self._bytes = 0
        self._timer: tuple[float, Callable[[], None]] | None = None
        self._failures = 0

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {CancelDelayed: self.cancel}

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def in_memory(self) -> int:
        return len(self._head)

    def _written_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        # another gateway has kept messages, has taken some back, or has fired them
        for key, raw in rows.items():
            if raw is not None:
                waiting = _Waiting(decode(raw), raw)
                self._appending.adopt(waiting.row.parts())
                self._count(raw, 1)
                self._place(key, waiting)
            elif key not in self._firing:
                gone = self._head.pop(key, None)
                if gone is not None:
                    self._forget(gone)
                elif self._refilling:
                    self._meanwhile[key] = None
        self._arm()

    async def start(self) -> None:
        # take over what an earlier process left: count it, and load the head
        first = b""
        while page := await self._store.scan(TABLE, first, _PAGE):
            for key, raw in page:
                waiting = _Waiting(decode(raw), raw)
                self._appending.adopt(waiting.row.parts())
                self._count(raw, 1)
                self._place(key, waiting)
            first = page[-1][0] + b"\0"
        self._arm()

    # --- taking ---

    def admit(self, request: Publish) -> None:
        """Raise for a delay that is too long, or if too many messages wait already."""
        ahead = request.deliver_at_ms - self._clock.now_ms() if request.deliver_at_ms else request.delay_ms
        if request.delay_ms < 0 or ahead > LONGEST_DELAY_MS:
            raise InvalidRequest(f"a delay is between 0 and {LONGEST_DELAY_MS} ms")
        if self._waiting + request.batch.columns.count > MOST_WAITING or self._bytes > MOST_BYTES:
            raise Throttled("too many delayed messages")

    def keep(self, caller: Caller, request: Publish, prepared: Prepared) -> None:
        if request.batch.columns.value_bytes < MUCH:
            self._keep(caller, request, prepared)
        else:  # it was read and copied in this turn already: others have theirs before it is copied into a row
            self._timers.call_at(self._clock.now(), lambda: self._keep(caller, request, prepared))

    def _keep(self, caller: Caller, request: Publish, prepared: Prepared) -> None:
        now_ms = self._clock.now_ms()
        due_ms = request.deliver_at_ms or now_ms + request.delay_ms
        batch = request.batch
        ids = [""] * batch.columns.count
        kept: dict[bytes, _Waiting] = {}
        for index, row in sorted(rows_of(batch.address, prepared).items()):
            key = key_of(max(due_ms, 0), next(self._numbers))
            ids[index] = id_of(key)
            kept[key] = _Waiting(row, encode(row))

        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                self._appending.discard([prepared])
                caller.answer(request.id, ticket.error)
                return
            for key, waiting in kept.items():
                self._count(waiting.raw, 1)
                self._place(key, waiting)
            self._arm()
            caller.answer(request.id, Delayed(now_ms, ids, prepared.refused))

        # the topics are made now: their settings are known now
        puts = [Put(TABLE, key, waiting.raw) for key, waiting in kept.items()]
        self._store.submit(Unit(creates=prepared.creates, puts=puts)).on_done(done)

    def _count(self, raw: bytes, change: int) -> None:
        self._waiting += change
        self._bytes += change * len(raw)

    def _place(self, key: bytes, waiting: _Waiting) -> None:
        # into the head, unless it lies behind the horizon; what the head has too much of moves the horizon
        if self._horizon is not None and key >= self._horizon:
            if self._refilling:
                self._meanwhile[key] = waiting
            return
        if key not in self._head:
            self._head[key] = waiting
            heapq.heappush(self._heap, key)
        # twice, so that a row that comes at the end does not move the horizon each time
        if len(self._head) > 2 * self._head_size:
            keys = sorted(self._head)
            # what lies behind it stays on disk: however many wait, they take no more memory than this
            self._horizon = keys[self._head_size]
            for late in keys[self._head_size :]:
                if self._refilling:
                    self._meanwhile[late] = self._head[late]
                del self._head[late]
            self._heap = keys[: self._head_size]

    # --- firing ---

    def _arm(self, at_least: float = 0.0) -> None:
        while self._heap and self._heap[0] not in self._head:
            heapq.heappop(self._heap)  # cancelled
        if not self._heap:
            return
        left = (due_of(self._heap[0]) - self._clock.now_ms()) / 1000
        when = self._clock.now() + min(max(left, at_least), _LONGEST_SLEEP)
        if self._timer is not None:
            if self._timer[0] <= when:
                return
            self._timer[1]()
        self._timer = when, self._timers.call_at(when, self._fire)

    def _fire(self) -> None:
        # append what is due, one unit at a time: while one waits for the store, the others wait on disk
        self._timer = None
        if self._firing or not self._owners.owns(JOB):
            return
        now_ms = self._clock.now_ms()
        together = FIRED_TOGETHER if self._failures < _PATIENCE else 1  # one bad message does not hold up the others
        due: dict[bytes, _Waiting] = {}
        while self._heap and due_of(self._heap[0]) <= now_ms and len(due) < together:
            key = heapq.heappop(self._heap)
            waiting = self._head.pop(key, None)
            if waiting is not None:
                due[key] = waiting
        gone = {key: waiting for key, waiting in due.items() if not self._has_place(waiting.row)}
        for key, waiting in gone.items():
            del due[key]
            self._drop(key, waiting)
        if due:
            self._append(due)
        if len(self._head) < self._head_size // 2:
            self._refill()
        self._arm()

    def _has_place(self, row: DelayedRow) -> bool:
        # whether its topics still exist; who deletes a topic deletes what was to come, too
        topics = self._store.topics
        return all(name in topics and partition < len(topics[name].partitions) for name, partition in row.targets)

    def _append(self, due: Mapping[bytes, _Waiting]) -> None:
        self._firing.update(due)
        started = self._clock.now()
        ticket = self._appending.commit(
            [waiting.row.prepared(started) for waiting in due.values()],
            [Put(TABLE, key, None) for key in due],
            # the commit that appends takes the row away, and needs it to be there: nothing fires twice, whoever cancels meanwhile
            [Require(TABLE, key, waiting.raw) for key, waiting in due.items()],
        )

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._failures = 0
                self._firing.clear()
                for waiting in due.values():
                    self._count(waiting.raw, -1)
                self._arm()
                return
            self._failures += 1
            for waiting in due.values():
                self._appending.adopt(waiting.row.parts())  # the failed commit was counted as a refusal
            wait = min(_FIRST_RETRY * 2 ** min(self._failures, 10), _LONGEST_RETRY)
            self._timers.call_at(self._clock.now() + wait, lambda: self._look_again(due))

        ticket.on_done(done)

    def _look_again(self, due: Mapping[bytes, _Waiting]) -> None:
        # after a failure: what the store still has is tried again; what it has not was fired, whatever the error said
        async def job() -> dict[bytes, bytes | None]:
            return {key: await self._store.get(TABLE, key) for key in due}

        def done(rows: dict[bytes, bytes | None] | GatewayError) -> None:
            if isinstance(rows, GatewayError):
                self._timers.call_at(self._clock.now() + _LONGEST_RETRY, lambda: self._look_again(due))
                return
            self._firing.clear()
            for key, waiting in due.items():
                if rows[key] is not None:
                    self._place(key, waiting)
                else:
                    self._forget(waiting)
            self._arm()

        self._offload.task(job, done)

    def _drop(self, key: bytes, waiting: _Waiting) -> None:
        self._store.submit(Unit(puts=[Put(TABLE, key, None)]))
        self._forget(waiting)

    def _forget(self, waiting: _Waiting) -> None:
        self._count(waiting.raw, -1)
        self._appending.discard([waiting.row.prepared(0.0)])

    # --- the rows behind the horizon ---

    def _refill(self) -> None:
        # Read the next page. What comes or is cancelled meanwhile is put in or left out when it is there.
        if self._refilling or self._horizon is None:
            return
        self._refilling = True
        first = self._horizon

        async def job() -> Sequence[tuple[bytes, bytes]]:
            return await self._store.scan(TABLE, first, self._head_size + 1)

        def done(page: Sequence[tuple[bytes, bytes]] | GatewayError) -> None:
            self._refilling = False
            meanwhile, self._meanwhile = self._meanwhile, {}
            if isinstance(page, GatewayError):
                self._timers.call_at(self._clock.now() + _FIRST_RETRY, self._refill)
                return
            self._horizon = page[-1][0] if len(page) > self._head_size else None
            read = {
                key: raw for key, raw in page[: self._head_size] if key not in meanwhile and key not in self._firing
            }
            for key, raw in read.items():
                self._place(key, _Waiting(decode(raw), raw))
            for key, waiting in meanwhile.items():
                if waiting is not None:
                    self._place(key, waiting)
            self._arm()

        self._offload.task(job, done)

    # --- cancelling ---

    def cancel(self, caller: Caller, request: CancelDelayed) -> None:
        key = key_of_id(request.delayed_id)
        missing = NotFound(f"delayed message not found: {request.delayed_id[:64]}")
        if key is None or key in self._firing:
            # it is on its way into the log: an answer that it was cancelled could not be kept
            raise missing
        waiting = self._head.get(key)
        if waiting is not None:
            self._take_back(caller, request, key, waiting, missing)
            return

        async def job() -> bytes | None:
            return await self._store.get(TABLE, key)

        def done(raw: bytes | GatewayError | None) -> None:
            if isinstance(raw, GatewayError):
                caller.answer(request.id, raw)
            elif raw is None or key in self._firing:
                caller.answer(request.id, missing)
            else:
                self._take_back(caller, request, key, _Waiting(decode(raw), raw), missing)

        self._offload.task(job, done)

    def _take_back(
        self, caller: Caller, request: CancelDelayed, key: bytes, waiting: _Waiting, missing: NotFound
    ) -> None:
        # ids can be guessed; whoever may cancel at one address must not learn of, or take, what waits for another
        if waiting.row.address != request.address:
            caller.answer(request.id, missing)
            return
        self._head.pop(key, None)
        if self._refilling:
            self._meanwhile[key] = None

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._head.pop(key, None)  # a page that was read meanwhile may have brought it back
                if self._refilling:
                    self._meanwhile[key] = None
                if key not in self._firing:  # else its unit fails, and it is forgotten there
                    self._forget(waiting)
                caller.answer(request.id, DONE)
            elif isinstance(ticket.error, ConditionFailed):
                caller.answer(request.id, missing)
            else:
                self._place(key, waiting)
                self._arm()
                caller.answer(request.id, ticket.error)

        unit = Unit(puts=[Put(TABLE, key, None)], requires=[Require(TABLE, key, waiting.raw)])
        self._store.submit(unit).on_done(done)
