"""A scripted FlyMQ broker, made of bytes: it takes PRODUCE and answers as the test says, and knows nothing else (FlyMQ wire 2.2, PRODUCE)."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio

PRODUCE = 0x01
Say = Callable[[bytes, bytes], str]
"""From key and value to `ok`, `later` (refused for now), `never` (refused for good), `mute` (nothing), `reset`, `torn`."""


async def until(condition: Callable[[], bool]) -> None:
    """Look again every few milliseconds: what is waited for happens on the other side of a socket."""
    while not condition():  # noqa: ASYNC110  # there is no event to wait for
        await trio.sleep(0.003)


class Peer:
    """What came in, what was taken, and what to say next."""

    def __init__(self) -> None:
        self.say: Say = lambda _key, _value: "ok"
        self.seen: list[tuple[bytes, bytes]] = []
        self.taken: list[tuple[bytes, bytes]] = []
        self.addresses: set[bytes] = set()
        self.connections = 0
        self.port = 0

    def values(self, key: bytes | None = None) -> list[bytes]:
        """The values that were taken, of one key if given."""
        return [value for of, value in self.taken if key is None or of == key]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be so."""
        with trio.fail_after(20):
            await until(condition)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        buffer = b""
        try:
            async for chunk in stream:
                buffer += chunk
                answers = b""
                while len(buffer) >= 8 and len(buffer) >= 8 + (size := struct.unpack(">I", buffer[4:8])[0]):
                    payload = buffer[8 : 8 + size]
                    answer = self._answer(payload) if buffer[2] == PRODUCE else _frame(0xFF, b"topic not found")
                    buffer = buffer[8 + size :]
                    if answer is None:
                        await stream.send_all(answers[:-3] if answers else b"\xaf")
                        return
                    answers += answer
                if answers:
                    await stream.send_all(answers)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def _answer(self, payload: bytes) -> bytes | None:
        topic, rest = _text(payload)
        size = struct.unpack(">I", rest[:4])[0]
        key, rest = rest[4 : 4 + size], rest[4 + size :]
        value = rest[4 : 4 + struct.unpack(">I", rest[:4])[0]]
        self.addresses.add(topic)
        self.seen.append((key, value))
        match self.say(key, value):
            case "ok":
                self.taken.append((key, value))
                place = struct.pack(">iQqii", 0, len(self.taken), 0, len(key) or -1, len(value))
                return _frame(0x01, struct.pack(">H", len(topic)) + topic + place)
            case "later":
                return _frame(0xFF, b"throttled")
            case "never":
                return _frame(0xFF, b"schema validation failed: no")
            case "lost":  # taken, but the answer never leaves
                self.taken.append((key, value))
                return None
            case "mute":
                return b""
            case _:
                return None


def _text(data: bytes) -> tuple[bytes, bytes]:
    size = struct.unpack(">H", data[:2])[0]
    return data[2 : 2 + size], data[2 + size :]


def _frame(op: int, payload: bytes) -> bytes:
    return bytes((0xAF, 1, op, 1)) + struct.pack(">I", len(payload)) + payload


@asynccontextmanager
async def listening(peer: Peer, port: int = 0) -> AsyncIterator[None]:
    """The peer on a port; connections end with the block."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, peer.serve, port, host="127.0.0.1", handler_nursery=nursery)
        listeners = await nursery.start(serve)
        peer.port = listeners[0].socket.getsockname()[1]
        yield
        nursery.cancel_scope.cancel()
