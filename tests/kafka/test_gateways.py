"""Two gateways as processes in front of one Kafka: what is done at one counts at the other, and for other clients of Kafka."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Publish
from gateway.transport.client import connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials
from tests.integration.flymq_raw import ERROR, Flymq, commit, flymq, frame, i32, produce, s8, u64, user
from tests.integration.gateways import gateways, until
from tests.integration.raw import CLIENTS, s16, s32
from tests.integration.running import Served
from tests.kafka.connect import SINK, SOURCE, WORKER, working
from tests.kafka.fixtures import Log
from tests.kafka.foreign import everything, kcat, make
from tests.kafka.node import Kafka

PATIENCE = 120
VALUE = b"\0\xffvalue"


@pytest.fixture(scope="module")
def both(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    with gateways(Log(kafka, "both."), tmp_path_factory.mktemp("gateways"), "one", "two") as (one, two):
        yield one, two


async def test_a_group_goes_on_at_the_other(both: tuple[Served, Served]) -> None:
    with trio.fail_after(PATIENCE):
        async with flymq(both[0].ports["flymq"]) as here, flymq(both[1].ports["flymq"]) as there:
            for number in range(5):
                await here.ask(1, produce("grouped", b"%d" % number))
            await here.ask(6, commit("grouped", "g", 3))

            async def followed() -> bool:
                return (await there.ask(5, s16("grouped") + s16("g") + i32(0) + s16("commit")))[:8] == u64(3)

            await until(followed)
            assert await there.values("grouped", 3) == [b"3", b"4"]


async def test_accounts_and_schemas_count_at_all(both: tuple[Served, Served]) -> None:
    """Also for who is connected already. What decides how soon is in test_many_gateways."""

    async def login(client: Flymq, name: str, password: str) -> None:
        assert (await client.ask(0x70, s16(name) + s16(password)))[:1] == b"\1"

    with trio.fail_after(PATIENCE):
        here, there = (one.ports["users"] for one in both)
        async with flymq(here) as root, flymq(there) as looking, flymq(there) as ann:
            await login(root, "root", "s3cret-root")
            await login(looking, "root", "s3cret-root")

            async def lists(operation: int, name: str) -> bool:
                return name.encode() in await looking.ask(operation)

            await root.ask(0x73, user("ann", "ann-password", roles=["admin"]))
            await until(lambda: lists(0x76, "ann"))
            await login(ann, "ann", "ann-password")
            await ann.ask(0x76)
            await root.ask(0x10, s16("person") + s8("json") + s32(b"{}"))
            await until(lambda: lists(0x12, "person"))
            await root.ask(0x75, user("ann", enabled=False))

            async def refused() -> bool:
                await ann.wire.send(frame(0x76))
                return (await ann.read())[0] == ERROR

            await until(refused)


async def test_both_are_members(both: tuple[Served, Served]) -> None:
    with trio.fail_after(PATIENCE):
        for one, other in (both, reversed(both)):
            own, others = (f"127.0.0.1:{each.ports['blipmq']}".encode() for each in (one, other))
            async with flymq(one.ports["flymq"]) as client:

                async def told() -> bool:
                    answer = await client.ask(0x52)
                    return own in answer and others in answer  # noqa: B023

                await until(told)


@pytest.mark.parametrize("name", CLIENTS)
async def test_another_client_of_kafka_reads_what_was_written(
    both: tuple[Served, Served], kafka: Kafka, name: str
) -> None:
    address, client = f"kcat.reads.{name}", CLIENTS[name]()
    with trio.fail_after(PATIENCE):
        async with client.connect(both[0].ports[name]) as writer:
            await client.publish(writer, address, VALUE)
        # how long the value is, and not a sign between it and the headers: what is in those may be any bytes, such as the time
        reading = ("-C", "-t", f"both.{address}", "-o", "beginning", "-e", "-f", "%T|%S|%h%s")
        time_ms, size, rest = (await trio.to_thread.run_sync(kcat, kafka, *reading)).split(b"|", 2)
    headers, value = rest[: -int(size)], rest[-int(size) :]
    assert value == VALUE
    assert int(time_ms) > 1_700_000_000_000
    assert b'gw.origin={"protocol":"%s"' % name.encode() in headers


@pytest.mark.parametrize("name", CLIENTS)
async def test_what_another_client_of_kafka_writes_is_read(
    both: tuple[Served, Served], kafka: Kafka, name: str
) -> None:
    address, client = f"kcat.writes.{name}", CLIENTS[name]()
    await trio.to_thread.run_sync(make, kafka, f"both.{address}")
    with trio.fail_after(PATIENCE):
        async with client.connect(both[1].ports[name]) as reader:
            await client.subscribe(reader, address)
            await trio.to_thread.run_sync(
                functools.partial(kcat, kafka, "-P", "-t", f"both.{address}", given=b"theirs")
            )
            await client.next(reader, address, b"theirs")


async def publish_all(served: Served, name: str, address: str, values: list[bytes]) -> None:
    """By the gateway's own client of this protocol, each in a batch of its own."""
    tls = ClientTls(insecure=True) if protocol(name).transport is Transport.QUIC else None
    context = ClientContext(credentials=Credentials(api_key="dev-key" if name == "blipmq" else ""))
    async with connect(protocol(name), "127.0.0.1", served.ports[name], tls=tls, context=context) as connection:
        for value in values:
            await connection.request(Publish(0, Batch(address, Columns.of([value]))), timeout=PATIENCE)


