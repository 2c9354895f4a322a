"""Subscriptions: Subscribe, Take, Settle, Unsubscribe; durable cursors; redelivery up to the dead letters."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import attrs
import trio

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.answer_room import SHORT, AnswerRoom
from gateway.broker.consume.consumer import ConsumerContext, ConsumerPlace, Moved, Tally, knows_ends
from gateway.broker.consume.cursors import (
    CURSORS,
    SUBSCRIPTIONS,
    Numbers,
    StoredSubscription,
    check_lost,
    lost_cursor,
    read_subscriptions,
    removed_rows,
)
from gateway.broker.consume.deliveries import Latencies, record_acknowledged, record_delivered
from gateway.broker.consume.names import SubscriptionNames
from gateway.broker.consume.reset import PATIENCE, targets_of, topic_of
from gateway.broker.consume.subscription import (
    MOST_READ_AHEAD,
    NONE_YET,
    PAGE,
    UNIT,
    Cursor,
    Outstanding,
    Subscription,
    Waiting,
)
from gateway.broker.consume.watch import Watchers
from gateway.broker.ownership import Owners
from gateway.broker.service import Caller, Handler
from gateway.broker.timers import Alarm
from gateway.errors import (
    ConditionFailed,
    Conflict,
    GatewayError,
    InvalidRequest,
    NotFound,
    RowLost,
    StoreError,
    Throttled,
    UnknownSubscription,
    UnknownTopic,
)
from gateway.recorder import ConsumerCounts, Recorder, UnderWay
from gateway.requests import (
    DONE,
    ConsumerMove,
    ConsumerReset,
    Delivered,
    Request,
    Settle,
    Settled,
    Start,
    Subscribe,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.routing.table import RoutingTable
from gateway.slices import slices
from gateway.store.ack_window import AckWindow
from gateway.store.interface import MakeTopic, PartitionState, Put, Require, Ticket, TopicState, Unit

TAGS_AFTER_RESTART = 1 << 32
"""Tags given out shortly before a crash may be unknown to the stored row: no new one may be equal to them."""


@attrs.frozen(eq=False)
class SubscriptionContext(ConsumerContext):
    room: AnswerRoom
    owners: Owners
    table: RoutingTable
    topics: TopicService
    watchers: Watchers
    latencies: Latencies
    refusal: Callable[[Caller, str], GatewayError | None]
    """Why a caller may not read an address now."""


MOST_LOOKED_AT = 10_000
"""Outstanding messages of one subscription that are looked through for those that were tried."""


class SubscriptionService:
    def __init__(self, context: SubscriptionContext) -> None:
        self._context = context
        self._store = context.store
        self._subscriptions: dict[int, Subscription] = {}
        self._named: dict[tuple[str, str], int] = {}
        self._without_place: dict[int, RowLost] = {}
        """Subscriptions of which a damaged page has taken along how far they were."""
        self._held: dict[int, set[int]] = {}
        """Subscriptions that a connection uses."""
        self._of_listener: Counter[str] = Counter()
        self._going_on = self._go_on
        """One for all of them: each look at a method makes another."""
        self.numbers = Numbers(context.store)
        self.names = SubscriptionNames(context.store, context.owners)
        self.again: Callable[[Caller, Subscribe | Unsubscribe], None] = self._again
        """Who decides once more where somebody was quicker: another gateway may have what is asked for now."""
        self.opened: Callable[[Caller, int], None] = lambda _caller, _number: None
        """Who is to know which one a connection has opened."""

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {Subscribe: self.subscribe, Take: self.take, Settle: self.settle, Unsubscribe: self.unsubscribe}

    def _again(self, caller: Caller, request: Subscribe | Unsubscribe) -> None:
        if caller.detached:
            return
        try:
            self.handlers()[type(request)](caller, request)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)

    # --- subscribing ---

    def subscribe(self, caller: Caller, request: Subscribe) -> None:
        self.open(caller, request, self._context.topics.name(caller, request.address))

    def open(self, caller: Caller, request: Subscribe, topic: str, number: int | None = None) -> None:
        """What `request` asks for, on this topic; under this number, if it is new and not to have the next one."""
        known = self._named.get((topic, request.name)) if request.name else number
        subscription = self._subscriptions.get(known) if known is not None else None
        if subscription is not None and subscription.state is None:
            ended = self._end(subscription)
            if ended is not None and number is not None:
                # until that is written its name has the number that is gone
                ended.on_done(lambda _ticket: self.again(caller, request))
                return
        elif subscription is not None and subscription.opening is not None:
            # whether it is this one that has the name is known when that is written
            subscription.opening.on_done(lambda _ticket: self.again(caller, request))
            return
        elif subscription is not None:
            if subscription.request.acknowledge != request.acknowledge and subscription.outstanding:
                raise Conflict(f"reader {request.name!r} has unsettled messages of another mode")
            subscription.joined_by(request)
            self._use(caller, subscription)
            self.opened(caller, subscription.number)
            caller.answer(request.id, subscription.subscribed())
            return
        self._check_room(caller)
        if request.name:
            self._store.lost.check_table(SUBSCRIPTIONS, f"a subscription called {request.name}")
        number = number or self.numbers.take()
        state = self._store.topics.get(topic)
        if state is not None:
            self._open(caller, request, number, state)
            return
        if not request.create:
            raise UnknownTopic(f"topic not found: {request.address}")

        def created(ticket: Ticket) -> None:
            if ticket.error is not None:
                caller.answer(request.id, ticket.error)
            else:
                self._open(caller, request, number, self._store.topics[topic])

        config = self._context.table.topic_config(topic)
        self._store.submit(Unit(creates=[MakeTopic(topic, config)])).on_done(created)

    def _check_room(self, caller: Caller) -> None:
        name, limits = caller.listener.name, caller.listener.limits
        limit = ""
        if self._of_listener[name] >= limits.subscriptions:
            limit = "subscriptions"
        elif len(self._held.get(caller.id, ())) >= limits.subscriptions_per_connection:
            limit = "subscriptions_per_connection"
        if limit:
            self._context.recorder.limit_hit(name, limit)
            raise Throttled(f"too many subscriptions: limits.{limit} is reached")

    def _open(self, caller: Caller, request: Subscribe, number: int, state: TopicState) -> None:
        if isinstance(request.start, int) and len(state.partitions) != 1:
            caller.answer(request.id, InvalidRequest("a start offset needs a topic of one partition"))
            return
        if request.name and (state.name, request.name) in self._named:
            self.again(caller, request)
            return
        try:
            puts, requires = self.names.made(number, state.name, request.name)
        except ConditionFailed:
            self.again(caller, request)
            return
        windows = [AckWindow(_first_offset(request, bounds)) for bounds in state.partitions]
        subscription = self._made(number, request, state, (caller.listener.name, caller.identity.name), windows)
        self._use(caller, subscription)
        if caller.detached:  # while its topic was made
            self._leave(subscription, caller.id)
        if not subscription.durable:
            caller.answer(request.id, subscription.subscribed())
            return

        def done(ticket: Ticket) -> None:
            subscription.opening = None
            if ticket.error is not None:
                self._drop(subscription)
            if self._taken_meanwhile(number, ticket):
                self.again(caller, request)
                return
            if ticket.error is None:
                self.opened(caller, number)
            caller.answer(request.id, ticket.error or subscription.subscribed())

        rows = [*subscription.unwritten_rows(all_of_them=True), *puts]
        subscription.opening = self._store.submit(Unit(puts=rows, requires=[*requires, *subscription.guard]))
        subscription.opening.on_done(done)

    # --- among several gateways ---

    def has(self, number: int) -> bool:
        return number in self._subscriptions

    def use(self, caller: Caller, number: int) -> None:
        """The connection is a client of it from now on."""
        self._use(caller, self._find(caller, number))

    def durable(self) -> Iterator[int]:
        """The numbers of those that are written down."""
        return (number for number, subscription in self._subscriptions.items() if subscription.durable)

    def let_go(self, number: int) -> Sequence[Waiting]:
        """It is another gateway's from now on. What is settled is written, if that is still allowed. Returns who waits for
        something of it.
        """
        subscription = self._subscriptions[number]
        if rows := subscription.unwritten_rows():
            self._store.submit(Unit(puts=rows, requires=subscription.guard, synced=False))
        left = list(subscription.takes)
        subscription.takes = NONE_YET
        self._drop(subscription)
        for waiting in left:
            if waiting.timer is not None:
                waiting.timer.set(None)
        return left

    def _taken_meanwhile(self, number: int, ticket: Ticket) -> bool:
        # whether that was not written because somebody was quicker, or because the job is another gateway's by now
        error = ticket.error
        return isinstance(error, ConditionFailed) or (error is not None and not self.names.owned(number))

    def _made(
        self, number: int, request: Subscribe, state: TopicState, at: tuple[str, str], windows: Sequence[AckWindow]
    ) -> Subscription:
        # `at` is the listener's name, and whose it is
        made = Subscription(number, request, state, *at, self._going_on)
        if made.durable:
            made.guard = self.names.guard(number)
        for partition, window in enumerate(windows):
            tally = Tally(window.low, acknowledged=window.settled_above)
            made.cursors.append(Cursor(self._context, made, ConsumerPlace(state, partition, window, tally)))
        self._subscriptions[number] = made
        if request.name:
            self._named[state.name, request.name] = number
        self._of_listener[made.listener] += 1
        return made

    def _go_on(self, subscription: Subscription) -> None:
        # in the next pass: there may be something for those who wait
        if subscription.takes:
            self._context.pump.soon(subscription, lambda: self._serve(subscription))
        else:
            self._count(subscription)

    def restore(self, wanted: Callable[[int], bool] = lambda _number: True) -> None:
        """The subscriptions of earlier processes, or those of them that are wanted, at the places they had reached."""
        for kept in self._kept(wanted):
            self._restore(*kept)

    async def restore_all(self) -> None:
        """The same, before anybody is served: a second or two where there are tens of thousands."""
        async for some in slices(self._kept()):
            for kept in some:
                self._restore(*kept)

    def _kept(
        self, wanted: Callable[[int], bool] = lambda _number: True
    ) -> Iterator[tuple[int, StoredSubscription, dict[int, bytes]]]:
        return read_subscriptions(self._store.table(SUBSCRIPTIONS), self._store.table(CURSORS), wanted)

    def _restore(self, number: int, row: StoredSubscription, windows: Mapping[int, bytes]) -> None:
        if number in self._subscriptions:
            return
        state = self._store.topics.get(row.topic)
        if state is None:
            if not self.names.shared:  # or else it may be that this gateway has not heard of it yet
                self._store.submit(Unit(puts=removed_rows(number, windows), synced=False))
            return
        if row.epoch != state.epoch:  # a topic that was made again is another one: they begin at its start
            self._context.recorder.dropped("", "epoch_changed", 1)
            windows = {}
        elif self._lost_its_place(number, set(range(len(state.partitions))) - windows.keys(), state.epoch):
            return
        places = [
            AckWindow.from_bytes(windows[partition]) if partition in windows else AckWindow(bounds.start)
            for partition, bounds in enumerate(state.partitions)
        ]
        # A log that has lost its end gives its offsets out again. That is written now: later nobody could tell new from old.
        ends = [bounds.end for bounds in state.partitions] if knows_ends(self._store) else []
        rewound = [place for place, end in zip(places, ends, strict=False) if place.forget_from(end)]
        subscription = self._made(number, row.request(), state, (row.listener, row.owner), places)
        subscription.next_tag = row.next_tag + TAGS_AFTER_RESTART
        if rewound:
            self._store.submit(Unit(puts=subscription.unwritten_rows(all_of_them=True)))
        if not subscription.request.name:
            self._start_grace(subscription)

    def _lost_its_place(self, number: int, partitions: Iterable[int], epoch: int) -> bool:
        # whether it would begin anew where it had been further: then nobody takes from it
        lost = lost_cursor(self._store, number, partitions, epoch)
        if lost is not None:
            self._without_place[number] = lost
        return lost is not None

    def _use(self, caller: Caller, subscription: Subscription) -> None:
        # the connection is a client of the subscription until it goes
        if caller.id in subscription.clients or caller.detached:
            return
        subscription.clients.add(caller.id)
        held = self._held.get(caller.id)
        if held is None:
            held = self._held[caller.id] = set()
            caller.on_detach(lambda: self._detached(caller.id))
        held.add(subscription.number)
        if subscription.grace_over is not None:
            subscription.grace_over.set(None)

    def _find(self, caller: Caller, number: int) -> Subscription:
        # A subscription, unless it is somebody else's: who guesses numbers learns nothing
        subscription = self._subscriptions.get(number)
        if subscription is None and self._store.lost:
            if number in self._without_place:
                raise self._without_place[number]
            check_lost(self._store, number)
        if subscription is None or not subscription.belongs_to(caller):
            raise UnknownSubscription
        return subscription

    def _watch(self, subscription: Subscription) -> None:
        if not subscription.watched:
            subscription.watched = True
            self._context.watchers.add(subscription.topic, subscription, lambda: self._changed(subscription))

    def _changed(self, subscription: Subscription) -> None:
        # Its topic has grown, or is gone. While nobody takes it wants to hear no more: every publish would pay for it.
        if not subscription.takes and subscription.state is not None:
            subscription.watched = False
            self._context.watchers.remove(subscription.topic, subscription)
        else:
            self._serve(subscription)

    def address_of(self, number: int) -> str | None:
        subscription = self._subscriptions.get(number)
        return subscription.request.address if subscription is not None else None

    # --- taking ---

    def take(self, caller: Caller, request: Take) -> None:
        subscription = self._subscriptions.get(request.subscription)
        if subscription is None or caller.id not in subscription.clients:  # who has it need not be looked at again
            subscription = self._find(caller, request.subscription)
            self._use(caller, subscription)
        if subscription.takes is NONE_YET:
            subscription.takes = deque()
        subscription.takes.append(Waiting(caller, request))
        self._serve(subscription)

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer a waiting take with nothing; False if none waits under that id."""
        for number in self._held.get(caller.id, ()):
            subscription = self._subscriptions[number]
            for waiting in subscription.takes:
                if waiting.caller is caller and waiting.request.id == request_id:
                    subscription.takes.remove(waiting)
                    self._answer(subscription, waiting)
                    return True
        return False

    def _serve(self, subscription: Subscription) -> None:
        if subscription.held:
            return  # whoever lets it go on comes back to this
        context = self._context
        state = subscription.state
        if state is None:
            self._end(subscription)
            return
        now, now_ms = context.clock.now(), context.clock.now_ms()
        while subscription.takes:
            waiting = subscription.takes[0]
            if waiting.caller.detached:
                subscription.takes.popleft()
                continue
            refusal = context.refusal(waiting.caller, subscription.request.address)
            if refusal is not None:
                subscription.takes.popleft().end(refusal)
                continue
            request = waiting.request
            most = context.room.most(request.max_bytes)
            if not most:
                context.room.when_there_is_some(
                    waiting.caller.listener.name, subscription, partial(self._serve, subscription)
                )
                break
            if context.room.crowded and (subscription.request.acknowledge or waiting.caller.far):
                most = min(most, SHORT - subscription.unacknowledged * UNIT)
            subscription.over = most <= 0
            if subscription.room > 0 and not subscription.over:
                subscription.read_ahead(state, max(1, min(request.max_messages * 4, MOST_READ_AHEAD)))
            given = subscription.hand_out(waiting.caller, request, most, now, now_ms)
            if given:
                if subscription.unacknowledged // PAGE != subscription.charged:
                    self._count_unacknowledged(subscription)
                self._answer(subscription, subscription.takes.popleft(), given, now_ms)
            elif subscription.unreadable is not None:
                subscription.takes.popleft().end(subscription.unreadable)
            else:
                if subscription.over:
                    context.room.hold_back(
                        waiting.caller.listener.name, subscription, partial(self._serve, subscription)
                    )
                break
        if subscription.takes and not subscription.reading:
            self._let_wait(subscription, now)
        if subscription.takes:
            self._watch(subscription)
        self._count(subscription)
        subscription.save_soon()
        due, alarm = subscription.next_due(), subscription.redelivery_due
        if alarm is not None:
            alarm.set(due)
        elif due is not None:
            self._redeliver_at(subscription, due)

    def _count(self, subscription: Subscription) -> None:
        if subscription.unacknowledged // PAGE != subscription.charged:
            self._count_unacknowledged(subscription)
        # once for each read, not for what is handed out of it
        for cursor in subscription.cursors:
            ahead = bool(cursor.ahead) or cursor.loaded is not None
            if (ahead and cursor.counted <= 0) or (cursor.counted and not ahead):
                cursor.counted = cursor.left if ahead else 0
                self._context.room.ahead(cursor, cursor.counted)

    def _count_unacknowledged(self, subscription: Subscription) -> None:
        before, subscription.charged = subscription.charged, subscription.unacknowledged // PAGE
        self._context.room.unacknowledged((subscription.charged - before) * PAGE * UNIT)

    def _let_wait(self, subscription: Subscription, now: float) -> None:
        # nothing is there: whoever does not wait is answered, the others get a timer
        for waiting in list(subscription.takes):
            hold_until = waiting.request.hold_until
            if hold_until is None or hold_until <= now:
                subscription.takes.remove(waiting)
                self._answer(subscription, waiting)
            elif hold_until != math.inf:
                if waiting.timer is None:
                    waiting.timer = Alarm(self._context.pump, lambda: self._serve(subscription))
                waiting.timer.set(hold_until)

    def _answer(
        self, subscription: Subscription, waiting: Waiting, given: Sequence[Delivered] = (), now_ms: int = 0
    ) -> None:
        context, reader, request = self._context, waiting.caller.listener, subscription.request
        if given:
            runs = [delivered.run for delivered in given]
            context.room.given(sum([len(run.columns.packed) for run in runs]))
            record_delivered(context.recorder, context.latencies, runs, reader, now_ms)
            for delivered in given:
                if delivered.settled:
                    record_acknowledged(context.recorder, (delivered.run,), reader)
        ended = subscription.ended
        waiting.end(Taken(given, ended=ended, address=request.address, acknowledge=request.acknowledge))

    # --- settling ---

    def settle(self, caller: Caller, request: Settle) -> None:
        subscription = self._subscriptions.get(request.subscription)
        if subscription is None or caller.id not in subscription.clients:
            try:
                subscription = self._find(caller, request.subscription)
            except UnknownSubscription as error:
                caller.answer(request.id, Settled([error] * len(request.tags)))
                return
        now = 0.0 if request.accepted else self._context.clock.now()
        results: list[GatewayError | None] = []
        for tag in request.tags:
            if request.accepted:
                message = subscription.settle(tag)
                known = message is not None
                if message is not None:
                    _count_settled(self._context.recorder, caller, message)
            elif request.tried:
                known = subscription.refuse(tag, now)
            else:
                known = subscription.give_back(tag)
            results.append(None if known else UnknownSubscription())
        caller.answer(request.id, Settled(results))
        subscription.save_soon()
        if not request.accepted:
            self._redeliver_at(subscription, subscription.next_due())
        if subscription.takes or subscription.unacknowledged // PAGE != subscription.charged:
            self._go_on(subscription)

    def _redeliver_at(self, subscription: Subscription, due: float | None) -> None:
        if subscription.redelivery_due is None:
            subscription.redelivery_due = Alarm(self._context.pump, partial(self._redeliver, subscription))
        subscription.redelivery_due.set(due)

    def _redeliver(self, subscription: Subscription) -> None:
        subscription.overdue(self._context.clock.now())
        self._serve(subscription)

    # --- being put elsewhere ---

    async def reset(self, asked: ConsumerReset) -> Sequence[ConsumerMove]:
        """Put one elsewhere, unless somebody reads from it; with `dry_run` only say where it would be."""
        state = topic_of(self._store, asked)
        subscription = self._asked_for(asked)
        targets = await targets_of(self._store, state, asked)
        readers = len(subscription.clients)
        if readers and not asked.force:
            raise Conflict(f"{readers} connections read from {asked.kind} {asked.name}, and have messages of it")
        if asked.dry_run:
            return [one.shown for one in _moves(subscription, state, targets)]
        if subscription.held:
            raise Conflict(f"{asked.kind} {asked.name} is being put elsewhere already")
        subscription.held = True
        taken = subscription.take_back(targets)
        moves: Sequence[ConsumerMove] = ()
        try:
            with trio.CancelScope(shield=True):  # who asked may go: what is written is also where it goes on
                moves = await self._put_elsewhere(subscription, targets)
        finally:
            if not moves:
                subscription.put_back(taken)
            subscription.held = False
            self._go_on(subscription)
        return moves

    async def _put_elsewhere(self, subscription: Subscription, targets: Mapping[int, int]) -> Sequence[ConsumerMove]:
        # nothing is handed out and nothing settled meanwhile: what is under way is written, then where it goes on, then it does
        def resting() -> bool:
            subscription.save_soon()
            return all(one.written and not one.reading for one in subscription.cursors)

        if not await self._context.pump.until(resting, PATIENCE):
            unwritable = (one.unwritable for one in subscription.cursors)
            raise Conflict(next(filter(None, unwritable), "what it has settled is being written: try again"))
        moves = _moves(subscription, self._still_there(subscription), targets)
        puts = [row for one in moves for row in subscription.rows(one.place.partition, one.place.window)]
        try:
            await self._store.submit(Unit(puts=puts, requires=subscription.guard, synced=True)).wait()
        except ConditionFailed:
            raise Conflict("another gateway has taken this subscription: nothing is changed") from None
        self._still_there(subscription)
        for one in moves:
            self._context.room.ahead(subscription.cursors[one.place.partition], 0)
            subscription.begin_anew(Cursor(self._context, subscription, one.place), one)
        return [one.shown for one in moves]

    def _asked_for(self, asked: ConsumerReset) -> Subscription:
        for subscription in self._subscriptions.values():
            name = subscription.request.name
            same = name == asked.name if asked.kind == "reader" else not name and str(subscription.number) == asked.name
            if same and subscription.durable and subscription.topic == asked.topic and subscription.state is not None:
                return subscription
        raise NotFound(f"there is no {asked.kind} {asked.name} of {asked.topic} here")

    def _still_there(self, subscription: Subscription) -> TopicState:
        state = subscription.state
        if state is None or self._subscriptions.get(subscription.number) is not subscription:
            raise NotFound(f"subscription {subscription.number} has ended meanwhile")
        return state

    # --- ending ---

    def unsubscribe(self, caller: Caller, request: Unsubscribe) -> None:
        # end a subscription; one with a name only loses this connection
        subscription = self._find(caller, request.subscription)
        self._held.get(caller.id, set()).discard(subscription.number)
        self._leave(subscription, caller.id)
        written = self._forget(subscription) if not subscription.request.name else None
        if written is None:
            caller.answer(request.id, DONE)
            return

        def done(ticket: Ticket) -> None:
            if self._taken_meanwhile(subscription.number, ticket):  # who has it by now would keep it for its grace
                self.again(caller, request)
            else:
                caller.answer(request.id, DONE)

        written.on_done(done)

    def _detached(self, client: int) -> None:
        for number in self._held.pop(client, ()):
            subscription = self._subscriptions.get(number)
            if subscription is not None:
                self._leave(subscription, client)

    def _leave(self, subscription: Subscription, client: int) -> None:
        subscription.clients.discard(client)
        for waiting in [waiting for waiting in subscription.takes if waiting.caller.id == client]:
            subscription.takes.remove(waiting)
            waiting.end(Taken((), ended=True))
        subscription.give_back_all_of(client)
        self._go_on(subscription)
        if subscription.clients:
            return
        if not subscription.durable:
            self._forget(subscription)
        elif subscription.request.durable_grace is not None:
            self._start_grace(subscription)

    def _start_grace(self, subscription: Subscription) -> None:
        if subscription.grace_over is None:
            subscription.grace_over = Alarm(self._context.pump, partial(self._expire, subscription))
        subscription.grace_over.set(self._context.clock.now() + (subscription.request.durable_grace or 0.0))

    def _end(self, subscription: Subscription) -> Ticket | None:
        subscription.ended = True
        while subscription.takes:
            self._answer(subscription, subscription.takes.popleft())
        return self._forget(subscription)

    def _expire(self, subscription: Subscription) -> None:
        # nobody has come back in time
        self._forget(subscription)

    def _forget(self, subscription: Subscription) -> Ticket | None:
        partitions = range(len(subscription.cursors))
        if not self._drop(subscription) or not subscription.durable:
            return None
        gone = removed_rows(subscription.number, partitions)
        gone += self.names.removed(subscription.topic, subscription.request.name)
        return self._store.submit(Unit(puts=gone, requires=subscription.guard, synced=False))

    def _drop(self, subscription: Subscription) -> bool:
        # have it no more; False if that was so before
        if self._subscriptions.pop(subscription.number, None) is None:
            return False
        self._of_listener[subscription.listener] -= 1
        self._named.pop((subscription.topic, subscription.request.name), None)
        self._context.watchers.remove(subscription.topic, subscription)
        for client in subscription.clients:
            self._held.get(client, set()).discard(subscription.number)
        for cursor in subscription.cursors:
            if cursor.counted:
                self._context.room.ahead(cursor, 0)
        subscription.end()
        self._count(subscription)
        self._context.room.forget(subscription)
        return True

    async def close(self) -> None:
        if self.names.shared:  # one by one: what another has taken does not apply
            for subscription in list(self._subscriptions.values()):
                await self._write_last(subscription.unwritten_rows(), subscription.guard)
            return
        async for some in slices(list(self._subscriptions.values())):
            await self._write_last([row for one in some for row in one.unwritten_rows()])

    async def _write_last(self, rows: Sequence[Put], requires: Sequence[Require] = ()) -> None:
        if rows:
            with contextlib.suppress(StoreError):  # what is not written is delivered again
                await self._store.submit(Unit(puts=rows, requires=requires, synced=True)).wait()

    def under_way(self, most: int) -> Sequence[UnderWay]:
        """Messages that were handed out more than once, or wait to be, at most so many."""
        now, found = self._context.clock.now(), list[UnderWay]()
        for subscription in self._subscriptions.values():
            if not subscription.outstanding:  # as of most, where there are many
                continue
            for tag, message in islice(subscription.outstanding.items(), MOST_LOOKED_AT):
                if message.attempts < 1 and tag not in subscription.again:
                    continue
                due = max(0.0, message.due - now) if message.due is not None else None
                found.append(
                    UnderWay(
                        "reader" if subscription.request.name else "subscription",
                        subscription.request.name or str(subscription.number),
                        subscription.topic,
                        message.run.partition,
                        message.offset,
                        message.attempts,
                        message.last_error,
                        due,
                    )
                )
                if len(found) >= most:
                    return found
        return found

    def consumers(self) -> Iterator[ConsumerCounts]:
        # as they are now: some may end while they are gone through
        for subscription in list(self._subscriptions.values()):
            state = subscription.state if subscription.durable else None
            if state is not None:
                yield from subscription.consumers(state)


def _moves(subscription: Subscription, state: TopicState, targets: Mapping[int, int]) -> Sequence[Moved]:
    return [subscription.cursors[number].moved(state, after) for number, after in targets.items()]


def _first_offset(request: Subscribe, bounds: PartitionState) -> int:
    if isinstance(request.start, int):
        return request.start
    return bounds.end if request.start is Start.LATEST else bounds.start


def _count_settled(recorder: Recorder, caller: Caller, message: Outstanding) -> None:
    run, index = message.run, message.index
    meta = run.batches[0][2] if len(run.batches) == 1 else run.meta_of(index)[0]
    recorder.acknowledged(meta.route, caller.listener.name, 1, run.columns.size_of(index))
