"""Publishes that a broker elsewhere answers: over every protocol between two real gateways, and said to every kind of client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import TargetError, TargetLost, TargetRefused
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Publish, Published
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import Credentials
from tests.integration.inside import PROTOCOLS, far_config, gateway, metric, publish, stored, upstream
from tests.unit.bridges.blip import Blip, blipping

NEAR = """
version: 1
listeners:
  flymq:   {{protocol: flymq, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {far}
routes:
  - name: live
    match: {{topic: "live.*"}}
    to: [{{proxy: {{upstream: far, address: "{{1}}", timeout: {timeout}}}}}]
  - name: others
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""
VALUES = [b"message %04d" % number for number in range(500)]


@asynccontextmanager
async def client(name: str, port: int, data: Path) -> AsyncIterator[Connection]:
    """A client of one of the listeners above."""
    quic = protocol(name).transport is Transport.QUIC
    tls = ClientTls(ca=str(data / "self-signed.crt"), server_name="localhost") if quic else None
    async with connect(
        protocol(name), "127.0.0.1", port, credentials=Credentials(api_key="key"), tls=tls
    ) as connection:
        yield connection


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_the_answer_is_the_remotes(tmp_path: Path, name: str):
    there, here = tmp_path / "far", tmp_path / "near"
    async with gateway(far_config(name, there)) as far:
        entry = upstream(name, far.ports["far"], there)
        async with gateway(NEAR.format(data=here, far=entry, timeout="20s")) as near:
            await publish(far.ports["flymq"], [b"first"])  # so that the remote's offsets are not ours by accident
            reply = await publish(near.ports["flymq"], VALUES, "live.orders")
            if protocol(name).carries.offset:
                assert reply.position(0) == (0, 1)
            assert await stored(far.ports["flymq"], "orders", lambda found: len(found) > 500) == [b"first", *VALUES]
            text = near.recorder.text()
            assert 'gateway_route_stored_messages_total{route="live"} 0.0' in text
            await metric(near, "gateway_route_received_messages_total", 500, route="live", listener="flymq")
            await metric(near, "gateway_route_acknowledged_messages_total", 500, route="live", target="far")
            await metric(near, "gateway_route_unaccounted_messages", 0, route="live")


UNKNOWN = {
    "blipmq": "500 durable publish failed: ",
    "flymq": "outcome unknown",
    "rustlog": "Failed to write record: ",
    "felix": "publish commit timeout: ",
    "fujin": "UNKNOWN: ",  # with the outcome byte of 0.5
}
"""How each protocol says that nobody knows."""


@pytest.fixture
async def blip() -> AsyncIterator[Blip]:
    blip = Blip()
    async with blipping(blip):
        yield blip


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_every_client_is_told_that_the_outcome_is_unknown(tmp_path: Path, blip: Blip, name: str):
    far = f'{{protocol: blipmq, address: "127.0.0.1:{blip.port}", auth: {{api_key: key}}}}'
    async with gateway(NEAR.format(data=tmp_path, far=far, timeout="200ms")) as near:
        await metric(near, "gateway_upstream_connected", 1, upstream="far")
        blip.mute = True
        async with client(name, near.ports[name], tmp_path) as connection:
            with pytest.raises(TargetError) as refused, trio.fail_after(30):
                await connection.request(Publish(0, Batch("live.orders", Columns.of([b"x"]))), timeout=None)
            assert refused.value.message.startswith(UNKNOWN[name])
            assert isinstance(refused.value, TargetLost) is (name == "fujin")
            assert not getattr(refused.value, "final", False)
            assert blip.published == [b"x"]
        await metric(near, "gateway_refused_messages_total", 1, route="live", reason="unknown_outcome")
        await metric(near, "gateway_route_unaccounted_messages", 0, route="live")


async def test_a_refusal_comes_through_in_the_clients_own_words(tmp_path: Path):
    there, here = tmp_path / "far", tmp_path / "near"
    config = (
        far_config("flymq", there) + 'routes: [{name: only, match: {topic: "known"}, to: [{store: {topic: known}}]}]\n'
    )
    async with gateway(config) as far:
        entry = upstream("flymq", far.ports["far"], there)
        async with gateway(NEAR.format(data=here, far=entry, timeout="20s")) as near:
            async with client("blipmq", near.ports["blipmq"], here) as connection:
                assert isinstance(
                    await connection.request(Publish(0, Batch("live.known", Columns.of([b"x"])))), Published
                )
                with pytest.raises(TargetRefused) as refused:
                    await connection.request(Publish(0, Batch("live.orders", Columns.of([b"x"]))))
            assert refused.value.message.startswith("404 ")
