"""Subscriptions whose gateway changes at the wrong moment: while one is made, left, answered for, or its gateway goes down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trio

from gateway.broker.consume.cursors import SUBSCRIPTIONS, read_subscription
from gateway.broker.ownership import TABLE as OWNERS
from gateway.broker.presence import GoneGateways
from gateway.link.members import TABLE as LINKS
from gateway.requests import DONE, Start, Subscribe, Take, Unsubscribe
from gateway.store.interface import Put, Ticket, Unit
from tests.kafka.node import Kafka
from tests.kafka.test_fencing import deaf
from tests.kafka.test_shared_subscriptions import (
    NAMED,
    PATIENCE,
    Gateway,
    all_held,
    apart,
    cut_off,
    gateway,
    gateways,
    named,
)
from tests.store.kit import open_on_kafka, unit
from tests.unit.bridges.peers import until
from tests.unit.broker.house import tags, values

FOREVER = float("inf")


async def handed_over(owner: Gateway, other: Gateway, number: int) -> None:
    """Kafka gives the jobs of the one to the other."""
    await trio.to_thread.run_sync(owner.store._slots.close)
    await until(lambda: other.has(number))


async def test_all_who_open_a_new_name_at_once_have_the_same_number(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Two at a gateway that does not know yet that somebody was quicker at another: also who came second there."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as (late, early):
            await late.client().publish("orders", b"1", b"2")
            some = [late.client() for _ in range(2)]
            async with deaf(late.store):
                _client, number = await named(early)
                asked = [one.start(Subscribe(0, "orders", **NAMED))[0] for one in some]
                await until(lambda: late.house.subscriptions._named != {})
            assert [(await one.outcome(at)).subscription for one, at in zip(some, asked, strict=True)] == [number] * 2
            # and they use no other one
            assert [list(late.house.shared._users[one.side.id].uses) for one in some] == [[number]] * 2
            got = [await one.take(number, 1, 30) for one in some]
            assert [values(one) for one in got] == [[b"1"], [b"2"]]
            for one, taken in zip(some, got, strict=True):
                assert await one.settle(number, *tags(taken)) == [True]


async def test_who_has_left_while_the_owner_changed_is_not_brought_back(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", b"1")
            client = both[0].client()
            number = await client.subscribe("orders", acknowledge=True, durable_grace=600.0, start=Start.EARLIEST)
            owner, other = apart(both, number)
            assert owner is both[0]
            async with deaf(owner.store):
                owner.store._slots._tell = lambda: None
                await handed_over(owner, other, number)
                asked = client.start(Unsubscribe(0, number))[0]
            assert await client.outcome(asked) is DONE
            await until(lambda: not other.house.subscriptions.has(number))
            for one in both:
                await until(lambda: read_subscription(one.store.table(SUBSCRIPTIONS), number) is None)  # noqa: B023


async def test_who_has_left_a_name_is_no_client_of_it_wherever_it_goes(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            far, _ = await named(other)
            stays, _ = await named(other)
            # it leaves while nobody can be reached, and is asked for elsewhere when the owner has changed
            await cut_off(other)
            way, other.house.shared.way = other.house.shared.way, None
            await until(lambda: other.house.shared.waiting >= 2)  # each is to be a client of it again
            asked = far.start(Unsubscribe(0, number))[0]
            other.house.shared.way = way
            await handed_over(owner, other, number)
            assert await far.outcome(asked) is DONE
            subscription = other.house.subscriptions._subscriptions[number]
            await until(lambda: stays.side.id in subscription.clients)
            assert far.side.id not in subscription.clients
            assert not other.house.shared._users[far.side.id].uses


async def test_who_goes_while_what_he_asks_for_is_looked_up_holds_nothing(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """A subscription without a name would be kept for nobody, for as long as its gateway has it."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            client = both[0].client()
            number = await client.subscribe("orders", acknowledge=True, durable_grace=0.5, start=Start.EARLIEST)
            owner, other = apart(both, number)
            assert owner is both[0]
            looking, found = trio.Event(), trio.Event()
            refresh = other.store.refresh

            async def slow(topic: str) -> None:
                looking.set()
                await found.wait()
                await refresh(topic)

            other.store.refresh = slow
            other.house.subscriptions.restore = lambda *_: None  # nobody has looked when he asks
            far = other.client()
            await handed_over(owner, other, number)
            far.start(Take(0, number, 1, hold_until=FOREVER))
            await looking.wait()
            del other.house.subscriptions.restore
            client.side.detach()
            far.side.detach()
            found.set()
            await until(lambda: other.house.subscriptions.has(number))
            await until(lambda: not other.house.subscriptions.has(number))


