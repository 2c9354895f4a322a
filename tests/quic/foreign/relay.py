"""A bad network between two real sockets: loses, doubles and disorders datagrams, and moves the client to other addresses."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

LARGEST = 65_535
BURST = 2
"""Datagrams lost in a row on one way at most, so that no test depends on its luck."""


@attrs.define
class Way:
    """One direction. A datagram that is held back is overtaken by the next one: nothing here depends on a clock."""

    random: random.Random
    loss: float
    disorder: float
    double: float
    _lost: int = 0
    _held: bytes | None = None

    def passes(self, datagram: bytes) -> list[bytes]:
        """What comes out at the other end when this goes in."""
        if self.random.random() < self.loss and self._lost < BURST:
            self._lost += 1
            return []
        self._lost = 0
        if self._held is not None:
            held, self._held = self._held, None
            return [datagram, held]
        if self.random.random() < self.disorder:
            self._held = datagram
            return []
        return [datagram] * (2 if self.random.random() < self.double else 1)


class Relay:
    """Stands between one client and a server on this machine."""

    def __init__(self, server: int, *, loss: float, disorder: float, double: float, seed: int) -> None:
        self._server = ("127.0.0.1", server)
        self._inner = self._socket()
        self._outer = self._socket()
        self._old: list[trio.socket.SocketType] = []
        self._client: tuple[str, int] | None = None
        self._ways = [Way(random.Random(seed + n), loss, disorder, double) for n in range(2)]
        self._nursery: trio.Nursery | None = None
        self.cut = False
        """Nothing passes."""
        self.moves = 0
        self.versions: set[int] = set()
        """What the long headers of both sides say; 0 is Version Negotiation."""
        self.retries = 0
        """Retry packets of version 1."""

    @property
    def port(self) -> int:
        """Where the client finds the server."""
        port: int = self._inner.getsockname()[1]
        return port

    def move(self) -> None:
        """From now on the client comes from another address, as after a router has forgotten it."""
        assert self._nursery is not None
        self._old.append(self._outer)  # what was sent there still arrives
        self._outer = self._socket()
        self._nursery.start_soon(self._backward, self._outer)
        self.moves += 1

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._backward, self._outer)
                while True:
                    datagram, self._client = await self._inner.recvfrom(LARGEST)
                    self._note(datagram)
                    for passing in self._passes(0, datagram):
                        await self._outer.sendto(passing, self._server)
        finally:
            for sock in (self._inner, self._outer, *self._old):
                sock.close()

    async def _backward(self, outer: trio.socket.SocketType) -> None:
        while True:
            datagram, _ = await outer.recvfrom(LARGEST)
            assert self._client is not None
            self._note(datagram)
            for passing in self._passes(1, datagram):
                await self._inner.sendto(passing, self._client)

    def _passes(self, way: int, datagram: bytes) -> list[bytes]:
        return [] if self.cut else self._ways[way].passes(datagram)

    def _note(self, datagram: bytes) -> None:
        if datagram[0] & 0x80:
            version = int.from_bytes(datagram[1:5], "big")
            self.versions.add(version)
            self.retries += version == 1 and datagram[0] & 0x30 == 0x30

    @staticmethod
    def _socket() -> trio.socket.SocketType:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        return trio.socket.from_stdlib_socket(sock)


@asynccontextmanager
async def relayed(
    server: int, *, loss: float = 0.0, disorder: float = 0.0, double: float = 0.0, seed: int = 1
) -> AsyncIterator[Relay]:
    """A relay in front of a port."""
    relay = Relay(server, loss=loss, disorder=disorder, double=double, seed=seed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        yield relay
        nursery.cancel_scope.cancel()
