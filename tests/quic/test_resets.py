"""Stateless resets: a gateway that has forgotten a connection says so, and says no more than that."""

from __future__ import annotations

import os

import trio

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.resets import LARGEST, SMALLEST, ResetTokens
from gateway.transport.quic.server import QuicServer
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Heard, Network, World, settle, until

STRANGER = ("203.0.113.9", 1234)


async def test_after_a_restart_peers_are_told_at_once_and_come_back(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, _server, link, _serving = await world.pair()
        await settle(1)
        network.cut = True  # killed: not a word to anybody
        world.server.abort()
        await settle(1)
        again = QuicServer([network.socket(SERVER)], {None: Heard}, certificate)
        nursery.start_soon(again.run)
        network.cut = False
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"are you there?")
        await until(lambda: client.gone, limit=1)
        assert client.events[-1] == ("lost",)
        assert again.connections == 0
        fresh = world.dial()
        await until(lambda: fresh.link is not None and fresh.link.phase.name == "OPEN")
        nursery.cancel_scope.cancel()


async def test_only_who_has_the_key_can_reset(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, serving = await world.pair()
        await settle(1)
        client_address = serving.core.get_peer_address()
        for _ in range(20):
            network.put(SERVER, client_address, b"\x40" + os.urandom(42))
        await settle(1)
        assert not client.gone
        token = ResetTokens(certificate.current().key, SERVER[1]).token(serving.core.host_cid)
        network.put(SERVER, client_address, b"\x40" + os.urandom(30) + token)
        await until(lambda: client.gone, limit=1)
        assert not server.gone
        assert link.core.end is None
        nursery.cancel_scope.cancel()


async def test_a_reset_is_smaller_than_what_it_answers_and_is_never_answered_for_ever(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        network.keep = True
        for size in (1200, LARGEST + 1, LARGEST, SMALLEST + 1, SMALLEST, 9, 1):
            network.sent.clear()
            network.put(STRANGER, SERVER, b"\x40" + bytes(size - 1))
            await settle(0.1)
            answers = [len(data) for _, target, data in network.sent if target == STRANGER]
            assert answers == ([min(size - 1, LARGEST)] if size > SMALLEST else [])
        # two that know nothing of each other: each answer is shorter, and the last one too short to be answered
        other = QuicServer([network.socket(STRANGER)], {None: Heard}, certificate)
        nursery.start_soon(other.run)
        network.sent.clear()
        network.put(STRANGER, SERVER, b"\x40" + bytes(1199))
        await settle(5)
        assert len(network.sent) == 1 + LARGEST - SMALLEST + 1
        assert world.server.connections == other.connections == 0
        nursery.cancel_scope.cancel()
