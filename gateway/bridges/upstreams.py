"""The connections to every upstream that is used, and their change while they are used.

What is sent, pulled and mirrored has connections of its own: a large answer must not stand before a publish, and a target
that fails as a mirror says nothing of a forward's. The gauges of an upstream are those of its first use.

A pool whose upstream is described otherwise than before is replaced by another one. The old one takes nothing new from those
who have left it, and is closed when what is under way on it has ended.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Container, Mapping

import attrs
import trio

from gateway.bridges.pool import UpstreamPool
from gateway.broker.timers import Pump
from gateway.model import Config, Forward, Upstream
from gateway.protocols.registry import protocol
from gateway.recorder import Recorder
from gateway.routing.table import RoutingTable


class Use(enum.Enum):
    """What connections are for. The first that an upstream has speaks for it in the metrics."""

    SENDING = "sending"
    PULLING = "pulling"
    MIRRORING = "mirroring"


def proxied(table: RoutingTable) -> frozenset[str]:
    return frozenset(route.proxy[1].upstream for route in table.routes if route.proxy is not None)


def wanted(config: Config, table: RoutingTable) -> Mapping[tuple[Use, str], Upstream]:
    sending = {rule.target.upstream for rule in table.forwards if isinstance(rule.target, Forward)} | proxied(table)
    mirroring = {rule.target.upstream for rule in table.mirrors}
    found: dict[tuple[Use, str], Upstream] = {}
    for name, upstream in config.upstreams.items():
        bare = attrs.evolve(upstream, ingest=())  # what is pulled makes no difference to the others
        if name in sending:
            found[Use.SENDING, name] = bare
        if upstream.ingest:
            found[Use.PULLING, name] = upstream
        if name in mirroring:
            found[Use.MIRRORING, name] = bare
    return found


class Upstreams:
    def __init__(self, nursery: trio.Nursery, pump: Pump, recorder: Recorder, chance: random.Random) -> None:
        self._nursery = nursery
        self._pump = pump
        self._recorder = recorder
        self._chance = chance
        self._pools: dict[tuple[Use, str], UpstreamPool] = {}
        self._scopes: dict[UpstreamPool, trio.CancelScope] = {}
        self._retired: list[tuple[Use, UpstreamPool]] = []

    def of(self, use: Use) -> Mapping[str, UpstreamPool]:
        return {name: pool for (each, name), pool in self._pools.items() if each is use}

    @property
    def first(self) -> Mapping[str, UpstreamPool]:
        found: dict[str, UpstreamPool] = {}
        for use in Use:
            found = {**self.of(use), **found}
        return found

    @property
    def used(self) -> frozenset[str]:
        return frozenset(name for _use, name in self._pools)

    def become(self, upstreams: Mapping[tuple[Use, str], Upstream]) -> None:
        """From now on there are these. What is described as before stays; what is not any more is out of use."""
        before, self._pools = self._pools, {}
        for question, upstream in upstreams.items():
            pool = before.get(question)
            if pool is None or pool.upstream != upstream:
                use, name = question
                pool = UpstreamPool(
                    upstream,
                    protocol(upstream.protocol),
                    self._pump,
                    Recorder(),
                    self._chance,
                    caller=f"gateway-{name}-{use.value}",
                )
                scope = self._scopes[pool] = trio.CancelScope()
                self._nursery.start_soon(_run, pool, scope)
            self._pools[question] = pool
        for question, pool in before.items():
            if self._pools.get(question) is not pool:
                self._retired.append((question[0], pool))
                pool.report_to(Recorder())
        for pool in self._pools.values():
            pool.report_to(self._recorder if self.first[pool.name] is pool else Recorder())

    async def close_retired(self, uses: Container[Use], in_use: Callable[[UpstreamPool], bool]) -> None:
        """Close what is out of these uses, each as soon as nobody needs it any more."""
        while retired := [(use, pool) for use, pool in self._retired if use in uses]:
            for use, pool in retired:
                asked = use is not Use.PULLING and pool.in_flight  # who pulls has asked for more all the time
                if not asked and not in_use(pool):
                    self._retired.remove((use, pool))
                    self._scopes.pop(pool).cancel()
            await self._pump.moment()


async def _run(pool: UpstreamPool, until: trio.CancelScope) -> None:
    with until:
        await pool.run()
