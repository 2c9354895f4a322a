"""Fujin 0.5 and v1 from quic-go, over what networks do: the bytes of wire 6.2, with pings that have to be answered exactly."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.integration.inside import gateway, stored
from tests.quic.foreign.quicgo import ForeignStreams, quic_go_streams
from tests.quic.foreign.relay import relayed
from tests.quic.foreign.test_quic_go import CONFIG, PATIENCE, TRIALS, Trial

HELLO = bytes.fromhex("000101010000000174 0000000130")
GREETED = bytes.fromhex("1300010100000007 67617465776179")
BIND = bytes.fromhex("01000000036d656d00000000")
PRODUCE = bytes.fromhex("020000000100000003707562 0000000568656c6c6f")
PRODUCED = bytes.fromhex("030000000100")


@asynccontextmanager
async def session(
    quic_go: Path, directory: Path, alpn: str, trial: Trial
) -> AsyncIterator[tuple[ForeignStreams, int, int]]:
    """A connection that has bound, its stream, and FlyMQ's port."""
    with trio.fail_after(PATIENCE):
        async with (
            gateway(CONFIG.format(data=directory, ping="10m")) as served,
            relayed(served.ports["both"], loss=trial.loss, disorder=trial.disorder, double=trial.double) as relay,
            quic_go_streams(quic_go, relay.port, alpn, trial.options) as client,
        ):
            channel = client.open((HELLO if alpn == "fujin" else b"") + BIND)
            greeting = (GREETED if alpn == "fujin" else b"") + bytes.fromhex("100000000000")
            assert await client.read(channel, len(greeting)) == greeting
            yield client, channel, served.ports["flymq"]
            assert not client.gone, client.why


@pytest.mark.parametrize("name", ["plain", "loss", "everything"])
@pytest.mark.parametrize("alpn", ["fujin", "fujin/1"])
async def test_a_session(quic_go: Path, tmp_path: Path, alpn: str, name: str) -> None:
    async with session(quic_go, tmp_path, alpn, TRIALS[name]) as (client, channel, flymq):
        client.send(channel, bytes.fromhex("0c 00000003 00 00000003 707562"))
        assert await client.read(channel, 7) == bytes.fromhex("02000000030000")
        reader = "00000009 01 00000001"
        for number in range(1, 31):
            client.send(channel, PRODUCE)
            message = bytes.fromhex(f"09 00 0000 {reader} {number:08x} 00000005 68656c6c6f")
            both = await client.read(channel, len(PRODUCED) + len(message))
            assert both in (PRODUCED + message, message + PRODUCED)
        ids = b"".join(bytes.fromhex(f"{reader} {number:08x}") for number in range(1, 31))
        client.send(channel, bytes.fromhex("09 00000005 00 0000001e") + ids)
        settled = bytes.fromhex("0c 00000005 00 0000001e")
        settled += b"".join(bytes.fromhex(f"{reader} {number:08x} 00") for number in range(1, 31))
        assert await client.read(channel, len(settled)) == settled
        large = [bytes([n]) * 200_000 for n in range(5)]  # more than the seed's clients could be pushed
        for value in large:
            client.send(
                channel, bytes.fromhex("02 00000009 00000005 6c61726765") + struct.pack(">I", len(value)) + value
            )
        assert await client.read(channel, 30) == bytes.fromhex("030000000900") * 5
        client.send(channel, bytes.fromhex("0e"))
        assert await client.rest(channel) == b"\x0f"
        assert await stored(flymq, "pub", lambda found: len(found) >= 30) == [b"hello"] * 30
