"""The bare loops: the least that a server in this house can do, to hold a broker's figures against on the same machine.

`echo` answers a frame with four bytes; `durable` puts those that are there into one synced transaction of SQLite first, in a
thread, and answers then. Frames are u32 length and payload. Nothing is routed, checked, indexed, kept for readers or counted.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

KINDS = ("echo", "durable")
LENGTH = struct.Struct(">I")
ANSWER = b"\0\0\0\0"
READ = 1 << 18


def frame(values: Sequence[bytes]) -> bytes:
    payload = b"".join(values)
    return LENGTH.pack(len(payload)) + payload


# --- the server ---


class BareLoop:
    def __init__(self, kind: str, directory: Path) -> None:
        self._durable = kind == "durable"
        self._pending: list[tuple[trio.SocketStream, bytes]] = []
        self._wake = trio.Event()
        self._database = sqlite3.connect(directory / "bare.db", isolation_level=None, check_same_thread=False)
        for setting in ("page_size = 16384", "journal_mode = WAL", "synchronous = FULL"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE log (base INTEGER PRIMARY KEY, data BLOB)")

    async def commit(self) -> None:
        limiter = trio.CapacityLimiter(1)
        while True:
            if not self._pending:
                await self._wake.wait()
            self._wake = trio.Event()
            taken, self._pending = self._pending, []
            data = b"".join(payload for _stream, payload in taken)
            await trio.to_thread.run_sync(self._write, data, limiter=limiter)
            answers: dict[trio.SocketStream, int] = {}
            for stream, _payload in taken:
                answers[stream] = answers.get(stream, 0) + 1
            for stream, count in answers.items():
                await stream.send_all(ANSWER * count)

    def _write(self, data: bytes) -> None:
        self._database.execute("INSERT INTO log (data) VALUES (?)", (data,))

    async def serve(self, stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = b""
        async for data in stream:
            buffer += bytes(data)
            position = answered = 0
            while len(buffer) - position >= LENGTH.size:
                end = position + LENGTH.size + LENGTH.unpack_from(buffer, position)[0]
                if end > len(buffer):
                    break
                if self._durable:
                    self._pending.append((stream, buffer[position + LENGTH.size : end]))
                answered += 1
                position = end
            buffer = buffer[position:]
            if answered and self._durable:
                self._wake.set()
            elif answered:
                await stream.send_all(ANSWER * answered)


async def main(kind: str, directory: str) -> None:
    loop = BareLoop(kind, Path(directory))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    sys.stdout.write(f"listening on 127.0.0.1:{listeners[0].socket.getsockname()[1]}\n")
    sys.stdout.flush()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.commit)
        nursery.start_soon(trio.serve_listeners, loop.serve, listeners)
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as started_by:
            await started_by.receive_some()  # ends with who started it, however that ends
        nursery.cancel_scope.cancel()


# --- who speaks to it ---


class BareLane:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._waiting: deque[trio.Event] = deque()
        self._sending = trio.Lock()

    async def ask(self, values: Sequence[bytes]) -> int:
        answered = trio.Event()
        async with self._sending:
            self._waiting.append(answered)
            await self._stream.send_all(frame(values))
        await answered.wait()
        return 0

    async def listen(self) -> None:
        left = 0
        async for data in self._stream:
            count, left = divmod(left + len(data), len(ANSWER))
            for _ in range(count):
                self._waiting.popleft().set()


@attrs.frozen
class BareTarget:
    """A bare loop that runs."""

    name: str
    port: int
    pid: int | None
    mark: bool = True

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[BareLane]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream, trio.open_nursery() as nursery:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lane = BareLane(stream)
            nursery.start_soon(lane.listen)
            yield lane
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def bare_target(kind: str) -> AsyncIterator[BareTarget]:
    """A bare loop in a process of its own, which ends with the block."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "gateway.bench.bare", kind, directory]
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            said = b""
            while not said.endswith(b"\n"):
                data = await process.stdout.receive_some()
                if not data:
                    raise OSError(f"the bare loop {kind} did not start")
                said += data
            found = re.search(rb":(\d+)\n", said)
            assert found is not None
            yield BareTarget(f"bare {kind}", int(found[1]), process.pid)
        finally:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
