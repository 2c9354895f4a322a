"""Publish over one protocol, read over another, all 25 pairs, with raw bytes on both sides of a real process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio

from tests.integration.raw import CLIENTS
from tests.integration.running import serving

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}"}}
"""
VALUE = b"from one protocol to another"


async def cross(ports: Mapping[str, int], writer: str, reader: str) -> None:
    """One message, live; and once more from history for the protocols that can ask for it."""
    address = f"pair.{writer}.{reader}"
    receiving, sending = CLIENTS[reader](), CLIENTS[writer]()
    async with receiving.connect(ports[reader]) as read_wire, sending.connect(ports[writer]) as write_wire:
        await receiving.subscribe(read_wire, address)
        await sending.publish(write_wire, address, VALUE)
        await receiving.next(read_wire, address, VALUE)
    if receiving.fetches:
        async with receiving.connect(ports[reader]) as again:
            await receiving.next(again, address, VALUE)


async def test_every_pair_of_protocols(tmp_path: Path):
    failures: list[str] = []
    async with serving(tmp_path, CONFIG.format(data=tmp_path / "data")) as ports:
        for writer in CLIENTS:
            for reader in CLIENTS:
                try:
                    with trio.fail_after(20):
                        await cross(ports, writer, reader)
                except (AssertionError, trio.TooSlowError, trio.BrokenResourceError) as error:
                    failures.append(f"{writer} -> {reader}: {error!r}")
    assert not failures, "\n".join(failures)


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
