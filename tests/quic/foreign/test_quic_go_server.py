"""What we dial is quic-go: the stock Fujin broker's library. It uses the ids that we issue as soon as it hears of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway.wire.session import Kind
from tests.integration.quic_raw import Streams, streams
from tests.quic.foreign.quicgo import ForeignStreams, quic_go_listening
from tests.quic.foreign.relay import relayed

PATIENCE = 120
WRITE = bytes.fromhex("03000000010000000370756200000005" + b"hello".hex())
WRITTEN = bytes.fromhex("020000000100")
EVENT = bytes.fromhex("464c583100010002000000150000000000000007000000010000000568656c6c6f")
BATCH = bytes.fromhex("464c5831000100010000002100027431000764656661756c74000464656d6f0000000200000001610000000162")


@attrs.frozen
class Trial:
    """Options of the server's, and the network before it."""

    options: Sequence[str] = ("-ids", "8")
    loss: float = 0.0
    disorder: float = 0.0
    double: float = 0.0


TRIALS = {
    "plain": Trial(),
    "keys": Trial(["-ids", "4", "-keys", "10"]),
    "version": Trial(["-ids", "18", "-versions", "ff00001d,1"]),
    "bad-network": Trial(loss=0.1, disorder=0.1, double=0.1),
    "everything": Trial(["-ids", "8", "-keys", "15"], loss=0.05, disorder=0.1, double=0.05),
}


@asynccontextmanager
async def pair(quic_go: Path, alpn: str | None, trial: Trial) -> AsyncIterator[tuple[Streams, ForeignStreams]]:
    """Our end of a connection, and theirs."""
    with trio.fail_after(PATIENCE):
        async with (
            quic_go_listening(quic_go, alpn, trial.options) as server,
            relayed(server.port, loss=trial.loss, disorder=trial.disorder, double=trial.double) as relay,
            streams(relay.port, alpn) as client,
        ):
            await server.until(lambda: server.ready)
            yield client, server
            assert not client.gone
            assert not server.gone, server.why
            report = await server.report()
            assert report["retired"] > 2, report
            assert report["key_updates"] > 0 or "-keys" not in trial.options


@pytest.mark.parametrize("trial", [pytest.param(trial, id=name) for name, trial in TRIALS.items()])
async def test_streams_of_fujin(quic_go: Path, trial: Trial) -> None:
    async with pair(quic_go, "fujin", trial) as (client, server):
        writer = client.open(bytes.fromhex("0100000000"))
        accepted = await server.incoming()
        assert await server.read(accepted, 5) == bytes.fromhex("0100000000")
        for _ in range(60):
            client.send(writer, WRITE)
            assert await server.read(accepted, len(WRITE)) == WRITE
            server.send(accepted, WRITTEN)
            assert await client.read(writer, len(WRITTEN)) == WRITTEN
        for number in range(10):
            server.open(b"\x0b", end=True)  # PING
            asked = await client.incoming()
            assert await client.rest(asked) == b"\x0b"
            client.send(asked, b"\x0b", end=True)
            assert await server.rest(-1 - number) == b"\x0b"
        client.send(writer, b"\x0a")
        assert await server.read(accepted, 1) == b"\x0a"
        server.send(accepted, b"\x0a", end=True)
        assert await client.rest(writer) == b"\x0a"


@pytest.mark.parametrize("trial", [pytest.param(trial, id=name) for name, trial in TRIALS.items()])
async def test_streams_of_felix(quic_go: Path, trial: Trial) -> None:
    async with pair(quic_go, None, trial) as (client, server):
        following = server.open(EVENT, Kind.WRITE_ONLY)
        events = await client.incoming()
        assert events % 4 == 3
        for _ in range(60):
            assert await client.read(events, len(EVENT)) == EVENT
            server.send(following, EVENT)
        client.open(BATCH * 2_000, Kind.WRITE_ONLY, end=True)
        published = await server.incoming()
        assert published % 4 == 2
        assert await server.rest(published) == BATCH * 2_000
        server.send(following, EVENT * 2_000, end=True)
        assert await client.rest(events) == EVENT * 2_001
