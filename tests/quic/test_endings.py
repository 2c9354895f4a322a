"""Ends of streams and of connections, at any point, told once each; nothing raises into anybody."""

from __future__ import annotations

import random

import pytest
import trio
from aioquic.quic.packet import QuicErrorCode

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import Phase
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Network, World, settle, until


async def test_bytes_and_end_of_one_turn_arrive_together(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        _client, server, link, _serving = await world.pair()
        await settle(1)
        network.keep = True
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"\x0b")
        link.finish(-1)
        await until(lambda: 0 in server.ended)
        assert server.events == [("opened", 0, Kind.DUPLEX), ("eof", 0)]
        assert len(server.turns) > 0
        carrying = [data for _, target, data in network.sent if target[1] == 4433]
        assert len(carrying[0]) < 60  # one short packet with both
        nursery.cancel_scope.cancel()


async def test_stop_sending_is_told_once_and_later_writes_are_dropped(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, server, link, serving = await world.pair()
        # as the stock Felix client does: STOP_SENDING as soon as the first reply was read (Felix wire 2.2)
        client.on_received = lambda channel, data: link.stop_sending(channel, 5)
        server.on_received = lambda channel, data: serving.send(channel, b"subscribed")
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"subscribe")
        link.finish(-1)
        await until(lambda: ("stopped", 0, 5) in server.events)
        serving.send(0, b"too late", notify=True)
        serving.finish(0)
        serving.reset(0, 1)
        await settle(1)
        assert [event for event in server.events if event[0] == "stopped"] == [("stopped", 0, 5)]
        assert ("room", 0) not in server.events
        assert bytes(client.data[-1]) == b"subscribed"
        assert serving.waiting()[0] == 0
        await until(lambda: not serving.knows(0))
        # and the connection lives
        client.on_received = lambda channel, data: None
        link.open(-2, Kind.DUPLEX)
        link.send(-2, b"next")
        await until(lambda: bytes(client.data.get(-2, b"")) == b"subscribed")
        nursery.cancel_scope.cancel()


async def test_a_reset_is_told_with_its_code_after_what_had_arrived(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, server, link, serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"half")
        await until(lambda: server.size(0) == 4)
        link.reset(-1, 42)
        link.send(-1, b"never")
        await until(lambda: ("reset", 0, 42) in server.events)
        serving.send(0, b"the other side lives")
        serving.finish(0)
        await until(lambda: -1 in client.ended)
        assert bytes(server.data[0]) == b"half"
        await until(lambda: not serving.knows(0) and not link.knows(-1))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(4))
async def test_any_mixture_of_ends_leaves_the_connection_usable(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    choices = random.Random(seed)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(loss=0.05, jitter=0.02, double=0.05, seed=seed))
        client, server, link, serving = await world.pair()
        server.on_received = serving.send
        for step in range(150):
            token = -1 - choices.randrange(30)
            channel = 4 * choices.randrange(30)
            act = choices.randrange(9)
            if act == 0:
                link.open(token, choices.choice([Kind.DUPLEX, Kind.WRITE_ONLY]))
            elif act == 1:
                link.send(token, choices.randbytes(choices.randrange(5000)), notify=choices.random() < 0.3)
            elif act == 2:
                link.finish(token)
            elif act == 3:
                link.reset(token, step)
            elif act == 4:
                link.stop_sending(token, step)
            elif act == 5:
                serving.reset(channel, step)
            elif act == 6:
                serving.stop_sending(channel, step)
            elif act == 7:
                serving.finish(channel)
            else:
                await trio.sleep(choices.random() * 0.05)
        await settle(2)
        for heard in (client, server):
            assert not heard.gone
            for kind in ("eof", "reset", "stopped"):
                told = [event[1] for event in heard.events if event[0] == kind]
                assert len(told) == len(set(told))
        link.open(-1000, Kind.DUPLEX)
        link.send(-1000, b"x" * 50_000)
        link.finish(-1000)
        await until(lambda: client.size(-1000) == 50_000)
        nursery.cancel_scope.cancel()


async def test_close_waits_for_what_is_queued_and_carries_code_and_reason(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(loss=0.1))
        client, _server, link, serving = await world.pair()
        serving.open(-1, Kind.WRITE_ONLY)
        serving.send(-1, bytes(300_000))
        serving.finish(-1)
        serving.close(3, "going " * 500)
        serving.send(-1, b"after the end")
        await until(lambda: client.gone)
        assert client.size(3) == 300_000
        assert client.ended == {3}
        end = link.core.end
        assert end is not None
        assert end[:2] == (3, True)
        assert end[2].startswith("going going")
        assert client.events[-1] == ("lost",)
        await until(lambda: world.server.connections == 0)
        await until(lambda: serving.phase is link.phase is Phase.GONE)
        nursery.cancel_scope.cancel()


async def test_a_close_that_cannot_be_delivered_has_a_deadline(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=QuicLimits(close=5.0))
        client, server, link, serving = await world.pair(limits=QuicLimits(stream_window=1000))
        link.pause()
        serving.open(-1, Kind.WRITE_ONLY)
        serving.send(-1, bytes(5000))
        await settle(1)
        began = trio.current_time()
        serving.close(1, "enough")
        await until(lambda: server.gone)
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.1)
        await until(lambda: client.gone)
        assert link.core.end == (1, True, "enough")
        nursery.cancel_scope.cancel()


async def test_a_lost_close_packet_is_repeated_when_the_peer_goes_on_talking(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, serving = await world.pair()
        network.cut = True
        serving.abort(9, "now")
        await until(lambda: server.gone)
        await trio.sleep(0.02)
        network.cut = False
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"are you there?")
        await until(lambda: client.gone, limit=5)
        assert link.core.end == (9, True, "now")
        assert serving.phase is not Phase.OPEN
        nursery.cancel_scope.cancel()


