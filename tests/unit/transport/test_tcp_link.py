"""A TCP link by itself: what it leaves behind when it ends."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

import trio
from trio.testing import wait_all_tasks_blocked

from gateway.transport.tcp import TcpLink
from gateway.wire.session import TURN_BYTES, Kind


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


async def test_a_turn_hands_over_no_more_than_it_may_and_the_rest_follows_in_order():
    """The kernel would take megabytes of it at once, and nobody else is served meanwhile."""
    pieces = [
        bytes([number]) * size for number, size in enumerate([10, 3 * TURN_BYTES // 2, 7, 100_000, 1, 1 << 20] * 3)
    ]
    ours, theirs = socket.socketpair()
    with theirs, trio.fail_after(60):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        async with trio.open_nursery() as nursery:
            link = TcpLink(ours, "peer", nursery, trio.current_time)
            nursery.start_soon(link.run, Silent())
            await wait_all_tasks_blocked()
            for number, piece in enumerate(pieces):
                link.send(0, memoryview(piece) if number % 2 else piece)
            link.flush()
            (there,) = struct.unpack("i", fcntl.ioctl(theirs, termios.FIONREAD, bytes(4)))
            assert 0 < there <= TURN_BYTES
            theirs.setblocking(False)
            got = b""
            while len(got) < sum(map(len, pieces)):
                await trio.lowlevel.wait_readable(theirs)
                got += theirs.recv(1 << 20)
            assert got == b"".join(pieces)
            assert link.waiting()[0] == 0
            link.abort()


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


async def test_what_the_kernel_keeps_is_not_taken_for_what_the_peer_has():
    """It takes megabytes of an answer for who reads nothing of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        theirs.connect(listening.getsockname())
        ours, _address = listening.accept()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                link = TcpLink(ours, "peer", nursery, trio.current_time)
                nursery.start_soon(link.run, Silent())
                await wait_all_tasks_blocked()
                link.send(0, bytes(64 << 20))
                link.flush()
                await wait_all_tasks_blocked(0.05)
                kept, taken = link.held()
                assert kept == link.waiting()[0]
                assert taken <= 64 << 10 < link.waiting()[2]
                got = 0
                while got < 256 << 10:
                    got += len(theirs.recv(16 << 10))
                while link.held()[1] < got:
                    await trio.lowlevel.checkpoint()
                link.abort()
                assert link.held()[0] == 0
