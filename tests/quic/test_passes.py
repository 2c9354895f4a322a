"""When a pass is made, and what leaves with it: acknowledgements that do not wait, and a socket that is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.transport.quic import endpoint
from gateway.transport.quic.aioquic_private import ACKNOWLEDGE_AFTER
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.endpoint import LONE
from gateway.transport.shared import TOGETHER
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Address, Heard, Network, SimSocket, World, until


async def test_datagrams_that_come_one_by_one_are_not_kept_waiting_for_ever(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """A sender whose window is full waits for the acknowledgement: every eighth datagram has one at once."""
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, _server, link, _serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)
        await trio.sleep(1)
        network.keep = True
        for _ in range(ACKNOWLEDGE_AFTER):
            link.send(-1, b"message")
            link.flush()
            await trio.sleep(0.0001)
        await trio.sleep(network.delay + 0.0001)
        assert [source for source, _, _ in network.sent].count(SERVER) == 1
        nursery.cancel_scope.cancel()


async def test_a_question_and_an_answer_are_a_datagram_each(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """Acknowledgements travel with what is sent anyway, where that takes as long as a commit does."""
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, _serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)

        async def answer(channel: int) -> None:
            await trio.sleep(0.003)
            assert server.link is not None
            server.link.send(channel, b"answer")
            server.link.flush()

        server.on_received = lambda channel, _data: nursery.start_soon(answer, channel)
        for number in range(1, 12):
            link.send(-1, b"question")
            link.flush()
            await until(lambda number=number: client.size(-1) == number * len(b"answer"))  # type: ignore[misc]
            if number == 1:
                await trio.sleep(1)  # what a new connection has to tell besides
                network.keep = True
        assert [source == SERVER for source, _, _ in network.sent] == [False, True] * 10
        nursery.cancel_scope.cancel()


async def test_all_that_were_heard_from_are_read_before_one_of_them_acts(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """What they ask for is committed together; and who is alone says who it is."""
    seen: list[object] = []

    class Gathering(Heard):
        def gather(self, channel: int, data: bytes, now: float) -> None:
            assert now == trio.current_time()
            seen.append("gather")
            self.received(channel, data)

        def turn(self, now: float) -> None:
            seen.append("turn")

    async with trio.open_nursery() as nursery:
        world = World.start(
            nursery,
            certificate,
            handler=Gathering,
            hold=lambda: seen.append("hold"),
            release=seen.append,
        )
        links = [(await world.pair())[2] for _ in range(5)]
        for link in links:
            link.open(-1, Kind.DUPLEX)
        for asking in (links, links[:1], links[1:2]):
            await trio.sleep(1)  # for what is said of its own accord
            seen.clear()
            for link in asking:
                link.send(-1, b"question")
                link.flush()
            await until(lambda asking=asking: seen.count("gather") == len(asking))  # type: ignore[misc]
            begin = seen.index("hold")
            by = seen[begin + len(asking) + 1]
            pass_ = ["hold", *["gather"] * len(asking), by, *["turn"] * len(asking)]
            assert seen[begin : begin + len(pass_)] == pass_
            assert isinstance(by, int)
            assert by == TOGETHER if len(asking) > 1 else by < TOGETHER
        assert [bytes(heard.data[0]) for heard in world.accepted] == [b"question" * 2] * 2 + [b"question"] * 3
        nursery.cancel_scope.cancel()


class FullSocket(SimSocket):
    """Has room for nothing until it is told so."""

    full = False
    room = trio.Event()

    def send(self, datagrams: Sequence[tuple[bytes, Address]]) -> Sequence[tuple[bytes, Address]]:
        if self.full and datagrams:
            return super().send(datagrams[:1]) or datagrams[1:] if len(datagrams) > 1 else datagrams
        return super().send(datagrams)

    async def wait_writable(self) -> None:
        await self.room.wait()


async def test_what_the_socket_has_no_room_for_is_sent_when_it_has(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, _serving = await world.pair()
        sock = network._sockets[world_address(network)]
        sock.__class__ = FullSocket
        assert isinstance(sock, FullSocket)
        sock.full, sock.room = True, trio.Event()
        link.open(-1, Kind.DUPLEX)
        await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)
        link.send(-1, bytes(50_000))
        link.flush()
        await wait_all_tasks_blocked()
        link.send(-1, b"more")
        link.flush()
        await trio.sleep(5)  # timers are due meanwhile, and datagrams arrive
        assert server.size(0) < 50_004
        sock.full = False
        sock.room.set()
        await until(lambda: server.size(0) == 50_004)
        nursery.cancel_scope.cancel()


def world_address(network: Network) -> Address:
    """The client's."""
    return next(address for address in network._sockets if address != SERVER)


