"""Fujin 0.5 and v1 against the real process: the bytes of wire 6.2, and what the log and other protocols make of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio

from gateway.protocols.fujin.wire.bound_client import decode_bound, decode_envelope
from gateway.protocols.fujin.wire.bound_frames import Failure
from gateway.protocols.fujin.wire.codec import Incomplete
from tests.integration.flymq_raw import flymq, produce
from tests.integration.quic_raw import Streams, streams
from tests.integration.raw import Fujin, Fujin05, s32
from tests.integration.running import Served
from tests.protocols.script import hexed

CONFIG = """
version: 1
listeners:
  flymq:  {{protocol: flymq, bind: "127.0.0.1:0"}}
  fujin:  {{protocol: [fujin, felix], bind: "127.0.0.1:0", tls: self-signed, {patient}}}
  pinged: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, ping: {{interval: 50ms, timeout: 30s}}, fetch_wait: 100ms}}
  keyed:
    protocol: fujin
    bind: "127.0.0.1:0"
    tls: self-signed
    auth: {{api_keys: [secret]}}
    connectors: {{shop: {{topics: [orders, returns]}}}}
    {patient}
storage: {{path: "{dir}/data"}}
topics: {{returns: {{durability: memory}}}}
"""
PATIENT = "ping: {interval: 10m, timeout: 30s}"
HELLO = hexed("00 01 01 01 00000001 74 00000001 30")
GREETED = hexed("13 00 01 01 00000007 67617465776179")
BIND = hexed("01 00000003 6d656d 0000 0000")
PRODUCE = hexed("02 00000001 00000003 707562 00000005 68656c6c6f")
BYE, LEFT = b"\x0e", b"\x0f"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module."""
    directory = tmp_path_factory.mktemp("bound")
    served = Served(directory, CONFIG.format(dir=directory, patient=PATIENT))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


async def replies(client: Streams, channel: int, *expected: str) -> None:
    for reply in map(hexed, expected):
        assert await client.read(channel, len(reply)) == reply


async def bound(client: Streams, channel: int) -> tuple[Failure | None, list[str]]:
    """What BIND was answered."""
    data = b""
    while True:
        try:
            failure, routes, _ = decode_bound(data, 0)
            return failure, [f"{one.name} {one.can:02x} {one.guarantee}" for one in routes]
        except Incomplete as error:
            data += await client.read(channel, error.wanted - len(data))


async def failure(client: Streams, channel: int, head: str) -> tuple[int, int, str]:
    await replies(client, channel, head)
    data, found = b"", None
    while found is None:
        try:
            found, _ = decode_envelope(data, 0)
        except Incomplete as error:
            data += await client.read(channel, error.wanted - len(data))
    return found.code, found.applied, found.reason


async def session(client: Streams) -> int:
    channel = client.open(HELLO + BIND)
    assert await client.read(channel, len(GREETED)) == GREETED
    assert (await bound(client, channel))[0] is None
    return channel


async def test_what_is_produced_is_in_the_log(gateway: Served):
    with trio.fail_after(30):
        async with streams(gateway.ports["fujin"], "fujin") as client, flymq(gateway.ports["flymq"]) as fly:
            channel = await session(client)
            client.send(channel, PRODUCE * 2)
            await replies(client, channel, "03 00000001 00" * 2)
            assert await fly.values("pub") == [b"hello"] * 2
            client.send(channel, hexed("04 00000004 00000003 707562 0f 00000006 00000003 747831"))
            await replies(client, channel, "05 00000004 00", "11 00000006 00")
            assert await fly.values("pub") == [b"hello"] * 2
            client.send(channel, hexed("10 00000007 0002 00000001 61 00000001 62 00000003 747832 05 00000008"))
            await replies(client, channel, "12 00000007 00", "06 00000008 00")
            assert await fly.values("pub") == [b"hello", b"hello", b"tx1", b"tx2"]
            client.send(channel, hexed("04 00000001 00000003 707562 0f 00000002 00000001 78") + PRODUCE)
            await replies(client, channel, "05 00000001 00", "11 00000002 00", "0f")  # that is no command inside one
            assert await client.rest(channel) == b""
            assert await fly.values("pub") == [b"hello", b"hello", b"tx1", b"tx2"]
            channel = await session(client)
            client.send(channel, hexed("02 00000003 00000006 612f2e2e2f62 00000001 78"))
            assert (await failure(client, channel, "03 00000003"))[1:] == (1, "INVALID_ARGUMENT")
            client.send(channel, PRODUCE + BYE)
            assert await client.rest(channel) == hexed("03 00000001 00") + LEFT