async def test_who_asks_while_the_owner_changes_again_is_not_told_that_there_is_none(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """What he asks for is looked up by a gateway that has lost it when it has been found."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", b"1")
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            found = trio.Event()
            refresh = other.store.refresh

            async def slow(topic: str) -> None:
                await found.wait()
                await refresh(topic)

            other.store.refresh = slow
            other.house.subscriptions.restore = lambda *_: None  # nobody has looked when they ask
            await handed_over(owner, other, number)
            near, far = other.client(), owner.client()
            asked = [one.start(Take(0, number, 1, hold_until=FOREVER))[0] for one in (near, far)]
            await until(lambda: len(other.house.shared._looked_up.get(number, ())) >= 2)
            del other.house.subscriptions.restore
            slots = other.house.owners._assigned
            other.house.owners._hand_out(frozenset())
            found.set()
            await until(lambda: not other.house.shared._looked_up)
            assert not any(one.ended(at) for one, at in zip((near, far), asked, strict=True))
            other.house.owners._hand_out(slots)
            await near.publish("orders", b"2")
            got = [await one.outcome(at) for one, at in zip((near, far), asked, strict=True)]
            assert sorted(value for one in got for value in values(one)) == [b"1", b"2"]


async def test_a_late_answer_is_the_answer_to_nothing(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """What a gateway has handed out comes when what was asked of it has been asked of another one since."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            far, _ = await named(other)
            waiting = far.start(Take(0, number, 5, hold_until=FOREVER))[0]
            taken_from = owner.house.subscriptions._subscriptions[number]
            await until(lambda: bool(taken_from.takes))
            (link,) = other.house.shared.way._links.values()
            frames, kept, came = link.stream._frames, bytearray(), []

            def keep(data: bytes) -> Iterator[object]:
                kept.extend(data)
                return iter(())

            def late(data: bytes) -> Iterator[object]:
                del frames.feed
                came.extend(frames.feed(bytes(kept) + data))
                return iter(came)

            frames.feed = keep
            await owner.client().publish("orders", b"1")
            await until(lambda: not taken_from.takes and bool(kept))
            await handed_over(owner, other, number)
            taken = await far.outcome(waiting)
            assert values(taken) == [b"1"]
            frames.feed = late
            await until(lambda: any(type(one).__name__ == "LinkMessages" for one in came))
            subscription = other.house.subscriptions._subscriptions[number]
            assert list(subscription.outstanding) == tags(taken)  # and nothing else is under way
            assert await far.settle(number, *tags(taken)) == [True]
            assert values(await far.take(number, 1)) == []


async def test_who_ends_gives_up_his_jobs_before_he_cannot_be_reached(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """Whoever asks him meanwhile is told that it is another's, instead of waiting for one who does not answer."""
    with trio.fail_after(PATIENCE):
        async with gateway(kafka, topics, tmp_path) as staying:
            left: list[Sequence[bytes]] = []
            async with gateway(kafka, topics, tmp_path) as leaving:
                await until(lambda: all(one.house.owners.held for one in (staying, leaving)))
                await until(lambda: all_held((staying, leaving)))
                name = leaving.store.member

                def told(rows: dict[bytes, bytes | None]) -> None:
                    if rows.get(name, b"") is None:
                        left.append([slot for slot, row in staying.store.table(OWNERS).items() if row == name])

                staying.store.on_rows(LINKS, told)
            await until(lambda: bool(left))
            assert left == [[]]


class SlowlyWritten:
    """A store whose units are answered for later than they are there."""

    def __init__(self, store: Any, later: trio.Event) -> None:
        self._store = store
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(self, given: Unit) -> Any:
        return SlowTicket(self._store.submit(given), self._later)


class SlowTicket:
    def __init__(self, ticket: Ticket, later: trio.Event) -> None:
        self._ticket = ticket
        self._later = later

    async def wait(self) -> None:
        await self._ticket.wait()
        await self._later.wait()


async def test_who_was_taken_for_dead_and_says_that_he_lives_is_heard(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """Also where his row is back before whoever took it away has heard that it was gone."""
    told: list[dict[bytes, bytes | None]] = []
    with trio.fail_after(PATIENCE):
        async with gateway(kafka, topics, tmp_path) as one, open_on_kafka(kafka.brokers, topics) as third:
            await until(lambda: all_held([one]))
            living, dead = b"living", b"dead"
            for name in (living, dead):
                await third.submit(unit(puts=[Put("presence", name, b"here")])).wait()
            await until(lambda: len(one.store.table("presence")) == 2)
            back = trio.Event()
            gone = GoneGateways(
                SlowlyWritten(one.store, back),
                one.house.owners,
                one.house.clock,
                one.house.pump,
                one.house.start_soon,
                "presence",
                lambda serving: [Put("presence", name, None) for name in (living, dead) if name not in serving],
                told.append,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gone._look)
                await until(lambda: not third.table("presence"))
                await third.submit(unit(puts=[Put("presence", living, b"again")])).wait()
                await until(lambda: one.store.table("presence").get(living) == b"again")
                assert not told
                back.set()
            assert told == [{living: b"again", dead: None}]
