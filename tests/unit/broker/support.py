"""A caller that records its answers, clocks that stand still, and the broker's services on a real store."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from msgspec.structs import replace

from gateway import model
from gateway.broker.administration.accounts import Accounts
from gateway.broker.administration.acls import AccessLists
from gateway.broker.administration.authorisation import Authorisation
from gateway.broker.administration.dead_letters import DeadLetterService
from gateway.broker.administration.logins import Logins
from gateway.broker.administration.schemas import SchemaService
from gateway.broker.administration.topics import TopicService
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
from gateway.broker.service import ListenerInfo
from gateway.broker.timers import Pump
from gateway.envelope import Batch, Columns, Origin
from gateway.errors import GatewayError
from gateway.recorder import Recorder
from gateway.requests import Identity, Outcome, Publish, Request
from gateway.routing.table import RoutingTable, compile_table
from gateway.store.committer import Mode
from gateway.store.interface import Store
from gateway.store.sqlite import StoreOptions, open_store

OPTIONS = StoreOptions(tail_cache=1 << 20, page_cache=1 << 20, free_space_floor=0)


class FakeClock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.seconds * 1000)


class RecordingCaller:
    """A connection whose answers are kept by request id."""

    _numbers = 0

    def __init__(self, auth: Any = None, *, protocol: str = "test", settings: Any = None) -> None:
        RecordingCaller._numbers += 1
        self.id = RecordingCaller._numbers
        self.listener = ListenerInfo("door", protocol, auth if auth is not None else model.AuthNone(), settings)
        self.identity = Identity(authenticated=False)
        self.ways: dict[str, Any] = {}
        self.along = None
        self.origin = Origin(protocol, "door", "", f"peer-{self.id}")
        self.answers: dict[int, Outcome] = {}
        self.answered = trio.Event()
        self.detached = False
        self._callbacks: list[Callable[[], None]] = []

    def identify(self, identity: Identity) -> None:
        self.identity = identity
        self.origin = replace(self.origin, principal=identity.name)

    def answer(self, request_id: int, outcome: Outcome) -> None:
        assert request_id not in self.answers, f"request {request_id} is answered twice"
        self.answers[request_id] = outcome
        self.answered.set()

    def on_detach(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def detach(self) -> None:
        self.detached = True
        for callback in self._callbacks:
            callback()


@attrs.define(eq=False)
class Bench:
    """The services, and ways to ask them."""

    store: Store
    table: RoutingTable
    clock: FakeClock
    pump: Pump
    offload: NurseryOffload
    doors: Doors
    letters: Letters
    topics: TopicService
    accounts: Accounts
    acls: AccessLists
    authorisation: Authorisation
    schemas: SchemaService
    transactions: TransactionService
    delays: DelayService
    dead_letters: DeadLetterService
    handlers: dict[type[Request], Callable[[Any, Any], None]]

    async def ask(self, caller: RecordingCaller, request: Request, *, authorised: bool = True) -> Any:
        """What a request ends with. Refusals are returned, as the broker would answer them."""
        try:
            if authorised:
                self.authorisation.authorise(caller, request)
            self.handlers[type(request)](caller, request)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
        with trio.fail_after(20):
            while request.id not in caller.answers:
                caller.answered = trio.Event()
                await caller.answered.wait()
        return caller.answers[request.id]

    def advance(self, seconds: float) -> None:
        """Move the clock and run what is due."""
        self.clock.seconds += seconds
        self.pump.turn()

    async def idle(self) -> None:
        """Until nothing is left with the offload."""
        with trio.fail_after(20):
            while self.offload.under_way:
                await trio.lowlevel.checkpoint()

    async def on_disk(self, topic: str, partition: int = 0) -> list[bytes]:
        """The same, also after a restart."""
        result = await self.store.read(topic, partition, 0, 10_000, 1 << 20, self.clock.now_ms())
        return [value for run in result.runs for value in run.columns.values()]

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        """Everything a topic's partition holds (small topics: from the tail cache)."""
        state = self.store.topics.get(topic)
        if state is None:
            return []
        result = self.store.read_cached(topic, partition, 0, 10_000, 1 << 20, self.clock.now_ms())
        assert result is not None
        return [value for run in result.runs for value in run.columns.values()]


@contextmanager
def full_disk(store: Any) -> Iterator[None]:
    """The disk of a store that commits inline has no room inside the block; after it the store looks again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(100, 101, -1))
        store.committer.writer._check_at = 0.0  # it is time to look
        yield
    store.maintain()


def publish(number: int, address: str, *values: bytes, **more: Any) -> Publish:
    """A publish of plain values."""
    return Publish(number, Batch(address, Columns.of(list(values))), **more)


@asynccontextmanager
async def open_bench(
    path: Path,
    clock: FakeClock | None = None,
    config: model.Config | None = None,
    recorder: Recorder | None = None,
) -> AsyncIterator[Bench]:
    """Everything on the store in a directory, commits made inline."""
    clock = clock or FakeClock()
    table = compile_table(config or model.Config(listeners={}, routes=(model.IDENTITY,)), {})
    async with (
        open_store(path, OPTIONS, mode=Mode.INLINE, now_ms=clock.now_ms) as store,
        trio.open_nursery() as nursery,
    ):
        pump = Pump(clock.now)
        offload = NurseryOffload()
        await nursery.start(offload.run)
        topics = TopicService(store, table, clock, lambda *_: None)
        accounts = Accounts(store, clock, offload, Logins(clock, pump.call_at, recorder or Recorder()))
        acls = AccessLists(store, topics.name)
        authorisation = Authorisation(accounts, acls, clock)
        authorisation.subscribed = {2: "t"}.get
        schemas = SchemaService(store, offload)
        recorder = Recorder()
        doors = Doors(recorder)
        appending = Appending(store, clock, recorder, doors)
        transactions = TransactionService(store, appending, clock, pump)
        delays = DelayService(
            store, appending, clock, pump, offload, Owners(store, clock, pump, lambda *_: None), head=8
        )
        letters = Letters(store, table)
        pipeline = Pipeline(
            store,
            table,
            clock,
            recorder,
            doors=doors,
            appending=appending,
            deduplication=Deduplication(store, clock, doors),
            validation=SchemaGate(schemas, table, offload, doors),
            transactions=transactions,
            delays=delays,
            letters=letters,
            proxying=Proxying(clock, recorder, doors),
        )
        dead_letters = DeadLetterService(store, appending, topics, table, clock, offload, authorisation.permit)
        await delays.start()
        handlers: dict[type[Request], Callable[[Any, Any], None]] = {}
        for service in (pipeline, topics, accounts, acls, schemas, transactions, delays, dead_letters):
            handlers.update(service.handlers())
        yield Bench(
            store,
            table,
            clock,
            pump,
            offload,
            doors,
            letters,
            topics,
            accounts,
            acls,
            authorisation,
            schemas,
            transactions,
            delays,
            dead_letters,
            handlers,
        )
        nursery.cancel_scope.cancel()
