"""Subscriptions that are put elsewhere: what is skipped, what comes again, what becomes of what was handed out; the accounts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway import model
from gateway.errors import Conflict, GatewayError, NotFound, OffsetOutOfRange, UnknownPartition, UnknownTopic
from gateway.recorder import Recorder
from gateway.requests import ConsumerReset, Redelivery, ResetTo, Start, Take
from tests.unit.broker.house import Client, Opened, opened, tags, values
from tests.unit.broker.support import full_disk

TEN = [b"%d" % number for number in range(10)]


class Drops(Recorder):
    def __init__(self) -> None:
        self.dropped_messages: dict[str, int] = {}

    def dropped(self, _route: str, reason: str, messages: int) -> None:
        self.dropped_messages[reason] = self.dropped_messages.get(reason, 0) + messages


def asked(
    to: ResetTo = ResetTo.EARLIEST, value: int = 0, *, kind: str = "reader", name: str = "r", topic: str = "t", **more
):
    return ConsumerReset(kind=kind, name=name, topic=topic, to=to, value=value, **more)


async def reading(gateway: Opened, client: Client, **more) -> int:
    """Ten messages, and a named reader at their beginning."""
    await client.publish("t", *TEN)
    return await client.subscribe("t", name="r", start=Start.EARLIEST, **more)


def balanced(gateway: Opened) -> tuple[int, int, int]:
    """Skipped, repeated and backlog of the one consumer, whose account adds up."""
    (one,) = gateway.house.snapshot().consumers
    assert one.unaccounted == 0
    return one.skipped, one.repeated, one.backlog


async def test_what_was_read_comes_again_and_is_counted(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await reading(gateway, client)
        assert len(values(await client.take(number, 7))) == 7
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 2, dry_run=True, force=True))
        assert (shown.before, shown.after, shown.skipped, shown.repeated, shown.backlog) == (7, 2, 0, 5, 8)
        assert balanced(gateway) == (0, 0, 3)
        assert await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 2, force=True)) == [shown]
        assert balanced(gateway) == (0, 5, 8)
        assert values(await client.take(number, 10)) == TEN[2:]
        assert balanced(gateway) == (0, 5, 0)
    async with opened(tmp_path) as gateway:
        assert balanced(gateway)[2] == 0


async def test_what_was_not_read_is_skipped_and_counted(tmp_path: Path, autojump_clock: MockClock):
    drops = Drops()
    async with opened(tmp_path, recorder=drops) as gateway:
        client = gateway.client()
        number = await reading(gateway, client, acknowledge=True)
        await client.settle(number, *tags(await client.take(number, 5))[3:])  # 3 and 4, above what is not settled
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 8, force=True))
        assert (shown.before, shown.after, shown.skipped, shown.repeated, shown.backlog) == (0, 8, 6, 0, 2)
        assert balanced(gateway) == (6, 0, 2)
        assert drops.dropped_messages == {"skipped": 6}
        assert values(await client.take(number, 10)) == TEN[8:]
    async with opened(tmp_path) as gateway:  # and there it is after a restart
        assert values(await gateway.client().take(number, 10)) == TEN[8:]


async def test_what_is_settled_further_on_comes_again(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await reading(gateway, client, acknowledge=True)
        given = tags(await client.take(number, 10))
        await client.settle(number, given[0], given[5], given[6])
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 3, force=True))
        assert (shown.before, shown.skipped, shown.repeated) == (1, 2, 2)
        assert balanced(gateway) == (2, 2, 7)
        assert values(await client.take(number, 10)) == TEN[3:]


async def test_what_is_handed_out_is_nobodys_any_more(tmp_path: Path, autojump_clock: MockClock):
    """A tag of before settles nothing, and attempts begin anew."""
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        redelivery = Redelivery(max_deliveries=3, first_delay=5, longest_delay=5)
        number = await reading(gateway, client, acknowledge=True, redelivery=redelivery)
        old = tags(await client.take(number, 2))
        await gateway.house.subscriptions.reset(asked(force=True))
        assert await client.settle(number, *old) == [False, False]
        taken = await client.take(number, 1)
        assert [(one.first_tag in old, one.attempt) for one in taken.deliveries] == [(False, 1)]
        assert await client.settle(number, *tags(taken)) == [True]
        assert balanced(gateway) == (0, 0, 9)


async def test_it_is_refused_while_somebody_reads(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await reading(gateway, client)
        for dry_run in (True, False):
            with pytest.raises(Conflict, match="1 connections read"):
                await gateway.house.subscriptions.reset(asked(dry_run=dry_run))
        await client.take(number, 10)
        client.side.detach()
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.LATEST))
        assert (shown.after, shown.skipped, shown.repeated) == (10, 0, 0)
        await gateway.house.subscriptions.reset(asked())
        assert values(await gateway.client().take(number, 10)) == TEN


async def test_whoever_waits_goes_on_at_the_new_place(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await reading(gateway, client)
        assert values(await client.take(number, 10)) == TEN
        (waiting,) = client.start(Take(0, number, 10, hold_until=trio.current_time() + 60))
        await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 9, force=True))
        assert values(await client.outcome(waiting)) == TEN[9:]


async def test_one_partition_alone(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path, topics={"t": model.TopicSettings(partitions=2)}) as gateway:
        client = gateway.client()
        for partition in (0, 1):
            await client.publish("t", *TEN, partition=partition)
        number = await client.subscribe("t", name="r", start=Start.EARLIEST, acknowledge=True)
        await client.settle(number, *tags(await client.take(number, 20)))
        with pytest.raises(GatewayError, match="say of which"):
            await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 4, force=True))
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, 4, partition=1, force=True))
        assert (shown.partition, shown.repeated) == (1, 6)
        taken = await client.take(number, 20)
        assert values(taken) == TEN[4:]
        assert {one.run.partition for one in taken.deliveries} == {1}
        both = await gateway.house.subscriptions.reset(asked(force=True))
        assert [(one.partition, one.skipped, one.repeated) for one in both] == [(0, 0, 10), (1, 0, 4)]
        assert [one.unaccounted for one in gateway.house.snapshot().consumers] == [0, 0]


async def test_what_is_not_there_is_said(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await reading(gateway, client)
        plain = await client.subscribe("t")  # ends with its connection: nothing to come back to
        for wrong, why in (
            (asked(name="other"), NotFound),
            (asked(kind="subscription", name=str(plain)), NotFound),
            (asked(topic="other"), UnknownTopic),
            (asked(partition=1), UnknownPartition),
            (asked(ResetTo.OFFSET, 11), OffsetOutOfRange),
        ):
            with pytest.raises(why):
                await gateway.house.subscriptions.reset(wrong)


async def test_a_subscription_with_a_number_and_a_time(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", *TEN)
        number = await client.subscribe("t", start=Start.EARLIEST, acknowledge=True, durable_grace=60.0)
        (shown,) = await gateway.house.subscriptions.reset(
            asked(ResetTo.TIME, 1 << 50, kind="subscription", name=str(number), force=True)
        )
        assert (shown.after, shown.skipped) == (10, 10)
        assert balanced(gateway) == (10, 0, 0)


async def test_what_retention_took_unread_is_not_skipped(tmp_path: Path, autojump_clock: MockClock):
    """It was lost before anybody put the reader elsewhere."""
    drops = Drops()
    async with opened(tmp_path, recorder=drops) as gateway:
        await reading(gateway, gateway.client())
        gateway.store.topics["t"].partitions[0].start = 4  # as retention leaves it
        (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.LATEST, force=True))
        assert shown.skipped == 6
        assert drops.dropped_messages == {"trimmed": 4, "skipped": 6}
        (one,) = gateway.house.snapshot().consumers
        assert (one.unaccounted, one.trimmed, one.skipped) == (0, 4, 6)


async def test_a_store_that_takes_nothing_leaves_everything_as_it_is(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await reading(gateway, client, acknowledge=True)
        old = tags(await client.take(number, 2))
        with full_disk(gateway.store), pytest.raises(GatewayError):
            await gateway.house.subscriptions.reset(asked(ResetTo.LATEST, force=True))
        assert balanced(gateway) == (0, 0, 10)
        assert await client.settle(number, *old) == [True, True]
        assert values(await client.take(number, 3)) == TEN[2:5]


@pytest.mark.parametrize("seed", range(8))
async def test_the_account_adds_up_whatever_is_done(tmp_path: Path, autojump_clock: MockClock, seed: int):
    chance = random.Random(seed)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        redelivery = Redelivery(max_deliveries=2, first_delay=1, longest_delay=1)
        await client.publish("t", *TEN)
        number = await client.subscribe(
            "t", name="r", start=Start.EARLIEST, acknowledge=True, max_in_flight=20, redelivery=redelivery
        )
        held: list[int] = []
        skipped = repeated = 0
        for _ in range(120):
            match chance.randrange(5):
                case 0:
                    await client.publish("t", *TEN[: chance.randrange(1, 5)])
                case 1:
                    held += tags(await client.take(number, chance.randrange(1, 8)))
                case 2 | 3 if held:
                    chosen = chance.sample(held, chance.randrange(1, len(held) + 1))
                    await client.settle(number, *chosen, accepted=chance.random() < 0.8)
                    held = [one for one in held if one not in chosen]
                case 4:
                    bounds = gateway.store.topics["t"].partitions[0]
                    to = chance.randrange(bounds.start, bounds.end + 1)
                    (shown,) = await gateway.house.subscriptions.reset(asked(ResetTo.OFFSET, to, force=True))
                    skipped, repeated = skipped + shown.skipped, repeated + shown.repeated
                    held = []
                    assert shown.backlog == bounds.end - to
            assert balanced(gateway)[:2] == (skipped, repeated)
        await gateway.house.subscriptions.reset(asked(force=True))
        client.side.detach()
        other, everything = gateway.client(), gateway.store.topics["t"].partitions[0].end
        taken = 0
        while given := tags(await other.take(number, 20)):
            await other.settle(number, *given)
            taken += len(given)
        assert taken == everything
        assert balanced(gateway)[2] == 0
