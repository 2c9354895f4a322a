"""A request in two segments, as stock clients with Nagle's algorithm send it: a read that is not answered is acknowledged at once.

The second segment waits for the acknowledgement of the first. Whether that is delayed is a mode of the receiving socket,
which the kernel leaves by itself once answers are sent; so it has to be asked for after every read that is not answered, and
here it is looked at there instead of being timed.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from gateway.transport.shared import SharedReader
from gateway.transport.tcp import WHOLE_READ, TcpLink
from gateway.wire.session import Kind


class Noting(socket.socket):
    """Knows how often an acknowledgement was asked for: the mode is left by the kernel too, once it has delayed one."""

    asked = 0

    def setsockopt(self, *args: Any) -> None:
        self.asked += args == (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        super().setsockopt(*args)


class Answering:
    """Looks at the socket whenever something came in, puts the delay back, and answers what ends with a full stop."""

    def __init__(self, sock: Noting) -> None:
        self.sock = sock
        self.link: TcpLink | None = None
        self.modes: list[int] = []
        self.came = trio.Event()

    def received(self, channel: int, data: bytes) -> None:
        self.modes.append(self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert self.link is not None
        if data.endswith(b"."):
            self.link.send(0, b"answer")
            self.link.flush()
        self.came.set()

    def opened(self, channel: int, kind: Kind) -> None: ...
    def eof(self, channel: int) -> None: ...
    def reset(self, channel: int, code: int) -> None: ...
    def stopped(self, channel: int, code: int) -> None: ...
    def room(self, channel: int) -> None: ...
    def turn(self, now: float) -> None: ...
    def lost(self) -> None: ...


H = TypeVar("H", bound=Answering)


@asynccontextmanager
async def linked(kind: type[H]) -> AsyncIterator[tuple[trio.SocketStream, H, TcpLink, trio.Nursery]]:
    """A client, and its connection here with a handler that nobody feeds yet."""
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener, trio.open_nursery() as nursery:
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        accepted, _ = await listener.socket.accept()
        handler = kind(Noting(fileno=accepted.detach()))
        handler.link = link = TcpLink(handler.sock, "peer", nursery, trio.current_time)
        yield client, handler, link, nursery
        await client.aclose()
        link.abort()


async def test_a_read_that_is_not_answered_is_acknowledged_at_once() -> None:
    async with linked(Answering) as (client, handler, link, nursery):
        nursery.start_soon(link.run, handler)
        with trio.fail_after(20):
            for _ in range(3):
                for segment in (b"head", b"more", b"body."):
                    handler.came = trio.Event()
                    await client.send_all(segment)
                    await handler.came.wait()
                await client.receive_some()
        behind_an_answer, behind_none = handler.modes[::3], handler.modes[1::3] + handler.modes[2::3]
        assert len(behind_an_answer) == 3
        assert set(behind_an_answer[1:]) == {0}, "one call less for each answer"
        assert set(behind_none) == {1}
        assert handler.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Gathered(Answering):
    """The same beside others; what ends with a plus is answered for certain, later."""

    asked = 0
    due = False

    def take(self, channel: int, data: bytes, now: float) -> int:
        self.due = data.endswith(b"+")
        self.came.set()
        return 1

    def gather(self, channel: int, data: bytes, now: float) -> None: ...
    def respond(self, now: float) -> None: ...

    def answer(self, now: float) -> bytes | None:
        return b"" if self.due else None

    def fail(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("segment", "acknowledged"),
    [
        pytest.param(b"+", 1, id="what follows a small one may wait for it"),
        pytest.param(b"x" * WHOLE_READ + b"+", 0, id="the answer says it"),
        pytest.param(b"x" * WHOLE_READ, 1, id="there is none"),
    ],
)
async def test_what_is_answered_for_certain_and_is_no_part_is_acknowledged_by_that(segment: bytes, acknowledged: int):
    async with linked(Gathered) as (client, handler, link, nursery):
        reader = SharedReader(lambda: None, lambda _by: None, trio.current_time)
        nursery.start_soon(reader.run)
        nursery.start_soon(link.share, reader, handler)
        with trio.fail_after(20):
            for _ in range(3):
                handler.came = trio.Event()
                await client.send_all(segment)
                await handler.came.wait()
                await trio.testing.wait_all_tasks_blocked()
        assert handler.sock.asked == 3 * acknowledged
        nursery.cancel_scope.cancel()
