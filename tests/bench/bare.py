"""The marks to measure against: the least a trio server can do with the same frames, run as a process of its own.

`parse` cuts the frames and counts them; `memory` answers each request at once; `fsync` and `unsynced` put the payloads of
everything that is pending into one SQLite transaction in a thread, then answer. A RustLog Fetch is answered from a log of
100 B records that is one piece of memory. `polled` keeps what BlipMQ publishes in a queue, and gives it to the one
connection that polls, message by message, in the order of its POLLs. Frames: u32 length and payload (BlipMQ, RustLog). Nothing is routed, checked,
indexed, kept for readers or counted.
"""

from __future__ import annotations

import argparse
import sqlite3
import struct
from collections import deque
from pathlib import Path

import trio

LENGTH = struct.Struct(">I")
PRODUCED = struct.Struct(">IBQI")
PONG = struct.Struct(">IBQ")
FETCHED = struct.Struct(">IBI")
NEXT = struct.Struct(">Q")
RECORD = b"\0\0\0\x64" + b"x" * 100
LOG_END = 800_000
PIECE = RECORD * (4 << 14)


class Bare:
    """One server."""

    def __init__(self, protocol: str, mode: str, directory: str) -> None:
        self.protocol = protocol
        self.mode = mode
        self.pending: list[tuple[trio.SocketStream, bytes, bytes]] = []
        self.wake = trio.Event()
        self.offset = 0
        self.queue: deque[bytes] = deque()
        self.polls: deque[bytes] = deque()
        self.poller: trio.SocketStream | None = None
        self.sending = trio.Lock()
        self.database = sqlite3.connect(str(Path(directory) / "bare.db"), isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA page_size = 16384")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute(f"PRAGMA synchronous = {'FULL' if mode == 'fsync' else 'NORMAL'}")
        self.database.execute("CREATE TABLE log (base INTEGER PRIMARY KEY, data BLOB)")

    def write(self, payloads: list[bytes]) -> None:
        self.database.execute("INSERT INTO log (data) VALUES (?)", (b"".join(payloads),))

    async def commit(self) -> None:
        limiter = trio.CapacityLimiter(1)
        while True:
            if not self.pending:
                await self.wake.wait()
            self.wake = trio.Event()
            taken, self.pending = self.pending, []
            if self.mode in {"fsync", "unsynced"}:
                payloads = [payload for _stream, payload, _reply in taken]
                await trio.to_thread.run_sync(self.write, payloads, limiter=limiter)
            replies: dict[trio.SocketStream, list[bytes]] = {}
            for stream, _payload, reply in taken:
                replies.setdefault(stream, []).append(reply)
            for stream, parts in replies.items():
                await stream.send_all(b"".join(parts))

    async def serve(self, stream: trio.SocketStream) -> None:
        buffer = b""
        while data := await stream.receive_some(131_072):
            buffer += data
            position = 0
            direct: list[bytes] = []
            gathered: list[bytes] = []
            while len(buffer) - position >= 4:
                (length,) = LENGTH.unpack_from(buffer, position)
                start, end = position + 4, position + 4 + length
                if end > len(buffer):
                    break
                position = end
                if self.protocol == "rustlog":
                    reply = self.rustlog(buffer, start, end, stream)
                else:
                    reply = self.blipmq(buffer, start, end, stream, gathered)
                if reply:
                    direct.append(reply)
            buffer = buffer[position:]
            if direct:
                await stream.send_all(b"".join(direct))
            if self.poller is not None:
                await self.deliver(self.poller)
            if self.pending:
                self.wake.set()

    async def deliver(self, poller: trio.SocketStream) -> None:
        """A published payload is qos, topic and message, as a delivered one is."""
        queue, polls = self.queue, self.polls
        pieces: list[bytes] = []
        while queue and polls:
            payload = queue.popleft()
            pieces += (LENGTH.pack(9 + len(payload)), b"\3", polls.popleft(), payload)
        if pieces:
            async with self.sending:
                await poller.send_all(b"".join(pieces))

    def rustlog(self, data: bytes, start: int, end: int, stream: trio.SocketStream) -> bytes:
        if data[start] == 5:
            return b"\0\0\0\2\5\1"
        if data[start] == 2:
            offset, limit = struct.unpack_from(">QI", data, end - 12)
            count = max(min(limit // 100, LOG_END - offset, len(PIECE) // len(RECORD)), 1 if offset < LOG_END else 0)
            records = PIECE[: count * len(RECORD)]
            return b"".join((FETCHED.pack(13 + len(records), 2, count), records, NEXT.pack(offset + count)))
        (size,) = struct.unpack_from(">H", data, start + 1)
        (count,) = LENGTH.unpack_from(data, start + 7 + size)
        reply = PRODUCED.pack(13, 1, self.offset, count)
        self.offset += count
        if self.mode == "memory":
            return reply
        self.pending.append((stream, data[start + 11 + size : end], reply))
        return b""

    def blipmq(self, data: bytes, start: int, end: int, stream: trio.SocketStream, gathered: list[bytes]) -> bytes:
        kind = data[start]
        if kind == 3 and self.mode == "polled":
            if self.poller is not None:
                self.queue.append(data[start + 9 : end])
            return b""
        if kind == 9:
            self.polls.append(data[start + 1 : start + 9])
            return b""
        if kind == 3:
            (size,) = struct.unpack_from(">H", data, start + 10)
            gathered.append(data[start + 12 + size : end])
            return b""
        if kind == 7:
            pong = PONG.pack(9, 8, 0)
            if self.mode in {"memory", "polled"}:
                return pong
            self.pending.append((stream, b"".join(gathered), pong))
            gathered.clear()
            return b""
        if kind == 4:
            self.poller = stream
        return struct.pack(">IBQQ", 17, 5, 0, 0)


async def main(protocol: str, mode: str, directory: str) -> None:
    """Serve on a port of the system's choice."""
    bare = Bare(protocol, mode, directory)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"listening {protocol}: bare on tcp 127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)
    print("ready", flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bare.commit)
        await trio.serve_listeners(bare.serve, listeners)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("protocol")
    parser.add_argument("mode")
    parser.add_argument("directory")
    trio.run(main, *vars(parser.parse_args()).values())
