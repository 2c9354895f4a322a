"""Several gateways as one, on one machine: each a process of its own on the same ports, one of them with the admin address.

    supervisor ──starts, and again when one ends──► worker 0 (admin) ─┬─ metrics and readiness of all, over Unix sockets
                                                     worker 1 ─────────┤
                                                     worker 2 ─────────┘  QUIC packets of each other's connections

The supervisor serves nobody, and the workers end with it, however it ends: it holds the other end of a pipe of each. It keeps
the ports (a port 0 is chosen once for all), hands on the signals it gets, and says `ready` when all are.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import attrs
import structlog
import trio

from gateway.errors import ConfigProblem
from gateway.model import Config
from gateway.protocols.registry import Transport, protocol
from gateway.transport.listen import open_tcp_sockets
from gateway.transport.workers import MOST, Worker

AGAIN = 1.0
"""Seconds until a process that ended is started again; longer each time that it ends before it is ready."""
LONGEST_AGAIN = 30.0
log = structlog.get_logger()


def check_workers(config: Config, workers: int) -> None:
    """Raises ConfigProblem where so many processes cannot serve it."""
    if workers > MOST:
        raise ConfigProblem(f"--workers {workers}: at most {MOST}", file=config.file)
    local = [listener.name for listener in config.listeners.values() if listener.transport is Transport.UNIX]
    if workers > 1 and local:
        raise ConfigProblem(
            f"--workers {workers}: the Unix socket of listener {local[0]} is one process's alone; a port is not "
            "(transport: tcp)",
            file=config.file,
        )
    if workers > 1 and config.storage.kafka is None:
        raise ConfigProblem(
            f"--workers {workers}: the log at {config.storage.path} is a file that one process writes; with "
            "`storage.kafka` any number of them can",
            file=config.file,
        )


@attrs.frozen
class WorkerPart:
    """What one worker is told: which it is, and the ports of its listeners."""

    worker: Worker
    ports: dict[str, int]

    def to_text(self) -> str:
        worker = self.worker
        return json.dumps([worker.number, worker.of, str(worker.directory), self.ports])

    @classmethod
    def from_text(cls, text: str) -> WorkerPart:
        number, of, directory, ports = json.loads(text)
        return cls(Worker(number, of, Path(directory)), ports)


async def supervise(config: Config, workers: int, arguments: Sequence[str], announce: Callable[[str], None]) -> int:
    """Serve with so many processes, each `gateway serve` with these arguments, until a signal says otherwise. The exit code."""
    directory = Path(tempfile.mkdtemp(prefix="gateway-"))  # short: a Unix socket's path has 107 bytes
    try:
        async with contextlib.AsyncExitStack() as stack:
            ports = await _ports(config, stack)
            crew = Crew([WorkerPart(Worker(number, workers, directory), ports) for number in range(workers)], arguments)
            async with trio.open_nursery() as nursery:
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                    nursery.start_soon(crew.obey, signals)
                    await crew.run(announce)
                nursery.cancel_scope.cancel()
        return crew.code
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _ports(config: Config, stack: contextlib.AsyncExitStack) -> dict[str, int]:
    # By listener, the port that all processes share. Those of TCP are held: nobody else gets one while a process is down.
    ports: dict[str, int] = {}
    for listener in config.listeners.values():
        carrier = listener.transport or protocol(listener.protocols[0]).transport
        if carrier is Transport.UNIX:
            continue
        if carrier is Transport.QUIC:
            from gateway.transport.quic.server import open_udp_sockets

            udp = await open_udp_sockets(listener.host, listener.port, shared=True)
            ports[listener.name] = udp[0].address[1]
            for one in udp:  # one that is open is given packets
                one.close()
        else:
            held = await open_tcp_sockets(listener.host, listener.port, shared=True, listening=False)
            ports[listener.name] = held[0].getsockname()[1]
            for sock in held:
                stack.callback(sock.close)
    return ports


class Crew:
    """The processes."""

    def __init__(self, parts: Sequence[WorkerPart], arguments: Sequence[str]) -> None:
        self._parts = parts
        self._arguments = arguments
        self._processes: dict[int, trio.Process] = {}
        self._ending = trio.Event()
        self.code = 0
        """What the supervisor ends with."""
        self._ready = [trio.Event() for _ in parts]

    async def obey(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self._end(number)

    def _end(self, number: int) -> None:
        # every process reads the file again by itself, and goes on
        if number != signal.SIGHUP:
            self._ending.set()
        for process in self._processes.values():
            process.send_signal(number)

    async def run(self, announce: Callable[[str], None]) -> None:
        """Until all have ended because they were told to. One is started after the other: the first makes what is made once."""
        async with trio.open_nursery() as nursery:
            for part, ready in zip(self._parts, self._ready, strict=True):
                nursery.start_soon(self._keep_up, part, ready, announce)
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(self._cancel_when_ending, waiting.cancel_scope)
                    await ready.wait()
                    waiting.cancel_scope.cancel()
            if not self._ending.is_set():
                announce("ready")

    async def _cancel_when_ending(self, scope: trio.CancelScope) -> None:
        await self._ending.wait()
        scope.cancel()

    async def _keep_up(self, part: WorkerPart, ready: trio.Event, announce: Callable[[str], None]) -> None:
        delay = AGAIN
        while not self._ending.is_set():
            good = await self._once(part, ready, announce)
            if self._ending.is_set():
                return
            if not good and not ready.is_set():
                # one that ends at once has met a mistake in the configuration: started again and again it would hide what it said
                self.code = 2  # it has said why; at the start there is nobody to wait for
                self._end(signal.SIGTERM)
                return
            delay = AGAIN if good else min(2 * delay, LONGEST_AGAIN)
            log.error("a worker ended, and is started again", worker=part.worker.number, seconds=delay)
            with trio.move_on_after(delay):
                await self._ending.wait()

    async def _once(self, part: WorkerPart, ready: trio.Event, announce: Callable[[str], None]) -> bool:
        # one life of a worker; whether it ever was ready
        command = [sys.executable, "-m", "gateway", "serve", *self._arguments, "--part", part.to_text()]
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes[part.worker.number] = process
        good = False
        tell = part.worker.number == 0 and not ready.is_set()
        try:
            assert process.stdout is not None
            buffer = b""
            async for chunk in process.stdout:
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    if line == b"ready":
                        good = True
                        ready.set()
                    elif tell:
                        announce(line.decode())
            await process.wait()
        finally:
            del self._processes[part.worker.number]
            if process.returncode is None:
                process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
        return good
