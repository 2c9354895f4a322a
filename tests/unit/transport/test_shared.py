"""Connections that one task reads: what is ready together is asked for together, and nobody has it for himself."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.transport import shared, tcp
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
