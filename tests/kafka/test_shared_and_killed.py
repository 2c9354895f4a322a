"""Gateways as processes that share a subscription: one is killed, frozen, started beside the others, while clients at all of them read."""

from __future__ import annotations

import signal
import struct
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from tests.integration.flymq_raw import flymq, produce
from tests.integration.gateways import configured, until
from tests.integration.raw import CLIENTS, BlipMQ, Wire, blipmq_frame, s16, s32, tcp
from tests.integration.running import Served
from tests.kafka.fixtures import Log
from tests.kafka.looking import ADMIN, consumers, shared_out
from tests.kafka.node import Kafka

PATIENCE = 150


class Poller:
    """A BlipMQ client that polls one subscription and acknowledges what it gets, over one connection."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire = wire
        self._number = number
        self.acknowledged: list[bytes] = []

    async def run(self) -> None:
        poll = blipmq_frame(9, 60, struct.pack(">Q", self._number))
        while True:
            await self._wire.send(poll)
            with trio.move_on_after(0.2):  # a POLL that gets nothing is not answered
                await self._one()

    async def _one(self) -> None:
        # what has begun to come is read to its end
        head = await self._wire.receive(4)
        with trio.CancelScope(shield=True):
            got = await self._wire.receive(struct.unpack(">I", head)[0])
            if got[0] == 3:
                size = struct.unpack(">H", got[10:12])[0]
                await self._wire.send(
                    blipmq_frame(5, struct.unpack(">Q", got[1:9])[0], struct.pack(">Q", self._number))
                )
                self.acknowledged.append(got[12 + size :])


async def subscribed(wire: Wire, topic: str) -> int:
    await BlipMQ.greet(wire)
    await wire.send(blipmq_frame(4, 3, s16(topic) + b"\1"))
    await wire.expect(bytes.fromhex("00000011050000000000000003"))
    return int(struct.unpack(">Q", await wire.receive(8))[0])


async def publish(served: Served, topic: str, first: int, count: int) -> list[bytes]:
    values = [b"%05d" % number for number in range(first, first + count)]
    async with flymq(served.ports["flymq"]) as client:
        for value in values:
            await client.ask(1, produce(topic, value))
    return values


def sharing(kafka: Kafka, directory: Path, prefix: str) -> Served:
    """It says which subscriptions it has. What is acknowledged late, since the machine is busy, does not come again at once."""
    directory.mkdir()
    config = configured(Log(kafka, prefix), directory / "data")
    return Served(directory, config.replace("protocol: blipmq,", "protocol: blipmq, backoff: 5s..30s,") + ADMIN)


async def has(gateway: Served, number: int) -> bool:
    return any(one["name"] == str(number) for one in await consumers(gateway))


async def test_clients_stay_whatever_becomes_of_the_owner(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """It is killed, the next one is frozen and wakes up, and the first one is started again: jobs go to it."""
    three = [sharing(kafka, tmp_path / str(number), topics) for number in range(3)]
    expected: list[bytes] = []
    try:
        for one in three:
            await trio.to_thread.run_sync(one.start)
        dying, *others = three
        with trio.fail_after(2 * PATIENCE):
            async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                first = await stack.enter_async_context(tcp(dying.ports["blipmq"]))
                number = await subscribed(first, "orders")  # at the gateway where it was made
                polling = {}
                for one in others:
                    wire = await stack.enter_async_context(tcp(one.ports["blipmq"]))
                    await BlipMQ.greet(wire)
                    polling[one] = Poller(wire, number)
                    nursery.start_soon(polling[one].run)

                async def all_acknowledged() -> bool:
                    return set(expected) <= {value for one in polling.values() for value in one.acknowledged}

                async def send(through: Served) -> None:
                    expected.extend(await publish(through, "orders", len(expected), 40))

                await send(others[0])
                await until(all_acknowledged)
                await trio.to_thread.run_sync(dying.end, signal.SIGKILL)
                await send(others[0])
                await until(all_acknowledged)
                owner, beside = others if await has(others[0], number) else reversed(others)
                assert await has(owner, number)
                owner.send_signal(signal.SIGSTOP)
                seen = len(expected)
                await send(beside)

                async def by_who_is_beside() -> bool:
                    return set(expected[seen:]) <= set(polling[beside].acknowledged)

                await until(by_who_is_beside)
                owner.send_signal(signal.SIGCONT)
                await trio.to_thread.run_sync(dying.start)
                await shared_out(three)
                await send(owner)
                await until(all_acknowledged)
                nursery.cancel_scope.cancel()
    finally:
        for one in three:
            if one.running:
                one.end(signal.SIGKILL)
    counts = Counter(value for one in polling.values() for value in one.acknowledged)
    assert set(counts) == set(expected)
    # what was written to be settled does not come again: some of what was under way does, at each of three changes
    assert sum(counts.values()) <= len(expected) + 3 * 40
    assert all(one.acknowledged for one in polling.values())


def patient(kafka: Kafka, directory: Path, prefix: str) -> Served:
    """It does not look whether a client of Fujin answers pings."""
    directory.mkdir()
    config = configured(Log(kafka, prefix), directory / "data")
    return Served(
        directory, config.replace("protocol: fujin,", "protocol: fujin, ping: {interval: 10m, timeout: 30s},")
    )


async def test_what_a_killed_gateways_client_had_goes_to_a_client_of_another(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """Readers of Fujin of one name at two gateways, that settle what they get."""
    one, two = (patient(kafka, tmp_path / name, topics) for name in ("one", "two"))
    fujin = CLIENTS["fujin"]
    try:
        for each in (one, two):
            await trio.to_thread.run_sync(each.start)
        with trio.fail_after(PATIENCE):
            async with fujin.connect(two.ports["fujin"]) as there:
                await there.send(b"\2\1\0" + s32(b"orders"))  # without auto commit
                await there.expect(b"\1\0")
                async with fujin.connect(one.ports["fujin"]) as here:
                    await here.send(b"\2\1\0" + s32(b"orders"))
                    await here.expect(b"\1\0")
                    async with flymq(two.ports["flymq"]) as publisher:
                        for number in range(100):
                            await publisher.ask(1, produce("orders", b"%05d" % number))
                    got = {name: await delivered(wire) for name, wire in (("here", here), ("there", there))}
                    assert got["here"][1] != got["there"][1]
                    await trio.to_thread.run_sync(one.end, signal.SIGKILL)
                found = {got["there"][1]}
                while len(found) < 100:
                    found.add((await delivered(there))[1])
                assert found == {b"%05d" % number for number in range(100)}
    finally:
        for each in (one, two):
            if each.running:
                each.end(signal.SIGKILL)


async def delivered(wire: Wire) -> tuple[bytes, bytes]:
    """The id and the value of the next message (Fujin wire 1.4)."""
    assert (head := await wire.receive(1)) == b"\6", head
    size = struct.unpack(">I", await wire.receive(4))[0]
    name = await wire.receive(size)
    value = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
    return name, value
