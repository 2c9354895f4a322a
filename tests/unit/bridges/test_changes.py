"""Bridges that become others while they run: what stays is not touched, what follows goes on where the one before ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from gateway import model
from gateway.errors import StoreReadOnly
from gateway.requests import Published
from gateway.settings import Seconds
from gateway.store.interface import Ticket, Unit
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening, until

MANY = [b"%04d" % number for number in range(300)]


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    async with listening(peer):
        yield peer


@pytest.fixture
async def other() -> AsyncIterator[Peer]:
    peer = Peer()
    async with listening(peer):
        yield peer


async def test_a_changed_forward_goes_on_where_it_was_under_its_name(tmp_path: Path, peer: Peer) -> None:
    far = [upstream(peer.port, timeout=0.2)]
    changed = route(forward(address="other.{topic}", window=32))
    async with bridged(tmp_path, far, route(forward())) as gateway:
        client = gateway.client()
        await client.publish("orders", *MANY[:100])
        await gateway.delivered()
        peer.say = lambda _key, _value: "mute"  # what is under way is not answered
        await client.publish("orders", *MANY[100:110])
        await peer.until(lambda: len(peer.seen) == 110)
        gateway.become(far, changed)
        await client.publish("orders", *MANY[110:200])
        with trio.fail_after(20):
            await until(lambda: not gateway.bridges.pools["far"].in_flight)
            assert len(peer.seen) == 110  # nothing was sent meanwhile
            peer.say = lambda _key, _value: "ok"
            assert await gateway.bridges.handed_over() == {}
        await gateway.delivered()
        assert peer.values() == MANY[:200]  # and nothing twice, but what nobody had answered
        assert [value for _key, value in peer.seen] == MANY[:110] + MANY[100:200]
        assert peer.addresses == {b"copy.orders", b"other.orders"}
        assert peer.connections <= 2  # the upstream is as it was: only its silence has ended a connection
        (counts,) = gateway.house.snapshot().consumers
        assert (counts.start, counts.acknowledged, counts.backlog) == (0, 200, 0)


async def test_one_that_is_not_changed_is_not_touched(tmp_path: Path, peer: Peer, other: Peer) -> None:
    upstreams = [upstream(peer.port), upstream(other.port, name="second")]
    stays = route(forward(), name="stays", topic="stays.*")
    goes = route(model.Forward("second", "{topic}", "second"), name="goes", topic="goes.*")
    async with bridged(tmp_path, upstreams, stays, goes) as gateway:
        client = gateway.client()
        await client.publish("stays.1", b"1")
        await client.publish("goes.1", b"1")
        await gateway.delivered()
        await gateway.delivered("second")
        pool = gateway.bridges.pools["far"]
        elsewhere = route(model.Forward("third", "{topic}", "second"), name="goes", topic="goes.*")
        third = upstream(other.port, name="third")
        assert await gateway.reload([upstreams[0], third], stays, elsewhere) == {}
        await client.publish("stays.1", b"2")
        await client.publish("goes.1", b"2")
        await gateway.delivered()
        await gateway.delivered("second")
        assert gateway.bridges.pools == {"far": pool, "third": gateway.bridges.pools["third"]}
        assert (peer.values(), peer.connections) == ([b"1", b"2"], 1)
        assert (other.values(), other.connections) == ([b"1", b"2"], 2)
        assert [name for name, _ in gateway.bridges.problems() if "second" in name or "third" in name] == [
            "upstream third",
            "forward second",
        ]


async def test_an_upstream_elsewhere_gets_what_the_old_one_has_not_taken(
    tmp_path: Path, peer: Peer, other: Peer
) -> None:
    peer.say = lambda _key, value: "ok" if value < b"0050" else "later"
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *MANY, keys=MANY)
        await peer.until(lambda: len(peer.taken) == 50)
        await gateway.reload([upstream(other.port)], route(forward()))
        await gateway.delivered()
        assert peer.values() == MANY[:50]
        assert sorted(other.values()) == MANY[50:]


async def test_a_removed_forward_leaves_its_place_and_holds_nothing(tmp_path: Path, peer: Peer) -> None:
    peer.say = lambda _key, value: "ok" if value < b"0020" else "later"
    far = [upstream(peer.port)]
    async with bridged(tmp_path, far, route(forward())) as gateway:
        client = gateway.client()
        await client.publish("orders", *MANY[:100], keys=MANY[:100])
        await peer.until(lambda: len(peer.taken) == 20)
        assert gateway.bridges.forwards.floor("orders", 0) is not None
        assert await gateway.reload([], route()) == {"far": 80}
        assert gateway.bridges.forwards.floor("orders", 0) is None
        assert gateway.bridges.forwards.objection("orders") is None
        assert not list(gateway.house.snapshot().consumers)
        assert gateway.bridges.pools == {}
        await client.publish("orders", *MANY[100:110], keys=MANY[100:110])
        peer.say = lambda _key, _value: "ok"
        await gateway.reload(far, route(forward()))
        await gateway.delivered()
        assert sorted(peer.values()) == MANY[:110]
        assert next(iter(gateway.house.snapshot().consumers)).acknowledged == 110


async def test_a_new_forward_begins_where_one_does_at_a_start(tmp_path: Path, peer: Peer, other: Peer) -> None:
    upstreams = [upstream(peer.port), upstream(other.port, name="second")]
    late = model.Forward("second", "{topic}", "late", start=model.ForwardStart.NOW)
    async with bridged(tmp_path, [], route()) as gateway:
        await gateway.client().publish("orders", b"before")
        await gateway.reload(upstreams, route(forward(), late))
        await gateway.client().publish("orders", b"after")
        await gateway.delivered()
        await gateway.delivered("late")
        assert peer.values() == [b"before", b"after"]
        assert other.values() == [b"after"]


async def test_what_cannot_be_prepared_changes_nothing(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
        submit = gateway.store.submit

        def refuse(unit: Unit) -> Ticket:
            if not unit.synced:
                return submit(unit)
            ticket = Ticket(unit)
            ticket.finish(error=StoreReadOnly("the disk is full"))
            return ticket

        monkeypatch.setattr(gateway.store, "submit", refuse)
        with pytest.raises(StoreReadOnly):
            await gateway.reload([upstream(peer.port)], route(model.Forward("far", "b", "new")))
        monkeypatch.undo()
        await gateway.client().publish("orders", b"2")
        await gateway.delivered()
        assert peer.values() == [b"1", b"2"]


async def test_dead_letters_follow_a_change_and_keep_attempts(tmp_path: Path, peer: Peer) -> None:
    peer.say = lambda _key, _value: "later"
    far = [upstream(peer.port)]
    async with bridged(tmp_path, far, route(forward())) as gateway:  # without dead letters it waits
        await gateway.client().publish("orders", b"1")
        await peer.until(lambda: len(peer.seen) >= 3)
        await gateway.reload(far, route(forward(dead_letter="dead")))
        await gateway.delivered()
        letters = await gateway.letters("dead")
        assert [(value, reason) for value, reason, *_ in letters] == [(b"1", "max_deliveries")]
        assert letters[0][2] >= 10
        assert len(peer.seen) <= letters[0][2] + 1  # the attempts before counted
        gateway.check_accounts()


async def test_a_proxy_follows_its_upstream_and_who_waits_is_answered(tmp_path: Path, peer: Peer, other: Peer) -> None:
    live = model.Route("live", model.Match(), (model.Proxy("far", "{topic}", Seconds(5)),))
    async with bridged(tmp_path, [upstream(peer.port)], live) as gateway:
        client = gateway.client()
        assert isinstance(await client.publish("orders", b"1"), Published)
        gateway.become([upstream(other.port)], live)
        assert isinstance(await client.publish("orders", b"2"), Published)
        with trio.fail_after(20):
            await gateway.bridges.handed_over()
        await gateway.reload([upstream(other.port)], route())
        await client.publish("orders", b"3")
        assert (peer.values(), other.values()) == ([b"1"], [b"2"])
        assert gateway.bridges.pools == {}
        gateway.check_accounts()
