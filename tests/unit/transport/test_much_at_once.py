"""What comes back from the disk for one connection takes its turns one by one, in one batch or behind a late one."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio

from gateway.broker.lane import PASS_BYTES, Lane
from gateway.envelope import Columns, Run
from gateway.recorder import Recorder
from gateway.requests import CacheValue, Completion, Fetched
from gateway.settings import Limits
from gateway.transport.driver import Driver, DriverContext
from gateway.transport.limits import Budget
from gateway.transport.tcp import TcpLink
from gateway.wire.session import SessionContext
from tests.unit.transport.toy import EchoBroker, LineSession


class Peer:
    """A connection whose requests the test ends, and the lane that it shares with nobody."""

    def __init__(self, nursery: trio.Nursery, ours: socket.socket) -> None:
        self.broker, self.lane = EchoBroker(later=True), Lane()
        self.before = 0
        self.link = link = TcpLink(ours, "peer", nursery, trio.current_time)
        self.budget = Budget(64 << 20)
        context = DriverContext("toy", Limits(), self.budget, Recorder(), trio.current_time, self.lane)
        self.driver = Driver(context, LineSession(SessionContext("toy", None)), link, self.broker.attach)

    def ask(self, lines: bytes) -> None:
        self.driver.take(0, lines, trio.current_time())
        self.driver.turn(trio.current_time())

    def end(self, *completions: Completion) -> None:
        self.broker.held[0][0].on_completions(completions)

    def said(self) -> int:
        """Bytes that were put out since the last look, whether the kernel has taken them or not."""
        _buffered, waiting, taken = self.link.waiting()
        before, self.before = self.before, waiting + taken
        return self.before - before


@pytest.fixture
async def peer(nursery: trio.Nursery) -> AsyncIterator[Peer]:
    ours, theirs = socket.socketpair()
    with theirs, ours:
        made = Peer(nursery, ours)
        yield made
        made.driver.lost()


@pytest.mark.parametrize("several", [1, 2, 3])
async def test_each_of_several_that_are_much_has_a_pass(peer: Peer, several: int):
    peer.ask(b"some\n" * several)
    much = Fetched([Run("much", 0, 0, Columns.of([b"m" * (PASS_BYTES + 1)]), [0], ())], 1, 0, 1)
    peer.end(*((number, much) for number in range(1, several + 1)))
    left: list[int] = []
    for _ in range(several + 1):
        left.append(peer.said() // len(b"!\n"))
        peer.lane.turn()
    assert left == ([1, 0] if several == 1 else [0] + [1] * several)


async def test_what_waits_for_its_pass_counts_in_the_memory(peer: Peer):
    peer.ask(b"some\n" * 3)
    columns = Columns.of([b"m" * (PASS_BYTES + 1)])
    peer.end(*((number, Fetched([Run("much", 0, 0, columns, [0], ())], 1, 0, 1)) for number in (1, 2, 3)))
    for waiting in (3, 2, 1, 0):
        assert peer.budget.unsent == waiting * len(columns.packed)
        peer.lane.turn()


async def test_what_one_late_answer_has_kept_back_leaves_in_turns(peer: Peer):
    """Each of them had its turn when it came; all of them are ready when the first one comes. What is asked meanwhile keeps its
    place, and sets nothing free.
    """
    sizes = [PASS_BYTES + number for number in range(4)]
    peer.ask(b"late\n" + b"some\n" * len(sizes))
    for number, size in enumerate(sizes, start=2):
        peer.end((number, CacheValue(b"m" * size)))
    assert peer.said() == 0
    peer.end((1, CacheValue(b"at last")))
    assert peer.said() == len(b"at last\n") + sizes[0] + 1
    peer.ask(b"one more\n")
    peer.end((6, CacheValue(b"behind")))
    assert peer.said() == 0
    for size in sizes[1:]:
        peer.lane.turn()
        assert peer.said() == size + 1
    peer.lane.turn()
    assert peer.said() == len(b"behind\n")
    peer.lane.turn()
    assert not peer.lane.busy


async def test_what_leaves_late_counts_in_the_pass(peer: Peer):
    """Of two connections that have so much to say one has the pass."""
    turns: list[str] = []
    peer.ask(b"late\nsome\nsome\n")
    for number in (3, 2, 1):
        peer.end((number, CacheValue(b"m" * PASS_BYTES)))
    assert peer.said() == PASS_BYTES + 1
    peer.lane.add("another", lambda: turns.append("another's"), 0)
    peer.lane.turn()
    assert peer.said() == PASS_BYTES + 1
    assert turns == []
    peer.lane.turn()
    assert turns == ["another's"]
    assert peer.said() == PASS_BYTES + 1
