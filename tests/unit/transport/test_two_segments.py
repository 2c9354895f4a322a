"""A request in two segments, as stock clients with Nagle's algorithm send it: a read that is not answered is acknowledged at once.

The second segment waits for the acknowledgement of the first. Whether that is delayed is a mode of the receiving socket,
which the kernel leaves by itself once answers are sent; so it has to be asked for after every read that is not answered, and
here it is looked at there instead of being timed.
"""

from __future__ import annotations

import socket

import trio

from gateway.transport.tcp import TcpLink
from gateway.wire.session import Kind


class Answering:
    """Looks at the socket whenever something came in, puts the delay back, and answers what ends with a full stop."""

    def __init__(self, sock: socket.socket) -> None:
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


async def test_a_read_that_is_not_answered_is_acknowledged_at_once() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener, trio.open_nursery() as nursery:
        client = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        accepted, _ = await listener.socket.accept()
        sock = socket.socket(fileno=accepted.detach())
        handler = Answering(sock)
        handler.link = link = TcpLink(sock, "peer", nursery, trio.current_time)
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
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await client.aclose()
        link.abort()
