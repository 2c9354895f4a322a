"""Several processes that serve the same ports.

The kernel gives each TCP connection to one of them (SO_REUSEPORT). Of UDP it knows addresses alone: a QUIC client whose address
changes, or that was served when there were other processes, comes to another one. So the ids that a connection goes by begin
with the number of its process, and a packet that comes to a wrong one is handed over, by a Unix socket:

    client ──packet──► worker 1 ──whose id is it?── its own, or of a new connection ──► served
                                   └── of worker 0 ──handed over──► worker 0 ──► served; it answers from its own socket
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio

MOST = 64
"""Workers of one gateway: their number is the first byte of an id, and the cores of a machine are not many more."""
BUFFER = 4 << 20
LARGEST = 70_000
"""Bytes of what is handed over: a datagram, and where it came from."""


@attrs.frozen
class Worker:
    """One process of several."""

    number: int
    of: int
    directory: Path
    """Where their sockets are; nobody but their owner may look there."""

    def path(self, kind: str, number: int | None = None) -> Path:
        return self.directory / f"{kind}-{self.number if number is None else number}"


class Handed(msgspec.Struct, array_like=True):
    """A datagram on its way to the process that its connection is at."""

    place: tuple[int, int]
    """Which listener, and which of its sockets: the same in every process."""
    address: tuple[Any, ...]
    data: bytes


Give = Callable[[bytes, Any], None]


class Handover:
    """What this process takes from the others, and gives to them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._places: dict[tuple[int, int], Give] = {}
        path = worker.path("packets")
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._socket.bind(str(path))
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Handed)
        self.given = self.taken = 0
        """Datagrams."""

    def close(self) -> None:
        self._socket.close()
        self.worker.path("packets").unlink(missing_ok=True)

    def receive(self, place: tuple[int, int], give: Give) -> None:
        """What is handed over to this socket goes there."""
        self._places[place] = give

    def gives(self, place: tuple[int, int]) -> Callable[[bytes, bytes, Any], bool]:
        """For a socket: takes an id, a datagram and where it came from; whether that is another process's."""

        def give(cid: bytes, data: bytes, address: Any) -> bool:
            number = cid[0]
            if number == self.worker.number or number >= self.worker.of:
                return False
            try:
                self._socket.sendto(
                    self._encoder.encode(Handed(place, tuple(address), data)), str(self.worker.path("packets", number))
                )
                self.given += 1
            except OSError as error:
                # it is down, or has no room: a packet is lost, as packets are
                if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
                    return False
            return True

        return give

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            while True:
                try:
                    handed = self._decoder.decode(self._socket.recv(LARGEST))
                except BlockingIOError:
                    break
                give = self._places.get(handed.place)
                if give is not None:
                    self.taken += 1
                    give(handed.data, handed.address)
