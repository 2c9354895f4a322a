"""Gateways as processes, in front of one Kafka: any client at any of them, and one of them dies or is frozen."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio

from gateway.errors import TargetError
from tests.integration.flymq_raw import flymq, frame, i32, produce, u64
from tests.integration.raw import CLIENTS, s16
from tests.integration.running import Served
from tests.kafka.node import Kafka

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  users:   {{protocol: flymq,   bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: s3cret-root}}}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", kafka: {{brokers: ["{brokers}"], prefix: "{prefix}", replication: 1}}}}
"""
PATIENCE = 120
VALUE = b"\0\xffvalue"


def gateway(kafka: Kafka, directory: Path, prefix: str) -> Served:
    directory.mkdir()
    return Served(directory, CONFIG.format(data=directory / "data", brokers=kafka.brokers, prefix=prefix))


@pytest.fixture(scope="module")
def gateways(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    directory = tmp_path_factory.mktemp("gateways")
    both = gateway(kafka, directory / "one", "both."), gateway(kafka, directory / "two", "both.")
    for one in both:
        one.start()
    try:
        yield both
    finally:
        for one in both:
            one.end(signal.SIGTERM)


PAIRS = [("flymq", "felix"), ("felix", "blipmq"), ("blipmq", "rustlog"), ("rustlog", "fujin"), ("fujin", "flymq")]


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
async def test_who_writes_at_one_reaches_who_reads_at_the_other(
    gateways: tuple[Served, Served], writer: str, reader: str
) -> None:
    address = f"pair.{writer}.{reader}"
    receiving, sending = CLIENTS[reader](), CLIENTS[writer]()
    with trio.fail_after(PATIENCE):
        async with (
            receiving.connect(gateways[1].ports[reader]) as read_wire,
            sending.connect(gateways[0].ports[writer]) as write_wire,
        ):
            await receiving.subscribe(read_wire, address)
            await sending.publish(write_wire, address, VALUE)
            await receiving.next(read_wire, address, VALUE)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.05)


def commit(topic: str, group: str, offset: int) -> bytes:
    return s16(topic) + s16(group) + i32(0) + u64(offset)


async def test_a_group_goes_on_at_the_other(gateways: tuple[Served, Served]) -> None:
    with trio.fail_after(PATIENCE):
        async with flymq(gateways[0].ports["flymq"]) as here, flymq(gateways[1].ports["flymq"]) as there:
            for number in range(5):
                await here.ask(1, produce("grouped", b"%d" % number))
            await here.ask(6, commit("grouped", "g", 3))

            async def followed() -> bool:
                return (await there.ask(5, s16("grouped") + s16("g") + i32(0) + s16("commit")))[:8] == u64(3)

            await until(followed)
            assert await there.values("grouped", 3) == [b"3", b"4"]


async def test_accounts_count_at_all(gateways: tuple[Served, Served]) -> None:
    from tests.integration.flymq_raw import user

    async def login(client, name: str, password: str) -> bool:
        return (await client.ask(0x70, s16(name) + s16(password)))[:1] == b"\1"

    with trio.fail_after(PATIENCE):
        async with flymq(gateways[0].ports["users"]) as root:
            assert await login(root, "root", "s3cret-root")
            await root.ask(0x73, user("ann", "ann-password", roles=["producer"]))
            while True:
                async with flymq(gateways[1].ports["users"]) as ann:
                    if await login(ann, "ann", "ann-password"):
                        break
                await trio.sleep(0.2)


async def test_both_are_members(gateways: tuple[Served, Served]) -> None:
    with trio.fail_after(PATIENCE):
        for one, other in (gateways, reversed(gateways)):
            own, others = (f"127.0.0.1:{each.ports['blipmq']}".encode() for each in (one, other))
            async with flymq(one.ports["flymq"]) as client:

                async def told() -> bool:
                    answer = await client.ask(0x52)
                    return own in answer and others in answer  # noqa: B023

                await until(told)


async def acknowledged(served: Served, topic: str, count: int) -> list[bytes]:
    """What was acknowledged of so many messages, until the gateway is gone."""
    good: list[bytes] = []
    try:
        async with flymq(served.ports["flymq"]) as client:
            for number in range(count):
                value = b"%06d" % number
                await client.wire.send(frame(1, produce(topic, value)))
                operation, _flags, _answer = await client.read()
                assert operation == 1
                good.append(value)
    except (trio.BrokenResourceError, trio.EndOfChannel, EOFError, AssertionError, OSError):
        pass
    return good


