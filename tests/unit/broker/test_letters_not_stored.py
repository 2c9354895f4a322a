"""The store refuses at the moment a message is given up: it stays where it is, is counted nowhere else, and goes later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway import model
from gateway.broker.letters import split_headers
from gateway.errors import StoreError
from gateway.recorder import ConsumerCounts, Recorder
from gateway.requests import Published, Redelivery, Start
from tests.unit.broker.house import Client, Opened, opened, values
from tests.unit.broker.support import full_disk

ONCE = Redelivery(max_deliveries=1, first_delay=0.1, longest_delay=0.1)


class Counts(Recorder):
    """The dead letters that were counted."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, int]] = []

    def dead_lettered(self, route: str, reason: str, messages: int) -> None:
        self.letters.append((reason, messages))


def consumer(gateway: Opened) -> ConsumerCounts:
    """The account of the only durable consumer; it adds up."""
    (counts,) = gateway.house.snapshot().consumers
    assert counts.unaccounted == 0
    return counts


async def reasons(gateway: Opened, topic: str = "t.dlq") -> list[tuple[bytes, str]]:
    """(value, reason) of every letter."""
    if topic not in gateway.store.topics:
        return []
    result = await gateway.store.read(topic, 0, 0, 1_000, 1 << 20, 0)
    return [
        (run.columns.value(index), split_headers(run.columns.headers_of(index))[1].reason)
        for run in result.runs
        for index in range(run.count)
    ]


async def poisoned(client: Client, *messages: bytes) -> int:
    """A subscription with these messages handed out for the last time."""
    subscription = await client.subscribe("t", acknowledge=True, redelivery=ONCE, durable_grace=600.0)
    await client.publish("t", *messages)
    assert values(await client.take(subscription, 10)) == list(messages)
    return subscription


async def test_a_message_that_nobody_acknowledged_is_settled_by_the_commit_that_stores_its_letter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recorder = Counts()
    async with opened(tmp_path, recorder=recorder) as gateway:
        subscription = await poisoned(gateway.client(), b"a", b"b")
        with full_disk(gateway.store):
            await trio.sleep(30)
            assert not gateway.store.health.writable
            assert (consumer(gateway).dead_lettered, consumer(gateway).backlog) == (0, 2)
            assert recorder.letters == []
        await trio.sleep(30)
        assert (consumer(gateway).dead_lettered, consumer(gateway).backlog) == (2, 0)
        assert sum(messages for _, messages in recorder.letters) == 2
        assert await reasons(gateway) == [(b"a", "max_deliveries"), (b"b", "max_deliveries")]
        assert values(await gateway.client().take(subscription, 10)) == []


async def test_what_is_too_large_to_push_is_settled_by_the_commit_that_stores_its_letter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    recorder = Counts()
    async with opened(tmp_path, recorder=recorder) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"long", b"b", b"longer")
        subscription = await client.subscribe("t", name="r", largest_value=3, start=Start.EARLIEST)
        with full_disk(gateway.store):
            got = values(await client.take(subscription, 10)) + values(await client.take(subscription, 10))
            await trio.sleep(30)
            assert got == [b"a", b"b"]
            assert (consumer(gateway).dead_lettered, consumer(gateway).backlog) == (0, 2)
            assert recorder.letters == []
        await client.publish("t", b"c")
        assert values(await client.take(subscription, 10, hold=30)) == [b"c"]
        assert (consumer(gateway).dead_lettered, consumer(gateway).backlog) == (2, 0)
        assert await reasons(gateway) == [(b"long", "size"), (b"longer", "size")]


async def test_a_gateway_that_goes_down_with_a_full_disk_delivers_the_message_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as gateway:
        subscription = await poisoned(gateway.client(), b"a")
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(100, 101, -1))
        gateway.store.committer.writer._check_at = 0.0  # type: ignore[attr-defined]  # it is time to look
        await trio.sleep(30)
    monkeypatch.undo()
    async with opened(tmp_path) as gateway:
        assert await reasons(gateway) == []
        assert values(await gateway.client().take(subscription, 10)) == [b"a"]


async def test_attempts_before_a_restart_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    twice = Redelivery(max_deliveries=3, first_delay=0.1, longest_delay=0.1)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True, redelivery=twice, durable_grace=600.0)
        await client.publish("t", b"a")
        for _ in range(2):
            assert values(await client.take(subscription, hold=5)) == [b"a"]
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        assert values(await client.take(subscription, hold=5)) == [b"a"]
        assert values(await client.take(subscription, hold=5)) == [b"a"]
        assert values(await client.take(subscription, hold=5)) == []
        assert await reasons(gateway) == [(b"a", "max_deliveries")]


async def test_positions_that_could_not_be_written_are_written_later(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True, redelivery=Redelivery(), durable_grace=600.0)
        await client.publish("t", b"a")
        await client.take(subscription)
        with full_disk(gateway.store):
            assert await client.settle(subscription, 1) == [True]
            await trio.sleep(30)
        await trio.sleep(30)
    async with opened(tmp_path) as gateway:
        assert values(await gateway.client().take(subscription, hold=5)) == []


async def test_a_publish_whose_letter_cannot_be_stored_is_refused_and_counted_nowhere(tmp_path: Path) -> None:
    recorder = Counts()
    steps = (model.Filter("value.n > 1"),)
    route = model.Route("r", model.Match(), (model.StoreTarget("{topic}"),), transform=steps)
    async with opened(tmp_path, route, recorder=recorder) as gateway:
        client = gateway.client()
        with full_disk(gateway.store):
            assert isinstance(await client.publish("t", b"no json"), StoreError)
            assert recorder.letters == []
        assert await reasons(gateway) == []
        (door,) = gateway.house.doors.counts()
        assert (door.refused, door.stored, door.unaccounted) == (1, 0, 0)
        assert isinstance(await client.publish("t", b"no json"), Published)
        assert recorder.letters == [("transform", 1)]
        assert await reasons(gateway) == [(b"no json", "transform")]
