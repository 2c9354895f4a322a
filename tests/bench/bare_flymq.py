"""The mark for FlyMQ: the least a trio server can do with its frames, run as a process of its own.

PRODUCE: what is pending goes into one unsynced SQLite transaction in a thread, then the answers go out. FETCH: the records
lie in memory as they go over the wire, and an answer is a slice of that. Nothing is routed, checked, indexed or counted.
"""

from __future__ import annotations

import argparse
import socket
import struct

import trio

from tests.bench.bare import Bare

HEADER = struct.Struct(">BBBBI")
ANSWER = struct.Struct(">iQqii")
FETCHED = struct.Struct(">IQ")
RECORD = struct.Struct(">QII")


class BareFlymq(Bare):
    """One server. What was produced is not read back: FETCH serves records of its own making."""

    def __init__(self, mode: str, directory: str) -> None:
        super().__init__("flymq", mode, directory)
        self.stored = b"".join(RECORD.pack(offset, 0, 100) + bytes(100) for offset in range(10_000))
        self.size = RECORD.size + 100

    async def serve(self, stream: trio.SocketStream) -> None:
        """Cut the frames of a read, answer them."""
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = b""
        while data := await stream.receive_some(131_072):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            buffer = buffer + data if buffer else data
            position = 0
            direct: list[bytes] = []
            replies: list[bytes] = []
            payloads: list[bytes] = []
            while len(buffer) - position >= HEADER.size:
                _, _, op, _, length = HEADER.unpack_from(buffer, position)
                start, end = position + HEADER.size, position + HEADER.size + length
                if end > len(buffer):
                    break
                position = end
                skip = start + 2 + (buffer[start] << 8 | buffer[start + 1])
                if op == 1:
                    value = buffer[skip + 8 : end - 4]
                    answer = buffer[start:skip] + ANSWER.pack(0, self.offset, 0, -1, len(value))
                    self.offset += 1
                    payloads.append(value)
                    replies.append(HEADER.pack(0xAF, 1, 1, 1, len(answer)) + answer)
                else:
                    (_, offset, most) = struct.unpack_from(">iQi", buffer, skip)
                    first = offset % 5_000  # as if the log had no end
                    records = self.stored[first * self.size : (first + most) * self.size]
                    head = HEADER.pack(0xAF, 1, 7, 1, FETCHED.size + len(records))
                    direct.append(head + FETCHED.pack(most, offset + most) + records)
            buffer = buffer[position:]
            if direct:
                await stream.send_all(b"".join(direct))
            if payloads:
                self.pending.append((stream, b"".join(payloads), b"".join(replies)))
                self.wake.set()


async def main(mode: str, directory: str) -> None:
    """Serve on a port of the system's choice."""
    bare = BareFlymq(mode, directory)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(f"listening flymq: bare on tcp 127.0.0.1:{listeners[0].socket.getsockname()[1]}", flush=True)
    print("ready", flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bare.commit)
        await trio.serve_listeners(bare.serve, listeners)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("directory")
    trio.run(main, *vars(parser.parse_args()).values())
