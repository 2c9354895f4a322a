"""Rights that are taken away while somebody uses them: what was begun before is not gone on with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway import model
from gateway import requests as r
from gateway.errors import Denied, GatewayError, Unauthenticated, UnknownSubscription
from tests.unit.broker.house import Client, Opened, opened, publish, tags, values

USERS = model.AuthUsers(model.Administrator("root", password="password-of-root"))


@asynccontextmanager
async def logged_in(path: Path) -> AsyncIterator[tuple[Opened, Client, Client]]:
    """The admin, and a reader and writer called ann."""
    async with opened(path, accounts=[USERS]) as house:
        root, ann = house.client(auth=USERS), house.client(auth=USERS)
        assert (await root.ask(r.Authenticate(0, "root", "password-of-root"))).authenticated
        await root.ask(r.CreateUser(0, "ann", "password-of-ann", ("consumer", "producer")))
        assert (await ann.ask(r.Authenticate(0, "ann", "password-of-ann"))).authenticated
        yield house, root, ann


WITHDRAWALS = {
    "role": (r.UpdateUser(0, "ann", ("guest",), True), Denied),
    "disabled": (r.UpdateUser(0, "ann", ("consumer", "producer"), False), Denied),
    "deleted": (r.DeleteUser(0, "ann"), Unauthenticated),
}


@pytest.mark.parametrize("how", WITHDRAWALS)
async def test_a_subscription_gives_and_settles_nothing_more(tmp_path: Path, how: str) -> None:
    withdrawal, expected = WITHDRAWALS[how]
    async with logged_in(tmp_path) as (_, root, ann):
        await root.publish("t", b"before")
        number = await ann.subscribe("t", start=r.Start.EARLIEST, acknowledge=True)
        taken = await ann.take(number)
        assert values(taken) == [b"before"]
        (waiting,) = ann.start(r.Take(0, number, 1, hold_until=trio.current_time() + 60))
        assert await root.ask(withdrawal) == r.DONE
        await root.publish("t", b"after")
        assert type(await ann.outcome(waiting)) is expected
        assert type(await ann.ask(r.Take(0, number, 1))) is expected
        assert type(await ann.ask(r.Settle(0, number, tags(taken)))) is expected
        assert type(await root.ask(r.Take(0, number, 1))) is UnknownSubscription  # it is ann's, and nobody else's


async def test_a_fetch_that_waits_is_refused_when_something_comes(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as (_, root, ann):
        await root.ask(r.CreateTopic(0, "t"))
        (waiting,) = ann.start(r.Fetch(0, "t", 0, 0, 10, 1 << 20, hold_until=trio.current_time() + 60))
        await root.ask(WITHDRAWALS["role"][0])
        await root.publish("t", b"secret")
        assert isinstance(await ann.outcome(waiting), Denied)


async def test_a_transaction_is_not_committed_without_the_right(tmp_path: Path) -> None:
    async with logged_in(tmp_path) as (_, root, ann):
        begun = await ann.ask(r.Begin(0))
        for topic in ("a", "b"):
            kept = await ann.ask(publish(topic, b"v", transaction=begun.transaction))
            assert isinstance(kept, r.Published)
        await root.ask(r.SetAcl(0, r.Acl("a", True, False, ("ann",))))
        await root.ask(WITHDRAWALS["role"][0])  # ann may still write to a, no longer to b
        assert isinstance(await ann.ask(r.Commit(0, begun.transaction)), Denied)
        again = await ann.ask(r.Commit(0, begun.transaction))
        assert isinstance(again, GatewayError)
        assert "rolled back" in again.message
        topics = await root.ask(r.DescribeTopics(0))
        assert [topic.address for topic in topics.topics] == []
