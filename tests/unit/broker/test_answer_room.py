"""What is given to those who read takes its room before it is there, and all of it is given in the end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway import model
from gateway.broker.client import AttachedClient
from gateway.broker.consume.answer_room import AHEAD, AT_A_TIME, SHORT
from gateway.broker.consume.consumer import READ_BYTES
from gateway.broker.service import ListenerInfo
from gateway.envelope import Run
from gateway.observe.prometheus import PrometheusRecorder
from gateway.requests import Completion, Fetch, Fetched, Start, Subscribe, Subscribed, Take, Taken
from gateway.settings import Limits
from gateway.store.committer import Mode
from gateway.store.sqlite import StoreOptions, open_store
from gateway.transport.limits import Budget
from tests.unit.broker.house import Opened, opened_on

COLD = StoreOptions(tail_cache=0, page_cache=1 << 20, free_space_floor=0)
WARM = StoreOptions(tail_cache=64 << 20, page_cache=1 << 20, free_space_floor=0)
RECORD, RECORDS = 100_000, 40
LIMIT = 8 << 20
LARGE = 1 << 23
ASKING = 300


def size_of(fetched: Fetched) -> int:
    return sum(len(run.columns.packed) for run in fetched.runs)


@attrs.define
class SlowPeers:
    """Connections that have answers charged as a connection does, and take none before they are told to."""

    place: Opened
    budget: Budget
    answers: deque[Fetched] = attrs.field(factory=deque)

    def ask(self, request: Fetch) -> AttachedClient:
        info = ListenerInfo("door", "toy", model.AuthNone(), None, Limits())
        side = self.place.house.broker.attach(info, "peer", self._have)
        self._have(side.submit([request]))
        return side

    def _have(self, completions: Sequence[Completion]) -> None:
        for _number, outcome in completions:
            assert isinstance(outcome, Fetched), outcome
            self.budget.change(0, size_of(outcome))
            self.answers.append(outcome)

    def take_one(self) -> None:
        self.budget.change(0, -size_of(self.answers.popleft()))


@pytest.fixture
async def peers(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[SlowPeers]:
    async with slow_peers(tmp_path, PrometheusRecorder()) as made:
        yield made


@asynccontextmanager
async def slow_peers(
    path: Path, recorder: PrometheusRecorder, options: StoreOptions = COLD
) -> AsyncIterator[SlowPeers]:
    budget = Budget(LIMIT)
    async with (
        open_store(path, options, mode=Mode.INLINE) as store,
        opened_on(store, recorder=recorder, memory=budget) as place,
    ):
        client = place.client()
        for number in range(RECORDS):
            await client.publish("t", b"%06d" % number + bytes(RECORD - 6))
        yield SlowPeers(place, budget)


def fetch(most: int = LARGE, **more) -> Fetch:
    return Fetch(1, "t", 0, 0, 100, most, **more)


async def test_of_what_hundreds_ask_for_at_once_no_more_is_read_than_there_is_room_for(peers: SlowPeers):
    for _ in range(ASKING):
        peers.ask(fetch())
    await wait_all_tasks_blocked()
    assert len(peers.answers) < ASKING
    taken = 0
    while peers.answers:
        assert peers.budget.used < 2 * LIMIT + AT_A_TIME * RECORD * RECORDS
        peers.take_one()
        taken += 1
        await wait_all_tasks_blocked()
    assert taken == ASKING
    assert peers.budget.used == 0


async def test_while_answers_hold_half_of_the_memory_a_read_is_a_short_one(peers: SlowPeers):
    peers.budget.change(0, LIMIT // 2)
    peers.ask(fetch())
    peers.ask(fetch(10))
    await wait_all_tasks_blocked()
    assert [size_of(one) // RECORD for one in peers.answers] == [SHORT // RECORD, 1]


async def test_what_is_looked_through_is_read_whole(peers: SlowPeers):
    """Who finds nothing in a piece of it would ask no further."""

    def last(runs: Sequence[Run]) -> tuple[Sequence[Run], int | None]:
        run = runs[-1]
        return [run.slice(run.count - 1, run.count)], None

    peers.budget.change(0, LIMIT // 2)
    peers.ask(fetch(sieve=last))
    while not peers.answers:
        await wait_all_tasks_blocked(0.001)
    (found,) = peers.answers
    assert found.runs[0].base_offset == RECORDS - 1
    assert peers.budget.used == LIMIT // 2 + size_of(found)


async def test_nothing_is_read_for_who_has_gone_while_he_waited(peers: SlowPeers):
    peers.budget.change(0, 2 * LIMIT)
    peers.ask(fetch()).detach()
    peers.ask(fetch())
    await wait_all_tasks_blocked()
    peers.budget.change(0, -2 * LIMIT)
    await wait_all_tasks_blocked()
    assert len(peers.answers) == 1
    assert peers.budget.peak() < 2 * LIMIT + LARGE


async def test_that_the_memory_is_spent_is_counted(tmp_path: Path, autojump_clock: MockClock):
    recorder = PrometheusRecorder()
    async with slow_peers(tmp_path, recorder) as peers:
        peers.budget.change(0, 2 * LIMIT)
        peers.ask(fetch())
        await wait_all_tasks_blocked()
        assert not peers.answers
        assert 'gateway_limit_hits_total{limit="budget",listener="door"} 1.0' in recorder.text()
        peers.budget.change(0, -2 * LIMIT)
        await wait_all_tasks_blocked()
        assert peers.answers


# --- subscriptions ---


@attrs.define
class Subscriber:
    """A connection that takes as much as it may, and asks for more when its peer has read what it was given."""

    place: Opened
    budget: Budget
    had: list[bytes] = attrs.field(factory=list)
    held: int = 0
    """Bytes that its peer has not read."""
    number: int = 0
    side: AttachedClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        info = ListenerInfo("door", "toy", model.AuthNone(), None, Limits())
        self.side = self.place.house.broker.attach(info, "peer", self._have)
        self._have(self.side.submit([Subscribe(1, "t", start=Start.EARLIEST)]))

    def take(self, most: int = LARGE, messages: int = RECORDS) -> None:
        self._have(self.side.submit([Take(2, self.number, messages, most, hold_until=math.inf)]))

    def read(self) -> None:
        self.budget.change(0, -self.held)
        self.held = 0
        if len(self.had) < RECORDS:
            self.take()

    def _have(self, completions: Sequence[Completion]) -> None:
        for _number, outcome in completions:
            if isinstance(outcome, Subscribed):
                self.number = outcome.subscription
                continue
            assert isinstance(outcome, Taken), outcome
            for delivered in outcome.deliveries:
                columns = delivered.run.columns
                self.had += columns.values()
                self.held += len(columns.packed)
                self.budget.change(0, len(columns.packed))


@pytest.mark.parametrize("options", [COLD, WARM], ids=["from the disk", "from memory"])
async def test_subscribers_are_given_what_there_is_room_for_and_all_of_it_in_the_end(
    tmp_path: Path, autojump_clock: MockClock, options: StoreOptions
):
    async with slow_peers(tmp_path, PrometheusRecorder(), options) as peers:
        readers = [Subscriber(peers.place, peers.budget) for _ in range(40)]
        for reader in readers:
            reader.take()
        while any(len(reader.had) < RECORDS for reader in readers):
            await wait_all_tasks_blocked(0.001)
            assert peers.budget.used < 2 * LIMIT + (AT_A_TIME + 1) * READ_BYTES
            slow = [reader for reader in readers if reader.held]
            assert slow
            slow[0].read()
        for reader in readers:
            reader.read()
        await wait_all_tasks_blocked()
        assert peers.budget.used == 0
        assert all(
            reader.had == [b"%06d" % number + bytes(RECORD - 6) for number in range(RECORDS)] for reader in readers
        )


async def test_while_answers_hold_half_of_the_memory_a_subscriber_is_given_little(peers: SlowPeers):
    reader = Subscriber(peers.place, peers.budget)
    peers.budget.change(0, LIMIT // 2)
    reader.take()
    await wait_all_tasks_blocked()
    assert len(reader.had) == SHORT // RECORD


async def test_who_waits_for_room_no_longer_than_for_a_message_is_given_nothing(
    peers: SlowPeers, autojump_clock: MockClock
):
    client = peers.place.client()
    number = await client.subscribe("t", start=Start.EARLIEST)
    peers.budget.change(0, 2 * LIMIT)
    assert not (await client.take(number)).deliveries
    assert not (await client.take(number, hold=10.0)).deliveries
    peers.budget.change(0, -2 * LIMIT)
    assert (await client.take(number, hold=10.0)).deliveries


async def test_what_subscribers_read_ahead_counts_and_is_dropped_for_others_and_none_of_it_is_lost(
    tmp_path: Path, autojump_clock: MockClock
):
    """Each takes one message at a time, and four are read for that."""
    async with slow_peers(tmp_path, PrometheusRecorder()) as peers:
        readers = [Subscriber(peers.place, peers.budget) for _ in range(60)]
        most = 0
        for number in range(1, RECORDS + 1):
            for reader in readers:
                reader.take(messages=1)
                await wait_all_tasks_blocked()
                while len(reader.had) < number:
                    await wait_all_tasks_blocked(0.001)
                most = max(most, peers.budget.used - reader.held)
                peers.budget.change(0, -reader.held)
                reader.held = 0
        assert LIMIT // AHEAD - 4 * RECORD < most <= LIMIT // AHEAD
        assert peers.budget.used == 0
        assert all(
            reader.had == [b"%06d" % number + bytes(RECORD - 6) for number in range(RECORDS)] for reader in readers
        )
