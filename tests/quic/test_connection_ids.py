"""A connection is found by every id that its peer has been told of, from the packet on that tells it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from gateway.transport.quic.aioquic_private import Core
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.endpoint import REMEMBERED
from gateway.transport.quic.server import QuicServer
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Heard, Network, World, settle, until

STRANGER = ("203.0.113.9", 1234)
OTHER = ("192.0.2.1", 4434)


class Restless(Core):
    """Leaves an id as soon as it has another one, so many times."""

    switches = 1

    def _handle_new_connection_id_frame(self, context: Any, frame_type: int, buf: Any) -> None:
        super()._handle_new_connection_id_frame(context, frame_type, buf)
        if self.switches and self._peer_cid_available:
            self.switches -= 1
            self.change_connection_id()
            self.send_ping(0)


class VeryRestless(Restless):
    switches = 100


@pytest.mark.parametrize("restless", [Restless, VeryRestless])
@pytest.mark.parametrize("bad", [{"delay": 0.0001}, {"jitter": 0.05, "loss": 0.05}])
async def test_a_peer_may_switch_to_an_id_the_moment_it_hears_of_it(
    certificate: CertificateFiles,
    autojump_clock: trio.testing.MockClock,
    restless: type[Restless],
    bad: dict[str, float],
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(**bad))
        client, server, link, serving = await world.pair(core=restless)
        for number in range(1, 21):
            link.open(-number, Kind.DUPLEX)
            link.send(-number, b"still there?")
            await settle(0.2)
        await until(lambda: len(server.data) == 20)
        assert not client.gone
        assert not server.gone
        first = serving.core._host_cids[0].sequence_number
        assert first == 1 if restless is Restless else first > 20
        assert len(serving.cids) <= REMEMBERED
        nursery.cancel_scope.cancel()


async def test_a_dialler_is_found_by_the_ids_that_its_server_switches_to(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.transport.quic.server.Core", Restless)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(delay=0.0001))
        client, _server, _link, serving = await world.pair()
        for number in range(1, 6):
            serving.open(-number, Kind.DUPLEX)
            serving.send(-number, b"hello")
        await until(lambda: len(client.data) == 5, limit=0.5)
        assert serving.core._peer_cid.sequence_number == 1
        nursery.cancel_scope.cancel()


async def test_a_late_packet_to_a_retired_id_is_not_answered_by_a_reset(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, serving = await world.pair()
        retired = serving.core.host_cid
        await settle(1)
        link.core.change_connection_id()
        link.core.send_ping(0)
        link.touch()
        await settle(1)
        assert retired not in {cid.cid for cid in serving.core._host_cids}
        network.keep = True
        network.put(STRANGER, SERVER, b"\x40" + retired + bytes(100))
        await settle(1)
        assert not [data for _, target, data in network.sent if target == STRANGER]
        client.link.close()
        await until(lambda: server.gone)
        await settle(30)
        network.put(STRANGER, SERVER, b"\x40" + retired + bytes(100))  # gone as a whole: now it is the truth
        await settle(1)
        assert [data for _, target, data in network.sent if target == STRANGER]
        assert world.server.connections == 0
        nursery.cancel_scope.cancel()


async def test_no_other_socket_tells_the_secret_of_a_live_connection(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        sockets = [network.socket(SERVER), network.socket(OTHER)]
        server = QuicServer(sockets, {None: Heard}, certificate)
        elsewhere = QuicServer([network.socket(("192.0.2.1", 4435))], {None: Heard}, certificate)
        nursery.start_soon(server.run)
        nursery.start_soon(elsewhere.run)
        world = World(nursery, network, certificate, server, [])
        nursery.start_soon(network.run)
        client = world.dial()
        await until(lambda: client.link is not None and client.link.phase.name == "OPEN")
        (serving,) = server.links
        await settle(1)
        tokens = {cid.stateless_reset_token for cid in serving.core._host_cids}
        network.keep = True
        for cid in [cid.cid for cid in serving.core._host_cids]:
            network.put(STRANGER, OTHER, b"\x40" + cid + bytes(100))
            network.put(STRANGER, ("192.0.2.1", 4435), b"\x40" + cid + bytes(100))
        await settle(1)
        told = [(source, data) for source, target, data in network.sent if target == STRANGER]
        assert {source for source, _ in told} == {("192.0.2.1", 4435)}  # it does not know them, and says so
        assert not tokens & {data[-16:] for _, data in told}
        assert not client.gone
        nursery.cancel_scope.cancel()


async def test_what_is_no_packet_at_all_is_not_answered(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        World.start(nursery, certificate, network=network)
        network.keep = True
        network.put(STRANGER, SERVER, bytes(100))  # RFC 9000, 17.3: without the fixed bit it is no QUIC
        await settle(1)
        assert len(network.sent) == 1
        nursery.cancel_scope.cancel()
