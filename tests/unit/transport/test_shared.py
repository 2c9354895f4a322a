"""Connections that one task reads: what is ready together is asked for together, and nobody has it for himself."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.transport import shared, tcp
from gateway.transport.shared import ANSWER_BYTES, PASS_BYTES, SharedReader
from tests.unit.transport.test_tcp import Running, read_until, running


@asynccontextmanager
async def connected(gateway: Running, count: int) -> AsyncIterator[list[socket.socket]]:
    """Plain sockets: what they send, they send while the event loop stands."""
    socks = [socket.create_connection(("127.0.0.1", gateway.listener.port)) for _ in range(count)]
    try:
        with trio.fail_after(20):
            while gateway.listener.connections < count:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
        yield socks
    finally:
        for sock in socks:
            sock.close()


async def received(sock: socket.socket) -> bytes:
    with trio.fail_after(20):
        await trio.lowlevel.wait_readable(sock)
    return sock.recv(100)


async def test_all_that_are_ready_are_read_before_anything_is_committed():
    seen: list[str] = []
    async with running(hold=lambda: seen.append("hold"), release=lambda _by: seen.append("release")) as gateway:
        broker = gateway.broker
        async with connected(gateway, 5) as socks:
            seen.clear()
            before = broker.submitted
            for number, sock in enumerate(socks):
                sock.sendall(b"%d\n" % number)
            with trio.fail_after(20):
                while broker.submitted < before + 5:
                    await trio.lowlevel.checkpoint()
            assert seen == ["hold", "release"]
            for number, sock in enumerate(socks):
                assert await received(sock) == b"%d\n" % number


async def test_who_floods_is_read_no_further_than_others_in_one_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared, "PASS_BYTES", 1)  # every connection is a pass of its own
    async with running() as gateway, await gateway.connect() as one, await gateway.connect() as other:
        lines = 200_000
        async with trio.open_nursery() as nursery:
            await wait_all_tasks_blocked()
            nursery.start_soon(one.send_all, b"a\n" * lines)
            nursery.start_soon(read_until, one, 2 * lines)
            while not gateway.broker.submitted:
                await trio.lowlevel.checkpoint()
            await other.send_all(b"b\n")
            with trio.fail_after(60):
                assert await read_until(other, 2) == b"b\n"
            assert gateway.broker.submitted < lines
    assert gateway.listener.connections == 0


@pytest.mark.parametrize(("count", "each", "passes"), [(6, 50, [100, 200, 300]), (70, 1, [70])])
async def test_of_many_small_requests_no_more_are_handed_over_in_one_pass_than_a_large_one_takes(
    count: int, each: int, passes: list[int]
):
    counts: list[int] = []
    async with (
        running(release=lambda _by: counts.append(gateway.broker.submitted)) as gateway,
        connected(gateway, count) as socks,
    ):
        counts.clear()
        for sock in socks:
            sock.sendall(b"x\n" * each)
        with trio.fail_after(20):
            while gateway.broker.submitted < count * each:
                await trio.lowlevel.checkpoint()
        for sock in socks:
            assert await received(sock) == b"x\n" * each
    assert shared.PASS_BYTES // tcp.REQUEST_COST == 64
    assert counts == passes


async def test_who_has_asked_for_much_in_its_life_is_answered_with_the_others(monkeypatch: pytest.MonkeyPatch):
    left: list[int] = []
    take_turns = shared.SharedReader._pass

    def watched(reader: shared.SharedReader) -> None:
        take_turns(reader)
        left.append(len(reader._unanswered))

    asked = 4 * shared.ANSWER_BYTES // tcp.REQUEST_COST
    async with running() as gateway, connected(gateway, 3) as socks:
        for sock in socks:
            sock.sendall(b"x\n" * asked)
        with trio.fail_after(20):
            while gateway.broker.submitted < 3 * asked:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
        monkeypatch.setattr(shared.SharedReader, "_pass", watched)
        for sock in socks:
            sock.sendall(b"y\n")
        with trio.fail_after(20):
            while gateway.broker.submitted < 3 * asked + 3:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
    assert left == [0]


async def test_a_connection_that_ends_while_another_is_read_leaves_the_rest_alone():
    async with running() as gateway, connected(gateway, 3) as socks:
        socks[0].sendall(b"crash\n")
        socks[1].close()
        socks[2].sendall(b"still here\n")
        with trio.fail_after(20):
            while not gateway.broker.submitted or gateway.listener.connections > 1:
                await trio.lowlevel.checkpoint()
        assert await received(socks[2]) == b"still here\n"
        assert gateway.recorder.reasons == ["internal_error"]


class Worker:
    """Takes its turns, or fails in one of them."""

    def __init__(self, sock: socket.socket, fails: str, cost: int) -> None:
        self.sock, self.fails, self.cost = sock, fails, cost
        self.gathered = self.answered = self.failed = 0

    def gather(self, _now: float) -> int:
        self.gathered += 1
        assert self.sock.recv(1)
        return self.took("gather")

    def answer(self, _now: float) -> int:
        self.answered += 1
        return self.took("answer")

    def took(self, what: str) -> int:
        if what == self.fails:
            raise RuntimeError("a mistake")
        return self.cost

    def fail(self, _error: Exception) -> None:
        self.failed += 1


@pytest.mark.parametrize("bad", [(), (0,), (0, 1), (2,), (4,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("where", ["gather", "answer"])
@pytest.mark.parametrize("cost", [1, PASS_BYTES // 2, ANSWER_BYTES])
async def test_each_has_one_turn_whoever_fails(bad: tuple[int, ...], where: str, cost: int):
    """All of them in one pass, two, or one alone; and they have their next turns as if nothing had been."""
    held: list[int] = []
    with ExitStack() as stack:
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(5)]
        for near, _far in pairs:
            near.setblocking(False)  # who had two turns in one would fail
        workers = [Worker(near, where if number in bad else "", cost) for number, (near, _far) in enumerate(pairs)]
        reader = SharedReader(lambda: held.append(1), lambda _by: held.append(-1), trio.current_time)
        for worker in workers:
            reader.add(worker.sock.fileno(), worker)
        async with trio.open_nursery() as nursery:
            for turns in (1, 2):
                for _near, far in pairs:
                    far.sendall(b"x")
                if turns == 1:
                    nursery.start_soon(reader.run)
                with trio.fail_after(20):
                    while any(worker.answered < turns for worker in workers):
                        await trio.lowlevel.checkpoint()
                assert [worker.gathered for worker in workers] == [turns] * 5
                assert [worker.answered for worker in workers] == [turns] * 5
                assert [worker.failed for worker in workers] == [turns * (number in bad) for number in range(5)]
                assert sum(held) == 0
            nursery.cancel_scope.cancel()


class Left(Worker):
    """Finds nothing to read as well as something."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, "", 1)
        self.got = b""

    def gather(self, _now: float) -> int:
        self.gathered += 1
        with suppress(BlockingIOError):
            self.got += self.sock.recv(100)
        return 1


