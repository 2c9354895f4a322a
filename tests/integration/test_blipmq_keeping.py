"""What a BlipMQ subscription outlives and what it does not, on a real process with short times: a client that goes away, kill -9,
its grace; and what becomes of a message that nobody acknowledges.
"""

from __future__ import annotations

import signal
import struct
from pathlib import Path

import httpx
import trio

from tests.integration.raw import (
    BLIPMQ_PING,
    BLIPMQ_PONG,
    BlipMQ,
    Wire,
    blipmq_frame,
    rustlog_ask,
    rustlog_fetch,
    s16,
    s32,
    tcp,
)
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [dev-key, another]}}}}
  brief:   {{protocol: blipmq, bind: "127.0.0.1:0", auth: open, grace: 300ms, max_deliveries: 2, backoff: 20ms..20ms}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin:   {{bind: "127.0.0.1:0"}}
storage: {{path: "{}"}}
"""


async def subscribe(wire: Wire, topic: str) -> int:
    await wire.send(blipmq_frame(4, 3, s16(topic) + b"\1"))
    await wire.expect(bytes.fromhex("00000011050000000000000003"))
    return struct.unpack(">Q", await wire.receive(8))[0]


async def publish(wire: Wire, topic: str, value: bytes) -> None:
    """With the barrier behind it."""
    await wire.send(blipmq_frame(3, 4, b"\1" + s16(topic) + value) + BLIPMQ_PING)
    await wire.expect(BLIPMQ_PONG)


async def polled(wire: Wire, subscription: int) -> bytes | None:
    """What a POLL gets before the PONG behind it."""
    await wire.send(blipmq_frame(9, 60, struct.pack(">Q", subscription)) + BLIPMQ_PING)
    got = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
    if got[:1] == b"\x08":
        return None
    await wire.expect(BLIPMQ_PONG)
    return got


async def backlog(port: int) -> int:
    """Messages that subscriptions have not settled."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith('gateway_consumer_backlog_messages{kind="subscr')]
    return int(float(line.split()[-1]))


async def test_subscriptions_outlive_a_kill_and_end_with_their_grace(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            async with tcp(served.ports["blipmq"]) as wire:
                await BlipMQ.greet(wire)
                lasting = await subscribe(wire, "orders")
                await publish(wire, "orders", b"one")
            async with tcp(served.ports["brief"]) as wire:
                await BlipMQ.greet(wire)
                brief = await subscribe(wire, "orders")
                await publish(wire, "orders", b"two")
                assert (lasting, brief) == (2, 3)
                await trio.to_thread.run_sync(served.end, signal.SIGKILL)
            await trio.to_thread.run_sync(served.start)
            while await backlog(served.ports["admin"]) > 2:  # the brief one has nobody, and ends
                pass
            async with tcp(served.ports["blipmq"]) as wire:
                await BlipMQ.greet(wire)
                assert await polled(wire, brief) is None
                for value in (b"one", b"two"):
                    got = await polled(wire, lasting)
                    assert got is not None
                    tag = struct.unpack(">Q", got[1:9])[0]
                    assert got[9:] == b"\1" + s16("orders") + value
                    await wire.send(blipmq_frame(5, tag, struct.pack(">Q", lasting)))
                assert await polled(wire, lasting) is None
                assert await backlog(served.ports["admin"]) == 0
                assert await subscribe(wire, "orders") > brief, "no number is given out twice"
            async with tcp(served.ports["brief"]) as wire:  # and without a restart: the client just goes
                await BlipMQ.greet(wire)
                await subscribe(wire, "other")
                await publish(wire, "other", b"three")
                assert await backlog(served.ports["admin"]) == 1
            while await backlog(served.ports["admin"]):
                pass
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_what_nobody_acknowledges_comes_again_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            async with tcp(served.ports["brief"]) as wire, tcp(served.ports["rustlog"]) as reader:
                await BlipMQ.greet(wire)
                subscription = await subscribe(wire, "orders")
                await publish(wire, "orders", b"bad")
                await publish(wire, "orders", b"good")
                again: list[bytes] = []
                while len(again) < 4:  # each of them twice, tags 1 and 2
                    got = await polled(wire, subscription)
                    if got is not None:
                        again.append(got)
                assert sorted(again) == [
                    b"\3" + struct.pack(">Q", tag) + b"\1" + s16("orders") + value
                    for tag, value in ((1, b"bad"), (2, b"good"))
                    for _ in range(2)
                ]
                letters = b""
                while letters[1:5] != b"\0\0\0\2":
                    assert await polled(wire, subscription) is None
                    letters = await rustlog_ask(reader, rustlog_fetch("orders.dlq", 0))
                assert letters == b"\2\0\0\0\2" + s32(b"bad") + s32(b"good") + struct.pack(">Q", 2)
                await wire.send(blipmq_frame(5, 1, struct.pack(">Q", subscription)))
                refused = await wire.receive(13 + 4 + 36)
                assert refused.endswith(b"unknown subscription or delivery tag")
                assert await backlog(served.ports["admin"]) == 0
    finally:
        await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_another_key_guesses_the_number_of_a_subscription_in_vain(tmp_path: Path):
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    try:
        async with tcp(served.ports["blipmq"]) as owner, tcp(served.ports["blipmq"]) as thief:
            await BlipMQ.greet(owner)
            await thief.send(blipmq_frame(1, 1, b"\0\1") + blipmq_frame(2, 2, s16("another")))
            for cid in (1, 2):
                await thief.expect(bytes.fromhex("0000001105") + struct.pack(">QQ", cid, 0))
            number = await subscribe(owner, "orders")
            await publish(owner, "orders", b"mine")
            assert await polled(thief, number) is None
            got = await polled(owner, number)
            assert got is not None
            assert got.endswith(b"mine")
            tag = got[1:9]
            await thief.send(s32(b"\5" + tag + struct.pack(">Q", number)))
            answer = await thief.receive(struct.unpack(">I", await thief.receive(4))[0])
            assert answer[:1] == b"\6", "a tag that nobody knows"
    finally:
        served.end(signal.SIGTERM)
