"""Every kind of stream of Felix and of Fujin, from quic-go, over what networks do. What is sent and expected are bytes of the
protocols' own documents and captures.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.wire.session import Kind
from tests.integration.inside import gateway, stored
from tests.quic.foreign.quicgo import ForeignStreams, quic_go_streams
from tests.quic.foreign.relay import Relay, relayed

CONFIG = """
version: 1
listeners:
  both:
    protocol: [felix, fujin]
    bind: "127.0.0.1:0"
    tls: self-signed
    ping: {{interval: {ping}, timeout: 30s}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""
PATIENCE = 120
"""Seconds for a script: it takes one or two, and must not fail on a machine that has other things to do."""


@attrs.frozen
class Trial:
    """What a connection has to bear, and how its report shows that it did."""

    options: Sequence[str] = ()
    loss: float = 0.0
    disorder: float = 0.0
    double: float = 0.0
    moves: bool = False
    shown: Callable[[dict[str, Any]], bool] = lambda report: True


TRIALS = {
    "plain": Trial(shown=lambda report: report["version"] == "0x1" and report["negotiations"] == 0),
    "ids switched": Trial(["-ids", "8"], shown=lambda report: report["retired"] > 3 and report["named"] > 4),
    "loss": Trial(loss=0.1, shown=lambda report: report["lost"] > 0),
    "disorder": Trial(["-ids", "4"], disorder=0.3, double=0.1, shown=lambda report: report["retired"] > 3),
    "moves": Trial(["-ids", "8"], moves=True, shown=lambda report: report["challenged"] > 0),
    "moves without ids": Trial(["-ids", "0"], moves=True, shown=lambda report: report["challenged"] > 0),
    "keys updated": Trial(["-keys", "10"], shown=lambda report: report["key_updates"] > 2),
    "version negotiated": Trial(["-versions", "ff00001d,1"], shown=lambda report: report["negotiations"] == 1),
    "everything": Trial(
        ["-ids", "8", "-keys", "15", "-versions", "709a50c4,1"],
        loss=0.05,
        disorder=0.1,
        double=0.05,
        moves=True,
        shown=lambda report: min(report[what] for what in ("retired", "challenged", "key_updates", "lost")) > 0,
    ),
}
AUTH = bytes.fromhex(
    "464c583100010000000000357b2274797065223a2261757468222c2274656e616e745f6964223a227431222c22746f6b656e223a2264656d6f2d746f6b656e227d"
)
OK = bytes.fromhex("464c5831000100000000000d7b2274797065223a226f6b227d")
SUBSCRIBE = bytes.fromhex(
    "464c5831000100000000004b7b2274797065223a22737562736372696265222c2274656e616e745f6964223a227431222c226e616d657370616365223a"
    "2264656661756c74222c2273747265616d223a2264656d6f227d"
)
PUBLISH = bytes.fromhex(
    "464c583100010000000000817b2274797065223a227075626c697368222c2274656e616e745f6964223a227431222c226e616d657370616365223a2264"
    "656661756c74222c2273747265616d223a2264656d6f222c227061796c6f6164223a22614756736247383d222c22726571756573745f6964223a312c22"
    "61636b223a227065725f6d657373616765227d"
)
PUBLISH_OK = bytes.fromhex(
    "464c583100010000000000247b2274797065223a227075626c6973685f6f6b222c22726571756573745f6964223a317d"
)
BATCH = bytes.fromhex("464c5831000100010000002100027431000764656661756c74000464656d6f0000000200000001610000000162")
CACHE_PUT = bytes.fromhex(
    "464c5831000100000000008e7b2274797065223a2263616368655f707574222c2274656e616e745f6964223a227431222c226e616d657370616365223a"
    "2264656661756c74222c226361636865223a227072696d617279222c226b6579223a2264656d6f2d6b6579222c2276616c7565223a225932466a614756"
    "6b222c22726571756573745f6964223a312c2274746c5f6d73223a313030307d"
)
CACHE_OK = b'FLX1\0\1\0\0\0\0\0\x22{"type":"cache_ok","request_id":1}'
PUB_HELLO = bytes.fromhex("03000000010000000370756200000005" + b"hello".hex())
WRITTEN = bytes.fromhex("020000000100")


def trials(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trial", [pytest.param(TRIALS[name], id=name.replace(" ", "-")) for name in names])


@attrs.define
class Stage:
    """A gateway, a foreign client of it, and what stands in between."""

    client: ForeignStreams
    relay: Relay
    trial: Trial
    flymq: int

    def onward(self) -> None:
        """Between two steps: where a trial wants the client elsewhere, it goes there."""
        if self.trial.moves:
            self.relay.move()

    async def expect(self, channel: int, *expected: bytes) -> None:
        for piece in expected:
            got = await self.client.read(channel, len(piece))
            assert got == piece


@asynccontextmanager
async def stage(
    quic_go: Path, directory: Path, alpn: str | None, trial: Trial, ping: str = "10m"
) -> AsyncIterator[Stage]:
    with trio.fail_after(PATIENCE):
        async with (
            gateway(CONFIG.format(data=directory, ping=ping)) as served,
            relayed(served.ports["both"], loss=trial.loss, disorder=trial.disorder, double=trial.double) as relay,
            quic_go_streams(quic_go, relay.port, alpn, trial.options) as client,
        ):
            yield Stage(client, relay, trial, served.ports["flymq"])
            assert not client.gone, client.why
            report = await client.report()
            assert trial.shown(report), report


async def events(client: ForeignStreams, channel: int, subscription: int, count: int) -> list[bytes]:
    """The values of so many events in binary batches (0x0002)."""
    values: list[bytes] = []
    while len(values) < count:
        flags, payload = await client.felix(channel)
        known_as, size = struct.unpack_from(">QI", payload)
        assert (flags, known_as) == (2, subscription)
        at = 12
        for _ in range(size):
            (length,) = struct.unpack_from(">I", payload, at)
            values.append(payload[at + 4 : at + 4 + length])
            at += 4 + length
        assert at == len(payload)
    return values


@trials(*TRIALS)
async def test_felix(quic_go: Path, tmp_path: Path, trial: Trial) -> None:
    async with stage(quic_go, tmp_path, None, trial) as play:
        client = play.client
        control = client.open(AUTH + SUBSCRIBE, end=True)
        await play.expect(control, OK)
        answer = await client.said(control)
        number = answer["subscription_id"]
        assert isinstance(number, int)
        assert await client.rest(control) == b""
        following = await client.incoming()
        assert await client.said(following) == {"type": "event_stream_hello", "subscription_id": number}
        assert following % 4 == 3  # the server's, and one-way

        play.onward()
        publishing = client.open(AUTH + PUBLISH)
        await play.expect(publishing, OK, PUBLISH_OK)
        assert await events(client, following, number, 1) == [b"hello"]

        play.onward()
        for _ in range(50):  # one at a time, so that ids and keys have a reason to change
            client.send(publishing, PUBLISH)
            await play.expect(publishing, PUBLISH_OK)
        assert await events(client, following, number, 50) == [b"hello"] * 50

        play.onward()
        one_way = client.open(AUTH + BATCH * 100, Kind.WRITE_ONLY, end=True)
        assert await events(client, following, number, 200) == [b"a", b"b"] * 100
        assert one_way not in client.unread

        play.onward()
        large = [bytes([n]) * 100_000 for n in range(4)]
        head = bytes.fromhex("00027431000764656661756c74000464656d6f00000001")
        for value in large:
            payload = head + struct.pack(">I", len(value)) + value
            client.send(publishing, b"FLX1\0\1\0\1" + struct.pack(">I", len(payload)) + payload)
        assert await events(client, following, number, 4) == large

        play.onward()
        cache = client.open(AUTH + CACHE_PUT)
        await play.expect(cache, OK, CACHE_OK)
        client.link.stop_sending(following, 0)  # an unsubscription
        client.link.reset(cache, 0)
        client.send(publishing, PUBLISH)
        await play.expect(publishing, PUBLISH_OK)
        client.send(publishing, b"", end=True)
        assert await client.rest(publishing) == b""


@trials(*TRIALS)
async def test_fujin(quic_go: Path, tmp_path: Path, trial: Trial) -> None:
    async with stage(quic_go, tmp_path, "fujin", trial) as play:
        client = play.client
        pushed = client.open(b"\2\1\0" + b"\0\0\0\3pub")
        await play.expect(pushed, b"\1\0")
        play.onward()
        writer = client.open(bytes.fromhex("0100000000"))
        for _ in range(50):
            client.send(writer, PUB_HELLO)
            await play.expect(writer, WRITTEN)

        play.onward()
        ids = []
        for _ in range(50):
            await play.expect(pushed, b"\6")
            ids.append(await client.read(pushed, int.from_bytes(await client.read(pushed, 4), "big")))
            await play.expect(pushed, b"\0\0\0\5hello")
        for number, known_as in enumerate(ids):
            one = struct.pack(">II", 1, len(known_as)) + known_as
            client.send(pushed, b"\x08" + struct.pack(">I", number) + one)
            await play.expect(pushed, b"\x08" + struct.pack(">I", number) + b"\0" + one + b"\0")

        play.onward()
        fetching = client.open(b"\2\2\1" + b"\0\0\0\5large")
        await play.expect(fetching, b"\1\0")
        large = [bytes([n]) * 65_536 for n in range(6)]
        for value in large:
            client.send(writer, b"\3\0\0\0\1\0\0\0\5large\0\1\0\0" + value)
        await play.expect(writer, *[WRITTEN] * 6)
        play.onward()
        for value in large:
            client.send(fetching, bytes.fromhex("070000000900000001"))
            await play.expect(fetching, bytes.fromhex("0700000009000000000100010000"), value)

        play.onward()
        client.send(writer, bytes.fromhex("0400000002") + PUB_HELLO + bytes.fromhex("0500000003"))
        await play.expect(writer, bytes.fromhex("030000000200"), WRITTEN, bytes.fromhex("040000000300"))
        for channel in (writer, pushed, fetching):
            client.send(channel, b"\x0a")
        assert await client.rest(writer) == b"\x0a"
        assert (await client.rest(pushed))[-1:] == b"\x0a"
        assert await client.rest(fetching) == b"\x0a"
        values = await stored(play.flymq, "pub", lambda found: len(found) >= 51)
        assert values == [b"hello"] * 51


async def test_clients_that_begin_at_once_on_another_id_are_known(quic_go: Path, tmp_path: Path) -> None:
    first = bytes.fromhex("0100000000") + PUB_HELLO
    with trio.fail_after(PATIENCE):
        async with gateway(CONFIG.format(data=tmp_path, ping="10m")) as served:
            for length in (0, 4, 8, 18):
                for alpn, sent, answer in (("fujin", first, WRITTEN), (None, AUTH + PUBLISH, OK + PUBLISH_OK)):
                    options = ["-ids", str(length), "-first", sent.hex()]
                    async with quic_go_streams(
                        quic_go, served.ports["both"], alpn, options
                    ) as client:  # nothing in between
                        assert await client.read(0, len(answer)) == answer
                        report = await client.report()
                        assert report["retired"] == 1


@trials("plain", "everything")
async def test_pings_on_streams_that_the_server_opens(quic_go: Path, tmp_path: Path, trial: Trial) -> None:
    async with stage(quic_go, tmp_path, "fujin", trial, ping="20ms") as play:
        client = play.client
        writer = client.open(bytes.fromhex("0100000000"))
        for number in range(30):
            asked = await client.incoming()
            assert asked % 4 == 1  # the server's, and two-way
            assert await client.rest(asked) == b"\x0b"
            client.send(asked, b"\x0b", end=True)
            if number % 6 == 0:
                play.onward()
            client.send(writer, PUB_HELLO)
            await play.expect(writer, WRITTEN)
