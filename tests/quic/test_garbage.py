"""Bytes that no honest peer sends, outside and inside the encryption: they cost at most their own connection."""

from __future__ import annotations

import random

import pytest
import trio
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicErrorCode

from gateway.transport.quic.certificates import CertificateFiles
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Network, World, forge, settle, until

STRANGER = ("203.0.113.66", 6666)


async def alive(world: World) -> None:
    """Somebody else's connection works."""
    _client, server, link, _serving = await world.pair()
    link.open(-1, Kind.DUPLEX)
    link.send(-1, b"alive")
    await until(lambda: server.data.get(0) == b"alive")


async def test_random_cut_and_flipped_datagrams_harm_nobody(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    noise = random.Random("garbage")
    async with trio.open_nursery() as nursery:
        network = Network()
        network.keep = True
        world = World.start(nursery, certificate, network=network)
        client, server, link, _serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        link.send(-1, bytes(5000))
        await until(lambda: server.size(0) == 5000)
        seen = [data for _, target, data in network.sent if target == SERVER]
        honest = next(source for source, target, _ in network.sent if target == SERVER)
        network.keep = False
        for _ in range(400):
            genuine = bytearray(noise.choice(seen))
            kind = noise.randrange(4)
            if kind == 0:
                garbage = noise.randbytes(noise.randrange(1, 1500))
            elif kind == 1:
                garbage = bytes(genuine[: noise.randrange(1, len(genuine))])
            elif kind == 2:
                for _ in range(noise.randrange(1, 20)):
                    genuine[noise.randrange(len(genuine))] ^= 1 << noise.randrange(8)
                garbage = bytes(genuine)
            else:
                garbage = bytes(genuine) + noise.randbytes(noise.randrange(200))
            network.put(noise.choice([honest, STRANGER]), SERVER, garbage)
        await settle(1)
        assert not client.gone
        assert not server.gone
        link.send(-1, b"goes on")
        await until(lambda: server.size(0) == 5007)
        await alive(world)
        await settle(60)
        assert world.server.connections == 2
        nursery.cancel_scope.cancel()


def varint(value: int) -> bytes:
    buffer = Buffer(capacity=8)
    buffer.push_uint_var(value)
    return buffer.data


BAD_FRAMES = {
    "unknown frame type": (b"\x40\x77", QuicErrorCode.FRAME_ENCODING_ERROR),
    "truncated frame": (b"\x0a\x00\x20x", QuicErrorCode.FRAME_ENCODING_ERROR),
    "stream beyond the limit": (b"\x0a" + varint(4 * 5000) + b"\x01x", QuicErrorCode.STREAM_LIMIT_ERROR),
    "our stream, never opened": (b"\x0a" + varint(1) + b"\x01x", QuicErrorCode.STREAM_STATE_ERROR),
    "data beyond the window": (b"\x0e" + varint(0) + varint(1 << 40) + b"\x01x", QuicErrorCode.FLOW_CONTROL_ERROR),
    "offset overflow": (b"\x0e" + varint(0) + varint((1 << 62) - 1) + b"\x01x", QuicErrorCode.FRAME_ENCODING_ERROR),
    "data beyond the end": (b"\x0b\x00\x01x" + b"\x0e\x00\x05\x01x", QuicErrorCode.FINAL_SIZE_ERROR),
    "reset with a final size in the past": (
        b"\x0a\x00\x05hello" + b"\x04\x00\x00\x01",
        QuicErrorCode.FINAL_SIZE_ERROR,
    ),
    "stop sending on the peer's own stream": (b"\x05" + varint(2) + b"\x00", QuicErrorCode.STREAM_STATE_ERROR),
    "a server's frame from a client": (b"\x1e", QuicErrorCode.PROTOCOL_VIOLATION),
    "retire an unknown connection id": (b"\x19" + varint(999), QuicErrorCode.PROTOCOL_VIOLATION),
    "too many streams granted": (b"\x12" + varint((1 << 60) + 1), QuicErrorCode.FRAME_ENCODING_ERROR),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_a_broken_frame_ends_its_connection_with_the_right_code(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, name: str
) -> None:
    payload, code = BAD_FRAMES[name]
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        _client, server, link, serving = await world.pair()
        await settle(1)
        network.put(serving.core.get_peer_address(), SERVER, forge(link.core, payload))
        await until(lambda: server.gone)
        assert serving.core.end is not None
        assert serving.core.end[:2] == (code, False)
        assert server.events[-1] == ("lost",)
        await alive(world)
        nursery.cancel_scope.cancel()


async def test_random_frames_never_reach_the_endpoint_as_an_exception(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    noise = random.Random("frames")
    async with trio.open_nursery() as nursery:
        network = Network(delay=0.001)
        world = World.start(nursery, certificate, network=network)
        for _ in range(60):
            _client, server, link, serving = await world.pair()
            address = serving.core.get_peer_address()
            for _ in range(20):
                start = bytes([noise.choice(range(0x20))])
                network.put(address, SERVER, forge(link.core, start + noise.randbytes(noise.randrange(2, 60))))
            await settle(0.1)
            lost = [event for event in server.events if event == ("lost",)]
            assert len(lost) <= 1
            link.abort()
        await alive(world)
        nursery.cancel_scope.cancel()


async def test_a_fault_inside_the_library_costs_one_connection(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, server, link, serving = await world.pair()

        def fail(*arguments: object) -> None:
            raise KeyError("surprise")

        serving.core.receive_datagram = fail  # type: ignore[method-assign]
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"trigger")
        await until(lambda: server.gone)
        assert server.events == [("lost",)]
        await alive(world)
        await until(lambda: client.gone, limit=1)  # told by a stateless reset
        nursery.cancel_scope.cancel()
