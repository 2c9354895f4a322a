"""Pulling from a broker elsewhere, over every protocol between two real gateways: nothing missing, order kept, and the place
found again after a restart.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from gateway.bridges import ingests
from gateway.protocols.registry import protocol
from gateway.requests import CreateTopic, DeleteTopic
from gateway.transport.client import connect
from tests.integration.faults import Fault, UdpNetwork
from tests.integration.inside import PROTOCOLS, far_config, gateway, metric, publish, stored, upstream
from tests.unit.bridges.peers import Peer, listening

NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {far}
routes:
  - name: pulled
    match: {{listener: far}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
  - name: others
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""
VALUES = [b"message %04d" % number for number in range(900)]
REPLAYING = ("flymq", "rustlog", "felix")
"""Protocols over which what the remote had before is pulled, too."""


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_a_remote_gets_comes_in_and_goes_on_after_a_restart(tmp_path: Path, name: str):
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 20s, ingest: [{from: orders, into: far.orders, group: g}]"
    async with gateway(far_config(name, there)) as far:
        config = NEAR.format(data=here, far=upstream(name, far.ports["far"], there, more))
        before = 300 if name in REPLAYING else 0
        if name in REPLAYING:
            await publish(far.ports["flymq"], VALUES[:300])
        async with gateway(config) as near:
            await metric(near, "gateway_ingest_state", 1, upstream="far", source="orders", state="running")
            await publish(far.ports["flymq"], VALUES[before:600])
            found = await stored(near.ports["flymq"], "far.orders", lambda found: len(found) >= 600)
            assert found == VALUES[:600]
            await metric(near, "gateway_ingest_messages_total", 600, upstream="far", source="orders")
            await metric(near, "gateway_route_stored_messages_total", 600, route="pulled")
        await publish(far.ports["flymq"], VALUES[600:])  # while nobody pulls
        async with gateway(config) as near:
            found = await stored(near.ports["flymq"], "far.orders", lambda found: set(VALUES) <= set(found))
            assert list(dict.fromkeys(found)) == VALUES
            assert len(found) <= len(VALUES) + 300
            await metric(near, "gateway_route_unaccounted_messages", 0, route="pulled")


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_remote_that_goes_away_is_waited_for(tmp_path: Path, name: str):
    there, here = tmp_path / "far", tmp_path / "near"
    async with gateway(far_config(name, there)) as far:
        port = far.ports["far"]
        await publish(far.ports["flymq"], VALUES[:1])
    more = ", timeout: 1s, ingest: [{from: orders, into: far.orders}]"
    start = 0 if name in REPLAYING else 1
    async with gateway(NEAR.format(data=here, far=upstream(name, port, there, more))) as near:
        async with gateway(far_config(name, there, port)) as far:
            await metric(near, "gateway_ingest_state", 1, upstream="far", source="orders", state="running")
            await publish(far.ports["flymq"], VALUES[1:400])
            await stored(near.ports["flymq"], "far.orders", lambda found: set(VALUES[start:400]) <= set(found))
        await metric(near, "gateway_ingest_state", 1, upstream="far", source="orders", state="waiting")
        async with gateway(far_config(name, there, port)) as far:
            await publish(far.ports["flymq"], VALUES[400:])
            found = await stored(near.ports["flymq"], "far.orders", lambda found: set(VALUES[start:]) <= set(found))
    assert list(dict.fromkeys(found)) == VALUES[start:]


@pytest.mark.parametrize("name", ["flymq", "rustlog"])
async def test_with_wildcards_it_finds_what_the_remote_has(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ingests, "REFRESH_SECONDS", 0.1)
    there, here = tmp_path / "far", tmp_path / "near"
    more = ', timeout: 20s, ingest: [{from: "alerts.*", into: "far.{1}"}]'
    async with (
        gateway(far_config(name, there)) as far,
        connect(protocol("flymq"), "127.0.0.1", far.ports["flymq"]) as c,
    ):
        await c.request(CreateTopic(0, "alerts.wide", 3))
        await publish(far.ports["flymq"], VALUES[:10], "alerts.fire")
        await publish(far.ports["flymq"], VALUES[:10], "elsewhere")
        config = NEAR.format(data=here, far=upstream(name, far.ports["far"], there, more))
        async with gateway(config) as near:
            for value in VALUES[:9]:  # one connection each, so that they spread over the partitions
                await publish(far.ports["flymq"], [value], "alerts.wide")
            await stored(near.ports["flymq"], "far.fire", lambda found: found == VALUES[:10])
            await stored(near.ports["flymq"], "far.wide", lambda found: sorted(found) == VALUES[:9])
            await publish(far.ports["flymq"], VALUES[:5], "alerts.late")
            await stored(near.ports["flymq"], "far.late", lambda found: found == VALUES[:5])
            await metric(near, "gateway_ingest_messages_total", 24, upstream="far", source="alerts.*")


async def test_a_remote_log_that_was_made_again_is_read_from_its_start(tmp_path: Path):
    """Felix: the place is remembered here alone, and is beyond the end of the new log."""
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 20s, ingest: [{from: orders, into: far.orders}]"
    async with gateway(far_config("felix", there)) as far:
        config = NEAR.format(data=here, far=upstream("felix", far.ports["far"], there, more))
        await publish(far.ports["flymq"], VALUES[:100])
        async with gateway(config) as near:
            await stored(near.ports["flymq"], "far.orders", lambda found: found == VALUES[:100])
        async with connect(protocol("flymq"), "127.0.0.1", far.ports["flymq"]) as connection:
            await connection.request(DeleteTopic(0, "orders"))
        await publish(far.ports["flymq"], VALUES[100:150])
        async with gateway(config) as near:
            await stored(near.ports["flymq"], "far.orders", lambda found: found == VALUES[:150])
            await metric(near, "gateway_ingest_errors_total", 1, upstream="far", source="orders", reason="out_of_range")


@pytest.mark.parametrize("name", ["flymq", "rustlog"])
async def test_a_remote_topic_may_come_later(tmp_path: Path, name: str):
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 20s, ingest: [{from: orders, into: far.orders}]"
    async with gateway(far_config(name, there)) as far:
        config = NEAR.format(data=here, far=upstream(name, far.ports["far"], there, more))
        async with gateway(config) as near:
            found = {"upstream": "far", "source": "orders", "reason": "not_found"}
            await metric(near, "gateway_ingest_errors_total", lambda count: count > 0, **found)
            await publish(far.ports["flymq"], VALUES[:10])
            assert await stored(near.ports["flymq"], "far.orders", lambda found: len(found) >= 10) == VALUES[:10]


@pytest.mark.parametrize("name", ["felix", "fujin"])
async def test_a_remote_that_falls_silent_is_found_by_its_pings(tmp_path: Path, name: str):
    """QUIC: all datagrams vanish and nothing is under way that could be late. Thirty seconds is what QUIC itself would wait."""
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 3s, ingest: [{from: orders, into: far.orders}]"
    async with gateway(far_config(name, there)) as far, trio.open_nursery() as nursery:
        network = UdpNetwork(lambda: far.ports["far"], random.Random(1))
        await nursery.start(network.run)
        await publish(far.ports["flymq"], VALUES[:1])
        async with gateway(NEAR.format(data=here, far=upstream(name, network.port, there, more))) as near:
            state = {"upstream": "far", "source": "orders"}
            await metric(near, "gateway_ingest_state", 1, **state, state="running")
            network.set(Fault.HALF_OPEN)
            with trio.fail_after(20):
                await metric(near, "gateway_ingest_state", 1, **state, state="waiting")
            network.set(Fault.NONE)
            await metric(near, "gateway_ingest_state", 1, **state, state="running")
            await publish(far.ports["flymq"], VALUES[1:5])
            await stored(near.ports["flymq"], "far.orders", lambda found: set(VALUES[1:5]) <= set(found))
        nursery.cancel_scope.cancel()


PROXIED = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {far}
  target: {{protocol: flymq, address: "127.0.0.1:{target}"}}
routes:
  - name: pulled
    match: {{listener: far}}
    to: [{{proxy: {{upstream: target, address: "{{topic}}"}}}}]
"""


@pytest.mark.parametrize("name", REPLAYING)
async def test_what_it_holds_is_in_the_memory_budget(tmp_path: Path, name: str):
    """What waits to be stored, and the answer that was taken ahead, until it is stored or forgotten."""
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 20s, ingest: [{from: orders, into: far.orders}]"
    used = "gateway_budget_used_bytes"
    peer = Peer()
    peer.say = lambda _key, _value: "later"
    async with listening(peer), gateway(far_config(name, there)) as far:
        await publish(far.ports["flymq"], [bytes(10_000)])
        config = PROXIED.format(data=here, far=upstream(name, far.ports["far"], there, more), target=peer.port)
        async with gateway(config) as near:
            await metric(near, used, lambda size: 10_000 < size < 20_000)
            await publish(far.ports["flymq"], [bytes(20_000)])
            await metric(near, used, lambda size: 30_000 < size < 40_000)
            far.drain()
            await far.stopped.wait()
            peer.say = lambda _key, _value: "ok"
            await metric(near, used, 0)
            assert peer.values()[0] == bytes(10_000)
