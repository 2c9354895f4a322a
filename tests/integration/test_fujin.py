"""Fujin against the real process: the ten rules of the stock client, and what a kill or a drain leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.transport.quic.aioquic_private import peer_certificates
from gateway.transport.quic.certificates import CERTIFICATE_NAME, KEY_NAME, self_signed
from gateway.transport.quic.limits import QuicLimits
from tests.integration.flymq_raw import flymq, i32, produce
from tests.integration.quic_raw import Streams, streams
from tests.integration.raw import felix_frame, s32
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  flymq:    {{protocol: flymq, bind: "127.0.0.1:0"}}
  both:     {{protocol: [felix, fujin], bind: "127.0.0.1:0", tls: {{cert: "{dir}/cert.pem", key: "{dir}/key.pem"}}, {patient}}}
  document: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, dialect: document, {patient}}}
  refused:  {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, max_deliveries: 3, backoff: 1ms..2ms, {patient}}}
  pinged:   {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, ping: {{interval: 50ms, timeout: 30s}}, fetch_wait: 200ms}}
  unheard:  {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, ping: {{interval: 50ms, timeout: 50ms}}}}
  named:
    protocol: fujin
    bind: "127.0.0.1:0"
    tls: self-signed
    readers: {{invoices: {{topic: billing.invoices, start: earliest}}}}
    {patient}
storage: {{path: "{dir}/data"}}
"""
PATIENT = "ping: {interval: 10m, timeout: 30s}"
"""No pings for clients that do not answer any, however slow the machine."""
CONNECT, OK = b"\1\0\0\0\0", b"\0"
GOODBYE = b"\x0a"


