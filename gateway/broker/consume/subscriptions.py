"""Subscriptions: Subscribe, Take, Settle, Unsubscribe; durable cursors; redelivery up to the dead letters."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.cursors import Numbers, load_subscriptions, removed_rows
from gateway.broker.consume.deliveries import Latencies, record_acknowledged, record_delivered
from gateway.broker.consume.position import Position, PositionContext, Tally
from gateway.broker.consume.subscription import Cursor, Outstanding, Subscription, Waiting
from gateway.broker.consume.watch import Watchers
from gateway.broker.service import Caller, Clock, Handler, LetterMaker
from gateway.broker.timers import Pump
from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    StoreError,
    Throttled,
    UnknownSubscription,
    UnknownTopic,
)
from gateway.recorder import ConsumerCounts, Recorder
from gateway.requests import (
    DONE,
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
from gateway.store.ack_window import AckWindow
from gateway.store.interface import CreateTopic, Put, Store, Ticket, TopicState, Unit

READ_AHEAD_BYTES = 1 << 20
TAGS_AFTER_RESTART = 1 << 32
"""Tags given out shortly before a crash may be unknown to the stored row: no new one may be equal to them."""


@attrs.frozen(eq=False)
class SubscriptionContext:
    """What the service is made from."""

    store: Store
    table: RoutingTable
    topics: TopicService
    watchers: Watchers
    pump: Pump
    clock: Clock
    recorder: Recorder
    latencies: Latencies
    dead_letters: LetterMaker
    start_soon: Callable[..., None]
    refusal: Callable[[Caller, str], GatewayError | None]
    """Why a caller may not read an address now."""


class SubscriptionService:
    """Serves the subscription requests."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._context = context
        self._store = context.store
        self._subscriptions: dict[int, Subscription] = {}
        self._named: dict[tuple[str, str], int] = {}
        self._held: dict[int, set[int]] = {}
        """Subscriptions that a connection uses."""
        self._of_listener: Counter[str] = Counter()
        self._grace: dict[int, Callable[[], None]] = {}
        self._due_timers: dict[int, tuple[float, Callable[[], None]]] = {}
        self._positions = PositionContext(
            context.store, context.pump, context.clock, context.recorder, context.dead_letters
        )
        self.numbers = Numbers(context.store)
        self._restore()

    def handlers(self) -> Mapping[type[Request], Handler]:
        """Subscribing, taking, settling, ending."""
        return {Subscribe: self.subscribe, Take: self.take, Settle: self.settle, Unsubscribe: self.unsubscribe}

    # --- subscribing ---

    def subscribe(self, caller: Caller, request: Subscribe) -> None:
        """Open a subscription, or join the one of that name."""
        topic = self._context.topics.name(caller, request.address)
        known = self._named.get((topic, request.name)) if request.name else None
        if known is not None and self._exists(self._subscriptions[known]):
            subscription = self._subscriptions[known]
            if subscription.request.acknowledge != request.acknowledge and subscription.outstanding:
                raise Conflict(f"reader {request.name!r} has unsettled messages of another mode")
            subscription.request = request
            self._use(caller, subscription)
            caller.answer(request.id, subscription.subscribed())
            return
        self._check_room(caller)
        number = self.numbers.take()
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
        self._store.submit(Unit(creates=[CreateTopic(topic, config)])).on_done(created)

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
            self.subscribe(caller, request)  # somebody else was quicker
            return
        subscription = Subscription(number, request, state, caller.listener.name, caller.identity.name)
        for partition, bounds in enumerate(state.partitions):
            if request.start is Start.LATEST:
                offset = bounds.end
            elif request.start is Start.EARLIEST:
                offset = bounds.start
            else:
                offset = request.start
            self._add_cursor(subscription, partition, AckWindow(offset), Tally(offset))
        self._register(subscription)
        self._use(caller, subscription)
        if not subscription.durable:
            caller.answer(request.id, subscription.subscribed())
            return

        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                self._forget(subscription)
            caller.answer(request.id, ticket.error or subscription.subscribed())

        rows = [row for one in subscription.cursors for row in subscription.rows(one.partition, one.position.window)]
        self._store.submit(Unit(puts=rows)).on_done(done)

    def _add_cursor(self, subscription: Subscription, partition: int, window: AckWindow, tally: Tally) -> None:
        def rows(window: AckWindow, _tally: Tally) -> Sequence[Put]:
            return subscription.rows(partition, window)

        position = Position(
            self._positions,
            window,
            tally,
            rows=rows if subscription.durable else None,
            written=lambda: self._go_on(subscription),
        )
        subscription.cursors.append(Cursor(partition, window.low, position, settled_until=window.low + window.span))

    def _go_on(self, subscription: Subscription) -> None:
        """In the next pass: there may be something for those who wait."""
        if subscription.takes:
            self._context.pump.soon(subscription, lambda: self._serve(subscription))

    def _restore(self) -> None:
        """The subscriptions of earlier processes, at the places they had reached."""
        for number, (row, windows) in load_subscriptions(self._store).items():
            state = self._store.topics.get(row.topic)
            if state is None:
                self._store.submit(Unit(puts=removed_rows(number, windows), synced=False))
                continue
            if row.epoch != state.epoch:  # a topic that was made again is another one: they begin at its start
                self._context.recorder.dropped("", "epoch_changed", 1)
                windows = {}
            subscription = Subscription(number, row.request(), state, row.listener, row.owner)
            subscription.next_tag = row.next_tag + TAGS_AFTER_RESTART
            for partition, bounds in enumerate(state.partitions):
                kept = windows.get(partition)
                window = AckWindow.from_bytes(kept) if kept is not None else AckWindow(bounds.start)
                self._add_cursor(subscription, partition, window, Tally(window.low, acknowledged=window.settled_above))
            self._register(subscription)
            if not subscription.request.name:
                self._start_grace(subscription)

    def _register(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.number] = subscription
        if subscription.request.name:
            self._named[subscription.topic, subscription.request.name] = subscription.number
        self._of_listener[subscription.listener] += 1

    def _use(self, caller: Caller, subscription: Subscription) -> None:
        """The connection is a client of the subscription until it goes."""
        if caller.id in subscription.clients:
            return
        subscription.clients.add(caller.id)
        held = self._held.get(caller.id)
        if held is None:
            held = self._held[caller.id] = set()
            caller.on_detach(lambda: self._detached(caller.id))
        held.add(subscription.number)
        cancel = self._grace.pop(subscription.number, None)
        if cancel is not None:
            cancel()

    def _find(self, caller: Caller, number: int) -> Subscription | None:
        """A subscription, unless it is somebody else's: who guesses numbers learns nothing."""
        subscription = self._subscriptions.get(number)
        return subscription if subscription is not None and subscription.belongs_to(caller) else None

    def _exists(self, subscription: Subscription) -> bool:
        """Whether its topic is still there; or else it ends."""
        state = self._store.topics.get(subscription.topic)
        if state is not None and state.epoch == subscription.epoch:
            return True
        self._end(subscription)
        return False

    def _watch(self, subscription: Subscription) -> None:
        if not subscription.watched:
            subscription.watched = True
            self._context.watchers.add(subscription.topic, subscription, lambda: self._changed(subscription))

    def _changed(self, subscription: Subscription) -> None:
        """Its topic has grown, or is gone. While nobody takes it wants to hear no more: every publish would pay for it."""
        if not subscription.takes and self._exists(subscription):
            subscription.watched = False
            self._context.watchers.remove(subscription.topic, subscription)
        else:
            self._serve(subscription)

    def address_of(self, number: int) -> str | None:
        """What a subscription is about, as it was asked for."""
        subscription = self._subscriptions.get(number)
        return subscription.request.address if subscription is not None else None

    # --- taking ---

    def take(self, caller: Caller, request: Take) -> None:
        """Hand out what is next, or wait for it."""
        subscription = self._find(caller, request.subscription)
        if subscription is None:
            raise UnknownSubscription
        self._use(caller, subscription)
        waiting = Waiting(caller, request)
        subscription.takes.append(waiting)
        self._serve(subscription)

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer a waiting take with nothing; False if none waits under that id."""
        for number in self._held.get(caller.id, ()):
            subscription = self._subscriptions[number]
            for waiting in subscription.takes:
                if waiting.caller is caller and waiting.request.id == request_id:
                    subscription.takes.remove(waiting)
                    self._answer(subscription, waiting, ())
                    return True
        return False

    def _serve(self, subscription: Subscription) -> None:
        """Give the takes that wait what there is."""
        context = self._context
        state = self._store.topics.get(subscription.topic)
        if state is None or state.epoch != subscription.epoch:
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
                subscription.takes.popleft().refuse(refusal)
                continue
            if subscription.room > 0:
                self._read_ahead(subscription, state, now_ms)
            request = waiting.request
            given = subscription.hand_out(waiting.caller, request.max_messages, request.max_bytes, now, now_ms)
            if not given:
                break
            subscription.takes.popleft()
            self._answer(subscription, waiting, given)
        if subscription.takes and not any(cursor.loading for cursor in subscription.cursors):
            self._let_wait(subscription, now)
        if subscription.takes:
            self._watch(subscription)
        subscription.save_soon()
        self._watch_redelivery(subscription)

    def _read_ahead(self, subscription: Subscription, state: TopicState, now_ms: int) -> None:
        for cursor in subscription.wanted(state):
            trimmed = subscription.skip_trimmed(cursor, state.partitions[cursor.partition].start)
            if trimmed:
                self._context.recorder.dropped("", "trimmed", trimmed)
            size = max(1, min(subscription.takes[0].request.max_messages * 4, 4_096))
            result = self._store.read_cached(
                subscription.topic, cursor.partition, cursor.next, size, READ_AHEAD_BYTES, now_ms
            )
            if result is not None:
                subscription.read(cursor, result)
                continue
            cursor.loading = True
            self._context.start_soon(None, None, lambda cursor=cursor: self._load(subscription, cursor))

    async def _load(self, subscription: Subscription, cursor: Cursor) -> None:
        """Read from disk, then serve on."""
        try:
            result = await self._store.read(
                subscription.topic, cursor.partition, cursor.next, 4_096, READ_AHEAD_BYTES, self._context.clock.now_ms()
            )
            subscription.read(cursor, result)
        except GatewayError as error:
            while subscription.takes:
                subscription.takes.popleft().refuse(error)
        finally:
            cursor.loading = False
        self._serve(subscription)

    def _let_wait(self, subscription: Subscription, now: float) -> None:
        """Nothing is there: whoever does not wait is answered, the others get a timer."""
        for waiting in list(subscription.takes):
            hold_until = waiting.request.hold_until
            if hold_until is None or hold_until <= now:
                subscription.takes.remove(waiting)
                self._answer(subscription, waiting, ())
            elif waiting.cancel_timer is None and hold_until != float("inf"):
                waiting.cancel_timer = self._context.pump.call_at(hold_until, lambda: self._serve(subscription))

    def _answer(self, subscription: Subscription, waiting: Waiting, given: Sequence[Delivered]) -> None:
        if waiting.cancel_timer is not None:
            waiting.cancel_timer()
        context, reader = self._context, waiting.caller.listener
        runs = [delivered.run for delivered in given]
        record_delivered(context.recorder, context.latencies, runs, reader, context.clock.now_ms())
        if not subscription.request.acknowledge:
            record_acknowledged(context.recorder, runs, reader)
        request = subscription.request
        waiting.caller.answer(
            waiting.request.id,
            Taken(given, ended=subscription.ended, address=request.address, acknowledge=request.acknowledge),
        )

    # --- settling ---

    def settle(self, caller: Caller, request: Settle) -> None:
        """Acknowledge, refuse, or give back."""
        subscription = self._find(caller, request.subscription)
        if subscription is None:
            caller.answer(request.id, Settled([UnknownSubscription()] * len(request.tags)))
            return
        now = self._context.clock.now()
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
            self._watch_redelivery(subscription)
        self._go_on(subscription)

    def _watch_redelivery(self, subscription: Subscription) -> None:
        due = subscription.next_due()
        current = self._due_timers.get(subscription.number)
        if current is not None:
            if current[0] == due:
                return
            current[1]()
            del self._due_timers[subscription.number]
        if due is not None:
            cancel = self._context.pump.call_at(due, lambda: self._redeliver(subscription))
            self._due_timers[subscription.number] = (due, cancel)

    def _redeliver(self, subscription: Subscription) -> None:
        self._due_timers.pop(subscription.number, None)
        if subscription.ended:
            return
        subscription.overdue(self._context.clock.now())
        self._serve(subscription)

    # --- ending ---

    def unsubscribe(self, caller: Caller, request: Unsubscribe) -> None:
        """End a subscription; one with a name only loses this connection."""
        subscription = self._find(caller, request.subscription)
        if subscription is None:
            raise UnknownSubscription
        self._held.get(caller.id, set()).discard(subscription.number)
        self._leave(subscription, caller.id)
        if not subscription.request.name:
            self._forget(subscription)
        caller.answer(request.id, DONE)

    def _detached(self, client: int) -> None:
        for number in self._held.pop(client, ()):
            subscription = self._subscriptions.get(number)
            if subscription is not None:
                self._leave(subscription, client)

    def _leave(self, subscription: Subscription, client: int) -> None:
        subscription.clients.discard(client)
        for waiting in [waiting for waiting in subscription.takes if waiting.caller.id == client]:
            subscription.takes.remove(waiting)
            if waiting.cancel_timer is not None:
                waiting.cancel_timer()
            if not waiting.caller.detached:
                waiting.caller.answer(waiting.request.id, Taken((), ended=True))
        subscription.give_back_all_of(client)
        self._go_on(subscription)
        if subscription.clients:
            return
        if not subscription.durable:
            self._forget(subscription)
        elif subscription.request.durable_grace is not None:
            self._start_grace(subscription)

    def _start_grace(self, subscription: Subscription) -> None:
        when = self._context.clock.now() + (subscription.request.durable_grace or 0.0)
        self._grace[subscription.number] = self._context.pump.call_at(when, lambda: self._forget(subscription))

    def _end(self, subscription: Subscription) -> None:
        """The topic is gone: whoever waits hears it."""
        subscription.ended = True
        while subscription.takes:
            self._answer(subscription, subscription.takes.popleft(), ())
        self._forget(subscription)

    def _forget(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.number, None) is None:
            return
        subscription.ended = True
        self._of_listener[subscription.listener] -= 1
        self._named.pop((subscription.topic, subscription.request.name), None)
        self._context.watchers.remove(subscription.topic, subscription)
        cancel_grace = self._grace.pop(subscription.number, None)
        if cancel_grace is not None:
            cancel_grace()
        timer = self._due_timers.pop(subscription.number, None)
        if timer is not None:
            timer[1]()
        for client in subscription.clients:
            self._held.get(client, set()).discard(subscription.number)
        for cursor in subscription.cursors:
            cursor.position.close()
        if subscription.durable:
            gone = removed_rows(subscription.number, range(len(subscription.cursors)))
            self._store.submit(Unit(puts=gone, synced=False))

    async def close(self) -> None:
        """Write every position, synced."""
        rows = [
            row
            for subscription in self._subscriptions.values()
            for cursor in subscription.cursors
            if subscription.durable and not cursor.position.settled
            for row in subscription.rows(cursor.partition, cursor.position.window)
        ]
        if rows:
            with contextlib.suppress(StoreError):  # what is not written is delivered again
                await self._store.submit(Unit(puts=rows, synced=True)).wait()

    def consumers(self) -> Iterator[ConsumerCounts]:
        """How far each durable subscription is, partition by partition."""
        for subscription in self._subscriptions.values():
            state = self._store.topics.get(subscription.topic)
            if state is not None and state.epoch == subscription.epoch and subscription.durable:
                yield from subscription.consumers(state)


def _count_settled(recorder: Recorder, caller: Caller, message: Outstanding) -> None:
    meta, _inner = message.run.meta_of(message.index)
    size = len(message.run.columns.value(message.index))
    recorder.acknowledged(meta.route, caller.listener.name, 1, size)
