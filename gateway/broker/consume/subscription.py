"""One subscription: cursors into a topic, what is handed out and not settled, and who waits for more.

It is a position in the log, not a queue: what was not read yet costs nothing. Messages of several partitions are merged
by store time, then partition.

Apart from `subscriptions`, which finds, bounds and expires all of them: this is what one does, and its tests have no
other.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from gateway.broker.consume.consumer import (
    MAX_DELIVERIES,
    ConsumedMessage,
    Consumer,
    ConsumerContext,
    ConsumerPlace,
    Moved,
    Tally,
)
from gateway.broker.consume.cursors import cursor_row, stored, subscription_row
from gateway.broker.service import Caller
from gateway.broker.timers import Alarm
from gateway.envelope import Delivery, Run
from gateway.errors import GatewayError
from gateway.recorder import ConsumerCounts
from gateway.requests import Delivered, Outcome, Subscribe, Subscribed, Take
from gateway.settings import Backoff, Seconds
from gateway.store.ack_window import AckWindow
from gateway.store.cut import fit
from gateway.store.interface import Durability, Put, Require, Ticket, TopicState

MOST_READ_AHEAD = 4_096
NONE_YET: Any = ()
"""In the place of a queue that nothing was put into: an empty one has 760 bytes, and of subscriptions that nobody polls there may
be tens of thousands, each with three.
"""


MORE = -1
"""In the place of how much is counted: it is to be counted anew."""


UNIT = 256
"""Bytes that what is outstanding is counted in, and that each of it takes beside the message. Python makes no object for numbers
as small as these mostly are.
"""
PAGE = 16
"""Units. Whole ones are charged, for each subscription: who acknowledges each small message as it comes pays nothing for it."""


class Given:
    """What was handed out in one piece, and is there until the last of it is settled. Made without a call of ours: it may be one
    message.
    """

    __slots__ = ("left", "size")
    left: int
    size: int


class Outstanding(ConsumedMessage):
    __slots__ = ("client", "due", "given")

    def __init__(self, run: Run, index: int, client: int, attempts: int, due: float | None, given: Given) -> None:
        # as ConsumedMessage makes one, which is not asked: there is one of these for every message
        self.run = run
        self.index = index
        self.offset = run.base_offset + index
        self.attempts = attempts
        self.first_error = self.last_error = ""
        self.client = client
        self.due = due
        self.given = given


class Cursor(Consumer):
    def __init__(self, context: ConsumerContext, subscription: Subscription, place: ConsumerPlace) -> None:
        request, kept = subscription.request, subscription.durable
        super().__init__(context, place, kept=kept, smallest=request.smallest_value, largest=request.largest_value)
        self._subscription = subscription
        self.counted = 0
        """Bytes of what is ahead that the memory knows of."""
        self.ahead: deque[Run] = NONE_YET
        """What was read, and not handed out yet."""
        self.begun = 0
        """So many records of the first of these are: what is left of it is not copied for each who takes some."""

    @property
    def oldest(self) -> int:
        """When what is handed out next was stored."""
        return self.ahead[0].times[self.begun]

    def cut(self, stop: int) -> Run:
        """What is handed out next, up to this record of the first run."""
        run, first = self.ahead[0], self.begun
        self.begun = stop
        if stop == run.columns.count:
            self.ahead.popleft()
            self.begun = 0
        return run.slice(first, stop)

    @property
    def left(self) -> int:
        """Bytes of what was read and not handed out."""
        size = 0
        for run in self.ahead:
            size += len(run.columns.packed)
        if self.loaded is not None:
            size += sum([len(run.columns.packed) for run in self.loaded.runs])
        return size

    def drop_ahead(self) -> bool:
        """See `ReadsAhead`."""
        if self._subscription.asked:
            return False
        if self.ahead:
            # what lies behind may be settled in part: it expired, or is nothing for this reader
            self._settled_until = max(self._settled_until, self.next)
            self.next = self.ahead[0].base_offset + self.begun
            self.ahead.clear()
            self.begun = 0
        self.loaded = None
        self.counted = 0
        return True

    def rows(self, window: AckWindow, _tally: Tally) -> Sequence[Put]:
        return self._subscription.rows(self.partition, window)

    def guard(self) -> Sequence[Require]:
        return self._subscription.guard

    def wake(self) -> None:
        self._subscription.go_on(self._subscription)


class Waiting:
    __slots__ = ("caller", "request", "timer")

    def __init__(self, caller: Caller, request: Take) -> None:
        self.caller = caller
        self.request = request
        self.timer: Alarm | None = None
        """Of who waits for a time."""

    def end(self, outcome: Outcome) -> None:
        if self.timer is not None:
            self.timer.set(None)
        if not self.caller.detached:
            self.caller.answer(self.request.id, outcome)


class Subscription:
    """State and decisions; the service around it does the reading and the writing."""

    def __init__(
        self,
        number: int,
        request: Subscribe,
        topic: TopicState,
        listener: str,
        owner: str,
        go_on: Callable[[Subscription], None],
    ) -> None:
        self.number = number
        self.request = request
        self.topic = topic.name
        self.epoch = topic.epoch
        self._on_disk = topic.config.durability is not Durability.MEMORY
        self.listener = listener
        self.owner = owner
        self.cursors: list[Cursor] = []
        self.takes: deque[Waiting] = NONE_YET
        self.outstanding: dict[int, Outstanding] = {}
        self.unacknowledged = 0
        """Units that these take."""
        self.charged = 0
        """Pages of that which the memory knows of."""
        self.over = False
        """They are as much as they may be now."""
        self.again: deque[int] = NONE_YET
        """Tags whose redelivery is due, in the order they became so."""
        self.next_tag = 1
        self.guard: Sequence[Require] = ()
        """What has to hold for something of it to be written."""
        self.go_on = go_on
        """Has the service look at it in the next pass. One call for all of them."""
        self.redelivery_due: Alarm | None = None
        self.grace_over: Alarm | None = None
        """When nobody has come back in time. The service makes these two when there is a time to wait for: of subscriptions that
        nobody polls there may be tens of thousands.
        """
        self.clients: set[int] = set()
        self.opening: Ticket | None = None
        """Until it is written that there is one."""
        self.ended = False
        self.held = False
        """It is being put elsewhere: nothing is handed out."""
        self.watched = False
        """Whether it is told when its topic grows."""
        self._due: list[tuple[float, int, int]] = NONE_YET
        self._first_wait = _waits(request, 1)

    def joined_by(self, request: Subscribe) -> None:
        """Somebody else uses its name: from now on it is as he asks for it."""
        self.request = request
        self._first_wait = _waits(request, 1)
        for cursor in self.cursors:
            cursor.smallest, cursor.largest = request.smallest_value, request.largest_value

    @property
    def state(self) -> TopicState | None:
        return self.cursors[0].state if self.cursors else None

    @property
    def durable(self) -> bool:
        return bool(self.request.name) or self.request.durable_grace is not None

    def belongs_to(self, caller: Caller) -> bool:
        # Numbers can be guessed: one without a name is for whoever opened it, over any connection. Who may use a name is
        # decided by the topic.
        return bool(self.request.name) or self.owner == caller.identity.name or caller.id in self.clients

    @property
    def room(self) -> int:
        return self.request.max_in_flight - (len(self.outstanding) if self.request.acknowledge else 0)

    @property
    def asked(self) -> bool:
        """Somebody is to be given more as soon as there is memory for it."""
        return bool(self.takes) and self.room > 0 and not self.over

    def subscribed(self) -> Subscribed:
        single = len(self.cursors) == 1
        first = self.cursors[0].next if single else 0
        return Subscribed(self.number, self.request.address, first, lasting_offsets=single and self._on_disk)

    def read_ahead(self, state: TopicState, most: int) -> None:
        """Of each partition of which nothing is left to be handed out."""
        for cursor in self.cursors:
            size = most
            while not cursor.ahead and (runs := cursor.read_on(state.partitions[cursor.partition], size)) is not None:
                if cursor.ahead is NONE_YET:
                    cursor.ahead = deque()
                if cursor.counted:
                    cursor.counted = MORE
                cursor.ahead.extend(runs)
                size = MOST_READ_AHEAD  # what nobody is to get is passed in large steps

    @property
    def reading(self) -> bool:
        return any(cursor.reading for cursor in self.cursors)

    @property
    def unreadable(self) -> GatewayError | None:
        return next((cursor.unreadable for cursor in self.cursors if cursor.unreadable is not None), None)

    # --- handing out ---

    def hand_out(self, caller: Caller, request: Take, max_bytes: int, now: float, now_ms: int) -> list[Delivered]:
        """Without any bytes only what is due again is handed out."""
        max_messages = request.max_messages
        kept = self.request.acknowledge or caller.far
        apart = kept and request.at_most_once_settled and not caller.far
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
            message.due = self._schedule(tag, 1, message.attempts, now) or message.due
            max_messages -= 1
            max_bytes -= len(given[-1].run.columns.packed)
        while max_messages > 0 and max_bytes > 0:
            room = self.room
            cursor = self._next_cursor(now_ms)
            if cursor is None or room <= 0:
                break
            run = self._cut(cursor, min(max_messages, room), max_bytes, apart=apart)
            if kept and not (apart and run.batches[0][2].delivery is Delivery.AT_MOST_ONCE):
                given.append(self._give(caller, cursor, run, now))
            else:
                given.append(self._give_for_good(cursor, run))
            max_messages -= run.columns.count
            max_bytes -= len(run.columns.packed)
        return given

    def _next_cursor(self, now_ms: int) -> Cursor | None:
        best: Cursor | None = None
        for cursor in self.cursors:
            if cursor.ahead and cursor.ahead[0].columns.expires is not None:
                self._drop_expired(cursor, now_ms)
            if cursor.ahead and (best is None or cursor.oldest < best.oldest):
                best = cursor
        return best

    def _drop_expired(self, cursor: Cursor, now_ms: int) -> None:
        # what expired after it was read ahead
        while cursor.ahead and (expires := cursor.ahead[0].columns.expires) is not None:
            if not 0 < expires[cursor.begun] <= now_ms:
                return
            gone = cursor.cut(cursor.begun + 1)
            cursor.expire(gone.base_offset, gone.next_offset)

    def _cut(self, cursor: Cursor, max_messages: int, max_bytes: int, *, apart: bool) -> Run:
        # as much of what was read ahead as is asked for, and as is older than the other partitions' next; `apart`: not what is to
        # be settled together with what is settled at once
        run, first = cursor.ahead[0], cursor.begun
        columns = run.columns
        stop = min(columns.count, first + max_messages)
        if columns.expires is not None:
            stop = first + 1  # each is looked at when its turn comes
        elif stop > first + 1:
            stop = fit(columns, first, stop, max_bytes)
            if apart:
                stop = run.delivered_alike(first, stop)
        for other in self.cursors:
            if other is not cursor and other.ahead:
                stop = min(stop, bisect_right(run.times, other.oldest, first))
        return cursor.cut(max(stop, first + 1))

    def _give(self, caller: Caller, cursor: Cursor, run: Run, now: float) -> Delivered:
        first_tag = self.next_tag
        self.next_tag += run.columns.count
        cursor.touch()
        due = self._schedule(first_tag, run.columns.count, 1, now)
        tried = cursor.window.outstanding
        given = Given()
        given.left, given.size = run.columns.count, len(run.columns.packed) // UNIT
        self.unacknowledged += given.size + given.left
        for index in range(run.columns.count):
            attempts = tried.get(run.base_offset + index, 0) + 1 if tried else 1
            self.outstanding[first_tag + index] = Outstanding(run, index, caller.id, attempts, due, given)
        return Delivered(run, first_tag)

    def _give_for_good(self, cursor: Cursor, run: Run) -> Delivered:
        first_tag = self.next_tag
        self.next_tag += run.columns.count
        cursor.acknowledge(run.base_offset, run.next_offset)
        return Delivered(run, first_tag, settled=True)

    def _schedule(self, first_tag: int, count: int, attempt: int, now: float) -> float | None:
        # when they are to be handed out once more if nobody answers
        redelivery = self.request.redelivery
        if redelivery is None or not redelivery.unanswered or not self.request.acknowledge:
            return None
        due = now + (self._first_wait if attempt == 1 else _waits(self.request, attempt))
        if self._due is NONE_YET:
            self._due = []
        heapq.heappush(self._due, (due, first_tag, count))
        return due

    # --- settling ---

    def settle(self, tag: int) -> Outstanding | None:
        """A tag is done with; None if it is not outstanding."""
        message = self.outstanding.pop(tag, None)
        if message is not None:
            given = message.given  # as in `_gone`, which would be one more call for every message
            given.left -= 1
            self.unacknowledged -= 1 if given.left else 1 + given.size
            self.cursors[message.run.partition].acknowledge(message.offset, message.offset + 1)
        return message

    def _gone(self, message: Outstanding) -> None:
        # it is not outstanding any more: with the last of what it was given with goes what that takes
        given = message.given
        given.left -= 1
        self.unacknowledged -= 1 if given.left else 1 + given.size

    def refuse(self, tag: int, now: float) -> bool:
        """Its client will not have it: it is handed out again after a while, or given up if that was its last delivery."""
        redelivery = self.request.redelivery
        message = self.outstanding.get(tag)
        if message is None or redelivery is None:
            return self.give_back(tag)
        self._cursor_of(message).tried(message)
        message.client = 0
        message.due = (
            now if message.attempts >= redelivery.max_deliveries else now + _waits(self.request, message.attempts)
        )
        if self._due is NONE_YET:
            self._due = []
        heapq.heappush(self._due, (message.due, tag, 1))
        return True

    def give_back(self, tag: int) -> bool:
        message = self.outstanding.get(tag)
        if message is None:
            return False
        if self.request.redelivery is not None:
            message.attempts -= 1  # whoever had it did not get to it
        message.due = None
        message.client = 0
        self._once_more(tag)
        return True

    def _once_more(self, tag: int) -> None:
        if self.again is NONE_YET:
            self.again = deque()
        self.again.append(tag)

    def give_back_all_of(self, client: int) -> None:
        # A connection is gone: its messages go to whoever asks next, unless they come back after a while anyhow
        redelivery = self.request.redelivery
        if redelivery is None or not redelivery.unanswered or not self.request.acknowledge:
            for tag in [tag for tag, message in self.outstanding.items() if message.client == client]:
                self.give_back(tag)

    def next_due(self) -> float | None:
        while self._due:
            due, first_tag, count = self._due[0]
            for tag in range(first_tag, first_tag + count):
                message = self.outstanding.get(tag)
                if message is not None and message.due == due:
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
                    del self.outstanding[tag]
                    self._gone(message)
                    self._cursor_of(message).give_up(message, MAX_DELIVERIES)
                else:
                    self._cursor_of(message).tried(message)
                    self._once_more(tag)

    def _is_due_at(self, tag: int, due: float) -> bool:
        message = self.outstanding.get(tag)
        return message is not None and message.due == due

    # --- being put elsewhere ---

    def take_back(self, partitions: Container[int]) -> Mapping[int, Outstanding]:
        """What is handed out of these partitions is nobody's from now on: who settles it hears that it is not known."""
        taken = {tag: one for tag, one in self.outstanding.items() if one.run.partition in partitions}
        for tag, message in taken.items():
            del self.outstanding[tag]
            self._gone(message)
        return taken

    def put_back(self, taken: Mapping[int, Outstanding]) -> None:
        """It is as it was before that."""
        if self.ended:
            return
        self.outstanding.update(taken)
        for tag, message in taken.items():
            given = message.given
            self.unacknowledged += 1 if given.left else 1 + given.size
            given.left += 1
            if message.due is not None:  # that was looked at meanwhile, perhaps, and found to be of none
                heapq.heappush(self._due, (message.due, tag, 1))

    def begin_anew(self, cursor: Cursor, moved: Moved) -> None:
        """One partition goes on elsewhere."""
        self.cursors[cursor.partition].leave(moved)
        self.cursors[cursor.partition].close()
        self.cursors[cursor.partition] = cursor

    def end(self) -> None:
        """There is no more of it. It and its cursors refer to each other, which the collector alone would find."""
        self.ended = True
        for alarm in (self.grace_over, self.redelivery_due):
            if alarm is not None:
                alarm.set(None)
        self.grace_over = self.redelivery_due = None
        for cursor in self.cursors:
            cursor.close()
        self.cursors = []
        self.outstanding.clear()
        self.unacknowledged = 0

    # --- accounting ---

    def consumers(self, state: TopicState) -> Iterator[ConsumerCounts]:
        kind = "reader" if self.request.name else "subscription"
        name = self.request.name or str(self.number)
        for cursor in self.cursors:
            yield cursor.counts(kind, name, state.partitions[cursor.partition].end)

    # --- keeping it ---

    def save_soon(self) -> None:
        for cursor in self.cursors:
            cursor.save_soon()

    def rows(self, partition: int, window: AckWindow) -> list[Put]:
        row = stored(self.request, self.topic, self.epoch, self.listener, self.owner, self.next_tag)
        return [subscription_row(self.number, row), cursor_row(self.number, partition, window.to_bytes())]

    def unwritten_rows(self, *, all_of_them: bool = False) -> list[Put]:
        cursors = [one for one in self.cursors if self.durable and (all_of_them or not one.written)]
        return [row for cursor in cursors for row in self.rows(cursor.partition, cursor.window)]

    # --- inside ---

    def _cursor_of(self, message: ConsumedMessage) -> Cursor:
        return self.cursors[message.run.partition]


def _waits(request: Subscribe, attempt: int) -> float:
    # how long a delivery may remain unanswered, or rests after it was refused
    redelivery = request.redelivery
    if redelivery is None:
        return math.inf
    return Backoff(Seconds(redelivery.first_delay), Seconds(redelivery.longest_delay)).delay(attempt)
