"""First packets: version negotiation, Retry, limits, floods, amplification."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable

import pytest
import trio
from aioquic._buffer import Buffer
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, pull_quic_header
from aioquic.quic.retry import QuicRetryTokenHandler

from gateway.settings import network_of
from gateway.transport.limits import Occupancy
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.endpoint import LET_IN, NEWCOMERS, TIMERS
from gateway.transport.quic.limits import QuicLimits, is_loopback
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Network, World, client_hello, initial, settle, until

STRANGER = ("203.0.113.9", 1234)


def header_of(datagram: bytes) -> QuicPacketType:
    return pull_quic_header(Buffer(data=datagram), host_cid_length=8).packet_type


def answers(network: Network, to: tuple[str, int] = STRANGER) -> list[bytes]:
    return [data for source, target, data in network.sent if source == SERVER and target == to]


async def test_an_unknown_version_is_answered_with_those_there_are(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        network.keep = True
        world = World.start(nursery, certificate, network=network)
        hello, source = client_hello(certificate)
        unknown = bytearray(initial(hello, source, b"01234567"))
        unknown[1:5] = b"\x1a\x2a\x3a\x4a"
        network.put(STRANGER, SERVER, bytes(unknown))
        network.put(STRANGER, SERVER, bytes(unknown[:1100]))  # too small to be answered
        await settle(1)
        (answer,) = answers(network)
        header = pull_quic_header(Buffer(data=answer), host_cid_length=8)
        assert header.packet_type is QuicPacketType.VERSION_NEGOTIATION
        assert header.supported_versions == [1, 0x6B3343CF]
        assert (header.source_cid, header.destination_cid) == (b"01234567", source)
        # a negotiation packet is never answered: two servers would play ping-pong
        network.put(STRANGER, SERVER, answer + bytes(1200))
        await settle(1)
        assert len(answers(network)) == 1
        assert world.server.connections == 0
        nursery.cancel_scope.cancel()


class Grown(trio.abc.Instrument):
    """By how much something grows before others get the loop."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count, self._before, self.most = count, 0, 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = self._count()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._count() - self._before)


