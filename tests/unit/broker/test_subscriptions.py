"""Subscriptions on the real store: cursors, redelivery, dead letters, grace, restart, accounting."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from gateway import model, slices
from gateway.envelope import BatchMeta, Columns, Delivery
from gateway.errors import Throttled, UnknownSubscription, UnknownTopic
from gateway.recorder import Recorder
from gateway.requests import (
    Authenticate,
    Cancel,
    DeleteTopic,
    Redelivery,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Limits
from gateway.store.interface import Append, Durability, Ticket, Unit
from tests.unit.broker.house import Client, Opened, opened, publish, tags, values

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


async def test_what_was_published_at_most_once_may_be_settled_as_it_is_handed_out(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        reader = await client.subscribe("t", acknowledge=True, redelivery=Redelivery(), name="r")
        wanted = ((b"a", 0), (b"b", 0), (b"c", 1), (b"d", 0), (b"e", 1), (b"f", 1))
        appends = [
            Append("t", 0, Columns.of([value]), BatchMeta(value * 16, client.side.origin, delivery=Delivery(delivery)))
            for value, delivery in wanted
        ]
        await gateway.store.submit(Unit(appends=appends)).wait()  # one run of six batches
        taken = await client.ask(Take(0, reader, 5, at_most_once_settled=True))
        assert [(values(Taken([one])), one.settled) for one in taken.deliveries] == [
            ([b"a", b"b"], True),
            ([b"c"], False),
            ([b"d"], True),
            ([b"e"], False),
        ]
        assert tags(taken) == [1, 2, 3, 4, 5]
        assert await client.settle(reader, 1, 2, 3, 4, 5) == [False, False, True, False, True]
        (consumer,) = gateway.house.snapshot().consumers
        assert (consumer.acknowledged, consumer.backlog, consumer.unaccounted) == (5, 1, 0)


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


async def test_what_is_not_written_is_at_the_end_a_slice_at_a_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    """The rows of tens of thousands in one commit would hold up those who still wait for an answer."""
    monkeypatch.setattr(slices, "AT_ONCE", 2)
    readers = [{"name": f"reader-{number}", "start": Start.EARLIEST} for number in range(5)]
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b")
        for reader in readers:
            await client.take(await client.subscribe("t", **reader))
        submit, sizes = gateway.store.submit, []

        def submitted(unit: Unit) -> Ticket:
            sizes.append(len(unit.puts))
            return submit(unit)

        monkeypatch.setattr(gateway.store, "submit", submitted)
    assert sizes == [4, 4, 2], "two rows for each"
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        for reader in readers:
            assert values(await client.take(await client.subscribe("t", **reader), 10)) == [b"b"]


async def test_what_is_there_at_a_start_is_loaded_a_slice_at_a_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    """Tens of thousands would keep a gateway that starts from its signals and its log for a second or two."""
    monkeypatch.setattr(slices, "AT_ONCE", 2)
    async with opened(tmp_path) as gateway:
        subscriptions = gateway.house.subscriptions
        client = gateway.client()
        for number in range(5):
            await client.subscribe("t", name=f"reader-{number}", start=Start.EARLIEST)
        for number in list(subscriptions.durable()):
            subscriptions.let_go(number)
        found = [0]

        class Steps(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                found.append(len(list(subscriptions.durable())))

        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await subscriptions.restore_all()
        trio.lowlevel.remove_instrument(steps)
        found.append(len(list(subscriptions.durable())))
        assert list(dict.fromkeys(found)) == [0, 2, 4, 5]


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


async def test_who_joins_by_name_says_what_can_be_carried(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r", largest_value=3)
        assert await client.subscribe("t", name="r", largest_value=30) == subscription
        await client.publish("t", b"long")
        assert values(await client.take(subscription, 10)) == [b"long"]


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


async def test_what_expires_after_it_was_read_is_not_handed_out(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r")
        now = gateway.house.clock.now_ms()
        soon = now + 60_000
        await client.publish("t", b"a", b"b", b"-", b"-", b"c", b"-", b"d", expires=[0, 0, soon, soon, 0, soon, 0])
        assert values(await client.take(subscription, 2)) == [b"a", b"b"]
        monkeypatch.setattr(gateway.house.clock, "now_ms", lambda: soon)
        assert values(await client.take(subscription, 10)) == [b"c", b"d"]
        (consumer,) = gateway.house.snapshot().consumers
        assert (consumer.expired, consumer.unaccounted) == (3, 0)


async def test_what_came_together_is_taken_in_pieces_of_any_size(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", acknowledge=True)
        sent = [b"%d" % number for number in range(600)]
        await client.publish("t", *sent[:100])
        await client.publish("t", *sent[100:])
        seen: list[bytes] = []
        for messages, size in (
            (1, 100),
            (7, 1 << 20),
            (500, 1),
            (500, 12),
            (64, 1 << 20),
            (1000, 100),
            (1000, 1 << 20),
        ):
            taken = await client.ask(Take(0, subscription, messages, size))
            assert tags(taken) == list(range(len(seen) + 1, len(seen) + len(tags(taken)) + 1))
            got = values(taken)
            assert len(got) <= messages
            assert sum(map(len, got)) <= size or len(got) == 1
            seen += got
        assert seen == sent


async def test_a_take_finds_what_lies_behind_thousands_that_expired(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        subscription = await client.subscribe("t", name="r")
        now = gateway.house.clock.now_ms()
        await client.publish("t", *[b"gone"] * 9_000, b"stays", expires=[now - 1] * 9_000 + [0])
        assert values(await client.take(subscription)) == [b"stays"]
        (consumer,) = gateway.house.snapshot().consumers
        assert (consumer.expired, consumer.backlog, consumer.unaccounted) == (9_000, 0, 0)


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
        window = lost.cursors[0].window
        window.settle(window.low)  # by nobody
        assert [one.unaccounted for one in gateway.house.snapshot().consumers] == [1]
        gateway.house.doors.of("identity").stored -= 1
        assert [door.unaccounted for door in gateway.house.snapshot().doors] == [1]


KEYS = model.AuthKeys(("one", "two"))


class Counts(Recorder):
    def __init__(self) -> None:
        self.limits: list[tuple[str, str]] = []

    def limit_hit(self, listener: str, limit: str) -> None:
        self.limits.append((listener, limit))


async def with_key(gateway: Opened, key: str) -> Client:
    client = gateway.client(auth=KEYS)
    await client.ask(Authenticate(0, api_key=key))
    return client


async def test_a_subscription_is_for_connections_with_the_key_that_opened_it(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        owner = await with_key(gateway, "one")
        subscription = await owner.subscribe("t", acknowledge=True, durable_grace=600.0)
        await owner.publish("t", b"a", b"b")
        first = await owner.take(subscription)
        thief = await with_key(gateway, "two")
        assert isinstance(await thief.ask(Take(0, subscription, 1)), UnknownSubscription)
        assert isinstance(await thief.ask(Unsubscribe(0, subscription)), UnknownSubscription)
        assert await thief.settle(subscription, *tags(first)) == [False]
        other = await with_key(gateway, "one")
        assert values(await other.take(subscription)) == [b"b"]
        assert await other.settle(subscription, *tags(first)) == [True]
    async with opened(tmp_path) as gateway:
        thief, owner = await with_key(gateway, "two"), await with_key(gateway, "one")
        assert isinstance(await thief.ask(Take(0, subscription, 1)), UnknownSubscription)
        assert values(await owner.take(subscription)) == [b"b"]


async def test_a_connection_that_logs_in_again_keeps_what_it_has_open(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = await with_key(gateway, "one")
        subscription = await client.subscribe("t")
        await client.ask(Authenticate(0, api_key="two"))
        await client.publish("t", b"a")
        assert values(await client.take(subscription)) == [b"a"]


async def test_a_publish_costs_the_same_however_many_subscriptions_nobody_polls(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client, reader = gateway.client(), gateway.client()
        await client.publish("t", b"warm")

        async def calls() -> int:
            count = 0

            def counted(frame: FrameType, event: str, _argument: object) -> None:
                nonlocal count
                count += event == "call" and "/gateway/broker/" in frame.f_code.co_filename

            sys.setprofile(counted)
            try:
                await client.publish("t", b"x")
                await trio.testing.wait_all_tasks_blocked()
            finally:
                sys.setprofile(None)
            return count

        alone = min([await calls() for _ in range(3)])
        idle = [await reader.subscribe("t") for _ in range(500)]
        for subscription in idle:
            await reader.take(subscription, hold=0.01)
        await client.publish("t", b"the first they are told of")
        await trio.testing.wait_all_tasks_blocked()
        assert min([await calls() for _ in range(3)]) == alone
        waiting = reader.start(Take(0, idle[7], 10, hold_until=float("inf")))
        assert len(values(await reader.outcome(waiting[0]))) == 4


async def test_who_waits_for_a_reader_of_a_topic_that_was_made_again_gets_a_new_one(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        first = await client.subscribe("t", name="r", start=Start.EARLIEST)
        for value in (b"1", b"2"):  # told of the first; of the second, and what follows, no more
            await client.publish("t", value)
            await trio.testing.wait_all_tasks_blocked()
        await client.ask(DeleteTopic(0, "t"))
        await client.publish("t", b"3")
        second = await client.subscribe("t", name="r", start=Start.EARLIEST)
        assert second != first
        assert values(await client.take(second, 10)) == [b"3"]
        assert [one.unaccounted for one in gateway.house.snapshot().consumers] == [0]


@pytest.mark.parametrize(
    ("limits", "name", "good"),
    [
        (Limits(subscriptions_per_connection=2), "subscriptions_per_connection", True),
        (Limits(subscriptions=2), "subscriptions", False),
    ],
)
async def test_subscriptions_are_bounded_per_connection_and_per_listener(
    tmp_path: Path, autojump_clock: MockClock, limits: Limits, name: str, good: bool
):
    counts = Counts()
    async with opened(tmp_path, recorder=counts) as gateway:
        client = gateway.client(limits=limits)
        first, _second = [await client.subscribe("t") for _ in range(2)]
        refusal = await client.ask(Subscribe(0, "t"))
        assert isinstance(refusal, Throttled)
        assert f"limits.{name}" in refusal.message
        assert counts.limits == [("door", name)]
        other = await gateway.client(limits=limits).ask(Subscribe(0, "t"))
        assert isinstance(other, Subscribed) is good
        await client.ask(Unsubscribe(0, first))
        assert isinstance(await client.ask(Subscribe(0, "t")), Subscribed) is True
