"""Publish over one protocol, read over another, all pairs, with raw bytes on both sides of real processes, wherever their log is."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.integration.gateways import configured, gateways
from tests.integration.quic_raw import streams
from tests.integration.raw import CLIENTS, LATER, Felix, felix_frame
from tests.integration.running import Served, serving
from tests.kafka.fixtures import LOGS, Log, log_of
from tests.kafka.looking import ADMIN, shared_out

VALUE = b"from one protocol to another"
PATIENCE = 120


@pytest.fixture(scope="module", params=LOGS)
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """Where to write and where to read: one process, or two where two can serve a log. Each pair has an address of its own."""
    log = log_of(request)
    with gateways(log, tmp_path_factory.mktemp("pairs"), *("one", "two")[: 1 + log.shared], more=ADMIN) as made:
        if log.shared:
            trio.run(shared_out, made)
        yield made[0], made[-1]
        assert {one.end(signal.SIGTERM) for one in made} == {0}


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
async def test_what_one_protocol_publishes_another_reads(ends: tuple[Served, Served], writer: str, reader: str):
    """One message, live; and once more from history for the protocols that can ask for it."""
    address = f"pair.{writer}.{reader}"
    receiving, sending = ALL[reader](), ALL[writer]()
    there, here = ends[0].ports[writer], ends[1].ports[reader]
    with trio.fail_after(PATIENCE):
        async with receiving.connect(here) as read_wire, sending.connect(there) as write_wire:
            await receiving.subscribe(read_wire, address)
            await sending.publish(write_wire, address, VALUE)
            await receiving.next(read_wire, address, VALUE)
        if receiving.fetches:
            async with receiving.connect(here) as again:
                await receiving.next(again, address, VALUE)
        elif reader == "felix":
            assert await replayed(here, address) == VALUE


async def test_flymq_producers_reach_felix_subscribers_over_a_bridge(log: Log, tmp_path: Path):
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
    async with serving(tmp_path, configured(log, tmp_path / "data") + routes) as ports:
        with trio.fail_after(PATIENCE):
            async with felix.connect(ports["felix"]) as reader, flymq.connect(ports["flymq"]) as writer:
                await felix.subscribe(reader, "orders-eu")  # before the first `orders.eu` was ever produced
                await flymq.publish(writer, "orders.eu", VALUE)
                await felix.next(reader, "orders-eu", VALUE)
