"""What is handed out and not acknowledged is in memory: it is counted, it has a bound in bytes, and nobody is kept from his messages by
who acknowledges nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway import model
from gateway.broker.consume.answer_room import SHORT, UNACKNOWLEDGED
from gateway.broker.consume.consumer import READ_BYTES
from gateway.broker.consume.shared import FarClient
from gateway.broker.consume.subscription import PAGE, UNIT, Subscription
from gateway.broker.service import ListenerInfo
from gateway.envelope import PREFIX
from gateway.observe.prometheus import PrometheusRecorder
from gateway.requests import (
    ConsumerReset,
    Outcome,
    Redelivery,
    ResetTo,
    Settle,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Limits
from gateway.store.committer import Mode
from gateway.store.sqlite import StoreOptions, open_store
from gateway.transport.limits import Budget
from tests.unit.broker.house import Client, Opened, opened_on, tags, values

WARM = StoreOptions(tail_cache=64 << 20, page_cache=1 << 20, free_space_floor=0)
LIMIT = 8 << 20
SHARE = LIMIT // UNACKNOWLEDGED
RECORD, RECORDS = 100_000, 80
ONE = RECORD + PREFIX + UNIT
PATIENT = Redelivery(3, 600.0, 600.0)


@attrs.define
class Place:
    opened: Opened
    budget: Budget
    recorder: PrometheusRecorder

    def subscriptions(self) -> list[Subscription]:
        return list(self.opened.house.subscriptions._subscriptions.values())

    @property
    def hits(self) -> float:
        name = 'gateway_limit_hits_total{limit="unacknowledged",listener="door"} '
        return sum(float(line[len(name) :]) for line in self.recorder.text().splitlines() if line.startswith(name))

    async def check(self) -> None:
        """That what is counted is what there is."""
        await wait_all_tasks_blocked()  # answers are with their connections
        counted = 0
        for one in self.subscriptions():
            given = {id(message.given): message.given for message in one.outstanding.values()}
            assert one.unacknowledged == sum(each.size for each in given.values()) + len(one.outstanding)
            assert one.charged == one.unacknowledged // PAGE
            counted += one.charged * PAGE * UNIT
        room = self.opened.house.subscriptions._context.room
        assert room._unacknowledged == counted
        ahead = room._in_ahead
        assert self.budget.used == min(counted, SHARE) + ahead


@asynccontextmanager
async def a_place(path: Path, *, records: int = RECORDS) -> AsyncIterator[Place]:
    budget, recorder = Budget(LIMIT), PrometheusRecorder()
    async with (
        open_store(path, WARM, mode=Mode.INLINE) as store,
        opened_on(store, recorder=recorder, memory=budget) as opened,
    ):
        client = opened.client()
        for number in range(records):
            await client.publish("t", value(number))
        yield Place(opened, budget, recorder)


@pytest.fixture
async def place(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[Place]:
    async with a_place(tmp_path) as made:
        yield made


def value(number: int) -> bytes:
    return b"%06d" % number + bytes(RECORD - 6)


def numbers(taken: Taken | Sequence[Taken]) -> list[int]:
    return [int(one[:6]) for some in ([taken] if isinstance(taken, Taken) else taken) for one in values(some)]


async def subscribed(client: Client, **more) -> int:
    return await client.subscribe("t", start=Start.EARLIEST, acknowledge=True, **{"redelivery": PATIENT, **more})


async def all_there_is(client: Client, subscription: int) -> list[Taken]:
    """Take until nothing is given any more."""
    had = []
    while (taken := await client.take(subscription, 10)).deliveries:
        had.append(taken)
    await wait_all_tasks_blocked()
    return had


async def test_who_acknowledges_nothing_is_given_no_more_than_there_is_room_for(place: Place):
    client = place.opened.client()
    number = await subscribed(client)
    had = await all_there_is(client, number)
    held = len(numbers(had)) * ONE
    assert SHARE <= held < SHARE + READ_BYTES + ONE
    assert place.hits == 1
    await place.check()


async def test_whoever_holds_next_to_nothing_is_served_meanwhile_and_one_message_is_given_however_large(place: Place):
    idle, busy = place.opened.client(), place.opened.client()
    await all_there_is(idle, await subscribed(idle))
    number = await subscribed(busy)
    had = []
    for _ in range(RECORDS):
        (taken,) = await all_there_is(busy, number) if len(had) == RECORDS - 1 else [await busy.take(number)]
        had += numbers(taken)
        await busy.settle(number, *tags(taken))
        await place.check()
    assert had == list(range(RECORDS))
    for _ in range(2):  # 100 KB are less than the least
        assert len(numbers(await busy.take(await subscribed(busy)))) == 1
    await place.opened.client().publish("t", bytes(1 << 20))
    at_the_end = await busy.subscribe("t", start=RECORDS, acknowledge=True)
    assert len(values(await busy.take(at_the_end))[0]) == 1 << 20 > SHORT


async def test_who_only_reads_is_given_as_much_as_ever_and_nothing_of_it_counts(place: Place):
    idle = place.opened.client()
    await all_there_is(idle, await subscribed(idle))
    number = await idle.subscribe("t", start=Start.EARLIEST)
    assert numbers(await idle.take(number, 10)) == list(range(10))
    await place.check()


async def test_who_waits_goes_on_in_order_when_he_acknowledges(place: Place):
    client = place.opened.client()
    number = await subscribed(client)
    had = await all_there_is(client, number)
    pending = [tag for taken in had for tag in tags(taken)]
    while len(numbers(had)) < RECORDS:
        (waiting,) = client.start(Take(0, number, 1, hold_until=math.inf))
        while not client.ended(waiting):
            await client.settle(number, pending.pop(0))
            await wait_all_tasks_blocked()
        had.append(await client.outcome(waiting))
        pending += tags(had[-1])
        await place.check()
    assert numbers(had) == list(range(RECORDS))
    await client.settle(number, *pending)
    await place.check()
    assert place.budget.used == 0


async def test_all_who_wait_are_given_some_when_somebody_else_gives_room_back(place: Place):
    """Also where the first of them have gone, or have nobody who asks."""
    idle = place.opened.client()
    idle_number = await subscribed(idle)
    held = await all_there_is(idle, idle_number)
    waiting = []
    for _ in range(5):
        client = place.opened.client()
        number = await subscribed(client, name=f"r{len(waiting)}")
        assert len(numbers(await all_there_is(client, number))) == 2, "100 KB are less than the least, 200 are not"
        waiting.append((client, client.start(Take(0, number, 1, hold_until=math.inf))[0]))
    waiting[0][0].side.detach()
    await wait_all_tasks_blocked()
    assert not any(client.ended(number) for client, number in waiting[1:])
    await idle.settle(idle_number, *[tag for taken in held for tag in tags(taken)])
    with trio.fail_after(60):
        for client, number in waiting[1:]:
            assert numbers(await client.outcome(number)) == [2]
    await place.check()


@pytest.mark.parametrize("how", ["unsubscribe", "detach", "dead letters"])
async def test_what_is_given_up_makes_room_for_who_waits(place: Place, autojump_clock: MockClock, how: str):
    idle, client = place.opened.client(), place.opened.client()
    redelivery = Redelivery(1, 5.0, 5.0) if how == "dead letters" else PATIENT
    idle_number = await subscribed(idle, redelivery=redelivery)
    await all_there_is(idle, idle_number)
    number = await subscribed(client)
    await all_there_is(client, number)
    (waiting,) = client.start(Take(0, number, 1, hold_until=math.inf))
    await wait_all_tasks_blocked()
    assert not client.ended(waiting)
    if how == "unsubscribe":
        await idle.ask(Unsubscribe(0, idle_number))
    elif how == "detach":
        idle.side.detach()
    with trio.fail_after(60):
        assert numbers(await client.outcome(waiting)) == [2]
    await place.check()


async def test_what_is_due_again_is_handed_out_while_nothing_else_is(place: Place, autojump_clock: MockClock):
    client = place.opened.client()
    number = await subscribed(client, redelivery=Redelivery(5, 5.0, 5.0))
    had = await all_there_is(client, number)
    again = await client.take(number, len(numbers(had)), hold=6.0)
    assert numbers(again) == numbers(had)
    await place.check()
    first, second = tags(again)[:2]
    await client.ask(Settle(0, number, [second], accepted=False, tried=False))
    assert numbers(await client.take(number)) == [1]
    await client.settle(number, first, accepted=False)
    once_more = await client.take(number, len(numbers(had)), hold=6.0)
    assert sorted(numbers(once_more)) == numbers(had)
    await place.check()


async def test_what_a_client_had_that_went_is_had_by_the_next_while_nothing_else_is(place: Place):
    first, second = place.opened.client(), place.opened.client()
    more = {"name": "r", "redelivery": Redelivery(3, 1.0, 1.0, unanswered=False)}
    had = await all_there_is(first, await subscribed(first, **more))
    number = await subscribed(second, **more)
    assert not (await second.take(number)).deliveries
    first.side.detach()
    assert numbers(await second.take(number, RECORDS)) == numbers(had)
    await place.check()


def to_the_start(kind: str, name: str) -> ConsumerReset:
    return ConsumerReset(kind=kind, name=name, topic="t", to=ResetTo.OFFSET, value=0, force=True)


async def test_what_another_gateway_has_for_who_does_not_acknowledge_counts_until_it_settles_that(place: Place):
    """Over a link everything is settled by the gateway that has the client, when he has it."""
    answers: dict[int, Outcome] = {}
    service = place.opened.house.subscriptions
    far = FarClient(ListenerInfo("door", "toy", model.AuthNone(), None, Limits()), "", answers.__setitem__)
    service.subscribe(far, Subscribe(1, "t", start=Start.EARLIEST))
    reply = answers[1]
    assert isinstance(reply, Subscribed)
    had: list[Taken] = []

    def take(request: int, **more: float) -> bool:
        service.take(far, Take(request, reply.subscription, RECORDS, **more))
        return arrived(request)

    def arrived(request: int) -> bool:
        taken = answers.get(request)
        assert taken is None or isinstance(taken, Taken)
        if taken is not None and taken.deliveries:
            had.append(taken)
        return taken is not None and bool(taken.deliveries)

    requests = itertools.count(2)
    while take(next(requests)):
        pass
    assert SHARE <= len(numbers(had)) * ONE < SHARE + READ_BYTES + ONE
    await place.check()
    last = next(requests)
    assert not take(last, hold_until=math.inf)
    service.settle(far, Settle(next(requests), reply.subscription, [tag for taken in had for tag in tags(taken)]))
    await wait_all_tasks_blocked()
    assert arrived(last)
    assert numbers(had) == list(range(len(numbers(had))))
    await place.check()
    far.detach()
    await place.check()
    assert place.budget.used == 0


async def test_what_is_taken_back_counts_no_more_and_does_again_if_it_could_not_be(place: Place):
    client = place.opened.client()
    number = await subscribed(client, name="r")
    had = await all_there_is(client, number)
    used = place.budget.used
    service = place.opened.house.subscriptions
    (subscription,) = place.subscriptions()
    taken = subscription.take_back([0])
    assert subscription.unacknowledged == 0
    subscription.put_back(taken)
    await place.check()
    assert place.budget.used == used
    await service.reset(to_the_start("reader", "r"))
    await place.check()
    assert subscription.unacknowledged == 0
    assert await client.settle(number, *tags(had[0])) == [False] * len(tags(had[0]))
    assert numbers(await all_there_is(client, number)) == numbers(had)


async def test_what_fell_due_while_it_was_taken_back_is_handed_out_again(place: Place):
    client = place.opened.client()
    number = await subscribed(client, redelivery=Redelivery(3, 1.0, 1.0))
    had = await client.take(number, 2)
    (subscription,) = place.subscriptions()
    taken = subscription.take_back([0])
    await trio.sleep(2)
    subscription.put_back(taken)
    others = await client.take(number, 1)
    await trio.sleep(0.1)
    again = await client.take(number, 2, hold=5)
    assert (numbers(others), numbers(again)) == ([2], numbers(had))
    await place.check()


async def test_one_that_ends_while_it_is_put_elsewhere_leaves_nothing(place: Place):
    client = place.opened.client()
    number = await subscribed(client)
    await all_there_is(client, number)
    (subscription,) = place.subscriptions()
    taken = subscription.take_back([0])
    await client.ask(Unsubscribe(0, number))
    subscription.put_back(taken)
    subscription.go_on(subscription)
    await place.check()
    assert place.budget.used == 0


async def test_small_messages_count_with_what_is_kept_of_each(tmp_path: Path, autojump_clock: MockClock):
    async with a_place(tmp_path, records=0) as place:
        client = place.opened.client()
        number = await subscribed(client)
        await client.publish("t", *[b"x"] * 1000)
        had = await client.take(number, 1000)
        await place.check()
        assert place.budget.used // UNIT == (1000 * (1 + PREFIX) // UNIT + 1000) // PAGE * PAGE
        await client.settle(number, *tags(had)[:-1])
        await place.check()
        assert place.budget.used // UNIT == (1000 * (1 + PREFIX) // UNIT + 1) // PAGE * PAGE, (
            "the piece is there until its last"
        )
        await client.settle(number, tags(had)[-1])
        assert place.budget.used == 0


DO = ("take", "settle first", "settle last", "refuse", "give back", "wait", "go")


async def test_whatever_is_done_in_whatever_order_what_is_counted_is_what_there_is(
    tmp_path: Path, autojump_clock: MockClock
):
    """And nothing is left of it in the end. Each message is settled once, or is a dead letter."""
    async with a_place(tmp_path, records=0) as place:
        for order in itertools.product(DO, repeat=3):
            await in_order(place, order)


async def in_order(place: Place, order: Sequence[str]) -> None:
    client = place.opened.client()
    number = await client.subscribe("u", name="r", acknowledge=True, redelivery=Redelivery(2, 1.0, 1.0))
    await client.publish("u", *[bytes(3000)] * 5)
    pending = tags(await client.take(number, 3))
    for what in order:
        if what == "take":
            pending += tags(await client.take(number, 2))
        elif what == "settle first" and pending:
            await client.settle(number, pending.pop(0))
        elif what == "settle last" and pending:
            await client.settle(number, pending.pop())
        elif what == "refuse" and pending:
            await client.settle(number, pending[0], accepted=False)
        elif what == "give back" and pending:
            await client.ask(Settle(0, number, [pending[-1]], accepted=False, tried=False))
        elif what == "wait":
            await trio.sleep(1.5)
        elif what == "go":
            client.side.detach()
            client = place.opened.client()
            assert await client.subscribe("u", name="r", acknowledge=True, redelivery=Redelivery(2, 1.0, 1.0)) == number
        await place.check()
    (subscription,) = place.subscriptions()
    while subscription.cursors[0].window.low < place.opened.store.topics["u"].partitions[0].end:
        await client.settle(number, *tags(await client.take(number, 9, hold=3.0)))
        await place.check()
    assert not subscription.outstanding
    assert subscription.unacknowledged == place.budget.used == 0
    client.side.detach()
