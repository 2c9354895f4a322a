"""Puts the bridges together: a pool of connections for each upstream that is used, and who uses them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from gateway.bridges.forward import ForwardContext
from gateway.bridges.forwards import Forwards
from gateway.bridges.ingest import IngestContext
from gateway.bridges.ingest_entry import EntryContext
from gateway.bridges.ingests import Ingests
from gateway.bridges.mirror import MirrorContext, Mirrors
from gateway.bridges.pool import UpstreamPool
from gateway.bridges.proxy import Proxies
from gateway.broker.assembly import House
from gateway.config.model import Config, Forward
from gateway.envelope import BatchIds
from gateway.protocols.registry import protocol
from gateway.recorder import NullRecorder, Recorder
from gateway.routing.table import RoutingTable
from gateway.store.interface import Store


class TrimmingStore(Store, Protocol):
    """A store that asks before it forgets."""

    def set_retention_floor(self, floor: Callable[[str, int], int | None]) -> None:
        """Ask this before trimming a partition."""
        ...


@attrs.frozen(eq=False)
class Bridges:
    """What the rest of the program asks of them."""

    forwards: Forwards
    pools: dict[str, UpstreamPool]
    names: tuple[str, ...]
    ingests: Ingests
    proxies: Proxies

    def conditions(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """What has to hold for the gateway to be ready: a forward that has stopped needs somebody to look, and so does an
        upstream that refuses our credentials. One that is away does not: it is waited for, and the rest of the gateway serves.
        """
        for pool in self.pools.values():
            yield f"upstream {pool.name}", lambda pool=pool: pool.refused and f"refuses our login: {pool.refused}"  # type: ignore[misc]
        for name in self.names:
            yield f"forward {name}", lambda name=name: self.forwards.problem(name)  # type: ignore[misc]
        for ingest in self.ingests.all:
            yield f"ingest {ingest.pool.name} {ingest.name}", lambda ingest=ingest: ingest.problem  # type: ignore[misc]

    def admit(self) -> None:
        """The gateway serves: what is pulled from elsewhere may come in."""
        self.ingests.admit()

    def drain(self) -> None:
        """The gateway goes down: nothing more is pulled."""
        self.ingests.stop()

    def refresh(self) -> None:
        """Bring gauges up to date."""
        self.ingests.show()
        self.proxies.show()


@asynccontextmanager
async def open_bridges(
    config: Config,
    store: TrimmingStore,
    house: House,
    table: RoutingTable,
    recorder: Recorder,
    chance: random.Random | None = None,
) -> AsyncIterator[Bridges]:
    """Everything that goes to brokers elsewhere, running inside the block; cursors are written when it ends."""
    targets = [rule.target for rule in table.forwards if isinstance(rule.target, Forward)]
    chance = chance or random.Random()  # noqa: S311  # spreads retries, keeps no secret
    proxied = {route.proxy[1].upstream for route in table.routes if route.proxy is not None}
    written = {target.upstream for target in targets} | proxied
    pools = {
        name: UpstreamPool(upstream, protocol(upstream.protocol), house.pump, recorder, chance)
        for name, upstream in config.upstreams.items()
        if name in written
    }
    # what is pulled has connections of its own: a large answer must not stand before a publish; the gauges are the others'
    sources = {
        name: UpstreamPool(
            upstream,
            protocol(upstream.protocol),
            house.pump,
            recorder if name not in pools else NullRecorder(),
            chance,
        )
        for name, upstream in config.upstreams.items()
        if upstream.ingest
    }
    # what is mirrored has its own, too: a target that fails there says nothing of a forward's
    shadows = {
        name: UpstreamPool(
            config.upstreams[name],
            protocol(config.upstreams[name].protocol),
            house.pump,
            recorder if name not in pools and name not in sources else NullRecorder(),
            chance,
        )
        for name in sorted({rule.target.upstream for rule in table.mirrors})
    }
    async with trio.open_nursery() as nursery:

        def start_soon(job: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(job)

        context = ForwardContext(
            store, house.pump, house.clock, recorder, house.latencies, house.dead_letters, start_soon, chance
        )
        forwards = Forwards(context, table.forwards, pools)
        store.set_retention_floor(forwards.floor)
        house.topics.before_delete.append(forwards.objection)
        house.topics.after_delete.append(forwards.deleted)
        house.consumers.append(forwards.consumers)
        proxies = Proxies({name: pools[name] for name in sorted(proxied)}, house.pump, house.clock, recorder)
        house.publisher.proxy_by(proxies)
        await forwards.start()
        Mirrors(MirrorContext(store, house.pump, house.clock, recorder), table.mirrors, shadows)
        ingests = Ingests(
            IngestContext(store, house.pump, house.clock, recorder, chance),
            EntryContext(
                house.broker, store, house.pump, house.clock, recorder, house.dead_letters, chance, BatchIds()
            ),
            table,
            sources,
            pools,
        )
        for pool in (*pools.values(), *sources.values(), *shadows.values()):
            nursery.start_soon(pool.run)
        try:
            names = tuple(dict.fromkeys(target.name for target in targets))
            yield Bridges(forwards, pools, names, ingests, proxies)
        finally:
            with trio.CancelScope(shield=True):
                await ingests.close()
                await forwards.close()
            nursery.cancel_scope.cancel()
