"""A mirror gets its share and nothing else changes: what it takes, refuses or never answers is counted, not waited for."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import attrs
import pytest
import trio

from gateway import model
from gateway.bridges import mirror as module
from tests.integration.running import Served
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening, until

FAR = """
version: 1
listeners: {{rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}}}
storage: {{path: "{data}"}}
routes:
  - {{name: changed, match: {{topic: "changed.*"}}, transform: [{{project: {{a: value.a}}}}], to: [{{store: {{topic: "{{topic}}"}}}}]}}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""


@pytest.fixture
async def peer():
    peer = Peer()
    async with listening(peer):
        yield peer


def mirror(address: str = "shadow.{topic}", percent: float = 100.0, *compare: model.Compare) -> model.Mirror:
    return model.Mirror("far", address, percent, compare)


async def test_a_share_is_whole_keys_in_their_order(tmp_path: Path, peer: Peer):
    values = [b"%04d" % number for number in range(3_000)]
    keys = [b"k%d" % (number % 500) for number in range(3_000)]
    async with bridged(tmp_path, [upstream(peer.port)], route(mirror(percent=30))) as gateway:
        for start in range(0, 3_000, 300):
            await gateway.client().publish("orders", *values[start:][:300], keys=keys[start:][:300])
        taken = gateway.counts.messages
        await peer.until(lambda: taken["mirrored", "taken"] == len(peer.taken) > 600)
    assert peer.addresses == {b"shadow.orders"}
    by_key: dict[bytes, list[bytes]] = defaultdict(list)
    for key, value in peer.taken:
        by_key[key].append(value)
    assert 100 <= len(by_key) <= 200, "about 150 of 500"
    for key, got in by_key.items():
        assert got == [value for of, value in zip(keys, values, strict=True) if of == key]


async def test_without_keys_the_share_is_by_message(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], route(mirror(percent=50))) as gateway:
        await gateway.client().publish("orders", *[b"%d" % number for number in range(1_000)])
        await peer.until(lambda: gateway.counts.messages["mirrored", "taken"] > 0)
        await peer.until(lambda: gateway.counts.messages["mirrored", "taken"] == len(peer.taken))
    assert 350 <= len(peer.taken) <= 650


@pytest.mark.parametrize("how", ["nobody there", "mute"])
async def test_a_mirror_that_does_not_answer_costs_the_first_nothing(tmp_path: Path, peer: Peer, how: str, monkeypatch):
    monkeypatch.setattr(module, "BUFFER_MESSAGES", 100)
    second = Peer()
    second.say = lambda _key, _value: "mute"
    async with listening(second):
        shadow = upstream(1 if how == "nobody there" else second.port)
        first = upstream(peer.port, name="first")
        to_first = attrs.evolve(forward("first"), name="first")
        async with bridged(tmp_path, [first, shadow], route(to_first, mirror())) as gateway:
            client = gateway.client()
            for number in range(20):
                await client.publish("orders", *[b"%04d" % (50 * number + index) for index in range(50)])
            await gateway.delivered("first")
            assert peer.values() == [b"%04d" % number for number in range(1_000)]
            dropped = gateway.counts.messages
            await peer.until(lambda: dropped["mirrored", "dropped"] == 900)
            assert not dropped["mirrored", "taken"]


async def test_what_the_second_refuses_is_a_difference(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, value: "never" if value == b"bad" else "ok"
    compared = mirror("x", 100.0, model.Compare.ACK, model.Compare.LATENCY)
    async with bridged(tmp_path, [upstream(peer.port)], route(compared)) as gateway:
        await gateway.client().publish("orders", b"good", b"bad", b"good")
        counts = gateway.counts.messages
        await peer.until(lambda: counts["ack", "same"] == 2)
        assert counts["ack", "different"] == counts["mirrored", "refused"] == 1
        assert counts["latency", "far"] == 1


async def test_what_the_route_did_not_store_is_not_mirrored(tmp_path: Path, peer: Peer):
    other = model.Route("other", model.Match(listener=("side",)), (model.StoreTarget("{topic}"),))
    async with bridged(tmp_path, [upstream(peer.port)], other, route(mirror())) as gateway:
        await gateway.client(name="side").publish("orders", b"not this")
        await gateway.client().publish("orders", b"this")
        await peer.until(lambda: bool(peer.taken))
        assert peer.values() == [b"this"]


async def test_payloads_are_read_back_and_compared(tmp_path: Path):
    (tmp_path / "far").mkdir()
    far = Served(tmp_path / "far", FAR.format(data=tmp_path / "far" / "data"))
    await trio.to_thread.run_sync(far.start)
    try:
        there = attrs.evolve(upstream(far.ports["rustlog"]), protocol="rustlog")
        compared = mirror("{topic}", 100.0, model.Compare.PAYLOAD)
        async with bridged(tmp_path / "near", [there], route(compared)) as gateway:
            counts = gateway.counts.messages
            with trio.fail_after(30):
                await gateway.client().publish("kept.eu", b'{"a": 1, "b": 2}', b"anything")
                await until(lambda: counts["payload", "same"] == 2)
                await gateway.client().publish("changed.eu", b'{"a": 1, "b": 2}')
                await until(lambda: counts["payload", "different"] == 1)
    finally:
        await trio.to_thread.run_sync(far.end, signal.SIGKILL)