async def read_all(served: Served, topic: str) -> list[bytes]:
    """All values, by offset, over whatever gaps there are."""
    found: list[bytes] = []
    async with flymq(served.ports["flymq"]) as client:
        offset = 0
        while True:
            answer = await client.ask(7, s16(topic) + i32(0) + u64(offset) + i32(500))
            count, position = int.from_bytes(answer[:4], "big"), 4
            for _ in range(count):
                key = int.from_bytes(answer[position : position + 4], "big")
                position += 4 + key
                size = int.from_bytes(answer[position : position + 4], "big")
                found.append(answer[position + 4 : position + 4 + size])
                position += 4 + size + 8
            following = int.from_bytes(answer[position : position + 8], "big")
            if following <= offset:
                return found
            offset = following


async def has(served: Served, count: int) -> bool:
    return len(await read_all(served, "kept")) >= count


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_nothing_acknowledged_is_lost_with_a_gateway(kafka: Kafka, topics: str, tmp_path: Path, how: int) -> None:
    dying, staying = gateway(kafka, tmp_path / "dying", topics), gateway(kafka, tmp_path / "staying", topics)
    for one in (dying, staying):
        await trio.to_thread.run_sync(one.start)
    good: list[bytes] = []
    try:
        with trio.fail_after(PATIENCE):
            async with flymq(staying.ports["flymq"]) as client:
                await client.ask(3, s16("kept") + i32(1))
            async with trio.open_nursery() as nursery:

                async def publish() -> None:
                    good.extend(await acknowledged(dying, "kept", 100_000))

                nursery.start_soon(publish)
                await until(lambda: has(staying, 200))
                if how == signal.SIGKILL:
                    await trio.to_thread.run_sync(dying.end, how)
                else:
                    dying.send_signal(how)
                    before = await read_all(staying, "kept")
                    async with flymq(staying.ports["flymq"]) as client:  # the others go on meanwhile
                        await client.ask(1, produce("kept", b"other"))
                    dying.send_signal(signal.SIGCONT)
                    await until(lambda: has(staying, len(before) + 100))
                    await trio.to_thread.run_sync(dying.end, signal.SIGKILL)
            found = await read_all(staying, "kept")
    finally:
        for one in (dying, staying):
            if one.running:
                one.end(signal.SIGKILL)
    mine = [value for value in found if value != b"other"]
    assert mine[: len(good)] == good  # each once, in order
    assert len(mine) <= len(good) + 1  # the one that was under way


def takes_no_connection(error: BaseException) -> bool:
    """Over QUIC one that goes down says so: CONNECTION_REFUSED."""
    return isinstance(error, TargetError) and " refused the connection: transport error 0x2" in error.message


async def test_a_rolling_restart_loses_nothing_acknowledged(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Publishers of all five protocols, each message to a topic of its own, at whichever gateway takes it."""
    both = [gateway(kafka, tmp_path / name, topics) for name in ("one", "two")]
    for one in both:
        await trio.to_thread.run_sync(one.start)
    good: list[str] = []
    missed = 0

    async def publish(protocol: str) -> None:
        nonlocal missed
        for number in range(1_000):
            address = f"roll.{protocol}.{number}"
            try:
                with trio.fail_after(10):
                    client, port = CLIENTS[protocol](), both[number % 2].ports[protocol]
                    async with client.connect(port) as wire:
                        await client.publish(wire, address, VALUE)
                good.append(address)
            except* (OSError, EOFError, AssertionError, trio.TooSlowError, trio.BrokenResourceError):
                missed += 1
            except* TargetError as errors:
                if (others := errors.split(takes_no_connection)[1]) is not None:
                    raise others from None
                missed += 1

    try:
        with trio.fail_after(3 * PATIENCE):
            async with trio.open_nursery() as nursery:
                for protocol in CLIENTS:
                    nursery.start_soon(publish, protocol)

                async def each_has(count: int) -> bool:
                    return all(sum(f".{protocol}." in one for one in good) >= count for protocol in CLIENTS)

                await until(lambda: each_has(2))
                for one in both:
                    before = len(good)
                    assert await trio.to_thread.run_sync(one.end, signal.SIGTERM) == 0
                    await trio.to_thread.run_sync(one.start)

                    async def more(reached: int = before + 10) -> bool:
                        return len(good) >= reached

                    await until(more)
                nursery.cancel_scope.cancel()
            async with flymq(both[0].ports["flymq"]) as client:
                for address in good:
                    assert VALUE in await client.values(address), address
    finally:
        for one in both:
            if one.running:
                one.end(signal.SIGKILL)
    assert missed, "nobody met a gateway that was down: the restart was none"
