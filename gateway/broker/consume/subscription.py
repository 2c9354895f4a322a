"""One subscription: cursors into a topic, what is handed out and not settled, and who waits for more.

It is a position in the log, not a queue: what was not read yet costs nothing. Messages of several partitions are merged
by store time, then partition.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

import attrs

from gateway.broker.consume.cursors import cursor_row, stored, subscription_row
from gateway.broker.consume.position import Message, Position
from gateway.broker.service import Caller
from gateway.envelope import PREFIX, Run
from gateway.errors import GatewayError
from gateway.recorder import ConsumerCounts
from gateway.requests import Delivered, Redelivery, Subscribe, Subscribed, Take
from gateway.store.ack_window import AckWindow
from gateway.store.interface import Durability, Put, ReadResult, TopicState

SIZE = "size"
"""The reason of a letter: the subscriber's protocol cannot carry it."""
MAX_DELIVERIES = "max_deliveries"
"""Nobody acknowledged it, however often it was handed out."""


class Outstanding(Message):
    """A message that was handed out and is not settled."""

    __slots__ = ("client", "due")

    def __init__(self, run: Run, index: int, client: int, attempts: int) -> None:
        super().__init__(run, index, attempts)
        self.client = client
        self.due: float | None = None


@attrs.define(eq=False)
class Cursor:
    """One partition: what was read, what is settled, and what was read ahead."""

    partition: int
    next: int
    position: Position
    ahead: deque[Run] = attrs.Factory(deque)
    loading: bool = False
    settled_until: int = 0
    """After a restart: below this some offsets may be settled already."""


@attrs.define(eq=False)
class Waiting:
    """A Take that waits."""

    caller: Caller
    request: Take
    cancel_timer: Callable[[], None] | None = None

    def refuse(self, error: GatewayError) -> None:
        """It gets nothing, for this reason."""
        if self.cancel_timer is not None:
            self.cancel_timer()
        self.caller.answer(self.request.id, error)


