"""A broker on a real store with its bridges running."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from gateway import model
from gateway.bridges.assembly import Bridges, open_bridges
from gateway.broker.assembly import House, open_house
from gateway.broker.letters import split_headers
from gateway.recorder import Recorder
from gateway.routing.table import RoutingTable, compile_table
from gateway.settings import Backoff, Seconds
from gateway.store.committer import Mode
from gateway.store.interface import Store
from gateway.store.sqlite import open_store
from gateway.transport.limits import Budget
from tests.unit.bridges.peers import until
from tests.unit.broker.house import Client
from tests.unit.broker.support import OPTIONS

QUICK = model.Retry(10, Backoff(Seconds(0.005), Seconds(0.02)))


class Counts(Recorder):
    """What was delivered, acknowledged and put into dead letters, by target or reason."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.problems: list[tuple[str, str]] = []
        self.back: list[str] = []

    def delivered(self, route: str, target: str, messages: int, size: int) -> None:
        self.messages["delivered", target] += messages

    def acknowledged(self, route: str, target: str, messages: int, size: int) -> None:
        self.messages["acknowledged", target] += messages

    def dead_lettered(self, route: str, reason: str, messages: int) -> None:
        self.messages["dead_lettered", reason] += messages

    def dropped(self, route: str, reason: str, messages: int) -> None:
        self.messages["dropped", reason] += messages

    def upstream_failed(self, upstream: str, problem: str) -> None:
        self.problems.append((upstream, problem))

    def upstream_back(self, upstream: str, seconds: float) -> None:
        self.back.append(upstream)

    def mirrored(self, route: str, target: str, outcome: str, messages: int) -> None:
        self.messages["mirrored", outcome] += messages

    def mirror_compared(self, route: str, target: str, compared: str, result: str, messages: int) -> None:
        self.messages[compared, result] += messages

    def mirror_latency(self, route: str, target: str, seconds: float) -> None:
        self.messages["latency", target] += 1


@attrs.frozen
class Bridged:
    """Everything a test looks at."""

    house: House
    store: Store
    bridges: Bridges
    counts: Counts
    table: RoutingTable

    def become(self, upstreams: Sequence[model.Upstream], *routes: model.Route) -> None:
        """Another configuration, as a reload swaps it; `handed_over` of the bridges waits for the rest."""
        config = configured(upstreams, routes)
        table = compile_table(config, {})
        self.table.become(table)
        self.bridges.become(config, table)

    async def reload(self, upstreams: Sequence[model.Upstream], *routes: model.Route) -> Mapping[str, int]:
        """A whole reload: what was left undelivered."""
        await self.bridges.prepare(compile_table(configured(upstreams, routes), {}))
        self.become(upstreams, *routes)
        with trio.fail_after(20):
            return await self.bridges.handed_over()

    def client(self, name: str = "door") -> Client:
        return Client(self.house, name=name)

    def backlog(self, forward: str = "far") -> int:
        return sum(one.backlog for one in self.house.snapshot().consumers if one.name == forward)

    def check_accounts(self) -> None:
        """Nothing is lost or counted twice."""
        snapshot = self.house.snapshot()
        assert [one for one in snapshot.consumers if one.unaccounted] == []
        assert [one for one in snapshot.doors if one.unaccounted] == []

    async def delivered(self, forward: str = "far") -> None:
        """Until a forward has nothing left."""
        with trio.fail_after(20):
            await until(lambda: not self.backlog(forward))
        self.check_accounts()

    async def letters(self, topic: str) -> list[tuple[bytes, str, int, str, str]]:
        """(value, reason, attempts, first error, last error) of every dead letter."""
        found = []
        state = self.store.topics.get(topic)
        for number, bounds in enumerate(state.partitions if state is not None else ()):
            result = await self.store.read(topic, number, bounds.start, 1_000, 1 << 20, 0)
            for run in result.runs:
                for index in range(run.count):
                    _, facts = split_headers(run.columns.headers_of(index))
                    value = run.columns.value(index)
                    found.append((value, facts.reason, facts.attempts, facts.first_error, facts.last_error))
        return found


def upstream(*ports: int, name: str = "far", timeout: float = 5.0, pool: int = 1) -> model.Upstream:
    addresses = tuple(("127.0.0.1", port) for port in ports)
    return model.Upstream(name, "flymq", addresses, timeout=Seconds(timeout), pool=pool)


def forward(name: str = "far", address: str = "copy.{topic}", **more: object) -> model.Forward:
    return model.Forward(upstream=name, address=address, name=name, **{"retry": QUICK, **more})  # type: ignore[arg-type]


def route(*targets: model.Target, name: str = "r", topic: str = "") -> model.Route:
    return model.Route(name, model.Match(topic=topic), (model.StoreTarget("{topic}"), *targets))


def configured(
    upstreams: Sequence[model.Upstream],
    routes: Sequence[model.Route],
    topics: Mapping[str, model.TopicSettings] | None = None,
) -> model.Config:
    """A configuration without listeners."""
    return model.Config(
        listeners={}, routes=tuple(routes), topics=topics or {}, upstreams={one.name: one for one in upstreams}
    )


@asynccontextmanager
async def bridged(
    path: Path,
    upstreams: Sequence[model.Upstream],
    *routes: model.Route,
    topics: dict[str, model.TopicSettings] | None = None,
    budget: Budget | None = None,
) -> AsyncIterator[Bridged]:
    """A gateway without listeners on the store in a directory."""
    async with (
        open_store(path, OPTIONS, mode=Mode.INLINE) as store,
        bridged_on(store, upstreams, *routes, topics=topics, budget=budget) as gateway,
    ):
        yield gateway


@asynccontextmanager
async def bridged_on(
    store: Store,
    upstreams: Sequence[model.Upstream],
    *routes: model.Route,
    topics: dict[str, model.TopicSettings] | None = None,
    budget: Budget | None = None,
) -> AsyncIterator[Bridged]:
    """The same on a store that is open."""
    config = configured(upstreams, routes, topics)
    counts = Counts()
    table = compile_table(config, {})
    async with (
        open_house(store, table, counts, Budget(256 << 20)) as house,
        open_bridges(
            config, store, house, table, counts, budget or Budget(model.Memory().budget), random.Random(7)
        ) as bridges,
    ):
        yield Bridged(house, store, bridges, counts, table)