def told_apart(kafka: Kafka, topic: str) -> dict[int, list[str]]:
    """The values of each partition, in order, as librdkafka reads them."""
    found: dict[int, list[str]] = {}
    for message in everything(kafka, topic):
        found.setdefault(message.partition(), []).append(message.value().decode())
    return found


async def test_kafka_connect_reads_what_was_written_and_writes_what_is_read(
    both: tuple[Served, Served], kafka: Kafka, tmp_path: Path
) -> None:
    """One worker with both of Kafka's own connectors: topics into a file, and a file into a topic."""
    written = {name: [f"{name} {number}" for number in range(20)] for name in CLIENTS}
    topics = {name: f"both.connect.reads.{name}" for name in CLIENTS}
    into, out_of, address = tmp_path / "into.txt", tmp_path / "out-of.txt", "connect.writes"
    for topic in topics.values():
        await trio.to_thread.run_sync(make, kafka, topic, 2)
    await trio.to_thread.run_sync(make, kafka, f"both.{address}")
    changes = {
        WORKER: {"bootstrap.servers": kafka.brokers, "offset.storage.file.filename": str(tmp_path / "offsets")},
        SINK: {"topics": ",".join(topics.values()), "file": str(into)},
        SOURCE: {"topic": f"both.{address}", "file": str(out_of)},
    }
    with trio.fail_after(2 * PATIENCE), working(tmp_path, changes) as worker:
        async with AsyncExitStack() as connections:
            readers = [(CLIENTS[name](), both[1].ports[name]) for name in CLIENTS]
            wires = [await connections.enter_async_context(client.connect(port)) for client, port in readers]
            for (client, _port), wire in zip(readers, wires, strict=True):
                await client.subscribe(wire, address)
            for name, values in written.items():
                await publish_all(both[0], name, f"connect.reads.{name}", [value.encode() for value in values])
            out_of.write_bytes(b"a line of a file\n")
            for (client, _port), wire in zip(readers, wires, strict=True):
                await client.next(wire, address, b"a line of a file")

        async def all_there() -> bool:
            worker.look()
            return into.exists() and into.read_text().count("\n") >= sum(map(len, written.values()))

        await until(all_there)
    lines = into.read_text().splitlines()
    assert sorted(lines) == sorted(itertools.chain(*written.values()))  # each once
    for name, topic in topics.items():
        partitions = await trio.to_thread.run_sync(told_apart, kafka, topic)
        assert sorted(itertools.chain(*partitions.values())) == sorted(written[name])
        for values in partitions.values():
            assert [line for line in lines if line in values] == values