async def test_a_lost_close_packet_comes_again_to_a_silent_peer(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, serving = await world.pair()
        await settle(1)
        network.cut = network.keep = True
        serving.close(9, "now")
        await until(lambda: server.gone)
        assert len(network.sent) == 1
        network.cut = False
        await until(lambda: client.gone, limit=1)
        assert link.core.end == (9, True, "now")
        await until(lambda: serving.phase is Phase.GONE)
        # the close itself, and twice more: one that the client heard, one that it no longer answers
        assert [source for source, _, _ in network.sent] == [SERVER] * 3
        nursery.cancel_scope.cancel()


async def test_a_peer_that_vanishes_is_given_up_after_the_idle_time(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        _client, server, _link, serving = await world.pair()
        await settle(1)
        network.cut = True
        began = trio.current_time()
        await until(lambda: server.gone)
        # the first PING after 10 s restarts the clock once (RFC 9000, 10.1), the following ones do not
        assert 30 <= trio.current_time() - began <= 41
        assert server.events == [("lost",)]
        assert serving.core.end is not None
        assert world.server.connections == 0
        nursery.cancel_scope.cancel()


async def test_streams_without_end_are_a_stream_limit_error(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=QuicLimits(streams=4))
        client, server, link, _serving = await world.pair()
        core = link.core
        core._remote_max_streams_bidi = 1000  # a peer that does not care
        for token in range(-1, -10, -1):
            link.open(token, Kind.DUPLEX)
            link.send(token, b"x")
        await until(lambda: client.gone)
        assert core.end is not None
        assert core.end[0] == QuicErrorCode.STREAM_LIMIT_ERROR
        assert server.gone
        nursery.cancel_scope.cancel()


async def test_opens_wait_for_the_limit_in_a_bounded_queue(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(streams=2)
    mine = QuicLimits(pending_opens=3)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=limits)
        client, server, link, serving = await world.pair(limits=mine)
        server.on_eof = serving.finish
        for token in range(-1, -7, -1):
            link.open(token, Kind.DUPLEX)
            link.send(token, b"hello from %d" % -token)
            if token == -2:
                await until(lambda: len(client.events) == 2)
        await settle(1)
        # two are open, three wait, the sixth had no place; another kind has its own queue
        assert client.events[:2] == [("opened", -1, Kind.DUPLEX), ("opened", -2, Kind.DUPLEX)]
        assert client.events[2:] == [("reset", -6, 0)]
        assert link.buffered(-3) == 12
        link.open(-7, Kind.WRITE_ONLY)
        await until(lambda: ("opened", -7, Kind.WRITE_ONLY) in client.events)
        link.reset(-4, 0)  # abandoned before it existed
        link.finish(-1)
        await until(lambda: ("opened", -3, Kind.DUPLEX) in client.events)
        link.finish(-2)
        await until(lambda: ("opened", -5, Kind.DUPLEX) in client.events)
        await until(lambda: len(server.data) == 4)
        assert [bytes(server.data[4 * n]) for n in range(4)] == [b"hello from %d" % n for n in (1, 2, 3, 5)]
        nursery.cancel_scope.cancel()


async def test_what_follows_an_alone_send_comes_in_a_later_packet(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(delay=0.001))
        client, server, link, serving = await world.pair()
        reads: list[tuple[float, bytes]] = []
        client.on_received = lambda channel, data: reads.append((trio.current_time(), data))

        def reply(channel: int, data: bytes) -> None:
            serving.send(channel, b"\x01\x00", alone=True)
            serving.send(channel, b"first")
            serving.send(channel, b"second", notify=True)
            serving.finish(channel)

        server.on_received = reply
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"connect")
        await until(lambda: -1 in client.ended)
        assert [data for _, data in reads] == [b"\x01\x00", b"firstsecond"]
        assert reads[1][0] - reads[0][0] >= 0.005
        assert serving.buffered(0) >= 0
        await until(lambda: ("room", 0) in server.events)
        nursery.cancel_scope.cancel()


async def test_an_end_behind_an_alone_send_comes_in_a_later_packet(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """The refusal of a Fujin reader: stock clients read text and end together as an end without text (wire 0, rule 9)."""
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(delay=0.001))
        client, server, link, serving = await world.pair()
        heard: dict[str, float] = {}
        client.on_received = lambda channel, data: heard.update(text=trio.current_time())
        client.on_eof = lambda channel: heard.update(end=trio.current_time())

        def refuse(channel: int, data: bytes) -> None:
            serving.send(channel, b"reader not found", alone=True)
            serving.finish(channel)

        server.on_received = refuse
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"connect")
        await until(lambda: -1 in client.ended)
        assert bytes(client.data[-1]) == b"reader not found"
        assert heard["end"] - heard["text"] >= 0.005
        nursery.cancel_scope.cancel()


async def test_turns_come_with_events_wakes_and_deadlines(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, _server, link, _serving = await world.pair()
        await settle(1)
        client.turns.clear()
        link.wake()
        await until(lambda: len(client.turns) == 1)
        due = trio.current_time() + 2.5
        link.set_deadline(due)
        await until(lambda: len(client.turns) >= 2 and client.turns[-1] >= due)
        assert client.turns[-1] == pytest.approx(due, abs=0.001)
        link.set_deadline(trio.current_time() + 1)
        link.set_deadline(None)
        client.turns.clear()
        await settle(3)
        assert len(client.turns) <= 1
        nursery.cancel_scope.cancel()
