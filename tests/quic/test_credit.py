"""Receive credit is granted by consuming, exactly; send buffers report when they have room."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.windows import Credit
from gateway.wire.session import Kind
from tests.quic.support import Network, World, settle, until

SMALL = QuicLimits(stream_window=65_536, connection_window=200_000, low_water=10_000)


@given(st.integers(1, 1 << 20), st.lists(st.integers(0, 1 << 16)))
def test_the_limit_never_lags_half_a_window_and_never_leads_a_whole_one(window: int, steps: list[int]) -> None:
    credit = Credit(window)
    for step in steps:
        before = credit.limit
        raised = credit.consume(step)
        assert raised == (credit.limit != before)
        assert window // 2 < credit.limit - credit.consumed <= window


async def test_an_unread_stream_stops_at_exactly_its_window(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=SMALL)
        _client, server, link, serving = await world.pair()
        server.on_opened = lambda channel, kind: serving.pause(channel)
        payload = bytes(range(256)) * 4096
        link.open(-1, Kind.DUPLEX)
        link.send(-1, payload)
        link.finish(-1)
        await settle(20)
        assert server.size(0) == 0
        assert serving.core.received_on(0) == 65_536
        assert link.buffered(-1) == len(payload) - 65_536
        # another stream of the same connection is not held up
        link.open(-2, Kind.DUPLEX)
        link.send(-2, b"free")
        serving.resume(4)
        await until(lambda: serving.core.received_on(4) == 4)
        # once read, everything comes
        serving.resume(0)
        await until(lambda: 0 in server.ended)
        assert bytes(server.data[0]) == payload
        await until(lambda: link.buffered(-1) == 0)
        nursery.cancel_scope.cancel()


async def test_a_paused_connection_stops_at_its_connection_window_and_goes_on_when_resumed(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=SMALL)
        _client, server, link, serving = await world.pair()
        serving.pause()
        for token in range(-1, -9, -1):
            link.open(token, Kind.WRITE_ONLY)
            link.send(token, bytes(60_000))
            link.finish(token)
        await settle(20)
        assert sum(serving.core.received_on(2 + 4 * n) for n in range(8)) == 200_000
        assert not server.data
        serving.resume()
        await until(lambda: len(server.ended) == 8)
        assert sum(map(len, server.data.values())) == 8 * 60_000
        nursery.cancel_scope.cancel()


async def test_streams_reset_half_way_do_not_leak_the_connection_window(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=SMALL, network=Network(loss=0.1, jitter=0.01))
        _client, server, link, _serving = await world.pair()
        for round_number in range(20):
            token = -1 - round_number
            link.open(token, Kind.WRITE_ONLY)
            link.send(token, bytes(60_000))
            await trio.sleep(0.03)
            link.reset(token, 7)
            await trio.sleep(0.03)
        link.open(-100, Kind.WRITE_ONLY)
        link.send(-100, bytes(500_000))
        link.finish(-100)
        await until(lambda: any(size == 500_000 for size in map(len, server.data.values())))
        nursery.cancel_scope.cancel()


async def test_bytes_that_were_refused_do_not_hold_the_connection_up(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=SMALL)
        client, server, link, serving = await world.pair()
        server.on_opened = lambda channel, kind: serving.stop_sending(channel, 9)
        for token in range(-1, -11, -1):
            link.open(token, Kind.DUPLEX)
            link.send(token, bytes(60_000))
        await until(lambda: sum(event[0] == "stopped" for event in client.events) == 10)
        assert {event[2] for event in client.events if event[0] == "stopped"} == {9}
        assert not server.data
        server.on_opened = lambda channel, kind: None
        link.open(-20, Kind.DUPLEX)
        link.send(-20, bytes(500_000))
        await until(lambda: server.size(40) == 500_000)
        nursery.cancel_scope.cancel()


async def test_room_is_reported_once_per_request_and_below_low_water(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=SMALL)
        client, _server, link, serving = await world.pair(limits=SMALL)
        serving.pause()
        client.on_room = lambda channel: levels.append(link.buffered(channel))
        levels: list[int] = []
        link.open(-1, Kind.DUPLEX)
        link.send(-1, bytes(100_000), notify=True)
        await settle(5)
        assert levels == []
        assert link.waiting()[0] == 100_000 - 65_536
        serving.resume()
        await until(lambda: bool(levels))
        await settle(1)
        assert len(levels) == 1
        assert levels[0] < SMALL.low_water
        link.send(-1, b"more", notify=True)
        await until(lambda: len(levels) == 2)
        nursery.cancel_scope.cancel()
