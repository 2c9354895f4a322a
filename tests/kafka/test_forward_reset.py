"""A forward whose partitions are at several gateways is put elsewhere at whichever of them is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from gateway import model
from gateway.errors import NotFound, OffsetOutOfRange
from gateway.link.opening import LinkPlace, open_links
from gateway.recorder import Recorder
from gateway.requests import ConsumerReset, ResetTo
from tests.kafka.node import Kafka
from tests.store.kit import open_on_kafka
from tests.unit.bridges.house import Bridged, bridged_on, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening, until

PATIENCE = 120
PARTITIONS = 16
"""Of which each of two gateways has some."""
MESSAGES = 200


@asynccontextmanager
async def gateway(kafka: Kafka, topics: str, directory: Path, far: Peer) -> AsyncIterator[Bridged]:
    host, _, port = kafka.brokers.rpartition(":")
    parted = {"orders": model.TopicSettings(partitions=PARTITIONS)}
    async with (
        open_on_kafka(kafka.brokers, topics) as store,
        bridged_on(store, [upstream(far.port)], route(forward()), topics=parted) as bridged,
        open_links(bridged.house, store, Recorder(), LinkPlace(), [(host, int(port))], directory),
    ):
        yield bridged


async def test_it_is_asked_of_any(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    far = Peer()
    back = ConsumerReset(kind="forward", name="far", topic="orders", to=ResetTo.EARLIEST)
    dry = msgspec.structs.replace(back, dry_run=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(PATIENCE))
        await stack.enter_async_context(listening(far))
        both = [await stack.enter_async_context(gateway(kafka, topics, tmp_path, far)) for _ in range(2)]
        owners = [one.house.owners for one in both]
        await until(lambda: all(one.held for one in owners) and sum(one.held for one in owners) == both[0].store.slots)
        client = both[0].client()
        for number in range(MESSAGES):
            await client.publish("orders", b"%d" % number, keys=[b"k%d" % number])
        await until(lambda: len(far.taken) == MESSAGES)
        assert all(list(one.bridges.forwards.jobs()) for one in both)
        # what is acknowledged is written before it is looked at
        for asked_at in both:
            shown = []
            while sum(one.repeated for one in shown) < MESSAGES:
                shown = await asked_at.bridges.forwards.reset(dry)
                assert [one.partition for one in shown] == list(range(PARTITIONS))
            assert {one.skipped for one in shown} == {0}
            for wrong, problem in (
                ({"name": "other"}, NotFound),
                ({"topic": "nowhere"}, NotFound),
                ({"partition": PARTITIONS}, NotFound),
                ({"to": ResetTo.OFFSET, "value": 1 << 40, "partition": 0}, OffsetOutOfRange),
            ):
                with pytest.raises(problem):
                    await asked_at.bridges.forwards.reset(msgspec.structs.replace(dry, **wrong))
        assert len(far.taken) == MESSAGES
        for times, asked_at in enumerate(both, 2):
            moves = await asked_at.bridges.forwards.reset(back)
            assert [one.partition for one in moves] == list(range(PARTITIONS))
            await until(lambda: len(far.taken) == times * MESSAGES)  # noqa: B023
            await until(lambda: not any(one.backlog() for one in both))
        assert set(Counter(far.values()).values()) == {3}
        for one in both:
            one.check_accounts()
