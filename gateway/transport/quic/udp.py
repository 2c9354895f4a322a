"""A UDP socket that moves many datagrams per system call where the kernel can.

GRO hands over a run of datagrams from one peer as one buffer, GSO takes one; both save about a seventh of the CPU time
per datagram. They are probed once per socket; without them, and after the first refusal of a send, plain calls do.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import structlog
import trio

Address = Any
"""What `recvfrom` calls an address: a tuple whose first two members are host and port."""

Datagram = tuple[bytes, Address]

READ_SIZE = 65_535
"""The longest datagram: peers on loopback send up to 16 KiB, and GRO hands over many in one."""
BUFFER_SIZE = 4 << 20
"""What arrives while the loop is busy elsewhere waits in the kernel instead of being lost."""
SOL_UDP = socket.IPPROTO_UDP
UDP_SEGMENT = 103
UDP_GRO = 104
"""Linux's numbers for GSO and GRO, which `socket` has no names for."""
RUN_SEGMENTS = 16
"""Segments per GSO send: more gains little, and a longer burst is lost whole on slow links."""
RUN_BYTES = 60_000
"""A GSO send counts as one datagram, which may have 65 507 bytes."""

log = structlog.get_logger(__name__)


class DatagramSocket(Protocol):
    """What an endpoint needs of a socket; tests put a simulated network here."""

    @property
    def address(self) -> Address:
        """Where it is bound."""
        ...

    def receive(self, limit: int) -> list[Datagram]:
        """What has arrived, without waiting; the last read is the one that makes it `limit` datagrams."""
        ...

    def send(self, datagrams: Sequence[Datagram]) -> Sequence[Datagram]:
        """Send without waiting; returns what the socket has no room for."""
        ...

    async def wait_readable(self) -> None:
        """Until something arrives."""
        ...

    async def wait_writable(self) -> None:
        """Until there is room to send."""
        ...

    def close(self) -> None:
        """Give it up."""
        ...


class UdpSocket:
    def __init__(self, sock: socket.socket, *, offload: bool = True) -> None:
        self._sock = sock
        self.wait_readable = functools.partial(trio.lowlevel.wait_readable, sock)
        self.wait_writable = functools.partial(trio.lowlevel.wait_writable, sock)
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
        self.gso = offload and self._probe(UDP_SEGMENT, 0, "gso")
        self.gro = offload and self._probe(UDP_GRO, 1, "gro")

    def _probe(self, option: int, value: int, name: str) -> bool:
        try:
            self._sock.setsockopt(SOL_UDP, option, value)
        except OSError as error:
            log.info("udp_offload_unavailable", offload=name, reason=os.strerror(error.errno or 0))
            return False
        return True

    @property
    def address(self) -> Address:
        return self._sock.getsockname()

    def receive(self, limit: int) -> list[Datagram]:
        datagrams: list[Datagram] = []
        for _ in range(limit):
            if len(datagrams) >= limit:
                break
            try:
                if self.gro:
                    data, ancillary, _flags, address = self._sock.recvmsg(READ_SIZE, 64)
                else:
                    data, address = self._sock.recvfrom(READ_SIZE)
                    ancillary = []
            except BlockingIOError:
                break
            except OSError:
                # An ICMP error about something sent earlier; the connection's own timers deal with silence.
                continue
            size = 0
            for level, kind, value in ancillary:
                if level == SOL_UDP and kind == UDP_GRO:
                    size = struct.unpack("=i", value[:4])[0]
            if size and size < len(data):
                # the kernel has put several into one read, all of one size but the last
                datagrams.extend((data[start : start + size], address) for start in range(0, len(data), size))
            elif data:
                datagrams.append((data, address))
        return datagrams

    def send(self, datagrams: Sequence[Datagram]) -> Sequence[Datagram]:
        """Send without waiting; returns what there is no room for. What the network refuses is lost, as UDP may."""
        index, count = 0, len(datagrams)
        gso = self.gso and count > 1
        while index < count:
            end = index + 1
            if gso and end < count and datagrams[end][1] == datagrams[index][1]:
                end = self._run_end(datagrams, index)
            try:
                if end - index > 1:
                    self._send_run(datagrams[index:end])
                else:
                    self._sock.sendto(*datagrams[index])
            except BlockingIOError:
                return datagrams[index:]
            except OSError as error:
                if end - index > 1 and error.errno in {errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT}:
                    # a device on the way cannot do it, and no probe had told: one at a time from here on, this one again
                    gso = self.gso = False
                    log.info("udp_offload_unavailable", offload="gso", reason=os.strerror(error.errno or 0))
                    continue
            index = end
        return ()

    @staticmethod
    def _run_end(datagrams: Sequence[Datagram], start: int) -> int:
        # the end of the run of datagrams that one GSO send can carry: one address, one size, the last may be shorter
        first, address = datagrams[start]
        size = total = len(first)
        end = start + 1
        limit = min(len(datagrams), start + RUN_SEGMENTS)
        while end < limit:
            data, other = datagrams[end]
            length = len(data)
            if length > size or other != address or total + length > RUN_BYTES:
                break
            total += length
            end += 1
            if length < size:
                break
        return end

    def _send_run(self, run: Sequence[Datagram]) -> None:
        segment = struct.pack("=H", len(run[0][0]))
        self._sock.sendmsg([data for data, _ in run], [(SOL_UDP, UDP_SEGMENT, segment)], 0, run[0][1])

    def close(self) -> None:
        self._sock.close()


def open_socket(family: int, address: Address, *, offload: bool = True, shared: bool = False) -> UdpSocket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            # or the IPv4 socket beside it could not have the same port
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        return UdpSocket(sock, offload=offload)
    except OSError:
        sock.close()
        raise
