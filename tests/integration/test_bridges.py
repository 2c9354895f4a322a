"""Two real gateways, one forwarding to the other over each protocol; killed and started again in between."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import TargetRefused, UnknownTopic
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Fetch, Fetched, Publish
from gateway.transport.client import connect
from tests.integration.running import Served

FAR = """
version: 1
listeners:
  far:   {{protocol: {protocol}, bind: "127.0.0.1:0"{more}}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}"}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}"}}
upstreams:
  far: {{protocol: {protocol}, address: "localhost:{port}", timeout: 2s{more}}}
routes:
  - name: orders
    match: {{}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", retry: {{max: 1000, backoff: 10ms..100ms}}, accept_loss: all}}
"""
VALUES = [b"message %04d" % number for number in range(600)]


@contextmanager
def running(directory: Path, config: str) -> Iterator[Served]:
    directory.mkdir(exist_ok=True)
    served = Served(directory, config)
    served.start()
    try:
        yield served
    finally:
        if served.running:
            served.end(signal.SIGKILL)


async def publish(port: int, values: list[bytes]) -> None:
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        await connection.request(Publish(0, Batch("orders", Columns.of(values))))


async def stored(port: int, enough: int) -> list[bytes]:
    """What the far gateway holds, once it holds enough."""
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        found: list[bytes] = []
        while len(found) < enough:
            try:
                reply = await connection.request(Fetch(0, "orders", 0, len(found), 1_000, 1 << 20))
            except (UnknownTopic, TargetRefused):
                reply = None
            if isinstance(reply, Fetched) and reply.runs:
                found += [value for run in reply.runs for value in run.columns.values()]
            else:
                await trio.sleep(0.02)
        return found


@pytest.mark.parametrize("name", ["blipmq", "flymq", "rustlog", "felix", "fujin"])
async def test_a_gateway_forwards_to_another_and_both_may_be_killed(tmp_path: Path, name: str):
    quic = protocol(name).transport is Transport.QUIC
    certificate = tmp_path / "far" / "data" / "self-signed.crt"
    far_more = ", tls: self-signed" if quic else ", auth: {api_keys: [key]}" if name == "blipmq" else ""
    near_more = f', tls: {{ca: "{certificate}"}}' if quic else ", auth: {api_key: key}" if name == "blipmq" else ""
    far_config = FAR.format(protocol=name, more=far_more, data=tmp_path / "far" / "data")
    with running(tmp_path / "far", far_config) as far:
        port = far.ports["far"]
        near_config = NEAR.format(protocol=name, more=near_more, port=port, data=tmp_path / "near" / "data")
        with (
            running(tmp_path / "near", near_config) as near,
            trio.fail_after(120),
        ):  # three starts of a process on a loaded machine
            await publish(near.ports["flymq"], VALUES[:200])
            assert await stored(far.ports["flymq"], 200) == VALUES[:200]
            await publish(near.ports["flymq"], VALUES[200:400])
            near.end(signal.SIGKILL)
            near.start()
            await publish(near.ports["flymq"], VALUES[400:])
            found = await stored(far.ports["flymq"], 600)
            while set(found) != set(VALUES):
                found = await stored(far.ports["flymq"], len(found) + 1)
            assert list(dict.fromkeys(found)) == VALUES
            assert len(found) <= 600 + 256
            assert near.end(signal.SIGTERM) == 0
