"""What one gateway at a time does, when that gateway dies: a subscription, a forward, a delayed message."""

from __future__ import annotations

import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.integration.flymq_raw import flymq, produce
from tests.integration.gateways import until
from tests.integration.raw import BlipMQ, Wire, blipmq_frame, s16, s32, tcp
from tests.integration.running import Served
from tests.kafka.node import Kafka

CONFIG = """
version: 1
listeners:
  blipmq: {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:  {{protocol: flymq,  bind: "127.0.0.1:0"}}
storage: {{path: "{data}"{kafka}}}
"""
LOG = ', kafka: {{brokers: ["{brokers}"], prefix: "{prefix}", replication: 1}}'
FORWARD = """
upstreams:
  far: {{protocol: flymq, address: "127.0.0.1:{port}"}}
routes:
  - name: out
    match: {{topic: "out"}}
    to:
      - store: {{topic: out}}
      - forward: {{upstream: far, address: out, retry: {{max: 1000, backoff: 20ms..200ms}}, accept_loss: all}}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
PATIENCE = 150


@asynccontextmanager
async def served(directory: Path, config: str) -> AsyncIterator[Served]:
    await trio.Path(directory).mkdir()
    one = Served(directory, config.replace("DATA", str(directory / "data")))
    await trio.to_thread.run_sync(one.start)
    try:
        yield one
    finally:
        if one.running:
            one.end(signal.SIGKILL)


def on_kafka(kafka: Kafka, prefix: str, more: str = "") -> str:
    return CONFIG.format(data="DATA", kafka=LOG.format(brokers=kafka.brokers, prefix=prefix)) + more


async def values(port: int, topic: str) -> list[bytes]:
    async with flymq(port) as client:
        try:
            return await client.values(topic)
        except AssertionError:  # there is no such topic yet
            return []


async def taken(wire: Wire, subscription: int, last: bytes) -> list[bytes]:
    """The values that POLLs get, each acknowledged, up to this one."""
    found: list[bytes] = []
    while found[-1:] != [last]:
        await wire.send(blipmq_frame(9, 60, struct.pack(">Q", subscription)))
        with trio.move_on_after(1):  # a POLL that gets nothing is not answered
            got = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
            assert got[0] == 3, got
            size = struct.unpack(">H", got[10:12])[0]
            found.append(got[12 + size :])
            await wire.send(blipmq_frame(5, struct.unpack(">Q", got[1:9])[0], struct.pack(">Q", subscription)))
    return found


async def test_a_subscription_goes_on_at_another_gateway(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    config = on_kafka(kafka, topics)
    with trio.fail_after(PATIENCE):
        async with served(tmp_path / "one", config) as one, served(tmp_path / "two", config) as two:
            async with tcp(one.ports["blipmq"]) as wire:
                await BlipMQ.greet(wire)
                await wire.send(blipmq_frame(4, 3, s16("orders") + b"\1"))
                await wire.expect(bytes.fromhex("00000011050000000000000003"))
                number = struct.unpack(">Q", await wire.receive(8))[0]
                async with flymq(two.ports["flymq"]) as producer:
                    for index in range(6):
                        await producer.ask(1, produce("orders", b"%d" % index))
                assert await taken(wire, number, b"2") == [b"0", b"1", b"2"]
            assert await trio.to_thread.run_sync(one.end, signal.SIGTERM) == 0
            async with tcp(two.ports["blipmq"]) as wire:
                await BlipMQ.greet(wire)
                found = await taken(wire, number, b"5")
    assert found[-3:] == [b"3", b"4", b"5"]


async def test_a_forward_goes_on_at_another_gateway(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Whichever of the two has it: first one dies, and then it is the other one's."""
    far_config = CONFIG.format(data="DATA", kafka="")
    with trio.fail_after(PATIENCE):
        async with served(tmp_path / "far", far_config) as far:
            config = on_kafka(kafka, topics, FORWARD.format(port=far.ports["flymq"]))
            async with served(tmp_path / "two", config) as two:
                sent: list[bytes] = []

                async def send(gateway: Served, count: int) -> None:
                    async with flymq(gateway.ports["flymq"]) as client:
                        for _ in range(count):
                            sent.append(b"%04d" % len(sent))
                            await client.ask(1, produce("out", sent[-1]))

                async def arrived() -> bool:
                    return set(sent) <= set(await values(far.ports["flymq"], "out"))

                async with served(tmp_path / "one", config) as one:
                    await send(one, 50)
                    await send(two, 50)
                    await until(arrived)
                    await send(one, 50)
                    await trio.to_thread.run_sync(one.end, signal.SIGKILL)
                await send(two, 50)
                await until(arrived)
            found = await values(far.ports["flymq"], "out")
    assert list(dict.fromkeys(found)) == sent
    assert len(found) <= len(sent) + 100  # what was under way, at most, came again


async def test_a_delayed_message_fires_once_whoever_took_it(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    config = on_kafka(kafka, topics)
    with trio.fail_after(PATIENCE):
        async with served(tmp_path / "two", config) as two:
            async with served(tmp_path / "one", config) as one, flymq(one.ports["flymq"]) as client:
                for index in range(4):
                    await client.ask(0x30, s16("later") + s32(b"%d" % index) + struct.pack(">q", 3_000))
                await trio.to_thread.run_sync(one.end, signal.SIGKILL)

            async def fired() -> bool:
                return len(await values(two.ports["flymq"], "later")) >= 4

            await until(fired)
            found = await values(two.ports["flymq"], "later")
    assert sorted(found) == [b"0", b"1", b"2", b"3"]
