"""The driver over QUIC: what it learns of a peer that reads, and of one that does not."""

from __future__ import annotations

import trio

from gateway.broker.lane import Lane
from gateway.settings import Limits, Seconds
from gateway.transport.driver import Driver, DriverContext
from gateway.transport.limits import Budget
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Kind, SessionContext
from tests.quic.support import Heard, World, until
from tests.unit.transport.test_tcp import Refusals
from tests.unit.transport.toy import EchoBroker, LineSession

WRITE_TIMEOUT = 5


class Lines:
    """A listener of the toy protocol: each connection has a driver."""

    def __init__(self) -> None:
        self.recorder = Refusals()
        self.budget = Budget(1 << 30)
        self.link: QuicLink | None = None
        self.driver: Driver | None = None

    def __call__(self, link: QuicLink) -> Driver:
        limits = Limits(write_timeout=Seconds(WRITE_TIMEOUT))
        context = DriverContext("toy", limits, self.budget, self.recorder, trio.current_time, Lane())
        self.link = link
        self.driver = Driver(context, LineSession(SessionContext("toy", None)), link, EchoBroker().attach)
        return self.driver


async def test_who_always_has_an_answer_on_its_way_and_reads_each_is_not_cut(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """One question at a time, each with an answer of the same size: whenever one looks, so much is not acknowledged yet."""
    lines = Lines()
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, handler=lines)
        client = await asking(world)
        link = client.link
        assert link is not None
        client.on_received = lambda channel, _data: (link.send(channel, b"question\n"), link.flush())  # type: ignore[func-returns-value]
        link.send(-1, b"question\n")
        link.flush()
        await trio.sleep(4 * WRITE_TIMEOUT)
        assert not lines.recorder.reasons
        assert not client.gone
        assert client.size(-1) > 100
        assert 0 < lines.budget.used < 100
        nursery.cancel_scope.cancel()


async def test_who_asks_on_and_reads_nothing_is_cut(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """What was answered meanwhile is more, and none of it was read."""
    lines = Lines()
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, handler=lines)
        client = await asking(world, QuicLimits(stream_window=10_000))
        link = client.link
        assert link is not None
        link.send(-1, b"big 50000\n")
        link.pause(-1)
        link.flush()
        for _ in range(2 * WRITE_TIMEOUT):
            await trio.sleep(1)
            link.send(-1, b"question\n")
            link.flush()
        await until(lambda: client.gone)
        assert lines.recorder.reasons == ["write_timeout"]
        assert not lines.budget.used
        nursery.cancel_scope.cancel()


async def test_what_a_peer_takes_is_seen_whether_anybody_waits_for_room_or_not(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    """Who reads a feed slowly, or not at all: its sender waits for room, and sends nothing meanwhile."""
    lines = Lines()
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, handler=lines)
        client = await asking(world, QuicLimits(stream_window=10_000))
        assert client.link is not None
        client.link.send(-1, b"question\n")
        client.link.flush()
        await until(lambda: client.size(-1) >= len(b"question\n"))
        client.link.pause(-1)
        link, driver = lines.link, lines.driver
        assert link is not None
        assert driver is not None
        link.send(0, bytes(50_000), notify=True)
        link.flush()
        await trio.sleep(1)
        driver.turn(trio.current_time())
        assert driver in lines.budget.owing
        before, taken = driver.held()
        assert before > 30_000
        client.link.resume(-1)
        await until(lambda: not link.waiting()[0])
        assert driver.held() == (0, taken + before)
        assert driver not in lines.budget.owing
        nursery.cancel_scope.cancel()


async def asking(world: World, limits: QuicLimits | None = None) -> Heard:
    """A client with a channel."""
    client = world.dial(limits=limits)
    assert client.link is not None
    await until(lambda: client.link is not None and client.link.phase.name == "OPEN")
    client.link.open(-1, Kind.DUPLEX)
    await until(lambda: ("opened", -1, Kind.DUPLEX) in client.events)
    return client
