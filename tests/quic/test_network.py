"""Nothing is lost, doubled or disordered, whatever the network does."""

from __future__ import annotations

import hashlib
import random

import pytest
import trio
from aioquic.tls import Epoch

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Kind
from tests.quic.support import Heard, Network, World, until

NETWORKS = {
    "loss": {"loss": 0.1},
    "reorder": {"jitter": 0.05},
    "double": {"double": 0.5},
    "all": {"loss": 0.08, "jitter": 0.03, "double": 0.2},
}


def echo(heard: Heard) -> None:
    link = heard.link
    assert link is not None
    heard.on_received = link.send
    heard.on_eof = link.finish


@pytest.mark.parametrize("name", NETWORKS)
async def test_forty_echoed_streams_arrive_intact(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, name: str
) -> None:
    noise = random.Random(name)
    limits = QuicLimits(stream_window=8_192, connection_window=65_536)
    async with trio.open_nursery() as nursery:
        network = Network(**NETWORKS[name])
        world = World.start(nursery, certificate, network=network, limits=limits, on_accept=echo)
        client, _server, link, _serving = await world.pair(limits=limits)
        payloads = {-1 - n: noise.randbytes(noise.randrange(1, 16_000)) for n in range(40)}
        for token, payload in payloads.items():
            link.open(token, Kind.DUPLEX)
            link.send(token, payload)
            link.finish(token)
        await until(lambda: client.ended == set(payloads))
        for token, payload in payloads.items():
            assert hashlib.sha256(client.data[token]).digest() == hashlib.sha256(payload).digest()
        nursery.cancel_scope.cancel()


async def test_own_and_peers_streams_share_a_bad_connection(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(**NETWORKS["all"]))
        client, server, link, serving = await world.pair()
        for n in range(1, 11):
            link.open(-n, Kind.WRITE_ONLY)
            link.send(-n, bytes([n]) * 5000)
            link.finish(-n)
            serving.open(-n, Kind.WRITE_ONLY)
            serving.send(-n, bytes([n]) * 7000)
            serving.finish(-n)
        await until(lambda: len(client.ended) == len(server.ended) == 10)
        assert [bytes(server.data[2 + 4 * n]) for n in range(10)] == [bytes([n + 1]) * 5000 for n in range(10)]
        assert [bytes(client.data[3 + 4 * n]) for n in range(10)] == [bytes([n + 1]) * 7000 for n in range(10)]
        assert ("opened", 2, Kind.READ_ONLY) in server.events
        assert ("opened", -1, Kind.WRITE_ONLY) in server.events
        nursery.cancel_scope.cancel()


async def test_finished_streams_are_forgotten_and_their_number_is_not_a_bound(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(streams=8)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, network=Network(loss=0.05), limits=limits, on_accept=echo)
        client, _server, link, serving = await world.pair(limits=limits)
        for n in range(1, 101):
            link.open(-n, Kind.DUPLEX)
            link.send(-n, b"x" * n)
            link.finish(-n)
        await until(lambda: len(client.ended) == 100)
        assert [client.size(-n) for n in range(1, 101)] == list(range(1, 101))
        await until(lambda: not any(serving.knows(4 * n) for n in range(100)))
        await until(lambda: not any(link.knows(-n) for n in range(1, 101)))
        nursery.cancel_scope.cancel()


async def test_an_idle_stream_costs_no_walk(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        _client, server, link, serving = await world.pair()
        for n in range(1, 201):
            link.open(-n, Kind.DUPLEX)
            link.send(-n, b"hello")
        await until(lambda: len(server.data) == 200)
        await until(lambda: link.waiting()[0] == 0)
        assert not link.core._queue
        assert not serving.core._queue
        nursery.cancel_scope.cancel()


async def test_streams_without_credit_cost_no_walk_and_come_back_with_it(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(stream_window=2_000)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=limits, network=Network(loss=0.05))
        _client, server, link, serving = await world.pair()
        serving.pause()
        for n in range(1, 101):
            link.open(-n, Kind.DUPLEX)
            link.send(-n, bytes(2_000 if n % 2 else 5_000))
            link.finish(-n)
        await trio.sleep(20)
        assert not link.core._queue
        assert link.waiting()[0] == 50 * 3_000
        serving.resume()
        await until(lambda: len(server.ended) == 100)
        assert sum(map(len, server.data.values())) == 50 * 7_000
        nursery.cancel_scope.cancel()


async def test_an_acknowledgement_due_at_this_instant_is_not_held_back_by_pacing(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        _client, _server, link, serving = await world.pair()
        await trio.sleep(1)
        now = trio.current_time()
        link.send(-1, b"")
        link.core.send_ping(1)
        for datagram, _address in link.core.datagrams_to_send(now):
            serving.feed(datagram, serving.first_address, now)
        pacer = serving.core._loss._pacer
        pacer.packet_time, pacer.bucket_time, pacer.bucket_max = 0.5, 0.0, 0.0
        due = serving.core._spaces[Epoch.ONE_RTT].ack_at
        assert due is not None
        assert serving.timer() == due
        assert serving.datagrams(due)
        assert (serving.timer() or 0) > due
        nursery.cancel_scope.cancel()