async def test_what_is_read(gateway: Served):
    with trio.fail_after(30):
        async with streams(gateway.ports["fujin"], "fujin") as client, flymq(gateway.ports["flymq"]) as fly:
            channel = await session(client)
            client.send(channel, hexed("0c 00000003 00 00000003 737562"))
            await replies(client, channel, "02 00000003 00 00")
            await fly.ask(1, produce("sub", b"m1", b"K"))
            key = "0002 0000000d 782d676174657761792d6b6579 00000001 4b"
            first = "00000009 01 00000001 00000001"
            await replies(client, channel, f"09 00 {key} {first} 00000002 6d31")
            client.send(channel, hexed(f"0a 00000005 00 00000001 {first}"))  # NACK: again, with an id of its own
            await replies(client, channel, f"0d 00000005 00 00000001 {first} 00")
            again = "00000009 01 00000001 00000002"
            await replies(client, channel, f"09 00 {key} {again} 00000002 6d31")
            client.send(channel, hexed(f"09 00000005 00 00000001 {first}"))
            assert await failure(client, channel, "0c 00000005") == (3, 1, "INVALID_MESSAGE_ID")
            client.send(channel, hexed(f"09 00000006 00 00000001 {again}") + hexed("0d 00000007 00"))
            await replies(client, channel, f"0c 00000006 00 00000001 {again} 00", "0e 00000007 00")
            for value in (b"m2", b"m3"):
                await fly.ask(1, produce("sub", value))
            client.send(channel, hexed("07 00000001 01 00000003 737562 00000001"))
            await replies(client, channel, "0a 00000001 00 00 00000001 00000002 6d32")
            client.send(channel, hexed("08 00000002 00 00000003 737562 00000009"))
            await replies(
                client, channel, "0b 00000002 00 01 00000001 0000 00000009 01 00000003 00000001 00000002 6d33"
            )
            client.send(channel, BYE)
            assert await client.rest(channel) == LEFT
        async with streams(gateway.ports["fujin"], "fujin") as client:  # what was not settled is there for the next
            channel = client.open(hexed("02 02 01 00000003 737562"))
            await replies(client, channel, "01 00")
            client.send(channel, hexed("07 00000001 00000005"))
            await replies(client, channel, "07 00000001 00 00000001 00000002 6d33")


async def test_v1_and_those_before_it(gateway: Served):
    with trio.fail_after(30):
        async with streams(gateway.ports["fujin"], "fujin/1") as client:
            channel = client.open(BIND)
            assert (await bound(client, channel))[0] is None
            client.send(channel, PRODUCE + BYE)
            assert await client.rest(channel) == hexed("03 00000001 00") + LEFT
            assert await client.rest(client.open(HELLO)) == b""
            assert await client.rest(client.open(hexed("01 00000000 03 00000001"))) == LEFT
            said = await client.rest(client.open(hexed("01 0000")))
            assert said.startswith(hexed("10 01"))
            assert said.endswith(LEFT)


async def test_connectors_and_keys(gateway: Served):
    key = hexed("0001 00000007 6170695f6b6579 00000006 736563726574 0000")
    with trio.fail_after(30):
        async with streams(gateway.ports["keyed"], "fujin") as client:
            channel = client.open(HELLO + b"\1" + s32(b"other") + key)
            assert await client.read(channel, len(GREETED)) == GREETED
            found, _ = await bound(client, channel)
            assert found is not None
            assert found.reason == "CONNECTOR_NOT_FOUND"
            client.send(channel, b"\1" + s32(b"shop") + bytes(4))
            found, _ = await bound(client, channel)
            assert found is not None
            assert (found.code, found.applied) == (16, 1)
            client.send(channel, b"\1" + s32(b"shop") + key)
            assert await bound(client, channel) == (None, ["orders 3f 3", "returns 3f 2"])
            client.send(channel, PRODUCE)
            assert await failure(client, channel, "03 00000001") == (5, 1, "ROUTE_NOT_FOUND")
            client.send(channel, hexed("02 00000002 00000006 6f7264657273 00000001 78"))
            await replies(client, channel, "03 00000002 00")
        async with streams(gateway.ports["keyed"], "fujin") as client:
            channel = client.open(HELLO + hexed("01 00000004 73686f70 0001 00000007 6170695f6b6579 00000001 6b 0000"))
            await client.read(channel, len(GREETED))
            found, _ = await bound(client, channel)
            assert found is not None
            assert found.reason == "UNAUTHENTICATED"


async def test_pings_have_to_be_answered_exactly(gateway: Served):
    with trio.fail_after(60):
        async with streams(gateway.ports["pinged"], "fujin") as client:
            channel = await session(client)
            for answer in (b"\x63", b"\x63"):
                ping = await client.incoming()
                assert await client.rest(ping) == b"\x63"
                client.send(ping, answer, end=True)
            client.send(channel, hexed("07 00000001 00 00000003 707562 00000001"))
            for answer in (b"", b"\x0b", b"\x63\x63"):
                ping = await client.incoming()
                client.send(ping, answer, end=True)
            await client.until(lambda: client.gone)
            code, application, reason = client.link.core.end or (0, False, "")
            assert (code, application) == (1, True)
            assert reason.startswith("ping failed after retries")


@pytest.mark.parametrize("client", [Fujin(), Fujin05()])
async def test_the_client_of_other_rooms_stays_for_as_long_as_it_is_asked(gateway: Served, client: Fujin | Fujin05):
    """It waits for what others do, on a busy machine longer than a client may be silent."""
    address, value = f"late.{type(client).__name__}", b"late"
    with trio.fail_after(120):
        async with client.connect(gateway.ports["pinged"]) as wire, client.connect(gateway.ports["fujin"]) as writer:
            await client.subscribe(wire, address)
            await wire.asked(5)
            await client.publish(writer, address, value)
            await client.next(wire, address, value)
