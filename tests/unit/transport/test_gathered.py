"""What was gathered may end before the turn that asks for it, with it, or after it: its bytes count until then, and no longer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.broker.lane import Lane
from gateway.errors import TooLarge
from gateway.recorder import Recorder
from gateway.requests import Outcome
from gateway.settings import Limits
from gateway.transport.driver import Driver, DriverContext
from gateway.transport.limits import QUEUE, Budget
from gateway.transport.tcp import TcpLink
from gateway.wire.session import Output, Requests, SessionContext
from tests.unit.transport.toy import EchoBroker, LineSession

PUBLISH = b"pub something\n"


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("ends", ["before", "with", "after"])
async def test_the_bytes_of_a_publish_count_until_it_has_ended(lines: int, ends: str):
    theirs, ours = socket.socketpair()
    with theirs, ours:
        async with trio.open_nursery() as nursery:
            broker, budget = EchoBroker(later=ends != "with"), Budget(1 << 20)
            link = TcpLink(ours, "peer", nursery, trio.current_time)
            context = DriverContext("toy", Limits(), budget, Recorder(), trio.current_time, Lane())
            driver = Driver(context, LineSession(SessionContext("toy", None)), link, broker.attach)
            plainly = 0
            for _ in range(2):
                assert driver.take(0, PUBLISH * lines, trio.current_time()) == lines
                if ends == "before":
                    broker.release()
                answer = driver.answer(trio.current_time())
                if answer is not None:
                    plainly += 1
                    link.send(0, answer)
                    link.flush()
                if ends == "after":
                    assert budget.used >= lines * (len(PUBLISH) - 1)
                    assert budget.writers == 1
                    broker.release()
                assert budget.used == budget.writers == 0
                assert theirs.recv(1000) == b"stored\n" * lines
            # the first turn finds out that there is nothing else to be done after such a one
            assert plainly == (1 if lines == 1 and ends == "with" else 0)
            driver.lost()


class Asked(LineSession):
    """Says what the driver asked of it."""

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self.asked: list[str] = []

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self.asked.append("complete")
        return super().complete(request_id, outcome, now)

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes:
        self.asked.append("answered")
        return super().answered(request_id, outcome, now)

    def outputs(self) -> Sequence[Output]:
        self.asked.append("outputs")
        return super().outputs()


class Calm(Recorder):
    """A connection that has had an answer, and nothing is under way on it."""

    def limit_hit(self, listener: str, limit: str) -> None:
        self.hits.append(limit)

    def __init__(
        self,
        theirs: socket.socket,
        ours: socket.socket,
        nursery: trio.Nursery,
        limits: Limits | None,
        budget: Budget | None,
    ) -> None:
        self.theirs, self.ours = theirs, ours
        self.budget = budget if budget is not None else Budget(1 << 20)
        self.broker = EchoBroker()
        self.hits: list[str] = []
        self.session = Asked(SessionContext("toy", None))
        self.link = TcpLink(self.ours, "peer", nursery, trio.current_time)
        limits = limits if limits is not None else Limits()
        context = DriverContext("toy", limits, self.budget, self, trio.current_time, Lane())
        self.driver = Driver(context, self.session, self.link, self.broker.attach)
        self.publish()
        assert self.answer() is None
        assert self.theirs.recv(100) == b"stored\n"
        self.broker.later = True
        self.session.asked.clear()

    def publish(self, line: bytes = PUBLISH) -> None:
        self.driver.take(0, line, trio.current_time())

    def answer(self) -> bytes | None:
        return self.driver.answer(trio.current_time())


@asynccontextmanager
async def calmed(limits: Limits | None = None, budget: Budget | None = None) -> AsyncIterator[Calm]:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        async with trio.open_nursery() as nursery:
            yield Calm(theirs, ours, nursery, limits, budget)
            nursery.cancel_scope.cancel()


async def test_an_answer_that_comes_later_to_a_calm_connection_takes_one_step():
    async with calmed() as calm:
        for _ in range(3):
            calm.publish()
            assert calm.answer() is None
            assert (calm.budget.used, calm.budget.writers) == (len(PUBLISH) + 7, 1)
            assert calm.session.asked == ["outputs"]
            calm.broker.release()
            assert calm.session.asked == ["outputs", "answered", "complete"]
            assert calm.theirs.recv(100) == b"stored\n"
            assert (calm.budget.used, calm.budget.writers) == (0, 0)
            calm.session.asked.clear()


async def test_what_comes_while_one_is_under_way_is_answered_behind_it():
    async with calmed() as calm:
        calm.publish()
        calm.answer()
        calm.publish(b"pub more\nsome")
        calm.answer()
        assert calm.budget.writers == 1
        calm.broker.release()
        assert calm.theirs.recv(100) == b"stored\n" * 2
        assert calm.budget.used == len(b"some")
        calm.driver.lost()
        assert (calm.budget.used, calm.budget.writers) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "budget", "line", "held_by"),
    [
        (Limits(in_flight=1), Budget(1 << 20), PUBLISH, "in_flight"),
        (Limits(), Budget(1 << 30), b"pub " + b"x" * QUEUE + b"\n", "share"),
        (Limits(), Budget(24), PUBLISH, "budget"),
    ],
)
async def test_one_that_waits_is_held_against_the_bounds(limits: Limits, budget: Budget, line: bytes, held_by: str):
    async with calmed(limits, budget) as calm:
        calm.publish(line)
        calm.answer()
        assert calm.hits == [held_by]
        calm.broker.release()
        assert calm.theirs.recv(100) == b"stored\n"
        assert (budget.used, budget.writers) == (0, 0)


async def test_the_connection_may_go_while_one_is_under_way():
    async with calmed() as calm:
        calm.publish()
        calm.answer()
        calm.driver.lost()
        assert (calm.budget.used, calm.budget.writers) == (0, 0)
        calm.broker.release()
        assert calm.session.asked == ["outputs"]


async def test_a_refusal_that_comes_later_takes_the_long_way():
    async with calmed() as calm:
        calm.publish()
        calm.answer()
        ((client, (number, _outcome)),) = calm.broker.held
        calm.broker.held = [(client, (number, TooLarge("too large")))]
        calm.broker.release()
        assert calm.session.asked[1] == "complete"
        assert calm.theirs.recv(100) == b"!\n"
        assert (calm.budget.used, calm.budget.writers) == (0, 0)


async def test_an_answer_that_the_peer_does_not_take_counts_until_it_does():
    async with calmed() as calm:
        filled = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += calm.ours.send(bytes(1 << 16))
        calm.publish()
        calm.answer()
        calm.broker.release()
        assert (calm.budget.used, calm.budget.writers) == (len(b"stored\n"), 0)
        assert calm.link.waiting()[1] == len(b"stored\n")