class WatchedSocket(SimSocket):
    """Notes how many datagrams were asked for, and how many there were."""

    reads: list[tuple[int, int]]

    def receive(self, limit: int) -> list[tuple[bytes, Address]]:
        found = super().receive(limit)
        self.reads.append((limit, len(found)))
        return found


async def test_who_comes_alone_time_after_time_is_read_once_and_a_crowd_as_one(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """What sends only does not read at all."""
    async with trio.open_nursery() as nursery:
        network = Network()
        world = World.start(nursery, certificate, network=network)
        client, server, link, serving = await world.pair()
        sock = network._sockets[SERVER]
        sock.__class__ = WatchedSocket
        assert isinstance(sock, WatchedSocket)
        sock.reads = []
        link.open(-1, Kind.DUPLEX)
        await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)

        async def ask(times: int) -> None:
            before = server.size(0)
            for number in range(1, times + 1):
                link.send(-1, b"question")
                link.flush()
                await until(lambda number=number: server.size(0) == before + 8 * number)  # type: ignore[misc]
                await trio.sleep(0.1)  # what is acknowledged is so by itself

        await ask(2 * LONE)
        sock.reads.clear()
        await ask(4 * LONE)
        assert {found for _limit, found in sock.reads} <= {0, 1}  # none when a timer is due
        assert sock.reads.count((1, 1)) >= 4 * (LONE - 1)

        sock.reads.clear()
        crowd = [(b"\0", ("10.9.9.9", 9)) for _ in range(100)]  # no QUIC
        for data, source in crowd:
            sock.arrive(data, source)
        await until(lambda: not sock._inbox)
        assert len(sock.reads) <= LONE + 1
        assert sum(found for _limit, found in sock.reads) == 100

        sock.reads.clear()
        serving.send(0, b"news")
        serving.flush()
        await wait_all_tasks_blocked()
        assert sock.reads == []
        await until(lambda: client.size(-1) == 4)
        nursery.cancel_scope.cancel()


async def test_a_pass_takes_no_more_bytes_than_others_can_wait_for(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large datagrams full of small requests, of which the socket holds megabytes."""
    datagram, most = 1_500, 8_000  # no sealed packet is larger on this network
    monkeypatch.setattr(endpoint, "PASS_BYTES", most)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate)
        client, server, link, _serving = await world.pair()
        link.open(-1, Kind.DUPLEX)
        await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)
        (serving,) = world.server._endpoints
        taken: Counter[int] = Counter()

        def took(_channel: int, data: bytes) -> None:
            taken[serving.passes] += len(data)

        server.on_received = took
        for _ in range(40):
            link.send(-1, bytes(1_000))
        link.flush()
        await until(lambda: sum(taken.values()) == 40_000)
        assert max(taken.values()) <= most + datagram
        nursery.cancel_scope.cancel()


async def test_a_pass_takes_no_more_requests_than_others_can_wait_for(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """Who is behind them is heard in the next one, when they have their answers."""
    seen: list[str] = []

    class Asking(Heard):
        asked = 0

        def gather(self, channel: int, data: bytes, now: float) -> None:
            seen.append("gather")
            self.asked += endpoint.REQUESTS // 2
            self.received(channel, data)

        def turn(self, now: float) -> None:
            seen.append("turn")

    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, handler=Asking)
        links = [(await world.pair())[2] for _ in range(5)]
        for link in links:
            link.open(-1, Kind.DUPLEX)
        await trio.sleep(1)
        seen.clear()
        for link in links:
            link.send(-1, b"question")
            link.flush()
        await until(lambda: seen.count("gather") == len(links))
        at = seen.index("gather")
        assert seen[at : at + 8] == ["gather", "gather", "turn", "turn"] * 2
        assert [bytes(heard.data[0]) for heard in world.accepted] == [b"question"] * 5
        nursery.cancel_scope.cancel()
