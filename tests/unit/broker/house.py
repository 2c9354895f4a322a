"""The whole broker on a real store with commits made inline, and clients that await replies."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from msgspec.structs import replace

from gateway import model
from gateway.broker.assembly import House, open_house
from gateway.broker.client import AttachedClient
from gateway.broker.service import ListenerInfo
from gateway.envelope import Batch, Columns, Delivery
from gateway.recorder import Recorder
from gateway.requests import Completion, Outcome, Publish, Request, Settle, Subscribe, Take, Taken
from gateway.routing.table import RoutingTable, compile_table
from gateway.settings import Limits
from gateway.store.committer import Mode
from gateway.store.interface import Store
from gateway.store.sqlite import open_store
from gateway.transport.limits import Budget
from tests.unit.broker.support import OPTIONS


class Client:
    """A connection to the broker."""

    def __init__(
        self,
        house: House,
        protocol: str = "toy",
        name: str = "door",
        auth: Any = None,
        limits: Limits | None = None,
    ) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._arrived = trio.Event()
        self._ids = itertools.count(1)
        info = ListenerInfo(name, protocol, auth if auth is not None else model.AuthNone(), None, limits or Limits())
        self.side: AttachedClient = house.broker.attach(info, "peer", self._take_in)
        self.order: list[int] = []

    def _take_in(self, completions: Sequence[Completion]) -> None:
        for number, outcome in completions:
            assert number not in self._outcomes, f"{number} was answered twice"
            self._outcomes[number] = outcome
            self.order.append(number)
        self._arrived.set()

    def start(self, *requests: Request) -> list[int]:
        """Submit requests together; returns the ids they got."""
        numbered = [replace(request, id=next(self._ids)) for request in requests]
        self._take_in(self.side.submit(numbered))
        return [request.id for request in numbered]

    async def outcome(self, number: int) -> Any:
        """What a request ends with."""
        while number not in self._outcomes:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._outcomes[number]

    def ended(self, number: int) -> bool:
        """Whether a request has ended."""
        return number in self._outcomes

    async def ask(self, request: Request) -> Any:
        """Submit one request and wait for its end."""
        return await self.outcome(self.start(request)[0])

    async def publish(self, address: str, *values: bytes, **more: Any) -> Any:
        """Publish values."""
        return await self.ask(publish(address, *values, **more))

    async def subscribe(self, address: str, **more: Any) -> int:
        """Open a subscription; its number."""
        reply = await self.ask(Subscribe(0, address, **more))
        number: int = reply.subscription
        return number

    async def take(self, subscription: int, count: int = 1, hold: float | None = None) -> Taken:
        """Take from a subscription."""
        until = trio.current_time() + hold if hold is not None else None
        taken: Taken = await self.ask(Take(0, subscription, count, hold_until=until))
        return taken

    async def settle(self, subscription: int, *tags: int, accepted: bool = True) -> list[bool]:
        """Settle tags; which of them were known."""
        reply = await self.ask(Settle(0, subscription, tags, accepted))
        return [result is None for result in reply.results]


def publish(
    address: str,
    *values: bytes,
    keys: Sequence[bytes | None] | None = None,
    expires: Sequence[int] | None = None,
    partition: int | None = None,
    round_robin: bool = False,
    **more: Any,
) -> Publish:
    """A Publish request."""
    columns = Columns.of(list(values), keys, None, expires)
    return Publish(0, Batch(address, columns, Delivery.AT_LEAST_ONCE, partition, round_robin), **more)


def values(taken: Taken) -> list[bytes]:
    """The values that were handed out."""
    return [value for delivered in taken.deliveries for value in delivered.run.columns.values()]


def tags(taken: Taken) -> list[int]:
    """Their tags."""
    return [delivered.first_tag + i for delivered in taken.deliveries for i in range(delivered.run.count)]


@attrs.frozen
class Opened:
    """A house, its store and its routes."""

    house: House
    store: Store
    table: RoutingTable

    def client(
        self, protocol: str = "toy", name: str = "door", auth: Any = None, limits: Limits | None = None
    ) -> Client:
        """A new connection."""
        return Client(self.house, protocol, name, auth, limits)


@asynccontextmanager
async def opened(
    path: Path,
    *routes: model.Route,
    topics: dict[str, model.TopicSettings] | None = None,
    recorder: Recorder | None = None,
    accounts: Iterable[model.AuthUsers] = (),
    memory: Budget | None = None,
) -> AsyncIterator[Opened]:
    """A broker on the store in a directory."""
    async with (
        open_store(path, OPTIONS, mode=Mode.INLINE) as store,
        opened_on(store, *routes, topics=topics, recorder=recorder, accounts=accounts, memory=memory) as place,
    ):
        yield place


@asynccontextmanager
async def opened_on(
    store: Store,
    *routes: model.Route,
    topics: dict[str, model.TopicSettings] | None = None,
    recorder: Recorder | None = None,
    accounts: Iterable[model.AuthUsers] = (),
    memory: Budget | None = None,
) -> AsyncIterator[Opened]:
    """A broker on a store that is open."""
    config = model.Config(listeners={}, routes=routes or (model.IDENTITY,), topics=topics or {})
    table = compile_table(config, {})
    async with open_house(
        store, table, recorder or Recorder(), memory or Budget(256 << 20), accounts=accounts
    ) as house:
        yield Opened(house, store, table)
