"""Gateways inside the test's own process, on real sockets: as many as a test needs, started in no time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from gateway.app import Gateway
from gateway.config.load import parse
from gateway.envelope import Batch, Columns
from gateway.errors import TargetRefused, UnknownTopic
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Fetch, Fetched, Publish, Published
from gateway.transport.client import connect

PROTOCOLS = ("blipmq", "flymq", "rustlog", "felix", "fujin")

FAR = """
version: 1
listeners:
  far:   {{protocol: {protocol}, bind: "127.0.0.1:{port}"{more}}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""


@asynccontextmanager
async def gateway(config: str, file: str = "routes.yaml") -> AsyncIterator[Gateway]:
    """A gateway that serves; drained at the end of the block."""
    made = Gateway(parse(config, file))
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run, lambda _line: None)
        yield made
        made.drain()
        with trio.fail_after(60):
            await made.stopped.wait()
        nursery.cancel_scope.cancel()


def far_config(name: str, directory: Path, port: int = 0) -> str:
    """A gateway with a listener `far` of this protocol, and one for FlyMQ to look inside."""
    quic = protocol(name).transport is Transport.QUIC
    more = ", tls: self-signed" if quic else ", auth: {api_keys: [key]}" if name == "blipmq" else ""
    return FAR.format(protocol=name, port=port, more=more, data=directory)


def upstream(name: str, port: int, directory: Path, more: str = "") -> str:
    """The `upstreams` entry of another gateway for it."""
    quic = protocol(name).transport is Transport.QUIC
    trust = f', tls: {{ca: "{directory / "self-signed.crt"}"}}' if quic else ""
    login = ", auth: {api_key: key}" if name == "blipmq" else ""
    return f'{{protocol: {name}, address: "localhost:{port}"{trust}{login}{more}}}'


async def publish(port: int, values: Sequence[bytes], topic: str = "orders") -> Published:
    """Publish over FlyMQ."""
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        reply = await connection.request(Publish(0, Batch(topic, Columns.of(values))), timeout=60)
        assert isinstance(reply, Published)
        return reply


async def stored(port: int, topic: str, done: Callable[[list[bytes]], bool]) -> list[bytes]:
    """What a topic holds, read over FlyMQ until it is enough."""
    found: list[bytes] = []
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        with trio.fail_after(60):
            while not done(found):
                try:
                    reply = await connection.request(Fetch(0, topic, 0, len(found), 1_000, 1 << 20), timeout=60)
                except (UnknownTopic, TargetRefused):
                    reply = None
                if isinstance(reply, Fetched) and reply.runs:
                    found += [value for run in reply.runs for value in run.columns.values()]
                else:
                    await trio.sleep(0.02)
    return found


async def metric(gateway: Gateway, name: str, value: float | Callable[[float], bool], **labels: str) -> None:
    """Until a metric has this value, or one that will do."""

    def good(found: float) -> bool:
        return value(found) if callable(value) else found == value

    wanted = {f'{label}="{text}"' for label, text in labels.items()}

    def values() -> Iterator[float]:
        for line in gateway.recorder.text().splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(one in line for one in wanted):
                yield float(line.rpartition(" ")[2])

    with trio.fail_after(60):
        await gateway.recorder.prepare()
        while not any(map(good, values())):
            await trio.sleep(0.02)
            await gateway.recorder.prepare()
