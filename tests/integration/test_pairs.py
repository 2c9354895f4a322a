"""Publish over one protocol, read over another, all pairs, with raw bytes on both sides of a real process."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.integration.quic_raw import streams
from tests.integration.raw import CLIENTS, LATER, Felix, felix_frame
from tests.integration.running import Served, serving

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin05: {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed, dialect: "0.5"}}
  fujinv1: {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed, dialect: v1}}
  fujintcp: {{protocol: fujin,  bind: "127.0.0.1:0", transport: tcp}}
storage: {{path: "{data}"}}
"""
VALUE = b"from one protocol to another"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for all pairs; each has an address of its own."""
    directory = tmp_path_factory.mktemp("pairs")
    served = Served(directory, CONFIG.format(data=directory / "data"))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


async def replayed(port: int, address: str) -> bytes:
    """The newest Felix clients may begin in the past: flag 0x0020 negotiated, `start` asked for (Felix wire 1.2)."""
    async with streams(port) as client:
        auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x", "client_flags": 63})
        wish = {"type": "subscribe", **Felix.scope(address), "start": "earliest"}
        control = client.open(auth + felix_frame(wish), end=True)
        assert (await client.said(control))["type"] == "auth_ok"
        number = (await client.said(control))["subscription_id"]
        events = await client.incoming()
        await client.said(events)
        flags, payload = await client.felix(events)
        assert (flags, payload[:20]) == (0x22, struct.pack(">QQI", number, 0, 1))
        return payload[24:]


ALL = {**CLIENTS, **LATER}


@pytest.mark.parametrize("reader", ALL)
@pytest.mark.parametrize("writer", ALL)
async def test_what_one_protocol_publishes_another_reads(gateway: Served, writer: str, reader: str):
    """One message, live; and once more from history for the protocols that can ask for it."""
    address = f"pair.{writer}.{reader}"
    receiving, sending, ports = ALL[reader](), ALL[writer](), gateway.ports
    with trio.fail_after(30):
        async with receiving.connect(ports[reader]) as read_wire, sending.connect(ports[writer]) as write_wire:
            await receiving.subscribe(read_wire, address)
            await sending.publish(write_wire, address, VALUE)
            await receiving.next(read_wire, address, VALUE)
        if receiving.fetches:
            async with receiving.connect(ports[reader]) as again:
                await receiving.next(again, address, VALUE)
        elif reader == "felix":
            assert await replayed(ports[reader], address) == VALUE


async def test_flymq_producers_reach_felix_subscribers_over_a_bridge(tmp_path: Path):
    routes = """
routes:
  - name: orders
    match: {protocol: flymq, topic: "orders.*"}
    to:
      - store: {topic: "orders.{1}", partitions: 2}
      - bridge: {protocol: felix, address: "t1/default/orders-{1}", accept_loss: all}
  - {name: everything-else, match: {}, to: [{store: {topic: "{topic}"}}]}
"""
    felix, flymq = CLIENTS["felix"](), CLIENTS["flymq"]()
    async with serving(tmp_path, CONFIG.format(data=tmp_path / "data") + routes) as ports:
        with trio.fail_after(20):
            async with felix.connect(ports["felix"]) as reader, flymq.connect(ports["flymq"]) as writer:
                await felix.subscribe(reader, "orders-eu")  # before the first `orders.eu` was ever produced
                await flymq.publish(writer, "orders.eu", VALUE)
                await felix.next(reader, "orders-eu", VALUE)
