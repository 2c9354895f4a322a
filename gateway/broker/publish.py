"""The one way into the log: route, check, transform, spread over partitions, append, account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from gateway.broker.failing import TRANSFORM, Failed, LetterMaker, letters_of
from gateway.broker.partitions import Partitioner
from gateway.broker.placing import Share, compose, original, reply, with_ttl
from gateway.broker.proxied import Proxying, ProxySender
from gateway.broker.service import Caller, Clock, Handler, Prepared, ProxiedPart
from gateway.envelope import Batch, BatchIds, BatchMeta, Columns
from gateway.errors import GatewayError, NotRouted, UnknownTopic, Unsupported
from gateway.recorder import DoorCounts, Recorder
from gateway.requests import Publish, Published, Request
from gateway.routing.table import ResolvedRoute, RoutingTable
from gateway.store.interface import Append, CreateTopic, Placement, Put, Require, Store, Ticket, TopicConfig, Unit


class SchemaChecker(Protocol):
    """What publishing needs of the schema registry."""

    def check(self, schema_name: str, columns: Columns) -> Mapping[int, GatewayError]:
        """The messages that do not fit, by index."""
        ...


@attrs.define(eq=False)
class Door:
    """What came in by one route, and where it is."""

    received: int = 0
    stored: int = 0
    refused: int = 0
    filtered: int = 0
    rolled_back: int = 0
    held: int = 0
    committing: int = 0
    proxied: int = 0
    proxying: int = 0


Defer = Callable[[Caller, Publish], None]


class Publisher:
    """Implements Publishing, and serves Publish."""

    def __init__(
        self,
        store: Store,
        table: RoutingTable,
        clock: Clock,
        recorder: Recorder,
        schemas: SchemaChecker,
        ids: BatchIds | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._clock = clock
        self._recorder = recorder
        self._schemas = schemas
        self._ids = ids or BatchIds()
        self._partitioner = Partitioner()
        self._doors: dict[str, Door] = {}
        self._in_transaction: Defer | None = None
        self._later: Defer | None = None
        self._proxying: Proxying | None = None
        self._letters: LetterMaker | None = None

    def handlers(self) -> Mapping[type[Request], Handler]:
        """Publish."""
        return {Publish: self.publish}

    def divert(self, *, in_transaction: Defer, later: Defer, failed: LetterMaker | None = None) -> None:
        """Who takes publishes inside transactions, those that are due later, and messages on which a transform fails."""
        self._in_transaction = in_transaction
        self._later = later
        self._letters = failed

    def proxy_by(self, sender: ProxySender) -> None:
        """Who sends what a route has for brokers elsewhere."""
        self._proxying = Proxying(sender, self._clock, self._recorder, self._door)

    def doors(self) -> Iterable[DoorCounts]:
        """The accounting at the door."""
        for route, door in self._doors.items():
            yield DoorCounts(
                route=route,
                received=door.received,
                stored=door.stored,
                refused=door.refused,
                filtered=door.filtered,
                rolled_back=door.rolled_back,
                committing=door.committing,
                in_transactions=door.held,
                proxied=door.proxied,
                proxying=door.proxying,
            )

    # --- the handler ---

    def publish(self, caller: Caller, request: Publish) -> None:
        """Append a batch and answer with its place."""
        if request.transaction and self._in_transaction is not None:
            self._in_transaction(caller, request)
            return
        if (request.delay_ms or request.deliver_at_ms) and self._later is not None:
            self._later(caller, request)
            return
        batch = request.batch
        if request.ttl_ms:
            batch = with_ttl(batch, self._clock.now_ms() + request.ttl_ms)
        failed: list[Failed] | None = [] if self._letters is not None else None
        prepared = self._decide(caller, batch, request.schema, create=request.create, failed=failed)
        if prepared.proxied:
            if self._proxying is None:
                raise self._withdraw(prepared)
            self._proxying.start(caller, request, batch, prepared, lambda one: self.commit((one,)))
            return

        def done(ticket: Ticket) -> None:
            caller.answer(request.id, ticket.error or prepared.finish(ticket.placements))

        self.commit((prepared,)).on_done(done)

    def refused(self, caller: Caller, request: Publish, error: GatewayError) -> None:
        """Count a publish that was refused before it came here."""
        self._refuse("", caller, request.batch.columns, error)

    # --- Publishing ---

    def prepare(self, caller: Caller, batch: Batch, schema: str = "", create: bool = True) -> Prepared:
        """Decide everything about a batch but its offsets."""
        prepared = self._decide(caller, batch, schema, create=create)
        if prepared.proxied:
            raise self._withdraw(prepared)
        return prepared

    def _decide(
        self, caller: Caller, batch: Batch, schema: str, *, create: bool, failed: list[Failed] | None = None
    ) -> Prepared:
        """`failed` takes what a transform fails on; without it, that is refused."""
        columns = batch.columns
        try:
            plan = self._table.writer(
                caller.listener.protocol, caller.listener.name, batch.address, caller.origin.principal
            )
        except GatewayError as error:
            self._refuse("", caller, columns, error)
            raise
        if plan.route is not None:
            plain = self._prepare_plain(caller, batch, plan.route) if not schema else None
            return plain or self._prepare(caller, batch, [(plan.route, None)], schema, create, failed=failed)
        parts, unrouted = plan.split(columns)
        if unrouted:
            refusal = NotRouted(f"no route takes {batch.address!r} with this key or these headers")
            self._refuse("", caller, columns.pick(unrouted), refusal)
            if not parts:
                raise refusal
            return self._prepare(caller, batch, parts, schema, create, dict.fromkeys(unrouted, refusal), failed)
        return self._prepare(caller, batch, parts, schema, create, failed=failed)

    def commit(
        self, prepared: Sequence[Prepared], puts: Sequence[Put] = (), requires: Sequence[Require] = ()
    ) -> Ticket:
        """Append prepared batches in one unit."""
        if len(prepared) == 1:
            appends, creates = prepared[0].appends, prepared[0].creates
        else:
            appends = [append for one in prepared for append in one.appends]
            creates = [create for one in prepared for create in one.creates]
        for one in prepared:
            for route, messages, _size in one.parts:
                door = self._doors[route]
                door.held -= messages
                door.committing += messages
        ticket = self._store.submit(Unit(appends=appends, creates=creates, puts=puts, requires=requires))
        ticket.on_done(lambda ticket: self._account(prepared, ticket))
        return ticket

    def discard(self, prepared: Sequence[Prepared]) -> None:
        """Prepared batches will not be committed."""
        for one in prepared:
            for route, messages, _size in one.parts:
                door = self._doors[route]
                door.held -= messages
                door.rolled_back += messages
                self._recorder.dropped(route, "rolled_back", messages)

    def adopt(self, parts: Sequence[tuple[str, int, int]]) -> None:
        """What an earlier process took and did not append waits here now."""
        for route, messages, _size in parts:
            door = self._door(route)
            door.received += messages
            door.held += messages

    # --- inside ---

    def _withdraw(self, prepared: Prepared) -> Unsupported:
        """What was prepared is not done, for it goes elsewhere: there are no transactions, delays and replays there."""
        refusal = Unsupported("this address is answered by a broker elsewhere, which takes plain publishes only")
        for route, messages, _size in prepared.parts:
            self._doors[route].held -= messages
            self._refuse_counted(route, messages, refusal)
        for part in prepared.proxied:
            self._doors[part.route].proxying -= part.columns.count
            self._refuse_counted(part.route, part.columns.count, refusal)
        return refusal

    def _prepare_plain(self, caller: Caller, batch: Batch, route: ResolvedRoute) -> Prepared | None:
        """The case of nearly all batches, without the steps that it does not need: one topic, which is there, and nothing
        to transform, to validate or to spread. None for any other.
        """
        if route.transform is not None or len(route.topics) != 1:
            return None
        topic = route.topics[0]
        state = self._store.topics.get(topic)
        if state is None or self._table.topic_config(topic).schema:
            return None
        partition = batch.partition
        if partition is None and state.config.partitions == 1:
            partition = 0
        if partition is None or not 0 <= partition < state.config.partitions:
            return None
        chosen = partition
        name, columns = route.name, batch.columns
        count, size = columns.count, columns.value_bytes
        door = self._door(name)
        door.received += count
        door.held += count
        self._recorder.received(name, caller.listener.name, count, size)
        batch_id = batch.id or self._ids.next(self._clock.now_ms())
        meta = BatchMeta(batch_id, caller.origin, name, batch.delivery)

        def finish(placements: Sequence[Placement]) -> Published:
            return Published(batch.address, placements[0].timestamp_ms, chosen, placements[0].base_offset)

        append = Append(topic, chosen, columns, meta)
        return Prepared((append,), (), finish, ((name, count, size),), self._clock.now())

    def _prepare(
        self,
        caller: Caller,
        batch: Batch,
        parts: Sequence[tuple[ResolvedRoute, Sequence[int] | None]],
        schema: str,
        create: bool,
        refused: dict[int, GatewayError] | None = None,
        failed: list[Failed] | None = None,
    ) -> Prepared:
        appends: list[Append] = []
        creates: list[CreateTopic] = []
        shares: list[Share] = []
        accounted: list[tuple[str, int, int]] = []
        proxied: list[ProxiedPart] = []
        batch_id = batch.id or self._ids.next(self._clock.now_ms())
        refused = refused if refused is not None else {}
        for route, indexes in parts:
            columns = batch.columns if indexes is None else batch.columns.pick(indexes)
            self._receive(route.name, caller, columns)
            try:
                kept = self._check(route, columns, indexes, schema, refused, failed)
                if kept is None:
                    continue
                columns, indexes = kept
                if route.proxy is not None:
                    proxied.append(ProxiedPart(route.name, route.proxy, columns, indexes))
                    continue
                meta = BatchMeta(batch_id, caller.origin, route.name, batch.delivery)
                for number, topic in enumerate(route.topics):
                    # who makes topics itself makes the one it knows of, the primary; a copy's is the configuration's
                    config = self._config(topic, creates, create=create or number > 0)
                    for partition, chosen in self._partitioner.spread(
                        caller.id, topic, config.partitions, batch, columns
                    ):
                        picked = columns if chosen is None else columns.pick(chosen)
                        members = compose(indexes, chosen)
                        if number == 0:
                            shares.append(Share(len(appends), partition, members))
                        appends.append(Append(topic, partition, picked, meta, indexes=members))
            except GatewayError as error:
                self._refuse_counted(route.name, columns.count, error)
                for lost in failed or ():
                    self._refuse_counted(lost.route.name, len(lost.errors), error)
                for name, messages, _size in (*accounted, *((one.route, one.columns.count, 0) for one in proxied)):
                    self._refuse_counted(name, messages, error)
                raise
            accounted.append((route.name, columns.count, columns.value_bytes))
        for one in failed or ():
            assert self._letters is not None
            meta = BatchMeta(batch_id, caller.origin, one.route.name, batch.delivery)
            made, append = letters_of(self._letters, one, meta, self._clock.now_ms())
            creates.extend(made)
            appends.append(append)
            accounted.append((one.route.name, append.columns.count, append.columns.value_bytes))
        for name, messages, _size in accounted:
            self._doors[name].held += messages
        for other in proxied:
            self._doors[other.route].proxying += other.columns.count

        def finish(placements: Sequence[Placement]) -> Published:
            return reply(batch, shares, placements, refused)

        letters = [(one.route.name, len(one.errors)) for one in failed or ()]
        return Prepared(appends, creates, finish, accounted, self._clock.now(), proxied, letters)

    def _check(
        self,
        route: ResolvedRoute,
        columns: Columns,
        indexes: Sequence[int] | None,
        schema: str,
        refused: dict[int, GatewayError],
        failed: list[Failed] | None,
    ) -> tuple[Columns, Sequence[int] | None] | None:
        """Transform and validate; what is left, with its indexes in the batch. None: nothing is left. What leaves on the way
        is counted at the end: if this raises, all of it is refused.
        """
        came, filtered, before = columns, 0, indexes
        counted: list[tuple[int, GatewayError]] = []
        errors: Mapping[int, GatewayError] = {}
        if route.transform is not None:
            columns, kept, errors = route.transform.apply(columns)
            filtered = came.count - len(kept) - len(errors)
            indexes = compose(indexes, kept) if len(kept) != came.count else indexes
        names = {self._table.topic_config(topic).schema for topic in route.topics} | {schema}
        names.discard("")
        for name in sorted(names) if columns.count else ():
            violations = self._schemas.check(name, columns)
            if violations:
                first = next(iter(violations.values()))
                if len(violations) == came.count == 1:
                    raise first
                keep = [index for index in range(columns.count) if index not in violations]
                refused |= {original(indexes, index): violation for index, violation in violations.items()}
                counted.append((len(violations), first))
                columns, indexes = columns.pick(keep), compose(indexes, keep)
        if errors and failed is not None and route.topics:
            failed.append(Failed(route, came, errors))
        elif errors:
            refused |= {original(before, index): error for index, error in errors.items()}
            counted.append((len(errors), next(iter(errors.values()))))
        for messages, error in counted:
            self._refuse_counted(route.name, messages, error)
        if filtered:
            self._doors[route.name].filtered += filtered
            self._recorder.dropped(route.name, "filtered", filtered)
        return (columns, indexes) if columns.count else None

    def _config(self, topic: str, creates: list[CreateTopic], *, create: bool) -> TopicConfig:
        state = self._store.topics.get(topic)
        if state is not None:
            return state.config
        if not create:
            raise UnknownTopic(f"topic not found: {topic}")
        config = self._table.topic_config(topic)
        creates.append(CreateTopic(topic, config))
        return config

    def _door(self, route: str) -> Door:
        door = self._doors.get(route)
        if door is None:
            door = self._doors[route] = Door()
        return door

    def _receive(self, route: str, caller: Caller, columns: Columns) -> None:
        self._door(route).received += columns.count
        self._recorder.received(route, caller.listener.name, columns.count, columns.value_bytes)

    def _refuse(self, route: str, caller: Caller, columns: Columns, error: GatewayError) -> None:
        """Refuse messages that were not received by a route yet."""
        self._receive(route, caller, columns)
        self._refuse_counted(route, columns.count, error)

    def _refuse_counted(self, route: str, messages: int, error: GatewayError) -> None:
        self._doors[route].refused += messages
        self._recorder.refused(route, error.status, messages)

    def _account(self, prepared: Sequence[Prepared], ticket: Ticket) -> None:
        now = self._clock.now()
        for one in prepared:
            for route, messages, size in one.parts:
                door = self._doors[route]
                door.committing -= messages
                if ticket.error is not None:
                    self._refuse_counted(route, messages, ticket.error)
                else:
                    door.stored += messages
                    self._recorder.stored(route, messages, size)
                    self._recorder.publish_latency(route, now - one.started)
            if ticket.error is None:
                for route, messages in one.letters:
                    self._recorder.dead_lettered(route, TRANSFORM, messages)
