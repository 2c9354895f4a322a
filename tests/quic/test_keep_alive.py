"""Connections that are silent stay, and cost one PING per third of the idle time."""

from __future__ import annotations

import trio

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Network, World, until


async def test_a_silent_connection_outlives_its_idle_time_by_the_servers_pings(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        # a stock peer that never pings itself
        client, server, link, _serving = await world.pair(limits=QuicLimits(idle=100.0))
        await trio.sleep(1)
        link._ping_at = float("inf")
        network.keep = True
        began = trio.current_time()
        await trio.sleep(300)
        assert not client.gone
        assert not server.gone
        pings = [data for source, _, data in network.sent if source == SERVER]
        assert 28 <= len(pings) <= 32
        assert trio.current_time() - began == 300
        nursery.cancel_scope.cancel()


async def test_a_back_pressured_connection_stays_up(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(stream_window=10_000)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=limits)
        client, server, link, serving = await world.pair()
        serving.pause()
        link.open(-1, Kind.DUPLEX)
        link.send(-1, bytes(50_000))
        link.finish(-1)
        await trio.sleep(200)
        assert not client.gone
        serving.resume()
        await until(lambda: 0 in server.ended)
        assert server.size(0) == 50_000
        nursery.cancel_scope.cancel()


async def test_the_smaller_idle_time_sets_the_pace(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, server, _link, _serving = await world.pair(limits=QuicLimits(idle=6.0))
        await trio.sleep(100)
        assert not client.gone
        assert not server.gone
        nursery.cancel_scope.cancel()


async def test_busy_connections_are_not_pinged(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        _client, _server, link, serving = await world.pair()
        pinged: list[int] = []
        for core in (link.core, serving.core):
            core.send_ping = pinged.append  # type: ignore[method-assign]
        link.open(-1, Kind.DUPLEX)
        for _ in range(30):
            link.send(-1, b"tick")
            await trio.sleep(5)
        assert pinged == []
        nursery.cancel_scope.cancel()
