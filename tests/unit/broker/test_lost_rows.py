"""A damaged page of the small tables, seen by who decides by a row that is not there: it is told that nobody knows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trio.testing import MockClock

from gateway import model
from gateway.broker.administration.acls import TABLE as ACLS
from gateway.broker.consume.cursors import COUNTERS, CURSORS
from gateway.broker.identity import identity_of
from gateway.errors import RowLost, Unauthenticated
from gateway.requests import (
    Authenticate,
    CommitOffset,
    CreateUser,
    DescribeTopics,
    GroupOffset,
    Identity,
    ReadOffset,
    RegisterSchema,
    Subscribe,
    Take,
    Users,
)
from gateway.store.database import PAGE_SIZE
from gateway.store.interface import MakeTopic, Put, TopicConfig, Unit
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening
from tests.unit.broker.house import opened, values


def damage(path: Path) -> None:
    """The one page that a small table of rows has, and so all of them."""
    file = path / "log.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rows'").fetchone()
    data = bytearray(file.read_bytes())
    data[(root - 1) * PAGE_SIZE] = 0x77
    file.write_bytes(data)


def forget(path: Path, table: str) -> None:
    """What a damage of a larger table would do: the rows of one are gone, and written down as such."""
    with closing(sqlite3.connect(path / "log.sqlite", isolation_level=None)) as connection:
        connection.execute("DELETE FROM rows WHERE name = ?", (table,))
        connection.execute(
            "CREATE TABLE lost (number INTEGER PRIMARY KEY, low_name, low_key, high_name, high_key, since, what)"
        )
        connection.execute("INSERT INTO lost VALUES (NULL, ?, X'', ?, X'', ?, 'rows')", (table, f"{table}\0", 1 << 62))


def refused(outcome: object, why: str) -> None:
    assert isinstance(outcome, RowLost), outcome
    assert why in outcome.message


async def test_a_group_is_not_told_that_it_has_committed_nothing(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b")
        await client.ask(CommitOffset(0, "t", "g", 0, 1))
    damage(tmp_path)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        refused(
            await client.ask(ReadOffset(0, "t", "g", 0)), "what g has committed on t/0 may be among what the store has"
        )
        await client.publish("made-since", b"a")
        assert (await client.ask(ReadOffset(0, "made-since", "g", 0))).offset is None
        await client.ask(CommitOffset(0, "t", "g", 0, 2))
        assert await client.ask(ReadOffset(0, "t", "g", 0)) == GroupOffset(2, True, 0, 2)
        refused(await client.ask(RegisterSchema(0, name="s", kind="json", definition=b"{}")), "schema s may be among")


async def test_no_number_of_a_subscription_is_given_out_again(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b")
        before = await client.subscribe("t", durable_grace=60.0)
    forget(tmp_path, COUNTERS)
    async with opened(tmp_path) as gateway:
        assert await gateway.client().subscribe("t") > before + 1_000_000


async def test_a_subscription_without_its_place_hands_out_nothing(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        number = await client.subscribe("t", create=True, durable_grace=60.0)
        await client.publish("t", b"a", b"b")
        assert values(await client.take(number, 2)) == [b"a", b"b"]
    forget(tmp_path, CURSORS)
    async with opened(tmp_path) as gateway:
        refused(await gateway.client().ask(Take(0, number, 1, 100)), f"the place of subscription {number} may be among")
    damage(tmp_path)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        refused(await client.ask(Take(0, number, 1, 100)), f"subscription {number} may be among")
        refused(await client.ask(Subscribe(0, "t", name="mine", durable_grace=60.0)), "a subscription called mine")


async def test_a_forward_without_its_place_sends_nothing_and_loses_nothing(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
            await gateway.client().publish("orders", b"1", b"2")
            await gateway.delivered()
            identity = identity_of(gateway.store)
        damage(tmp_path)
        async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
            problem = gateway.bridges.forwards.problem("far")
            assert "the place of the forward far in orders/0 may be among what the store has lost" in problem
            assert gateway.bridges.forwards.floor("orders", 0) == 0
            assert identity_of(gateway.store) not in (b"", identity)
            await gateway.client().publish("orders", b"3")
            await gateway.client().publish("made-since", b"4")
            await peer.until(lambda: b"4" in peer.values())
            assert peer.values() == [b"1", b"2", b"4"]
        async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
            assert gateway.bridges.forwards.problem("far")


async def test_a_lost_account_is_let_in_by_nobody_and_made_by_nobody(tmp_path: Path):
    users = model.AuthUsers(model.Administrator("root", password="long enough"))
    root = Authenticate(0, username="root", password="long enough")
    async with opened(tmp_path, accounts=[users]) as gateway:
        client = gateway.client(auth=users)
        await client.ask(root)
        assert isinstance(await client.ask(CreateUser(0, "ada", "very long", ("consumer",))), Users)
    damage(tmp_path)
    async with opened(tmp_path, accounts=[users]) as gateway:
        client = gateway.client(auth=users)
        lost = await client.ask(Authenticate(0, username="ada", password="very long"))
        assert isinstance(lost, Unauthenticated)
        assert isinstance(await client.ask(root), Identity)  # who it is is in the configuration
        refused(await client.ask(CreateUser(0, "ada", "very long", ("consumer",))), "the account ada may be among")


async def test_without_its_acl_a_topic_is_open_to_nobody(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        gateway.store.submit(Unit(puts=[Put(ACLS, b"x", b"{}")], creates=[MakeTopic("t", TopicConfig())]))
    forget(tmp_path, ACLS)
    users = model.AuthUsers(model.Administrator("root", password="long enough"))
    async with opened(tmp_path, accounts=[users]) as gateway:
        refused(await gateway.client(auth=users).ask(DescribeTopics(0, "t")), "the ACL of t may be among")