async def test_many_that_come_at_once_have_turns_with_others(
    certificate: CertificateFiles, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """To let one in takes a thousandth of a second or two, to answer it again a third of that; all of them come at once."""
    fired: list[QuicLink] = []
    fire = QuicLink.fire
    monkeypatch.setattr(QuicLink, "fire", lambda link, now: (fired.append(link), fire(link, now)))
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        hello, source = client_hello(certificate)
        await settle(0.1)
        admitted, answered = Grown(lambda: world.server.handshakes), Grown(lambda: len(fired))
        trio.lowlevel.add_instrument(admitted)
        trio.lowlevel.add_instrument(answered)
        for number in range(50):
            network.put((f"203.0.113.{number}", 1234), SERVER, initial(hello, source, os.urandom(8)))
        await settle(0.1)
        assert world.server.handshakes == 50
        assert 0 < admitted.most <= NEWCOMERS // LET_IN
        await settle(5)
        assert len(set(fired)) == 50
        assert answered.most <= TIMERS
        for one in (admitted, answered):
            trio.lowlevel.remove_instrument(one)
        nursery.cancel_scope.cancel()


async def test_retry_from_the_threshold_on_and_honest_clients_get_through(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    refusals: Counter[str] = Counter()
    limits = QuicLimits(retry_above=3)
    async with trio.open_nursery() as nursery:
        network = Network()
        network.keep = True
        world = World.start(
            nursery, certificate, network=network, limits=limits, refusals=lambda why: refusals.update([why])
        )
        hello, source = client_hello(certificate)
        for _ in range(5):
            network.put(STRANGER, SERVER, initial(hello, source, os.urandom(8)))
        await settle(0.5)
        assert world.server.handshakes == 3
        assert refusals == {"retry": 2}
        assert [header_of(answer) for answer in answers(network)].count(QuicPacketType.RETRY) == 2
        client, server, link, _serving = await world.pair()
        assert refusals["retry"] == 3
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"through")
        await until(lambda: server.data.get(0) == b"through")
        assert not client.gone
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("spoil", ["flipped", "other address", "other destination", "foreign", "expired"])
async def test_tokens_that_are_not_ours_or_not_theirs_are_refused(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, spoil: str
) -> None:
    limits = QuicLimits(retry_above=0)
    async with trio.open_nursery() as nursery:
        network = Network()
        network.keep = True
        world = World.start(nursery, certificate, network=network, limits=limits)
        hello, source = client_hello(certificate)
        network.put(STRANGER, SERVER, initial(hello, source, b"original"))
        await settle(1)
        (retry,) = answers(network)
        header = pull_quic_header(Buffer(data=retry), host_cid_length=8)
        token, destination, sender = header.token, header.source_cid, STRANGER
        if spoil == "flipped":
            token = token[:-1] + bytes([token[-1] ^ 1])
        elif spoil == "other address":
            sender = ("203.0.113.10", 1234)
        elif spoil == "other destination":
            destination = b"elsewher"
        elif spoil == "foreign":
            token = QuicRetryTokenHandler().create_token(
                address=STRANGER,
                original_destination_connection_id=b"original",
                retry_source_connection_id=destination,
                now=trio.current_time(),
            )
        else:
            await trio.sleep(60)
        network.put(sender, SERVER, initial(hello, source, destination, token=token))
        await settle(1)
        refusal = answers(network, sender)[-1]
        assert header_of(refusal) is QuicPacketType.INITIAL
        assert len(refusal) < 100
        assert world.server.connections == 0
        nursery.cancel_scope.cancel()


async def test_ten_thousand_half_open_handshakes_are_bounded_and_forgotten(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(retry_above=64, handshakes=100, handshakes_per_address=80)
    refusals: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        network = Network(delay=0.0)
        world = World.start(
            nursery, certificate, network=network, limits=limits, refusals=lambda why: refusals.update([why])
        )
        hello, source = client_hello(certificate)
        await settle(0.1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for batch in range(100):
            for n in range(100):
                network.put((f"203.0.{batch}.{n}", 999), SERVER, initial(hello, source, os.urandom(8)))
            await trio.sleep(0.001)
        await settle(0.1)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert world.server.handshakes == limits.retry_above
        assert refusals["retry"] == 10_000 - limits.retry_above
        assert grown < 64 << 20
        # meanwhile, somebody honest is served
        client, server, link, _serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        link.send(-1, b"still here")
        await until(lambda: server.data.get(0) == b"still here")
        # and in the end nothing of it is left
        await settle(limits.handshake + 1)
        assert world.server.handshakes == 0
        assert world.server.connections == 1
        assert not client.gone
        nursery.cancel_scope.cancel()


async def test_limits_per_address_and_in_all_refuse_with_a_close(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    limits = QuicLimits(per_address=2, connections=3)
    refusals: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, limits=limits, refusals=lambda why: refusals.update([why]))
        for _ in range(2):
            await world.pair(host="198.51.100.1")
        third = world.dial(host="198.51.100.1")
        assert third.link is not None
        await third.link.over.wait()
        assert third.link.core.end == (QuicErrorCode.CONNECTION_REFUSED, False, "")
        _client, _server, link, _serving = await world.pair(host="198.51.100.2")
        fifth = world.dial(host="198.51.100.3")
        assert fifth.link is not None
        await fifth.link.over.wait()
        assert refusals == {"connections_per_address": 1, "connections": 1}
        # a place that is given back can be taken
        link.close()
        await until(lambda: world.server.connections == 2)
        await world.pair(host="198.51.100.3")
        nursery.cancel_scope.cancel()


async def test_an_unvalidated_address_never_gets_three_times_what_it_sent(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        network.keep = True
        world = World.start(nursery, certificate, network=network)
        hello, source = client_hello(certificate)
        datagram = initial(hello, source, b"reflect!")
        for _ in range(3):
            network.put(STRANGER, SERVER, datagram)
            await trio.sleep(5)
            asked = sum(len(data) for origin, _, data in network.sent if origin == STRANGER)
            assert 0 < sum(map(len, answers(network))) <= 3 * asked
        await settle(60)
        assert sum(map(len, answers(network))) <= 3 * 3 * len(datagram)
        assert world.server.connections == 0
        nursery.cancel_scope.cancel()


async def test_a_first_packet_that_cannot_be_read_leaves_nothing_behind(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        hello, source = client_hello(certificate)
        broken = bytearray(initial(hello, source, b"whatever"))
        broken[100] ^= 1
        network.put(STRANGER, SERVER, bytes(broken))
        await settle(1)
        assert world.server.connections == 0
        assert world.server.handshakes == 0
        await world.pair()
        nursery.cancel_scope.cancel()


def test_a_host_owns_its_64_and_a_mapped_address_is_an_ipv4_one() -> None:
    assert network_of("2001:db8:1:2::3") == network_of("2001:db8:1:2:ffff::9") != network_of("2001:db8:1:3::3")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("fe80::1%eth0")


def test_occupancy_forgets_addresses_that_left() -> None:
    occupancy = Occupancy(bound=2, per_address=1)
    occupancy.enter("a")
    assert occupancy.refusal("a") == "per_address"
    assert occupancy.refusal("b") is None
    occupancy.enter("b")
    assert occupancy.refusal("c") == "connections"
    occupancy.leave("a")
    assert occupancy.refusal("a") is None
    assert occupancy.total == 1
