"""One target in trouble, and what its siblings, its addresses and the log see of it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import trio

from gateway import model
from gateway.bridges import pool
from gateway.bridges.breaker import PROBES_TO_RETURN
from gateway.settings import Backoff, Seconds, Size
from tests.integration.faults import Fault, TcpNetwork
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening, until
from tests.unit.broker.house import publish

MANY = [b"%04d" % number for number in range(2_000)]
PATIENT = model.Retry(100_000, Backoff(Seconds(0.005), Seconds(0.05)))


@pytest.fixture
async def peer():
    peer = Peer()
    async with listening(peer):
        yield peer


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.DOWN, Fault.SLOW, Fault.HALF_OPEN, Fault.CUT, Fault.SWALLOW])
async def test_a_sibling_is_delivered_the_same_whatever_becomes_of_the_other(tmp_path: Path, peer: Peer, fault: Fault):
    """Requests and messages delivered to it are counted, and equal those of a run without any fault."""
    other = Peer()
    network = TcpNetwork(lambda: other.port, random.Random(1))
    async with listening(other), trio.open_nursery() as nursery:
        await nursery.start(network.run)
        network.set(fault)
        both = [upstream(peer.port), upstream(network.port, name="other", timeout=0.5)]
        targets = forward(), forward(name="other", retry=PATIENT)
        async with bridged(tmp_path, both, route(*targets)) as gateway:
            client = gateway.client()
            for start in range(0, 2_000, 100):
                await client.publish("orders", *MANY[start : start + 100])
            await gateway.delivered()
            counts = gateway.counts.messages
            assert peer.values() == MANY, "each once, in order"
            assert (counts["delivered", "far"], counts["acknowledged", "far"]) == (2_000, 2_000)
            assert peer.connections == 1
            network.set(Fault.NONE)
            await gateway.delivered("other")
        nursery.cancel_scope.cancel()
    assert list(dict.fromkeys(other.values())) == MANY


async def test_the_better_address_is_used_again_after_it_has_answered_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool, "PROBE_SECONDS", 0.03)
    first, second = Peer(), Peer()
    async with listening(first):
        pass
    async with (
        listening(second),
        bridged(tmp_path, [upstream(first.port, second.port)], route(forward())) as gateway,
    ):
        client = gateway.client()
        await client.publish("orders", b"1")
        await gateway.delivered()
        async with listening(first, first.port):
            await first.until(lambda: first.connections > PROBES_TO_RETURN)  # probes, then the connection itself
            with trio.fail_after(20):
                await until(lambda: gateway.bridges.pools["far"].connected)
            await client.publish("orders", b"2")
            await gateway.delivered()
    assert (first.values(), second.values()) == ([b"2"], [b"1"])


async def test_several_connections_share_the_work_and_keep_each_keys_order(tmp_path: Path, peer: Peer):
    keys = [b"k%d" % (number % 40) for number in range(2_000)]
    async with bridged(tmp_path, [upstream(peer.port, pool=3)], route(forward(window=64))) as gateway:
        client = gateway.client()
        far = gateway.bridges.pools["far"]
        with trio.fail_after(20):
            await until(lambda: peer.connections == 3)
        for start in range(0, 2_000, 100):
            await client.ask(publish("orders", *MANY[start : start + 100], keys=keys[start : start + 100]))
        await gateway.delivered()
        assert far.in_flight == 0
    assert sorted(peer.values()) == MANY
    for key in set(keys):
        assert peer.values(key) == sorted(peer.values(key))


async def test_what_retention_takes_from_a_forward_is_counted_and_the_rest_arrives(tmp_path: Path):
    """A target that is away for too long: the log waits up to twice its size, and no longer."""
    away = Peer()
    async with listening(away):
        pass
    topics = {"orders": model.TopicSettings(retention=model.Retention(bytes=Size(20_000)))}
    wait = forward(retry=PATIENT)
    async with bridged(tmp_path, [upstream(away.port)], route(wait), topics=topics) as gateway:
        client = gateway.client()
        published = 0
        bounds = None
        with trio.fail_after(30):
            while bounds is None or not bounds.start:
                await client.publish("orders", *[b"%06d" % (published + index) + bytes(200) for index in range(20)])
                published += 20
                gateway.store.maintain()
                bounds = gateway.store.topics["orders"].partitions[0]
        async with listening(away, away.port):
            await gateway.delivered()
        (account,) = [one for one in gateway.house.snapshot().consumers if one.kind == "forward"]
    assert account.trimmed > 0
    assert account.acknowledged == published - account.trimmed == len({value for _key, value in away.taken})
    assert gateway.counts.messages["dropped", "trimmed"] == account.trimmed


async def test_what_expires_while_its_target_is_away_is_not_sent(tmp_path: Path):
    away = Peer()
    async with listening(away):
        pass
    async with bridged(tmp_path, [upstream(away.port)], route(forward(retry=PATIENT))) as gateway:
        client = gateway.client()
        soon = time.time_ns() // 1_000_000 + 300
        await client.ask(publish("orders", b"1", b"2", b"3", expires=[0, soon, 0]))
        forwards = gateway.bridges.forwards
        with trio.fail_after(20):
            await until(lambda: time.time_ns() // 1_000_000 > soon)
        assert forwards.objection("orders"), "all of it is read, and waits"
        async with listening(away, away.port):
            await gateway.delivered()
    assert away.values() == [b"1", b"3"]
    assert gateway.counts.messages["dropped", "expired"] == 1