class Leaves(trio.abc.Instrument):
    """Takes one away between the moment when something is there and the turn of who reads it."""

    def __init__(self, reader: SharedReader, number: int) -> None:
        self.reader, self.number = reader, number

    def after_io_wait(self, timeout: float) -> None:
        self.reader.remove(self.number)


async def test_who_is_left_alone_may_be_read_in_vain():
    with ExitStack() as stack:
        (here, far), (there, other) = ([stack.enter_context(end) for end in socket.socketpair()] for _ in range(2))
        here.setblocking(False)
        stays, goes = Left(here), Worker(there, "", 1)
        reader = SharedReader(lambda: None, lambda _by: None, trio.current_time)
        reader.add(here.fileno(), stays)
        reader.add(there.fileno(), goes)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await wait_all_tasks_blocked()
            other.sendall(b"x")
            leaves = Leaves(reader, there.fileno())
            trio.lowlevel.add_instrument(leaves)
            await wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(leaves)
            assert (stays.gathered, stays.got, goes.gathered) == (1, b"", 0)
            far.sendall(b"more")
            await wait_all_tasks_blocked()
            assert (stays.gathered, stays.got, stays.failed) == (2, b"more", 0)
            nursery.cancel_scope.cancel()


async def test_what_the_store_does_wrong_is_no_connections_fault():
    def release(_by: int) -> None:
        raise RuntimeError("the store's")

    with ExitStack() as stack:
        near, far = (stack.enter_context(end) for end in socket.socketpair())
        worker = Worker(near, "", 1)
        reader = SharedReader(lambda: None, release, trio.current_time)
        reader.add(near.fileno(), worker)
        far.sendall(b"x")
        with trio.fail_after(20), pytest.raises(RuntimeError, match="the store's"):
            await reader.run()
        assert (worker.gathered, worker.failed) == (1, 0)
