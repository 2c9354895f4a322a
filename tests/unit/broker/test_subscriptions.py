"""Subscriptions on the real store: cursors, redelivery, dead letters, grace, restart, accounting."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.config import model
from gateway.errors import UnknownSubscription, UnknownTopic
from gateway.requests import Cancel, DeleteTopic, Redelivery, Start, Subscribe, Take, Unsubscribe
from gateway.store.interface import Durability
from tests.unit.broker.house import opened, publish, tags, values

FOUR = {"many": model.TopicSettings(partitions=4)}


async def test_fans_out_from_now_on_to_each_subscription(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"before")
        first, second = await client.subscribe("t"), await client.subscribe("t")
        await client.publish("t", b"a", b"b")
        assert values(await client.take(first, 10)) == [b"a", b"b"]
        assert values(await client.take(second, 1)) == [b"a"]
        assert values(await client.take(second, 1)) == [b"b"]
        assert values(await client.take(second, 1)) == []


@pytest.mark.parametrize(
    ("topic", "lasting"), [("t", True), ("many", False), ("fast", False)], ids=["on disk", "partitions", "in memory"]
)
async def test_says_whether_offsets_are_worth_remembering(tmp_path: Path, autojump_clock: MockClock, topic, lasting):
    in_memory = model.TopicSettings(durability=model.DurabilitySetting(Durability.MEMORY))
    async with opened(tmp_path, topics={**FOUR, "fast": in_memory}) as gateway:
        reply = await gateway.client().ask(Subscribe(0, topic))
        assert reply.lasting_offsets is lasting


async def test_numbers_begin_at_two_and_are_never_used_again(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        assert [await gateway.client().subscribe("t") for _ in range(3)] == [2, 3, 4]
    async with opened(tmp_path) as gateway:
        assert await gateway.client().subscribe("t") > 4


async def test_a_take_waits_until_something_comes_or_its_time_is_up(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client, producer = gateway.client(), gateway.client()
        subscription = await client.subscribe("t")
        began = trio.current_time()
        assert values(await client.take(subscription, hold=0.04)) == []
        assert trio.current_time() - began == pytest.approx(0.04)
        (waiting,) = client.start(Take(0, subscription, 5, hold_until=trio.current_time() + 60))
        assert not client.ended(waiting)
        await producer.publish("t", b"a")
        assert values(await client.outcome(waiting)) == [b"a"]


async def test_a_waiting_take_can_be_cancelled(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t")
        (waiting,) = client.start(Take(0, subscription, 5, hold_until=float("inf")))
        await client.ask(Cancel(0, waiting))
        assert values(await client.outcome(waiting)) == []


async def test_reads_run_after_the_writes_before_them(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t")
        ids = client.start(publish("t", b"a"), Take(0, subscription, 1), publish("t", b"b"), Take(0, subscription, 1))
        assert values(await client.outcome(ids[1])) == [b"a"]
        assert values(await client.outcome(ids[3])) == [b"b"]


async def test_an_unsettled_message_comes_again_later_and_later_with_the_same_tag(
    tmp_path: Path, autojump_clock: MockClock
):
    redelivery = Redelivery(max_deliveries=3, first_delay=0.1, longest_delay=30)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True, redelivery=redelivery, durable_grace=600.0)
        await client.publish("t", b"a")
        began = trio.current_time()
        taken = await client.take(subscription)
        assert (values(taken), tags(taken), taken.deliveries[0].attempt) == ([b"a"], [1], 1)
        assert values(await client.take(subscription)) == []
        again = await client.take(subscription, hold=5)
        assert (tags(again), again.deliveries[0].attempt) == ([1], 2)
        assert trio.current_time() - began == pytest.approx(0.1)
        assert await client.settle(subscription, 1) == [True]
        assert await client.settle(subscription, 1) == [False]
        assert values(await client.take(subscription, hold=5)) == []


async def test_a_tag_can_be_settled_until_it_is_really_delivered_again(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True, redelivery=Redelivery(), durable_grace=600.0)
        await client.publish("t", b"a")
        await client.take(subscription)
        await trio.sleep(0.2)
        assert await client.settle(subscription, 1) == [True]
        assert values(await client.take(subscription, hold=1)) == []


async def test_the_last_delivery_ends_in_the_dead_letters(tmp_path: Path, autojump_clock: MockClock):
    redelivery = Redelivery(max_deliveries=2, first_delay=0.1, longest_delay=1)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True, redelivery=redelivery, durable_grace=600.0)
        letters = await client.subscribe("t.dlq")
        await client.publish("t", b"poison")
        for _ in range(2):
            assert values(await client.take(subscription, hold=5)) == [b"poison"]
        taken = await client.take(letters, hold=5)
        headers = dict(taken.deliveries[0].run.columns.headers_of(0))
        assert values(taken) == [b"poison"]
        assert b"max_deliveries" in headers.values()
        assert values(await client.take(subscription, hold=5)) == []
        (consumer,) = [one for one in gateway.house.snapshot().consumers if one.name == str(subscription)]
        assert (consumer.dead_lettered, consumer.backlog, consumer.unaccounted) == (1, 0, 0)


async def test_without_redelivery_a_message_returns_when_it_is_given_back_or_its_connection_goes(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        first, second = gateway.client(), gateway.client()
        name = {"name": "reader", "acknowledge": True, "start": Start.EARLIEST}
        await first.publish("t", b"a", b"b")
        subscription = await first.subscribe("t", **name)
        assert await second.subscribe("t", **name) == subscription
        assert values(await first.take(subscription)) == [b"a"]
        assert values(await second.take(subscription)) == [b"b"]
        await second.settle(subscription, 2, accepted=False)
        again = await first.take(subscription)
        assert (values(again), tags(again)) == ([b"b"], [2])
        first.side.detach()
        assert sorted(values(await second.take(subscription, 2))) == [b"a", b"b"]


REFUSING = {
    "name": "reader",
    "acknowledge": True,
    "start": Start.EARLIEST,
    "redelivery": Redelivery(3, 1.0, 3.0, unanswered=False),
}


async def test_what_is_refused_comes_again_later_and_ends_in_the_dead_letters(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", **REFUSING)
        letters = await client.subscribe("t.dlq")
        await client.publish("t", b"poison", b"kept")
        assert values(await client.take(subscription, 2)) == [b"poison", b"kept"]
        began, waits = trio.current_time(), []
        for _ in range(2):
            assert await client.settle(subscription, 1, accepted=False) == [True]
            taken = await client.take(subscription, hold=60)
            assert (values(taken), tags(taken)) == ([b"poison"], [1])
            waits.append(trio.current_time() - began)
            began = trio.current_time()
        assert waits == pytest.approx([1.0, 2.0])
        await client.settle(subscription, 1, accepted=False)
        taken = await client.take(letters, hold=60)
        assert values(taken) == [b"poison"]
        assert b"max_deliveries" in dict(taken.deliveries[0].run.columns.headers_of(0)).values()
        assert trio.current_time() - began < 1.0
        await trio.sleep(1000)  # what is not answered stays with its client
        assert values(await client.take(subscription, hold=5)) == []
        assert await client.settle(subscription, 2) == [True]
        (consumer,) = [one for one in gateway.house.snapshot().consumers if one.name == "reader"]
        assert (consumer.acknowledged, consumer.dead_lettered, consumer.unaccounted) == (1, 1, 0)


async def test_what_is_given_back_unread_was_not_tried(tmp_path: Path, autojump_clock: MockClock):
    """Streams that come and go must not use up a message's deliveries."""
    async with opened(tmp_path) as gateway:
        for number in range(5):
            client = gateway.client()
            subscription = await client.subscribe("t", **REFUSING)
            if not number:
                await client.publish("t", b"a")
            taken = await client.take(subscription)
            assert (values(taken), taken.deliveries[0].attempt) == ([b"a"], 1)
            client.side.detach()