def certificate(directory: Path, name: str) -> None:
    """A new key and certificate in the files that the listener was given."""
    made = directory / name
    made.mkdir()
    self_signed(made)
    (directory / "key.pem").write_bytes((made / KEY_NAME).read_bytes())
    (directory / "cert.pem").write_bytes((made / CERTIFICATE_NAME).read_bytes())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module."""
    directory = tmp_path_factory.mktemp("fujin")
    certificate(directory, "first")
    served = Served(directory, CONFIG.format(dir=directory, patient=PATIENT))
    served.start()
    try:
        yield served
    finally:
        if served.running:
            served.end(signal.SIGKILL)


def write(cid: int, topic: str, value: bytes) -> bytes:
    return b"\3" + i32(cid) + s32(topic.encode()) + s32(value)


def error(text: str) -> bytes:
    return b"\1" + s32(text.encode())


def settle(op: int, cid: int, ids: list[bytes]) -> bytes:
    return bytes((op,)) + i32(cid) + i32(len(ids)) + b"".join(map(s32, ids))


async def replies(client: Streams, channel: int, *expected: bytes) -> None:
    for reply in expected:
        assert await client.read(channel, len(reply)) == reply


async def message(client: Streams, channel: int) -> tuple[bytes, bytes]:
    """(id, value) of a MSG with an id."""
    assert await client.read(channel, 1) == b"\6"
    got = [await client.read(channel, int.from_bytes(await client.read(channel, 4), "big")) for _ in range(2)]
    return got[0], got[1]


async def reader(client: Streams, topic: str, kind: int = 1, *, auto: bool = False) -> int:
    channel = client.open(bytes((2, kind, auto)) + s32(topic.encode()))
    assert await client.read(channel, 2) == b"\1\0"
    return channel


async def test_writers(gateway: Served):
    with trio.fail_after(30):
        async with streams(gateway.ports["both"], "fujin") as client, flymq(gateway.ports["flymq"]) as fly:
            channel = client.open(CONNECT + write(0, "w1", b"a") + write(0, "w1", b"b") + write(7, "w2", b"c"))
            got = sorted([await client.read(channel, 6) for _ in range(3)])
            assert got == [b"\2" + i32(0) + OK, b"\2" + i32(0) + OK, b"\2" + i32(7) + OK]
            client.send(channel, b"\4" + i32(1) + write(2, "w1", b"d") + write(3, "w2", b"e"))
            await replies(client, channel, b"\3" + i32(1) + OK)
            assert {await client.read(channel, 6) for _ in range(2)} == {b"\2" + i32(n) + OK for n in (2, 3)}
            assert await fly.values("w1") == [b"a", b"b"]
            client.send(channel, b"\4" + i32(4))
            await replies(client, channel, b"\3" + i32(4) + error("invalid tx state"))
            client.send(channel, b"\5" + i32(5) + b"\5" + i32(6))
            await replies(client, channel, b"\4" + i32(5) + OK, b"\4" + i32(6) + error("invalid tx state"))
            assert await fly.values("w1") == [b"a", b"b", b"d"]
            assert await fly.values("w2") == [b"c", b"e"]
            client.send(channel, b"\4" + i32(7) + write(8, "w1", b"never") + b"\6" + i32(9))
            await replies(client, channel, b"\3" + i32(7) + OK, b"\2" + i32(8) + OK, b"\5" + i32(9) + OK)
            client.send(channel, write(10, "w1", b"f") * 100 + GOODBYE)
            assert await client.rest(channel) == (b"\2" + i32(10) + OK) * 100 + GOODBYE
            assert await fly.values("w1") == [b"a", b"b", b"d"] + [b"f"] * 100
            # streams that go wrong, each by itself
            for sent, got in (
                (b"\x0a", b""),
                (b"\x0b", b""),
                (b"\x63", b""),
                (CONNECT + b"\x07", GOODBYE),
                (CONNECT + CONNECT, GOODBYE),
                (CONNECT + write(1, "", b"x"), b"\2" + i32(1) + error("writer topic len arg not provided") + GOODBYE),
                (CONNECT + write(1, "w", b""), b"\2" + i32(1) + error("write size arg not provided") + GOODBYE),
                (b"\2\3", error("invalid reader type")),
                (b"\2\1\2", error("connect reader is auto commit arg invalid")),
                (b"\2\1\1\0\0\0\0", error("reader name size arg not provided")),
            ):
                channel = client.open(sent)
                if sent[:1] == b"\2":
                    got = b"\1" + got
                assert await client.rest(channel) == got, sent
            channel = client.open(CONNECT + write(1, "a/../b", b"x") + write(2, "w1", bytes(3_000_000)), end=True)
            answer = await client.rest(channel)
            assert answer.startswith(b"\2" + i32(1) + b"\1")
            assert answer.endswith(b"\2" + i32(2) + OK + GOODBYE), answer
            channel = client.open(CONNECT + b"\4" + i32(1) + write(2, "w1", b"never") + b"\xff\xfe" + b"\0")
            await replies(client, channel, b"\3" + i32(1) + OK, b"\2" + i32(2) + OK)
            client.link.reset(channel, 0)
            client.link.flush()
            assert (await fly.values("w1"))[-1] == bytes(3_000_000)
        async with streams(gateway.ports["document"], "fujin") as client:
            headers = b"\0\2" + s32(b"k") + s32(b"v")
            channel = client.open(b"\1\0\0\0\1" + b"\3" + i32(1) + s32(b"doc") + headers + s32(b"hello") + GOODBYE)
            assert await client.rest(channel) == b"\2" + i32(1) + OK + GOODBYE


async def test_what_is_answered_with_nack_ends_in_the_dead_letters(gateway: Served):
    """Fujin wire 1.4, NACK: three deliveries, then a letter, and the next message."""
    with trio.fail_after(30):
        async with streams(gateway.ports["refused"], "fujin") as client:
            letters = await reader(client, "poison.dlq", auto=True)
            channel = await reader(client, "poison")
            writer = client.open(CONNECT + write(1, "poison", b"bad"))
            await replies(client, writer, b"\2" + i32(1) + OK)
            for cid in range(3):
                name, value = await message(client, channel)
                assert value == b"bad"
                client.send(channel, settle(9, cid, [name]))
                await replies(client, channel, b"\x09" + i32(cid) + OK + i32(1) + s32(name) + OK)
            await replies(client, letters, b"\6" + s32(b"bad"))
            client.send(writer, write(2, "poison", b"good"))
            assert (await message(client, channel))[1] == b"good"


async def test_push_readers(gateway: Served):
    with trio.fail_after(30):
        async with flymq(gateway.ports["flymq"]) as fly, streams(gateway.ports["both"], "fujin") as client:
            channel = await reader(client, "push")
            for value in (b"one", b"two", b"", b"x"):  # nothing is pushed that has no bytes
                await fly.ask(1, produce("push", value))
            ids, values = zip(*[await message(client, channel) for _ in range(3)], strict=True)
            assert values == (b"one", b"two", b"x")
            assert all(ids)
            client.send(channel, settle(8, 1, [ids[1], b"unheard"]))
            head = b"\x08" + i32(1) + OK + i32(2) + s32(ids[1]) + OK + s32(b"unheard") + error("no such id")
            await replies(client, channel, head)
            client.send(channel, settle(8, 2, []))
            await replies(client, channel, b"\x08" + i32(2) + OK + i32(0))
            never = ids[1][:-8] + bytes(6) + b"\xff\xff"  # one of ours, of a message that was not given out
            for op in (
                8,
                9,
            ):  # what is settled is as unknown as that, and neither keeps another from being settled (wire 1.4)
                client.send(channel, settle(op, 7, [ids[1], never]))
                unknown = s32(ids[1]) + error("no such id") + s32(never) + error("no such id")
                await replies(client, channel, bytes((op,)) + i32(7) + OK + i32(2) + unknown)
            client.send(channel, settle(9, 3, [ids[0]]))
            await replies(client, channel, b"\x09" + i32(3) + OK + i32(1) + s32(ids[0]) + OK)
            again = await message(client, channel)
            assert again[1] == b"one"
            client.send(channel, settle(8, 4, [again[0]]) + GOODBYE)
            end = await client.rest(channel)
            assert end == b"\x08" + i32(4) + OK + i32(1) + s32(again[0]) + OK + GOODBYE
            letters = i32(0)
            while letters[:4] == i32(0):  # its commit is nobody's reply
                letters = await fly.ask(0x20, b"\0\4push" + i32(10))
            assert letters[:4] == i32(1), "the empty one"
        async with streams(gateway.ports["both"], "fujin") as client:  # "x" was never settled
            channel = await reader(client, "push")
            assert (await message(client, channel))[1] == b"x"
        async with streams(gateway.ports["both"], "fujin") as client:  # nor was it now: the connection went
            channel = await reader(client, "push")
            last = await message(client, channel)
            assert last[1] == b"x"
            client.send(channel, settle(8, 1, [last[0]]) + GOODBYE)
            await client.rest(channel)
            channel = await reader(client, "push", auto=True)
            await fly_more(gateway, b"new")
            assert await client.read(channel, 8) == b"\6" + s32(b"new")


async def fly_more(gateway: Served, value: bytes) -> None:
    async with flymq(gateway.ports["flymq"]) as fly:
        await fly.ask(1, produce("push", value))


async def test_streams_that_are_not_read_delay_no_other_of_their_connection(gateway: Served):
    """Twenty readers that grant no more credit; a twenty-first and a writer share their connection."""
    values = [b"%06d" % number + bytes(16_000) for number in range(60)]
    with trio.fail_after(60):
        limits = QuicLimits(stream_window=20_000)
        async with streams(gateway.ports["both"], "fujin", limits=limits) as client:
            slow = [await reader(client, f"jam{number}", auto=True) for number in range(20)]
            quick = await reader(client, "jam", auto=True)
            for channel in slow:
                client.link.pause(channel)
            writer = client.open(CONNECT)
            for cid, value in enumerate(values):
                for number in range(20):
                    client.send(writer, write(cid, f"jam{number}", value))
                client.send(writer, write(cid, "jam", value))
                await replies(client, writer, *[b"\2" + i32(cid) + OK] * 21)
                assert await client.read(quick, 5 + len(value)) == b"\6" + s32(value)
            for channel in slow:  # and none of them has missed anything
                client.link.resume(channel)
                for value in values:
                    assert await client.read(channel, 5 + len(value)) == b"\6" + s32(value)


async def test_pull_readers_and_pings(gateway: Served):
    with trio.fail_after(30):
        async with flymq(gateway.ports["flymq"]) as fly, streams(gateway.ports["both"], "fujin") as client:
            channel = await reader(client, "pull", 2)
            client.send(channel, b"\7" + i32(1) + i32(0))
            await replies(client, channel, b"\7" + i32(1) + error("fetch arg not provided"))
            client.send(channel, b"\7" + i32(2) + i32(5))
            for value in (b"one", b"two"):
                await fly.ask(1, produce("pull", value))
            head = await client.read(channel, 10)
            assert head[:6] == b"\7" + i32(2) + OK
            assert 1 <= int.from_bytes(head[6:], "big") <= 2
            push = await reader(client, "elsewhere")
            client.send(push, b"\7" + i32(1) + i32(1))
            await replies(client, push, b"\7" + i32(1) + error("invalid reader type"))
        async with streams(gateway.ports["pinged"], "fujin") as client:  # pings that are answered; a FETCH that is not
            channel = await reader(client, "quiet", 2, auto=True)
            client.send(channel, b"\7" + i32(1) + i32(1))
            for number in range(4):
                ping = await client.incoming()
                assert await client.rest(ping) == b"\x0b"
                client.send(ping, b"\x0b" if number % 2 else b"", end=True)
            assert (await client.read(channel, 6)) == b"\7" + i32(1) + b"\1"
        async with streams(gateway.ports["unheard"], "fujin") as client:  # and one that is not
            client.open(b"\2\2\1" + s32(b"quiet"))
            await client.until(lambda: client.gone)
            assert client.link.core.end == (3, True, "read: deadline exceeded")
        async with streams(gateway.ports["named"], "fujin") as client, flymq(gateway.ports["flymq"]) as fly:
            await fly.ask(1, produce("billing.invoices", b"before"))
            channel = client.open(b"\2\2\1" + s32(b"other"))
            assert await client.rest(channel) == b"\1" + error("reader not found")
            channel = await reader(client, "invoices", 2, auto=True)
            client.send(channel, b"\7" + i32(1) + i32(10))
            await replies(client, channel, b"\7" + i32(1) + OK + i32(1) + s32(b"before"))


async def test_one_port_a_new_certificate_and_the_end(gateway: Served):
    port = gateway.ports["both"]
    with trio.fail_after(40):
        async with streams(port, None) as felix, streams(port, "fujin") as fujin:
            publish = {"type": "publish", "tenant_id": "t1", "namespace": "default", "stream": "one", "payload": "YQ=="}
            channel = await reader(fujin, "one", auto=True)
            assert (await felix.said(felix.open(felix_frame(publish)))) == {"type": "ok"}
            assert await fujin.read(channel, 6) == b"\6" + s32(b"a")
            before = peer_certificates(fujin.link.core)[0]
            certificate(gateway.data.parent, "second")
            after = before
            while after == before:
                async with streams(port, "fujin") as fresh:
                    after = peer_certificates(fresh.link.core)[0]
            writer = fujin.open(CONNECT + b"\4" + i32(1) + write(2, "one", b"never"))
            await replies(fujin, writer, b"\3" + i32(1) + OK, b"\2" + i32(2) + OK)
            gateway.send_signal(signal.SIGTERM)
            assert await fujin.read(writer, 1) == await fujin.read(channel, 1) == b"\x0c"
            fujin.send(writer, b"\5" + i32(3) + GOODBYE)  # commands are still served
            assert await fujin.rest(writer) == b"\4" + i32(3) + OK + GOODBYE
            await fujin.read(channel, len(b"\6" + s32(b"never")))
            fujin.send(channel, GOODBYE)
            assert await fujin.rest(channel) == GOODBYE
            await fujin.until(lambda: fujin.gone)
        assert await trio.to_thread.run_sync(gateway.end, 0) == 0
