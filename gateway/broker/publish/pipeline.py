"""What becomes of a publish: the list of steps that it goes through, from top to bottom, on its way into the log.

    admit        may it be taken at all: its transaction is open, its delay is not too long
    route        which routes take which of its messages: from here on they are counted
    deduplicate  what another gateway sends again is left out
    stop loops   what gateways forward in a ring, and was here before, goes to the dead letters
    transform    what the routes do to messages; what fails goes to the dead letters
    validate     against schemas, in a thread where that takes long
    place        topics, partitions: nothing is left to be decided
    remember     the marks of what is stored, for deduplication, go into the same unit

Then it is committed, kept for a transaction or for later, or sent to a broker elsewhere. A step may refuse all of it by an
error, refuse single messages, or make it wait; what one connection publishes behind something that waits, waits with it.

Nearly every batch goes to one topic that is there, and no transform or schema has a say in it: `_append_plainly` does the
same for those in a few lines, with what was found out when the connection first wrote to that address.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from gateway.broker.identity import LOOP, goes_round, identity_of, via_in
from gateway.broker.letters import Letters
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.deduplication import Deduplication
from gateway.broker.publish.delays import DelayService
from gateway.broker.publish.door import Door, Doors
from gateway.broker.publish.partitions import Partitioner
from gateway.broker.publish.proxying import Proxying
from gateway.broker.publish.publication import (
    Failed,
    Part,
    Prepared,
    Publication,
    Share,
    composed,
    published,
    with_ttl,
)
from gateway.broker.publish.transactions import TransactionService
from gateway.broker.publish.validation import Pause, SchemaGate
from gateway.broker.service import NOTHING_ALONG, Caller, Clock, Handler
from gateway.envelope import Batch, BatchIds, BatchMeta, Columns, Origin
from gateway.errors import Conflict, GatewayError, NotRouted, UnknownTopic, Unsupported
from gateway.recorder import MOST_LATENCIES, PublishMeter, Recorder
from gateway.requests import Commit, Publish, Published, Request, Rollback
from gateway.routing.table import ResolvedRoute, RoutingTable
from gateway.routing.transform import Transformed
from gateway.store.interface import Append, MakeTopic, Store, Ticket, TopicConfig, TopicState, Unit

MOST_WAYS = 256
"""Addresses that a connection is remembered to write to plainly; who writes to more is remembered anew."""

Step = Callable[[Publication], Pause | None]
Tap = Callable[[Origin, str, str, Columns, Transformed | None], None]
"""(who, address, route, what came, what the route's transform made of it)."""


@attrs.define(eq=False)
class PlainWay:
    """Where plain batches of a connection for one address go, as long as table and topic stay what they are."""

    table: object
    route: str
    door: Door
    meter: PublishMeter
    topic: TopicState


class Pipeline:
    """Serves Publish, and the ends of transactions, which keep their place behind it."""

    def __init__(
        self,
        store: Store,
        table: RoutingTable,
        clock: Clock,
        recorder: Recorder,
        *,
        doors: Doors,
        appending: Appending,
        deduplication: Deduplication,
        validation: SchemaGate,
        transactions: TransactionService,
        delays: DelayService,
        letters: Letters,
        proxying: Proxying,
    ) -> None:
        self._store = store
        self._table = table
        self._clock = clock
        self._recorder = recorder
        self._doors = doors
        self._appending = appending
        self._transactions = transactions
        self._delays = delays
        self._letters = letters
        self._proxying = proxying
        self.deduplication = deduplication
        self._ids = BatchIds()
        self._partitioner = Partitioner()
        self._steps: Sequence[Step] = (
            self._admit,
            self._route,
            # what came twice is left out before any work is done on it
            deduplication.leave_out,
            # before the transform, which may take away the header that says by which gateways it came
            self._stop_loops,
            self._transform,
            validation.validate,
            self._place,
            # last: only what is really appended may be known as stored
            deduplication.remember,
        )
        self.tap: Tap | None = None
        """Shows what comes to whoever looks; None while nobody does."""
        self._lanes: dict[int, deque[Callable[[], None]]] = {}
        """By connection: what comes behind a publication that waits."""

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            Publish: self.publish,
            Commit: lambda caller, request: self._in_turn(caller, request, self._transactions.commit),
            Rollback: lambda caller, request: self._in_turn(caller, request, self._transactions.rollback),
        }

    def publish(self, caller: Caller, request: Publish) -> None:
        # somebody's publication waits for an answer from elsewhere: what its connection sends behind it must not overtake it
        if self._lanes:
            self._in_turn(caller, request, self._publish)
            return
        way = caller.ways.get(request.batch.address)
        if way is None or not self._append_plainly(caller, request, way):
            self._publish(caller, request)

    def refused(self, caller: Caller, request: Publish, error: GatewayError) -> None:
        self._refuse_unrouted(caller, request.batch.columns, error)

    async def prepare(self, caller: Caller, batch: Batch, *, create: bool = True) -> Prepared:
        """Decide everything about a batch but its offsets; it has to end in `commit` or `discard`. Raises what refuses it."""
        over = trio.Event()
        outcome: list[Prepared | GatewayError] = []

        def ready(publication: Publication) -> None:
            publication.end(None)
            # whoever wanted it was cancelled while a step waited, and nobody else gives back what was counted as held
            if gone:
                self._appending.discard((publication.prepared(),))
            else:
                outcome.append(publication.prepared())
                over.set()

        def failed(error: GatewayError) -> None:
            outcome.append(error)
            over.set()

        gone = False
        self._run(Publication(caller, batch, "", create, self._clock.now(), ready, failed), 0)
        try:
            await over.wait()
        except trio.Cancelled:
            gone = True
            if outcome and isinstance(outcome[0], Prepared):
                self._appending.discard((outcome[0],))
            raise
        if isinstance(outcome[0], GatewayError):
            raise outcome[0]
        return outcome[0]

    # --- running ---

    def _in_turn(self, caller: Caller, request: Request, serve: Handler) -> None:
        # now, or when what waits before it on the same connection is through
        lane = self._lanes.get(caller.id)
        if lane is None:
            serve(caller, request)
            return

        def later() -> None:
            try:
                serve(caller, request)
            except GatewayError as error:
                caller.answer(request.id, error)

        lane.append(later)

    def _publish(self, caller: Caller, request: Publish) -> None:
        batch = request.batch
        plain = not (request.transaction or request.delay_ms or request.deliver_at_ms)

        def ready(publication: Publication) -> None:
            if plain:
                self._commit(publication, request)
                return
            publication.end(None)
            keep = self._transactions.keep if request.transaction else self._delays.keep
            keep(caller, request, publication.prepared())

        def failed(error: GatewayError) -> None:
            caller.answer(request.id, error)

        now = self._clock.now()
        self._run(Publication(caller, batch, request.schema, request.create, now, ready, failed, request, plain), 0)

    def _run(self, publication: Publication, at: int) -> None:
        steps = self._steps
        try:
            while at < len(steps):
                pause = steps[at](publication)
                at += 1
                if pause is not None:
                    self._wait(publication, at, pause)
                    return
            publication.ready(publication)
        except GatewayError as error:
            self._fail(publication, error)

    def _wait(self, publication: Publication, at: int, pause: Pause) -> None:
        number = publication.caller.id
        self._lanes.setdefault(number, deque())

        def resume(error: GatewayError | None) -> None:
            lane = self._lanes.pop(number)
            if error is not None:
                self._fail(publication, error)
            else:
                self._run(publication, at)
            while lane:
                if number in self._lanes:  # somebody waits again, and those behind with it
                    self._lanes[number].extend(lane)
                    return
                lane.popleft()()

        pause(resume)

    def _fail(self, publication: Publication, error: GatewayError) -> None:
        if not publication.routed:
            self._refuse_unrouted(publication.caller, publication.batch.columns, error)
        for part in (*publication.parts, *publication.proxied):
            self._doors.refuse(part.route.name, part.columns.count, error)
        for one in publication.failures:
            self._doors.refuse(one.route.name, len(one.errors), error)
        publication.end(error)
        publication.failed(error)

    def _commit(self, publication: Publication, request: Publish) -> None:
        caller, prepared = publication.caller, publication.prepared()

        def done(ticket: Ticket) -> None:
            error = ticket.error
            publication.end(error)
            if error is not None:
                caller.answer(request.id, self.deduplication.refusal(publication, error))
            else:
                caller.answer(request.id, prepared.finish(ticket.placements))

        along = caller.along() if caller.along is not None else NOTHING_ALONG
        if publication.proxied:
            commit = partial(self._appending.commit, requires=along.requires)
            self._proxying.start(publication, prepared, request, commit)
        elif prepared.appends:
            # rows stay where the messages do
            whole = along.puts and not publication.refused and publication.durable(self._store)
            puts = along.puts if whole else ()
            self._appending.commit((prepared,), puts, along.requires, done, caller.id)
        else:  # all of it was filtered or refused, or is here already
            publication.end(None)
            address, now_ms = request.batch.address, self._clock.now_ms()
            caller.answer(request.id, Published(address, now_ms, refused=publication.refused))

    # --- the plain case ---

    def _append_plainly(self, caller: Caller, request: Publish, way: PlainWay) -> bool:
        batch = request.batch
        topic = way.topic
        if (
            # a reload, or a topic that is made again, puts other objects here: what was found out of the old ones is void
            way.table is not self._table.version
            or self._store.topics.get(topic.name) is not topic
            or request.transaction
            or request.ttl_ms
            or request.delay_ms
            or request.deliver_at_ms
            or request.schema
            or batch.copies is not None
            or (batch.columns.headers is not None and any(map(via_in, batch.columns.headers)))
        ):
            return False
        partitions = topic.config.partitions
        partition = batch.partition
        if partition is None:
            partition = 0
            # keys, or whose turn it is, decide then: that is the long way's business
            if partitions != 1:
                return False
        elif not 0 <= partition < partitions:
            return False
        clock, columns, door, meter = self._clock, batch.columns, way.door, way.meter
        if self.tap is not None:
            self.tap(caller.origin, batch.address, way.route, columns, None)
        count = columns.count
        size = len(columns.packed) - 4 * count
        door.received += count
        door.committing += count
        meter.received_messages += count
        meter.received_bytes += size
        batch_id = batch.id or self._ids.next(clock.now_ms())
        meta = BatchMeta(batch_id, caller.origin, way.route, batch.delivery)
        # not a closure: what it would be made of costs more than to hand it on
        done = partial(self._appended_plainly, caller, request, way, partition, time.perf_counter())
        self._store.submit(Unit((Append(topic.name, partition, columns, meta),), source=caller.id), done)
        return True

    def _appended_plainly(
        self, caller: Caller, request: Publish, way: PlainWay, partition: int, began: float, ticket: Ticket
    ) -> None:
        batch, door, meter = request.batch, way.door, way.meter
        columns = batch.columns
        count = columns.count
        door.committing -= count
        error = ticket.error
        if error is None:
            door.stored += count
            meter.stored_messages += count
            meter.stored_bytes += len(columns.packed) - 4 * count
            latencies = meter.latencies
            latencies.append(time.perf_counter() - began)
            if len(latencies) >= MOST_LATENCIES:
                meter.collect()
            placement = ticket.placements[0]
            reply = Published(batch.address, placement.timestamp_ms, partition, placement.base_offset)
            if placement.offsets is not None:
                reply = published(batch, placement, partition)
            caller.answer(request.id, reply)
        else:
            door.held += count
            self._doors.refuse(way.route, count, error)
            caller.answer(request.id, error)

    def _remember_way(self, caller: Caller, address: str, route: ResolvedRoute) -> None:
        if route.transform is not None or len(route.topics) != 1 or route.proxy is not None:
            return
        if caller.along is not None:  # it has to be asked each time
            return
        topic = self._store.topics.get(route.topic)
        if topic is None or self._table.topic_config(route.topic).schema:
            return
        # who writes to so many addresses finds each again as cheaply as an order of their last use would be kept
        if len(caller.ways) >= MOST_WAYS:
            caller.ways.clear()
        meter = self._recorder.publish_meter(route.name, caller.listener.name)
        caller.ways[address] = PlainWay(self._table.version, route.name, self._doors.of(route.name), meter, topic)

    # --- the steps ---

    def _admit(self, publication: Publication) -> None:
        request = publication.request
        if request is None:
            return
        if request.transaction:
            self._transactions.admit(publication.caller, request)
        elif not publication.plain:
            self._delays.admit(request)
        if request.ttl_ms:
            publication.batch = with_ttl(publication.batch, self._clock.now_ms() + request.ttl_ms)

    def _route(self, publication: Publication) -> None:
        caller, batch = publication.caller, publication.batch
        listener = caller.listener
        plan = self._table.writer(listener.protocol, listener.name, batch.address, caller.origin.principal)
        parts, unrouted = plan.split(batch.columns)
        if unrouted:
            refusal = NotRouted(f"no route takes {batch.address!r} with this key or these headers")
            if not parts:
                raise refusal
            self._refuse_unrouted(caller, batch.columns.pick(unrouted), refusal)
            publication.refused |= dict.fromkeys(unrouted, refusal)
        publication.routed = True
        for route, indexes in parts:
            part = Part(route, batch.columns if indexes is None else batch.columns.pick(indexes), indexes)
            self._doors.receive(route.name, listener.name, part.columns)
            publication.parts.append(part)
        if plan.route is not None:
            self._remember_way(caller, batch.address, plan.route)

    def _stop_loops(self, publication: Publication) -> None:
        copies = publication.batch.copies
        identity = identity_of(self._store)
        whole = copies is not None and goes_round(copies.path, identity)
        if not whole and publication.batch.columns.headers is None:
            return
        for part in publication.parts:
            columns = part.columns
            looping = [
                at for at in range(columns.count) if whole or goes_round(via_in(columns.headers_of(at)), identity.hex())
            ]
            if not looping:
                continue
            error = Conflict("it goes in circles: it has come by this gateway before, or by too many to tell")
            if not part.route.topics:
                raise error
            failed = dict.fromkeys(looping, error)
            publication.failures.append(Failed(part.route, columns, failed, LOOP))
            part.keep([at for at in range(columns.count) if at not in failed])

    def _transform(self, publication: Publication) -> None:
        for part in publication.parts:
            transform = part.route.transform
            if transform is None:
                if self.tap is not None:
                    self.tap(publication.origin, publication.batch.address, part.route.name, part.columns, None)
                continue
            came, indexes = part.columns, part.indexes
            found = transform.apply(came)
            if self.tap is not None:
                self.tap(publication.origin, publication.batch.address, part.route.name, came, found)
            part.columns, kept, errors = found
            if len(kept) != came.count:
                part.indexes = composed(indexes, kept)
            self._doors.drop(part.route.name, came.count - len(kept) - len(errors), "filtered")
            if not errors:
                continue
            if publication.plain and part.route.topics:
                publication.failures.append(Failed(part.route, came, errors))
            else:
                members = Part(part.route, came, indexes)
                publication.refused |= {members.member(index): error for index, error in errors.items()}
                self._doors.refuse(part.route.name, len(errors), next(iter(errors.values())))

    def _place(self, publication: Publication) -> None:
        batch = publication.batch
        publication.id = batch.id or self._ids.next(self._clock.now_ms())
        for part in list(publication.parts):
            if not part.columns.count:
                publication.parts.remove(part)
            elif part.route.proxy is not None:
                publication.parts.remove(part)
                publication.proxied.append(part)
            else:
                self._place_part(publication, part)
        for failed in publication.failures:
            self._place_letters(publication, failed)
        if publication.proxied and not publication.plain:
            raise Unsupported("this address is answered by a broker elsewhere, which takes plain publishes only")
        for part in publication.proxied:
            door = self._doors.of(part.route.name)
            door.held -= part.columns.count
            door.proxying += part.columns.count

    def _place_part(self, publication: Publication, part: Part) -> None:
        batch, appends = publication.batch, publication.appends
        meta = BatchMeta(publication.id, publication.origin, part.route.name, batch.delivery)
        for number, topic in enumerate(part.route.topics):
            # who makes topics itself makes the one it knows of, the primary; a copy's is the configuration's
            config = self._config(topic, publication.creates, create=publication.create or number > 0)
            shares = self._partitioner.spread(publication.caller.id, topic, config.partitions, batch, part.columns)
            for partition, chosen in shares:
                members = composed(part.indexes, chosen)
                if number == 0:
                    publication.shares.append(Share(len(appends), partition, members))
                picked = part.columns if chosen is None else part.columns.pick(chosen)
                appends.append(Append(topic, partition, picked, meta, indexes=members))

    def _place_letters(self, publication: Publication, failed: Failed) -> None:
        route = failed.route
        meta = BatchMeta(publication.id, publication.origin, route.name, publication.batch.delivery)
        creates, append = self._letters.of_refused(route.topic, failed.columns, meta, failed.errors, failed.reason, 1)
        publication.creates += creates
        publication.appends.append(append)

    # --- inside ---

    def _config(self, topic: str, creates: list[MakeTopic], *, create: bool) -> TopicConfig:
        state = self._store.topics.get(topic)
        if state is not None:
            return state.config
        if not create:
            raise UnknownTopic(f"topic not found: {topic}")
        config = self._table.topic_config(topic)
        creates.append(MakeTopic(topic, config))
        return config

    def _refuse_unrouted(self, caller: Caller, columns: Columns, error: GatewayError) -> None:
        self._doors.receive("", caller.listener.name, columns)
        self._doors.refuse("", columns.count, error)