async def test_attempts_that_failed_are_known_after_a_restart(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", **REFUSING)
        await client.publish("t", b"poison")
        for _ in range(2):
            (tag,) = tags(await client.take(subscription, hold=60))
            await client.settle(subscription, tag, accepted=False)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        letters = await client.subscribe("t.dlq")
        subscription = await client.subscribe("t", **REFUSING)
        (tag,) = tags(await client.take(subscription, hold=60))
        await client.settle(subscription, tag, accepted=False)
        assert values(await client.take(letters, hold=60)) == [b"poison"]


async def test_a_named_reader_goes_on_where_it_was_after_a_restart(tmp_path: Path, autojump_clock: MockClock):
    name = {"name": "reader", "acknowledge": True, "start": Start.EARLIEST}
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b", b"c", b"d")
        subscription = await client.subscribe("t", **name)
        await client.take(subscription, 4)
        await client.settle(subscription, 1, 3)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"e")
        subscription = await client.subscribe("t", **name)
        taken = await client.take(subscription, 10)
        rest = await client.take(subscription, 10)
        assert values(taken) + values(rest) == [b"b", b"d", b"e"]
        assert min(tags(taken)) > 4
        assert all(one.unaccounted == 0 for one in gateway.house.snapshot().consumers)


async def test_a_subscription_lives_its_grace_without_a_client_and_not_longer(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        owner, other = gateway.client(), gateway.client()
        subscription = await owner.subscribe("t", acknowledge=True, redelivery=Redelivery(), durable_grace=600.0)
        owner.side.detach()
        await other.publish("t", b"a")
        await trio.sleep(500)
        assert values(await other.take(subscription)) == [b"a"]
        other.side.detach()
        await trio.sleep(601)
        assert isinstance(await gateway.client().ask(Take(0, subscription, 1)), UnknownSubscription)


async def test_a_nameless_one_without_grace_ends_with_its_connection(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        owner = gateway.client()
        subscription = await owner.subscribe("t")
        owner.side.detach()
        assert isinstance(await gateway.client().ask(Take(0, subscription, 1)), UnknownSubscription)


async def test_what_the_protocol_cannot_carry_goes_to_the_dead_letters_and_the_rest_goes_on(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r", largest_value=3, smallest_value=1)
        letters = await client.subscribe("t.dlq")
        await client.publish("t", b"a", b"long", b"", b"b")
        taken = await client.take(subscription, 10)
        rest = await client.take(subscription, 10)
        assert values(taken) + values(rest) == [b"a", b"b"]
        assert values(await client.take(letters, 10, hold=1)) == [b"long", b""]


async def test_partitions_are_merged_in_the_order_of_their_times(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path, topics=FOUR) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("many")
        for number in range(8):
            await client.publish("many", b"%d" % number, partition=(number * 3) % 4)
        seen: list[bytes] = []
        while got := values(await client.take(subscription, 3)):
            seen += got
        assert sorted(seen) == [b"%d" % number for number in range(8)]


async def test_expired_messages_are_never_handed_out(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r")
        now = gateway.house.clock.now_ms()
        await client.publish("t", b"gone", b"stays", expires=[now - 1, now + 60_000])
        assert values(await client.take(subscription, 10)) == [b"stays"]
        (consumer,) = [one for one in gateway.house.snapshot().consumers if one.name == "r"]
        assert (consumer.expired, consumer.unaccounted) == (1, 0)


async def test_a_deleted_topic_ends_its_subscriptions(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t")
        (waiting,) = client.start(Take(0, subscription, 1, hold_until=float("inf")))
        await gateway.client().ask(DeleteTopic(0, "t"))
        assert (await client.outcome(waiting)).ended


async def test_unsubscribing_ends_a_waiting_take(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t")
        (waiting,) = client.start(Take(0, subscription, 1, hold_until=float("inf")))
        await client.ask(Unsubscribe(0, subscription))
        assert (await client.outcome(waiting)).ended
        assert isinstance(await client.ask(Take(0, subscription, 1)), UnknownSubscription)


async def test_a_subscriber_may_demand_that_the_topic_exists(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        assert isinstance(await gateway.client().ask(Subscribe(0, "nope", create=False)), UnknownTopic)


async def test_messages_in_flight_are_bounded(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r", acknowledge=True, max_in_flight=2)
        await client.publish("t", b"a", b"b", b"c")
        assert values(await client.take(subscription, 10)) == [b"a", b"b"]
        assert values(await client.take(subscription, 10)) == []
        await client.settle(subscription, 1)
        assert values(await client.take(subscription, 10)) == [b"c"]


async def test_the_accounting_sees_a_message_that_was_lost(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b")
        assert [door.unaccounted for door in gateway.house.snapshot().doors] == [0]
        subscription = await client.subscribe("t", name="r", start=Start.EARLIEST)
        await client.take(subscription, 1)
        assert [one.unaccounted for one in gateway.house.snapshot().consumers] == [0]
        lost = gateway.house.subscriptions._subscriptions[subscription]
        window = lost.cursors[0].position.window
        window.settle(window.low)  # by nobody
        assert [one.unaccounted for one in gateway.house.snapshot().consumers] == [1]
        gateway.house.publisher._doors["identity"].stored -= 1
        assert [door.unaccounted for door in gateway.house.snapshot().doors] == [1]
