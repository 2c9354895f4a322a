"""Forwards that are put elsewhere, on a scripted broker and on a gateway that knows copies when it sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gateway import model
from gateway.broker.consume import reset
from gateway.errors import Conflict, NotFound
from gateway.requests import ConsumerReset, ResetTo
from gateway.settings import Backoff, Seconds
from tests.unit.bridges.house import Bridged, bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening

TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
async def peer():
    peer = Peer()
    async with listening(peer):
        yield peer


def asked(to: ResetTo = ResetTo.EARLIEST, value: int = 0, *, topic: str = "orders", name: str = "far", **more):
    return ConsumerReset(kind="forward", name=name, topic=topic, to=to, value=value, **more)


def counted(gateway: Bridged) -> tuple[int, int, int, int]:
    """Skipped, repeated, acknowledged and backlog of the one forward, whose account adds up."""
    gateway.check_accounts()
    (one,) = gateway.house.snapshot().consumers
    return one.skipped, one.repeated, one.acknowledged, one.backlog


async def test_what_was_sent_is_sent_once_more(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *TEN)
        await gateway.delivered()
        (shown,) = await gateway.bridges.forwards.reset(asked(ResetTo.OFFSET, 6, dry_run=True))
        assert (shown.before, shown.after, shown.skipped, shown.repeated, shown.backlog) == (10, 6, 0, 4, 4)
        assert counted(gateway) == (0, 0, 10, 0)
        assert await gateway.bridges.forwards.reset(asked(ResetTo.OFFSET, 6)) == [shown]
        await gateway.delivered()
        assert peer.values() == [*TEN, *TEN[6:]]
        assert counted(gateway) == (0, 4, 14, 0)
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:  # nothing of it is forgotten
        await gateway.client().publish("orders", b"more")
        await gateway.delivered()
        assert peer.values() == [*TEN, *TEN[6:], b"more"]
        assert counted(gateway) == (0, 4, 15, 0)


async def test_what_waits_for_an_upstream_that_is_away_is_skipped(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        port = peer.port
        async with bridged(tmp_path, [upstream(port)], route(forward())) as gateway:
            await gateway.client().publish("orders", b"first")
            await gateway.delivered()
    async with bridged(tmp_path, [upstream(port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *TEN)
        await peer.until(lambda: gateway.bridges.pools["far"].away_since is not None)
        (shown,) = await gateway.bridges.forwards.reset(asked(ResetTo.OFFSET, 9))
        assert (shown.before, shown.skipped, shown.repeated, shown.backlog) == (1, 8, 0, 2)
        assert gateway.counts.messages["dropped", "skipped"] == 8
        assert counted(gateway) == (8, 0, 1, 2)
        async with listening(peer, port):
            await gateway.delivered()
            assert peer.values() == [b"first", *TEN[8:]]
            assert counted(gateway) == (8, 0, 3, 0)


async def test_a_message_that_is_never_taken_is_skipped_and_its_attempts_forgotten(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, value: "later" if value == b"0" else "ok"
    never_ends = model.Retry(10_000, Backoff(Seconds(0.005), Seconds(0.02)))
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(retry=never_ends))) as gateway:
        await gateway.client().publish("orders", *TEN, keys=[b"k%d" % number for number in range(10)])
        await peer.until(lambda: len(peer.taken) == 9)
        (shown,) = await gateway.bridges.forwards.reset(asked(ResetTo.OFFSET, 1))
        assert (shown.before, shown.skipped, shown.repeated) == (0, 1, 9)
        await gateway.delivered()
        assert peer.values() == [*TEN[1:], *TEN[1:]]
        assert counted(gateway) == (1, 9, 18, 0)
        assert gateway.bridges.forwards.under_way(10) == []


async def test_what_is_under_way_and_not_answered_keeps_it_where_it_is(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.bridges.forwards.PATIENCE", 0.05)
    monkeypatch.setattr("gateway.bridges.forwards.STOP_SECONDS", 0.01)
    assert reset.PATIENCE > 1
    asked_for = trio.Event()

    def say(_key: bytes, _value: bytes) -> str:
        asked_for.set()
        return "mute"

    peer.say = say
    async with bridged(tmp_path, [upstream(peer.port, timeout=600)], route(forward())) as gateway:
        await gateway.client().publish("orders", *TEN)
        await asked_for.wait()
        with pytest.raises(Conflict, match="under way to far"):
            await gateway.bridges.forwards.reset(asked(ResetTo.LATEST))
        assert counted(gateway) == (0, 0, 0, 10)


async def test_a_configuration_that_changes_meanwhile_goes_on_where_it_was_put(tmp_path: Path, peer: Peer):
    asked_for, answer = trio.Event(), trio.Event()

    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *TEN)
        await gateway.delivered()
        (running,) = gateway.bridges.forwards._running["orders"]
        running.hold()  # as if something were under way
        async with trio.open_nursery() as nursery:

            async def reload() -> None:
                asked_for.set()
                await gateway.reload([upstream(peer.port)], route(forward(address="other.{topic}")))
                answer.set()

            nursery.start_soon(reload)
            await asked_for.wait()
            for _ in range(5):
                await gateway.bridges.forwards._context.pump.moment()
            assert not answer.is_set()  # who is held is not replaced
            running.go_on()
        (shown,) = await gateway.bridges.forwards.reset(asked(ResetTo.OFFSET, 8))
        assert shown.repeated == 2
        await gateway.delivered()
        assert peer.values() == [*TEN, *TEN[8:]]
        assert peer.addresses == {b"copy.orders", b"other.orders"}


async def test_what_is_not_there_is_said(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *TEN)
        with pytest.raises(NotFound, match="no forward near of orders"):
            await gateway.bridges.forwards.reset(asked(name="near"))
        with pytest.raises(NotFound, match="no topic"):
            await gateway.bridges.forwards.reset(asked(topic="missing"))
