"""Gateways that forward to each other in a ring: a message goes round once, and stops where it has been before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from gateway.app import Gateway
from gateway.transport.quic.certificates import self_signed
from tests.integration.faults import UdpNetwork
from tests.integration.inside import gateway, publish, stored

CONFIG = """
version: 1
listeners:
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
  fujin: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, dialect: document}}
  later: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  next: {{protocol: {protocol}, address: "127.0.0.1:{port}", timeout: 1s, tls: {{ca: "{ca}"}}, dialect: {dialect}}}
routes:
  - name: ring
    match: {{topic: orders}}
    to:
      - store: {{topic: orders}}
      - {how}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
FORWARD = "forward: {upstream: next, address: orders, accept_loss: all}"
SPOKEN = {"felix": ("felix", "auto"), "fujin": ("fujin", "document"), "later": ("fujin", '"0.5"')}
"""Protocol and dialect of who sends to a listener."""
MIRROR = "mirror: {upstream: next, address: orders}"


def samples(one: Gateway, name: str) -> list[float]:
    """Every sample of a metric."""
    return [float(line.split()[-1]) for line in one.recorder.text().splitlines() if line.startswith(name)]


@pytest.mark.parametrize("how", [FORWARD, MIRROR])
@pytest.mark.parametrize(
    "over",
    [
        ("felix", "felix"),
        ("felix", "felix", "felix"),
        ("fujin", "fujin"),
        ("fujin", "felix", "fujin"),
        ("later", "later"),
    ],
)
async def test_a_message_stops_where_it_has_been_before(tmp_path: Path, over: Sequence[str], how: str) -> None:
    count = len(over)
    gateways: list[Gateway] = []
    ports = [9] * count  # nobody, until it is there
    networks = [
        UdpNetwork(lambda at=at: ports[(at + 1) % count], random.Random(1))  # type: ignore[misc]
        for at in range(count)
    ]
    certificates = [self_signed(tmp_path / str(at)).path for at in range(count)]
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        for network in networks:
            await nursery.start(network.run)
        for at, network in enumerate(networks):
            ca = certificates[(at + 1) % count]
            protocol, dialect = SPOKEN[over[at]]
            config = CONFIG.format(
                data=tmp_path / str(at), port=network.port, ca=ca, how=how, protocol=protocol, dialect=dialect
            )
            gateways.append(await stack.enter_async_context(gateway(config)))
            ports[at] = gateways[at].ports[over[at - 1]]
        if how is MIRROR:  # which waits for nobody
            with trio.fail_after(60):
                while not all(samples(one, "gateway_upstream_connected") == [1.0] for one in gateways):  # noqa: ASYNC110  # it says so in a metric alone
                    await trio.sleep(0.01)
        first = gateways[0]
        await publish(first.ports["flymq"], [b"1", b"2", b"3"])
        assert await stored(first.ports["flymq"], "orders.dlq", lambda found: len(found) >= 3) == [b"1", b"2", b"3"]
        assert samples(first, 'gateway_dead_lettered_messages_total{reason="loop",route="ring"}') == [3.0]
        await publish(
            gateways[1].ports["flymq"], [b"4"]
        )  # what it sends with others that came round is not taken for one
        await stored(gateways[1].ports["flymq"], "orders.dlq", lambda found: len(found) >= 1)
        for one in gateways:
            found = await stored(one.ports["flymq"], "orders", lambda found: len(found) >= 4)
            assert sorted(found) == [b"1", b"2", b"3", b"4"]
            await one.recorder.prepare()
            assert not any(samples(one, "gateway_route_unaccounted_messages"))
        await stack.aclose()
        nursery.cancel_scope.cancel()
