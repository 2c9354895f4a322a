"""A TCP link by itself: what it leaves behind when it ends."""

from __future__ import annotations

import socket

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.transport.tcp import TcpLink
from gateway.wire.session import Kind


class Silent:
    """A handler that does nothing."""

    def opened(self, channel: int, kind: Kind) -> None: ...
    def received(self, channel: int, data: bytes) -> None: ...
    def eof(self, channel: int) -> None: ...
    def reset(self, channel: int, code: int) -> None: ...
    def stopped(self, channel: int, code: int) -> None: ...
    def room(self, channel: int) -> None: ...
    def turn(self, now: float) -> None: ...
    def lost(self) -> None: ...


async def test_nobody_waits_for_a_socket_that_is_closed():
    """Its number is soon another connection's, which would wake up for this one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _address = listening.accept()
    with theirs, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            link = TcpLink(ours, "peer", nursery, trio.current_time)
            nursery.start_soon(link.run, Silent())
            link.send(0, bytes(8 << 20))
            link.flush()  # nobody reads: a task waits until there is room
            await wait_all_tasks_blocked()
            link.abort()
