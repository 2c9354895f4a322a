"""A network that misbehaves on purpose: forwarders on ports of their own that stall, cut, swallow and repeat what they carry."""

from __future__ import annotations

import contextlib
import enum
import random
import socket
import struct
from collections.abc import Callable

import trio

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends a reset."""


class Fault(enum.Enum):
    """What a network can do to those who use it."""

    NONE = "none"
    DOWN = "down"
    """Nobody answers, and what was connected is reset."""
    SLOW = "slow"
    HALF_OPEN = "half open"
    """Everything stands still, and nobody is told; what was held comes after all when it heals."""
    CUT = "cut in mid-frame"
    SWALLOW = "acknowledgements lost"
    DUPLICATE = "duplicates"
    """What was taken is not confirmed but cut off, so that it is sent again; datagrams come twice."""


class Network:
    """What both kinds of forwarder have."""

    def __init__(self, target: Callable[[], int], chance: random.Random) -> None:
        self._target = target
        """Asked at each connection: who is started again has another port."""
        self._chance = chance
        self.fault = Fault.NONE
        self.port = 0
        self._changed = trio.Event()

    def set(self, fault: Fault) -> None:
        """From now on it is like this."""
        self.fault = fault
        self._changed.set()
        self._changed = trio.Event()

    async def _while(self, *faults: Fault) -> None:
        while self.fault in faults:
            await self._changed.wait()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled."""
        raise NotImplementedError


class TcpNetwork(Network):
    """Carries connections."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, self._carry, 0)
            self.port = next(one for one in listeners if one.socket.family == socket.AF_INET).socket.getsockname()[1]
            task_status.started()

    async def _carry(self, client: trio.SocketStream) -> None:
        try:
            if self.fault is not Fault.DOWN:
                await self._while(Fault.HALF_OPEN)
                server = await trio.open_tcp_stream("127.0.0.1", self._target())
                try:
                    await self._both_ways(client, server)
                finally:
                    await _reset(server)
        except OSError:
            pass  # the target is not there: its client is told so
        finally:
            await _reset(client)

    async def _both_ways(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:

            async def until_down() -> None:
                while self.fault is not Fault.DOWN:
                    await self._changed.wait()
                nursery.cancel_scope.cancel()

            async def up() -> None:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    while data := await client.receive_some(1 << 16):
                        await self._while(Fault.HALF_OPEN)
                        if self.fault is Fault.CUT and self._chance.random() < 0.5:
                            await server.send_all(data[: self._chance.randrange(len(data))])
                            break
                        await self._send(server, data)
                nursery.cancel_scope.cancel()

            async def down() -> None:
                swallowed = False
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    while data := await server.receive_some(1 << 16):
                        await self._while(Fault.HALF_OPEN)
                        if self.fault is Fault.DUPLICATE and self._chance.random() < 0.5:
                            break
                        if self.fault is Fault.SWALLOW:
                            swallowed = True
                            continue
                        if swallowed:
                            break  # what follows a hole would be taken for an answer to something else
                        await self._send(client, data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_down)
            nursery.start_soon(up)
            nursery.start_soon(down)

    async def _send(self, to: trio.SocketStream, data: bytes) -> None:
        if self.fault is not Fault.SLOW:
            await to.send_all(data)
            return
        for start in range(0, len(data), 997):
            await trio.sleep(0.005)
            await to.send_all(data[start : start + 997])


async def _reset(stream: trio.SocketStream) -> None:
    with contextlib.suppress(OSError, trio.ClosedResourceError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    await trio.aclose_forcefully(stream)


class UdpNetwork(Network):
    """Carries datagrams: a socket towards the target for each that sends."""

    def __init__(self, target: Callable[[], int], chance: random.Random) -> None:
        super().__init__(target, chance)
        self._dead: set[tuple[str, int]] = set()
        """Clients that were cut off, for good."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        await sock.bind(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        flows: dict[tuple[str, int], trio.socket.SocketType] = {}
        with sock:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    data, client = await sock.recvfrom(65_536)
                    if client not in flows:
                        flow = flows[client] = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                        await flow.connect(("127.0.0.1", self._target()))
                        nursery.start_soon(self._back, flow, sock, client)
                    if self.fault is Fault.CUT and self._chance.random() < 0.02:
                        self._dead.add(client)
                    if self.fault not in {Fault.DOWN, Fault.HALF_OPEN} and client not in self._dead:
                        await self._pass(data, flows[client].send)

    async def _back(self, flow: trio.socket.SocketType, sock: trio.socket.SocketType, client: tuple[str, int]) -> None:
        with flow:
            while True:
                try:
                    data = await flow.recv(65_536)
                except OSError:
                    continue  # nobody listens there at the moment
                if self.fault not in {Fault.DOWN, Fault.HALF_OPEN, Fault.SWALLOW} and client not in self._dead:
                    await self._pass(data, lambda data: sock.sendto(data, client))

    async def _pass(self, data: bytes, send: Callable[[bytes], object]) -> None:
        with contextlib.suppress(OSError):
            if self.fault is Fault.SLOW:
                await trio.sleep(0.002)
            for _ in range(2 if self.fault is Fault.DUPLICATE else 1):
                sent = send(data)
                await sent  # type: ignore[misc]
