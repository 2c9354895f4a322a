"""What is pulled from a Kafka into the log on another one is there once, whichever gateway has the job, and however it ends."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trio

from gateway import model
from gateway.errors import OutcomeUnknown
from gateway.settings import Seconds
from tests.integration.running import Served, started
from tests.kafka.foreign import everything, make, members, remove_members
from tests.kafka.node import Kafka
from tests.kafka.test_frozen import ADMIN, owned
from tests.kafka.test_ownership import CONFIG, on_kafka, served
from tests.store.kit import everything as everything_in
from tests.store.kit import open_on_kafka
from tests.unit.bridges.house import bridged_on
from tests.unit.bridges.test_ingest import STORED

PATIENCE = 240
INGEST = """
upstreams:
  far: {{protocol: kafka, address: "{brokers}", ingest: [{{from: {topic}, into: pulled, group: {topic}}}]}}
"""
KEYS = [b"a", b"b", b"c", b"d"]


class Feed:
    """A Kafka topic to which somebody writes without an end."""

    def __init__(self, kafka: Kafka, topic: str, partitions: int) -> None:
        make(kafka, topic, partitions)
        self._topic = topic
        self._producer = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers, "linger.ms": 0})
        self._numbers = itertools.count()
        self.sent: list[tuple[bytes, bytes]] = []

    def write(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            self.sent.append((KEYS[number % len(KEYS)], b"%06d" % number))
            self._producer.produce(self._topic, key=self.sent[-1][0], value=self.sent[-1][1])
        assert self._producer.flush(PATIENCE) == 0

    def judge(self, found: list[tuple[bytes, bytes]]) -> None:
        """Each is there once, and the order of each key is kept."""
        assert sorted(found) == sorted(self.sent)
        for key in KEYS:
            assert [one for one in found if one[0] == key] == [one for one in self.sent if one[0] == key]


async def until(condition: Callable[[], bool]) -> None:
    while not await trio.to_thread.run_sync(condition):  # noqa: ASYNC110  # nobody tells
        await trio.sleep(0.2)


@pytest.mark.parametrize("where", ["sqlite", "kafka"])
async def test_it_is_there_once_whoever_was_killed(kafka: Kafka, topics: str, tmp_path: Path, where: str) -> None:
    """A gateway with a file is started again; where the log is on Kafka another one goes on."""
    feed = await trio.to_thread.run_sync(Feed, kafka, f"{topics}far", 2)
    ingest = INGEST.format(brokers=kafka.brokers, topic=f"{topics}far")
    gateways: list[Served] = []
    for name in ("one", "two")[: 1 if where == "sqlite" else 2]:
        (tmp_path / name).mkdir()
        config = CONFIG.format(data="DATA", kafka="") + ingest if where == "sqlite" else on_kafka(kafka, topics, ingest)
        gateways.append(Served(tmp_path / name, config.replace("DATA", str(tmp_path / name / "data"))))

    def stored() -> list[tuple[bytes, bytes]]:
        if where == "kafka":
            if f"{topics}pulled" not in kafka.admin.list_topics(timeout=PATIENCE).topics:
                return []
            return [(one.key(), one.value()) for one in everything(kafka, f"{topics}pulled")]
        return in_file(gateways[0].data)

    over = trio.Event()

    async def keep_feeding() -> None:
        while not over.is_set():
            await trio.to_thread.run_sync(feed.write, 10)
            await trio.sleep(0.05)

    async def has_more(count: int) -> None:
        wanted = len(await trio.to_thread.run_sync(stored)) + count
        await until(lambda: len(stored()) >= wanted)

    try:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_feeding)
                for one in (gateways[0], gateways[0], gateways[0]) if where == "sqlite" else gateways:
                    if gateways[0].running:
                        await trio.to_thread.run_sync(gateways[0].end, signal.SIGKILL)
                    await trio.to_thread.run_sync(one.start)
                    await has_more(200)
                over.set()
            await until(lambda: len(stored()) >= len(feed.sent))
    finally:
        for one in gateways:
            if one.running:
                one.end(signal.SIGKILL)
    feed.judge(await trio.to_thread.run_sync(stored))


def in_file(data: Path) -> list[tuple[bytes, bytes]]:
    from gateway.errors import NotFound
    from gateway.store.reader import LogReader

    try:
        with LogReader(data) as log:
            return [
                (run.columns.key(at), value)
                for run in log.read_chunks("pulled", 0)
                for at, value in enumerate(run.columns.values())
            ]
    except NotFound:
        return []


async def test_a_commit_of_which_nobody_knew_is_not_made_again(kafka: Kafka, topics: str) -> None:
    feed = await trio.to_thread.run_sync(Feed, kafka, f"{topics}far", 1)
    host, _, port = kafka.brokers.rpartition(":")
    upstream = model.Upstream(
        "far",
        "kafka",
        ((host, int(port)),),
        timeout=Seconds(20),
        ingest=(model.Ingest(f"{topics}far", "pulled", f"{topics}far"),),
    )
    await trio.to_thread.run_sync(feed.write, 50)
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store, bridged_on(store, [upstream], STORED) as gateway:
            work: Any = store._transactions
            really, lost = work.commit, 0

            def commit() -> None:
                nonlocal lost
                really()
                if gateway.store.topics.get("pulled") is not None and lost < 3:
                    lost += 1  # as if the coordinator's answer had not come
                    raise OutcomeUnknown

            work.commit = commit
            gateway.bridges.admit()
            while lost < 3:
                await trio.to_thread.run_sync(feed.write, 10)
                await trio.sleep(0.2)

            async def values() -> list[bytes]:
                await store.refresh("pulled")
                return await everything_in(store, "pulled")

            while len(found := await values()) < len(feed.sent):  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert found == [value for _key, value in feed.sent]


async def test_it_is_there_once_when_its_member_is_removed_from_the_group(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """While records come: what was stored and could not be settled comes again, and is known."""
    feed = await trio.to_thread.run_sync(Feed, kafka, f"{topics}far", 2)
    ingest = INGEST.format(brokers=kafka.brokers, topic=f"{topics}far", data="")
    config = CONFIG.format(data=tmp_path / "data", kafka="") + ingest

    async def has(count: int) -> None:
        await until(lambda: len(in_file(tmp_path / "data")) >= count)

    over = False

    async def keep_feeding() -> None:
        while not over:
            await trio.to_thread.run_sync(feed.write, 10)
            await trio.sleep(0.005)

    with trio.fail_after(PATIENCE), started(tmp_path, config):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_feeding)
            for _ in range(2):
                await has(len(feed.sent) + 100)
                assert await trio.to_thread.run_sync(remove_members, kafka, f"{topics}far") == 1
                await until(lambda: len(members(kafka, f"{topics}far")) == 1)
                await has(len(feed.sent) + 100)
            over = True
        await has(len(feed.sent))
    feed.judge(in_file(tmp_path / "data"))


async def test_it_goes_on_where_its_owner_is(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """A second gateway is started beside the first, and has some of what that pulled; then the first one ends."""
    names = [str(number) for number in range(6)]
    feeds = [await trio.to_thread.run_sync(Feed, kafka, f"{topics}far{name}", 1) for name in names]
    pulled = ", ".join(f"{{from: {topics}far{name}, into: pulled{name}, group: {topics}far{name}}}" for name in names)
    ingest = f"\nupstreams:\n  far: {{protocol: kafka, address: {kafka.brokers}, ingest: [{pulled}]}}\n"

    def stored(name: str) -> list[tuple[bytes, bytes]]:
        if f"{topics}pulled{name}" not in kafka.admin.list_topics(timeout=PATIENCE).topics:
            return []
        return [(one.key(), one.value()) for one in everything(kafka, f"{topics}pulled{name}")]

    async def more() -> None:
        for name, feed in zip(names, feeds, strict=True):
            await trio.to_thread.run_sync(feed.write, 20)
            await until(lambda: len(stored(name)) >= len(feed.sent))  # noqa: B023

    config = on_kafka(kafka, topics, ingest) + ADMIN
    with trio.fail_after(PATIENCE):
        async with served(tmp_path / "one", config) as one:
            await more()
            async with served(tmp_path / "two", config) as two:
                while [await owned(each) for each in (one, two)] != [16, 16]:  # noqa: ASYNC110  # nobody tells
                    await trio.sleep(0.1)
                await more()
                assert await trio.to_thread.run_sync(one.end, signal.SIGTERM) == 0
                await more()
    for name, feed in zip(names, feeds, strict=True):
        feed.judge(await trio.to_thread.run_sync(stored, name))
