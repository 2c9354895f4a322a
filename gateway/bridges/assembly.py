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
from gateway.bridges.pool import UpstreamPool
from gateway.broker.assembly import House
from gateway.config.model import Config, Forward
from gateway.protocols.registry import protocol
from gateway.recorder import Recorder
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

    def conditions(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """What has to hold for the gateway to be ready: a forward that has stopped needs somebody to look, and so does an
        upstream that refuses our credentials. One that is away does not: it is waited for, and the rest of the gateway serves.
        """
        for pool in self.pools.values():
            yield f"upstream {pool.name}", lambda pool=pool: pool.refused and f"refuses our login: {pool.refused}"  # type: ignore[misc]
        for name in self.names:
            yield f"forward {name}", lambda name=name: self.forwards.problem(name)  # type: ignore[misc]


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
    pools = {
        name: UpstreamPool(upstream, protocol(upstream.protocol), house.pump, recorder, chance)
        for name, upstream in config.upstreams.items()
        if any(target.upstream == name for target in targets)
    }
    async with trio.open_nursery() as nursery:

        def start_soon(job: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(job)

        context = ForwardContext(store, house.pump, house.clock, recorder, house.dead_letters, start_soon, chance)
        forwards = Forwards(context, table.forwards, pools)
        store.set_retention_floor(forwards.floor)
        house.topics.before_delete.append(forwards.objection)
        house.topics.after_delete.append(forwards.deleted)
        house.consumers.append(forwards.consumers)
        await forwards.start()
        for pool in pools.values():
            nursery.start_soon(pool.run)
        try:
            yield Bridges(forwards, pools, tuple(dict.fromkeys(target.name for target in targets)))
        finally:
            with trio.CancelScope(shield=True):
                await forwards.close()
            nursery.cancel_scope.cancel()
