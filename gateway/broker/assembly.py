"""Puts the broker together: every service, in the order they need each other, and the tasks they run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from gateway import model
from gateway.broker.administration.accounts import Accounts
from gateway.broker.administration.acls import AccessLists
from gateway.broker.administration.authorisation import Authorisation
from gateway.broker.administration.cluster import ClusterService
from gateway.broker.administration.dead_letters import DeadLetterService
from gateway.broker.administration.logins import Logins
from gateway.broker.administration.schemas import SchemaService
from gateway.broker.administration.topics import TopicService
from gateway.broker.broker import Broker, Jobs
from gateway.broker.cache import CacheService
from gateway.broker.consume.answer_room import AnswerMemory, AnswerRoom
from gateway.broker.consume.deliveries import Latencies
from gateway.broker.consume.fetches import FetchService
from gateway.broker.consume.groups import GroupService
from gateway.broker.consume.readers import GroupReaders
from gateway.broker.consume.shared import SharedSubscriptions
from gateway.broker.consume.subscriptions import SubscriptionContext, SubscriptionService
from gateway.broker.consume.watch import Watchers
from gateway.broker.freshness import Freshness
from gateway.broker.lane import Lane
from gateway.broker.letters import Letters
from gateway.broker.offload import NurseryOffload
from gateway.broker.ownership import Owners
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.deduplication import Deduplication
from gateway.broker.publish.delays import DelayService
from gateway.broker.publish.door import Doors
from gateway.broker.publish.pipeline import Pipeline
from gateway.broker.publish.proxying import Proxying
from gateway.broker.publish.transactions import TransactionService
from gateway.broker.publish.validation import SchemaGate
from gateway.broker.service import Clock, Service, StartJob
from gateway.broker.timers import Pump, SystemClock
from gateway.model import AuthUsers
from gateway.recorder import ConsumerCounts, Recorder, Snapshot
from gateway.routing.table import RoutingTable
from gateway.store.interface import Store


@attrs.frozen(eq=False)
class House:
    broker: Broker
    pump: Pump
    pipeline: Pipeline
    appending: Appending
    proxying: Proxying
    doors: Doors
    subscriptions: SubscriptionService
    topics: TopicService
    dead_letters: DeadLetterService
    letters: Letters
    clock: Clock
    latencies: Latencies
    groups: GroupService
    owners: Owners
    schemas: SchemaService
    shared: SharedSubscriptions | None
    """Where several gateways serve one log."""
    start_soon: StartJob
    consumers: list[Callable[[], Iterable[ConsumerCounts]]] = attrs.Factory(list)
    """Who else reads durably, for the accounting."""

    def snapshot(self) -> Snapshot:
        every = (self.subscriptions.consumers, *self.consumers)
        return Snapshot(tuple(self.doors.counts()), (counts for consumers in every for counts in consumers()))


@asynccontextmanager
async def open_house(
    store: Store,
    table: RoutingTable,
    recorder: Recorder,
    memory: AnswerMemory,
    *,
    accounts: Iterable[AuthUsers] = (),
    clock: Clock | None = None,
    cluster: model.ClusterSettings | None = None,
) -> AsyncIterator[House]:
    """A broker on a store, with its tasks running inside the block; cursors are written when it ends. `memory`: what answers may
    take of it before a connection has them.
    """
    clock = clock or SystemClock()
    pump = Pump(clock.now)
    jobs = Jobs()
    offload = NurseryOffload()
    watchers = Watchers(pump, store)
    owners = Owners(store, clock, pump, jobs.start_soon)
    owners.on_change(lambda: recorder.owned(owners.held))
    store.on_visible(watchers.changed)
    store.around_tickets(pump.hold, pump.release)
    topics = TopicService(store, table, jobs.start_soon)
    logins = Accounts(store, clock, offload, Logins(clock, pump.call_at, recorder))
    acls = AccessLists(store, topics.name)
    schemas = SchemaService(store, offload)
    authorisation = Authorisation(logins, acls, clock)
    # set here, since authorisation asks the topics what an address means: neither can be made after the other
    topics.may = authorisation.may
    doors = Doors(recorder)
    appending = Appending(store, clock, recorder, doors)
    deduplication = Deduplication(store, clock, doors)
    # a thread of its own: what checks messages against schemas must not take the threads that logins wait for
    checking = NurseryOffload(threads=1)
    transactions = TransactionService(store, appending, clock, pump, authorisation.permit)
    delays = DelayService(store, appending, clock, pump, offload, owners)
    letters = Letters(store, table)
    proxying = Proxying(clock, recorder, doors)
    pipeline = Pipeline(
        store,
        table,
        clock,
        recorder,
        doors=doors,
        appending=appending,
        deduplication=deduplication,
        validation=SchemaGate(schemas, table, checking, doors),
        transactions=transactions,
        delays=delays,
        letters=letters,
        proxying=proxying,
    )
    dead_letters = DeadLetterService(store, appending, topics, table, clock, offload, authorisation.permit)
    latencies = Latencies()
    lane = Lane()
    room = AnswerRoom(memory, pump, clock, lane, recorder)
    fetches = FetchService(
        store,
        topics,
        table,
        watchers,
        pump,
        clock,
        recorder,
        latencies,
        jobs.start_soon,
        room,
        authorisation.refusal,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        await nursery.start(offload.run)
        subscriptions = SubscriptionService(
            SubscriptionContext(
                store,
                pump,
                clock,
                recorder,
                letters,
                lambda job: jobs.start_soon(None, None, job),
                partial(room.turn, ""),
                room,
                owners,
                table,
                topics,
                watchers,
                latencies,
                authorisation.refusal,
            )
        )
        shared = (
            None
            if store.capabilities.single_writer
            else SharedSubscriptions(
                subscriptions, store, owners, topics, clock, pump, recorder, jobs.start_soon, authorisation.refusal
            )
        )
        asked = shared or subscriptions
        authorisation.subscribed = asked.address_of
        known = cluster or model.ClusterSettings()
        gateways = ClusterService(store, id=known.id, address=known.address, peers=known.peers)
        await nursery.start(checking.run)
        readers = GroupReaders(store, owners, clock, pump, jobs.start_soon)
        groups = GroupService(store, table, topics, recorder, jobs.start_soon, readers)
        services: list[Service] = [
            fetches,
            asked,
            groups,
            topics,
            logins,
            acls,
            schemas,
            CacheService(store, clock, recorder),
            transactions,
            delays,
            dead_letters,
            gateways,
            pipeline,
        ]
        broker = Broker(
            services,
            authorisation=authorisation,
            pump=pump,
            waiters=[fetches, asked],
            refused=pipeline.refused,
            hold=store.hold,
            release=store.release,
            lane=lane,
            # where this gateway alone writes, what it knows is all there is
            fresh=None if store.capabilities.single_writer else Freshness(store, topics, jobs.start_soon),
        )
        nursery.start_soon(lane.run)
        nursery.start_soon(pump.run)
        await nursery.start(gateways.run)
        await logins.start(accounts)
        await delays.start()
        await deduplication.start()
        if shared is None:  # elsewhere some are others': `take` follows when it is known which are not
            await subscriptions.restore_all()
        # until numbers are reserved no subscription could be given one
        await subscriptions.numbers.wait()
        try:
            yield House(
                broker,
                pump,
                pipeline,
                appending,
                proxying,
                doors,
                subscriptions,
                topics,
                dead_letters,
                letters,
                clock,
                latencies,
                groups,
                owners,
                schemas,
                shared,
                jobs.start_soon,
            )
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await (shared.drain() if shared is not None else subscriptions.close())
                await gateways.leave_the_log()
                await owners.close()
            nursery.cancel_scope.cancel()
