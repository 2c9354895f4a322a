"""What another gateway sends twice is stored once by several gateways on one log, whichever of them is sent what, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from gateway.errors import Throttled
from gateway.requests import Publish, Published
from tests.kafka.node import Kafka
from tests.store.kit import create, everything, open_on_kafka
from tests.unit.broker.house import Opened, opened_on
from tests.unit.broker.test_deduplication import copied

PATIENCE = 120


@asynccontextmanager
async def gateways(kafka: Kafka, prefix: str, count: int) -> AsyncIterator[list[Opened]]:
    async with AsyncExitStack() as stack:
        opened: list[Opened] = []
        for _ in range(count):
            store = await stack.enter_async_context(open_on_kafka(kafka.brokers, prefix))
            opened.append(await stack.enter_async_context(opened_on(store)))
        await create(opened[0].store, "copy")
        await opened[-1].store.refresh("copy")
        yield opened


async def sent(place: Opened, request: Publish) -> int:
    """As often as it takes, as a gateway that forwards does it; how often."""
    client, times = place.client(), 0
    while True:
        times += 1
        outcome = await client.ask(request)
        if isinstance(outcome, Published):
            return times
        assert isinstance(outcome, Throttled), outcome


async def stored(place: Opened) -> list[bytes]:
    await place.store.refresh("copy")
    return await everything(place.store, "copy")


async def test_one_knows_what_came_to_the_other_after_it_began(kafka: Kafka, topics: str) -> None:
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, 2) as (one, two):
            assert await sent(one, copied(5, b"a", b"b")) == 1
            await sent(two, copied(5, b"a", b"b", b"c"))
            await sent(one, copied(6, b"b", b"c", b"d", index=1))
            assert await stored(one) == [b"a", b"b", b"c", b"d"]


async def test_the_same_to_all_at_the_same_moment(kafka: Kafka, topics: str) -> None:
    """A forward moves while its last requests are still under way at the gateway it comes from."""
    expected = [b"%d" % number for number in range(400)]
    requests = [copied(first, *expected[first : first + 20], index=first) for first in range(0, 400, 20)]
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, 3) as opened:
            for request in requests:
                async with trio.open_nursery() as nursery:
                    for place in opened:
                        nursery.start_soon(sent, place, request)
            assert await stored(opened[1]) == expected


async def test_several_under_way_of_one_source(kafka: Kafka, topics: str) -> None:
    """Each builds on the one before it, which is not stored yet."""
    expected = [b"%d" % number for number in range(200)]
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, 2) as opened:
            clients = [place.client() for place in opened]
            for first in range(0, 200, 50):
                parts = [copied(at, *expected[at : at + 10], index=at) for at in range(first, first + 50, 10)]
                asked = [(client, client.start(*parts)) for client in clients]
                for client, numbers in asked:
                    for number, part in zip(numbers, parts, strict=True):
                        if not isinstance(await client.outcome(number), Published):
                            await sent(opened[0], part)
            found = await stored(opened[0])
            assert sorted(found) == sorted(expected)