class Subscription:
    """State and decisions; the service around it does the reading and the writing."""

    def __init__(self, number: int, request: Subscribe, topic: TopicState, listener: str, owner: str) -> None:
        self.number = number
        self.request = request
        self.topic = topic.name
        self.epoch = topic.epoch
        self._on_disk = topic.config.durability is not Durability.MEMORY
        self.listener = listener
        self.owner = owner
        self.cursors: list[Cursor] = []
        self.takes: deque[Waiting] = deque()
        self.outstanding: dict[int, Outstanding] = {}
        self.again: deque[int] = deque()
        """Tags whose redelivery is due, in the order they became so."""
        self.next_tag = 1
        self.clients: set[int] = set()
        self.ended = False
        self.watched = False
        """Whether it is told when its topic grows."""
        self._due: list[tuple[float, int, int]] = []

    @property
    def durable(self) -> bool:
        """Whether it is kept in the store."""
        return bool(self.request.name) or self.request.durable_grace is not None

    def belongs_to(self, caller: Caller) -> bool:
        """Numbers can be guessed: one without a name is for whoever opened it, over any connection. Who may use a name is
        decided by the topic.
        """
        return bool(self.request.name) or self.owner == caller.identity.name or caller.id in self.clients

    @property
    def room(self) -> int:
        """How many more messages may be handed out."""
        return (
            self.request.max_in_flight - len(self.outstanding)
            if self.request.acknowledge
            else self.request.max_in_flight
        )

    def subscribed(self) -> Subscribed:
        """What its subscriber is told."""
        single = len(self.cursors) == 1
        first = self.cursors[0].next if single else 0
        return Subscribed(self.number, self.request.address, first, lasting_offsets=single and self._on_disk)

    # --- reading ahead ---

    def wanted(self, state: TopicState) -> Iterator[Cursor]:
        """The partitions that have something and nothing is read ahead of."""
        for cursor in self.cursors:
            if cursor.next < state.partitions[cursor.partition].end and not (
                cursor.ahead or cursor.loading or cursor.position.letters
            ):
                yield cursor

    def skip_trimmed(self, cursor: Cursor, start: int) -> int:
        """Retention took what was not read: go on at the log's start. Returns how many messages that were."""
        lost = start - cursor.next
        if lost <= 0:
            return 0
        cursor.position.tally.trimmed += cursor.position.passed(cursor.next, start)
        cursor.next = start
        return lost

    def read(self, cursor: Cursor, result: ReadResult) -> None:
        """Take in what the store gave; what this subscriber's protocol cannot carry goes to the dead letters."""
        offset = cursor.next
        for run in result.runs:
            if run.base_offset > offset:
                self._expire(cursor, offset, run.base_offset)
            cursor.ahead.extend(self._carriable(cursor, run))
            offset = run.next_offset
        if result.next_offset > offset:
            self._expire(cursor, offset, result.next_offset)
        cursor.next = result.next_offset

    def _carriable(self, cursor: Cursor, run: Run) -> Iterator[Run]:
        largest, smallest = self.request.largest_value, self.request.smallest_value
        check_size = (largest is not None and len(run.columns.packed) > largest) or smallest > 0
        check_settled = run.base_offset < cursor.settled_until
        if not check_size and not check_settled:
            yield run
            return
        first = before = 0
        for index, end in enumerate(run.columns.ends):
            size = end - before - PREFIX
            before = end
            settled = check_settled and cursor.position.window.is_settled(run.base_offset + index)
            fits = size >= smallest and (largest is None or size <= largest)
            if settled or not fits:
                if index > first:
                    yield run.slice(first, index)
                first = index + 1
                if not settled:
                    cursor.position.give_up(Message(run, index), SIZE)
        if first < run.count:
            yield run.slice(first, run.count)

    def _expire(self, cursor: Cursor, first: int, stop: int) -> None:
        cursor.position.tally.expired += cursor.position.passed(first, stop)

    # --- handing out ---

    def hand_out(self, caller: Caller, max_messages: int, max_bytes: int, now: float, now_ms: int) -> list[Delivered]:
        """What a Take gets: redeliveries that are due, then new messages."""
        given: list[Delivered] = []
        while self.again and max_messages > 0:
            tag = self.again.popleft()
            message = self.outstanding.get(tag)
            if message is None:
                continue
            message.attempts += 1
            message.client = caller.id
            given.append(
                Delivered(message.run.slice(message.index, message.index + 1), first_tag=tag, attempt=message.attempts)
            )
            self._schedule(tag, 1, message.attempts, now)
            max_messages -= 1
            max_bytes -= len(given[-1].run.columns.packed)
        while max_messages > 0 and (max_bytes > 0 or not given):
            room = self.room
            cursor = self._next_cursor(now_ms)
            if cursor is None or room <= 0:
                break
            run = self._cut(cursor, min(max_messages, room), max_bytes if given else max(max_bytes, 1))
            given.append(self._give(caller, cursor, run, now))
            max_messages -= run.count
            max_bytes -= len(run.columns.packed)
        return given

    def _next_cursor(self, now_ms: int) -> Cursor | None:
        """The partition whose next message is the oldest."""
        best: Cursor | None = None
        for cursor in self.cursors:
            self._drop_expired(cursor, now_ms)
            if cursor.ahead and (best is None or cursor.ahead[0].times[0] < best.ahead[0].times[0]):
                best = cursor
        return best

    def _drop_expired(self, cursor: Cursor, now_ms: int) -> None:
        """What expired after it was read ahead."""
        while cursor.ahead and cursor.ahead[0].columns.expires is not None:
            run = cursor.ahead[0]
            expires = run.columns.expires or ()
            if not 0 < expires[0] <= now_ms:
                return
            self._expire(cursor, run.base_offset, run.base_offset + 1)
            cursor.ahead.popleft()
            if run.count > 1:
                cursor.ahead.appendleft(run.slice(1, run.count))

    def _cut(self, cursor: Cursor, max_messages: int, max_bytes: int) -> Run:
        """As much of what was read ahead as is asked for, and as is older than the other partitions' next."""
        run = cursor.ahead.popleft()
        count = min(run.count, max_messages)
        if run.columns.ends[count - 1] - PREFIX * count > max_bytes:
            fitting = bisect_right(range(count), max_bytes, key=lambda i: run.columns.ends[i] - PREFIX * (i + 1))
            count = max(1, fitting)
        if run.columns.expires is not None:
            count = 1  # each is looked at when its turn comes
        for other in self.cursors:
            if other is not cursor and other.ahead:
                limit = other.ahead[0].times[0]
                count = max(1, min(count, bisect_right(run.times, limit)))
        if count < run.count:
            cursor.ahead.appendleft(run.slice(count, run.count))
            return run.slice(0, count)
        return run

    def _give(self, caller: Caller, cursor: Cursor, run: Run, now: float) -> Delivered:
        first_tag = self.next_tag
        self.next_tag += run.count
        if self.request.acknowledge:
            cursor.position.touch()
            tried = cursor.position.window.outstanding
            for index in range(run.count):
                attempts = tried.get(run.base_offset + index, 0) + 1 if tried else 1
                self.outstanding[first_tag + index] = Outstanding(run, index, caller.id, attempts)
            self._schedule(first_tag, run.count, 1, now)
        else:
            cursor.position.acknowledged(run.base_offset, run.next_offset)
        return Delivered(run, first_tag)

    def _schedule(self, first_tag: int, count: int, attempt: int, now: float) -> None:
        redelivery = self.request.redelivery
        if redelivery is None or not redelivery.unanswered:
            return
        due = now + _delay(redelivery, attempt)
        for tag in range(first_tag, first_tag + count):
            self.outstanding[tag].due = due
        heapq.heappush(self._due, (due, first_tag, count))

    # --- settling ---

    def settle(self, tag: int) -> Outstanding | None:
        """A tag is done with; None if it is not outstanding."""
        message = self.outstanding.pop(tag, None)
        if message is not None:
            self.position_of(message).acknowledged(message.offset, message.offset + 1)
        return message

    def refuse(self, tag: int, now: float) -> bool:
        """Its client will not have it: it is handed out again after a while, or given up if that was its last delivery."""
        redelivery = self.request.redelivery
        message = self.outstanding.get(tag)
        if message is None or redelivery is None:
            return self.give_back(tag)
        self.position_of(message).tried((message,))
        message.client = 0
        message.due = (
            now if message.attempts >= redelivery.max_deliveries else now + _delay(redelivery, message.attempts)
        )
        heapq.heappush(self._due, (message.due, tag, 1))
        return True

    def give_back(self, tag: int) -> bool:
        """A tag is to be handed out again, now."""
        message = self.outstanding.get(tag)
        if message is None:
            return False
        if self.request.redelivery is not None:
            message.attempts -= 1  # whoever had it did not get to it
        message.due = None
        message.client = 0
        self.again.append(tag)
        return True

    def give_back_all_of(self, client: int) -> None:
        """A connection is gone: its messages go to whoever asks next, unless they come back after a while anyhow."""
        redelivery = self.request.redelivery
        if redelivery is None or not redelivery.unanswered:
            for tag in [tag for tag, message in self.outstanding.items() if message.client == client]:
                self.give_back(tag)

    def next_due(self) -> float | None:
        """When a redelivery will be due."""
        while self._due:
            due, first_tag, count = self._due[0]
            if any(self._is_due_at(tag, due) for tag in range(first_tag, first_tag + count)):
                return due
            heapq.heappop(self._due)
        return None

    def overdue(self, now: float) -> None:
        """Those whose time has come and that have deliveries left are queued again; the others are given up."""
        redelivery = self.request.redelivery
        while self._due and self._due[0][0] <= now:
            due, first_tag, count = heapq.heappop(self._due)
            for tag in range(first_tag, first_tag + count):
                if not self._is_due_at(tag, due):
                    continue
                message = self.outstanding[tag]
                message.due = None
                if redelivery is not None and message.attempts >= redelivery.max_deliveries:
                    self.position_of(self.outstanding.pop(tag)).give_up(message, MAX_DELIVERIES)
                else:
                    self.position_of(message).tried((message,))
                    self.again.append(tag)

    def _is_due_at(self, tag: int, due: float) -> bool:
        message = self.outstanding.get(tag)
        return message is not None and message.due == due

    # --- accounting ---

    def consumers(self, state: TopicState) -> Iterator[ConsumerCounts]:
        """How far it is on each partition."""
        kind = "reader" if self.request.name else "subscription"
        name = self.request.name or str(self.number)
        for cursor in self.cursors:
            end = state.partitions[cursor.partition].end
            yield cursor.position.counts(kind, name, self.topic, cursor.partition, end)

    # --- keeping it ---

    def position_of(self, message: Message) -> Position:
        """The partition's that it is in."""
        return self.cursors[message.run.partition].position

    def save_soon(self) -> None:
        """Have what changed written."""
        for cursor in self.cursors:
            cursor.position.save_soon()

    def rows(self, partition: int, window: AckWindow) -> list[Put]:
        """What is kept of it, and of a partition."""
        row = stored(self.request, self.topic, self.epoch, self.listener, self.owner, self.next_tag)
        return [subscription_row(self.number, row), cursor_row(self.number, partition, window.to_bytes())]


def _delay(redelivery: Redelivery, attempt: int) -> float:
    return min(redelivery.first_delay * 2.0 ** min(attempt - 1, 62), redelivery.longest_delay)
