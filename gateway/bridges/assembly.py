"""Puts the bridges together, and lets them become others while they run.

Data flow of a change (the first one, at the start, begins with nothing):

    configuration, table ─► prepare ─► become ─► handed over ─► closed
                            │          │         │              └ connections that nobody uses any more
                            │          │         └ what is under way ends; who follows begins where it ended
                            │          └ in one step: what stays goes on untouched, what is not wanted any more stops
                            └ everything that can fail: cursors that have to be on disk

A forward stays if its rule means what it did and its upstream is described as before. A changed one has the name of one that
stops, and is given its place in each partition when that has settled what it had sent and written its cursor. A removed one
leaves its cursor stored: added again, it goes on there. The ingests of an upstream stay or go together.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from gateway.bridges.forward import ForwardContext
from gateway.bridges.forwards import Forwards
from gateway.bridges.ingest import IngestContext
from gateway.bridges.ingest_entry import EntryContext
from gateway.bridges.ingest_memory import IngestMemory
from gateway.bridges.ingests import Ingests
from gateway.bridges.mirror import MirrorContext, Mirrors
from gateway.bridges.pool import UpstreamPool
from gateway.bridges.proxy import Proxies
from gateway.bridges.upstreams import Upstreams, Use, proxied, wanted
from gateway.broker.assembly import House
from gateway.broker.ownership import OwnedJobs
from gateway.envelope import BatchIds
from gateway.model import Config
from gateway.recorder import Recorder
from gateway.routing.table import RoutingTable
from gateway.store.interface import Store
from gateway.transport.limits import Budget


@attrs.frozen(eq=False)
class Bridges:
    forwards: Forwards
    mirrors: Mirrors
    ingests: Ingests
    proxies: Proxies
    upstreams: Upstreams

    @property
    def used(self) -> frozenset[str]:
        return self.upstreams.used

    @property
    def pools(self) -> Mapping[str, UpstreamPool]:
        return self.upstreams.of(Use.SENDING)

    async def prepare(self, table: RoutingTable) -> None:
        """Do all that can fail on the way to other bridges; a GatewayError leaves everything as it is."""
        await self.forwards.prepare(table.forwards)

    def become(self, config: Config, table: RoutingTable) -> None:
        self.upstreams.become(wanted(config, table))
        self.forwards.become(table.forwards, self.pools)
        self.mirrors.become(table.mirrors, self.upstreams.of(Use.MIRRORING))
        self.proxies.become({name: self.pools[name] for name in sorted(proxied(table))})
        self.ingests.become(self.upstreams.of(Use.PULLING))

    async def handed_over(self) -> Mapping[str, int]:
        """Until what was stopped has ended. By forward that is no more, the messages it has left undelivered."""
        left: dict[str, int] = {}

        async def forwards() -> None:
            left.update(await self.forwards.handed_over())
            await self.upstreams.close_retired((Use.SENDING, Use.MIRRORING), self._uses)

        async def ingests() -> None:
            await self.ingests.finished()
            await self.upstreams.close_retired((Use.PULLING,), self._uses)
            self.ingests.follow()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(forwards)
            nursery.start_soon(ingests)
        return left

    def problems(self) -> Iterator[tuple[str, str]]:
        """What keeps the gateway from being ready: a forward that has stopped needs somebody to look, and so does an upstream
        that refuses our credentials. One that is away does not: it is waited for, and the rest of the gateway serves.
        """
        for pool in self.pools.values():
            yield f"upstream {pool.name}", pool.refused and f"refuses our login: {pool.refused}"
        for name in self.forwards.names:
            yield f"forward {name}", self.forwards.problem(name)
        for ingest in self.ingests.all:
            yield f"ingest {ingest.pool.name} {ingest.name}", ingest.problem

    def waiting(self) -> Iterator[tuple[str, str]]:
        """The upstreams that are away, why, and what waits for them."""
        now = trio.current_time()
        for pool in self.upstreams.first.values():
            if pool.away_since is not None:
                away = f"away for {now - pool.away_since:.0f} s: {pool.problem}"
                yield f"upstream {pool.name}", f"{away}; {self.forwards.backlog(pool)} messages wait"

    def admit(self) -> None:
        """The gateway serves: what is pulled from elsewhere may come in."""
        self.ingests.admit()

    def drain(self) -> None:
        """The gateway goes down: nothing more is pulled."""
        self.ingests.stop()

    def refresh(self) -> None:
        self.ingests.show()
        self.proxies.show()

    def _uses(self, pool: UpstreamPool) -> bool:
        return self.forwards.uses(pool) or self.proxies.uses(pool) or self.ingests.uses(pool)


@asynccontextmanager
async def open_bridges(
    config: Config,
    store: Store,
    house: House,
    table: RoutingTable,
    recorder: Recorder,
    budget: Budget,
    chance: random.Random | None = None,
) -> AsyncIterator[Bridges]:
    """Everything that goes to brokers elsewhere, running inside the block; cursors are written when it ends. `budget`: what
    is pulled and not stored yet is counted there.
    """
    chance = chance or random.Random()  # noqa: S311  # spreads retries, keeps no secret
    async with trio.open_nursery() as nursery:

        def start_soon(job: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(job)

        context = ForwardContext(
            store,
            house.pump,
            house.clock,
            recorder,
            house.letters,
            start_soon,
            contextlib.nullcontext,  # what it reads is bounded by its window, and no matter of those who wait for answers
            house.latencies,
            chance,
            house.owners,
        )
        forwards = Forwards(context)
        proxies = Proxies(house.pump, house.clock, recorder)
        ingests = Ingests(
            IngestContext(store, house.pump, house.clock, recorder, chance, IngestMemory(budget), house.owners),
            EntryContext(house.broker, store, house.pump, house.clock, recorder, house.letters, chance, BatchIds()),
            table,
            proxies.connected,
            start_soon,
        )
        mirrors = Mirrors(MirrorContext(store, house.pump, house.clock, recorder, house.owners, start_soon))
        bridges = Bridges(
            forwards,
            mirrors,
            ingests,
            proxies,
            Upstreams(nursery, house.pump, recorder, chance),
        )
        await bridges.prepare(table)
        bridges.become(config, table)
        store.set_retention_floor(forwards.floor)
        house.topics.before_delete.append(forwards.objection)
        house.topics.after_delete.append(forwards.deleted)
        house.consumers.append(forwards.consumers)
        kinds: Sequence[OwnedJobs[Any]] = (forwards, mirrors, ingests)
        of_jobs = [house.owners.on_change(jobs.shared_out) for jobs in kinds]
        house.proxying.sender = proxies
        if house.shared is not None:
            forwards.pass_on = house.shared.reset_partition
            house.shared.reset_forward = forwards.reset_here
        try:
            yield bridges
        finally:
            if house.shared is not None:
                house.shared.reset_forward = None
            for stop in of_jobs:
                stop()
            with trio.CancelScope(shield=True):
                for jobs in reversed(kinds):
                    await jobs.drain()
            nursery.cancel_scope.cancel()
