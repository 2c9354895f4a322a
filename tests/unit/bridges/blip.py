"""A scripted BlipMQ broker, made of bytes: queues that live as long as it does, as the original's (BlipMQ wire 1.1 to 1.4)."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from tests.unit.bridges.peers import until

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = range(1, 10)


@attrs.define(eq=False)
class Queue:
    """A subscription's."""

    topic: bytes
    pending: deque[tuple[int, bytes]] = attrs.Factory(deque)
    in_flight: dict[int, bytes] = attrs.Factory(dict)
    tags: int = 0
    polls: int = 0


class Blip:
    """What it holds, and how it misbehaves."""

    def __init__(self) -> None:
        self.key = b"key"
        self.refusal = b"invalid API key"
        self.queues: dict[int, Queue] = {}
        self.published: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.next_id = 7
        self.connections = 0
        self.logins = 0
        self.port = 0
        self.mute = False
        """It reads and answers nothing."""
        self.loses_acks = False
        """It hangs up at an ACK instead of taking it."""
        self.torn = False
        """It cuts the connection in the middle of the next delivery."""
        self._streams: set[trio.SocketStream] = set()

    def deliver(self, topic: bytes, *values: bytes) -> None:
        """Publish to everybody who is subscribed."""
        for queue in self.queues.values():
            if queue.topic == topic:
                for value in values:
                    queue.tags += 1
                    queue.pending.append((queue.tags, value))

    async def hang_up(self) -> None:
        """Cut every connection."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)

    def requeue(self) -> None:
        """What nobody acknowledged is delivered again, first. A connection that ends does that at once; for one that stays
        a test says when the original's 100 ms are over.
        """
        for queue in self.queues.values():
            queue.pending.extendleft(sorted(queue.in_flight.items(), reverse=True))
            queue.in_flight.clear()

    def forget(self) -> None:
        """Start again, as the original does: all is gone, numbers begin anew."""
        self.queues.clear()
        self.next_id = 1

    async def until(self, condition: object) -> None:
        """Wait for something to be so."""
        assert callable(condition)
        with trio.fail_after(60):  # a real process may have to start again first
            await until(condition)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self._streams.add(stream)
        buffer = b""
        try:
            async for chunk in stream:
                buffer += chunk
                answers: list[bytes] = []
                while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack(">I", buffer[:4])[0]):
                    kind, cid = struct.unpack(">BQ", buffer[4:13])
                    payload, buffer = buffer[13 : 4 + size], buffer[4 + size :]
                    answer = self._answer(kind, cid, payload)
                    if answer is None:
                        await stream.send_all(b"".join(answers)[:-3])
                        return
                    answers.append(answer)
                if answers and not self.mute:
                    await stream.send_all(b"".join(answers))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._streams.discard(stream)
            self.requeue()
            await trio.aclose_forcefully(stream)

    def _answer(self, kind: int, cid: int, payload: bytes) -> bytes | None:
        if kind == HELLO:
            return frame(ACK, cid, bytes(8))
        if kind == AUTH:
            self.logins += 1
            if payload[2:] == self.key:
                return frame(ACK, cid, bytes(8))
            return frame(NACK, cid, struct.pack(">HH", 401, len(self.refusal)) + self.refusal)
        if kind == PUBLISH:
            size = struct.unpack(">H", payload[1:3])[0]
            self.published.append(payload[3 + size :])
            return b""
        if kind == SUBSCRIBE:
            size = struct.unpack(">H", payload[:2])[0]
            number, self.next_id = self.next_id, self.next_id + 1
            self.queues[number] = Queue(payload[2 : 2 + size])
            return frame(ACK, cid, struct.pack(">Q", number))
        if kind == ACK:
            queue = self.queues.get(struct.unpack(">Q", payload)[0])
            if self.loses_acks:
                self.loses_acks = False
                return None
            if queue is None or cid not in queue.in_flight:
                text = b"unknown subscription or delivery tag"
                return frame(NACK, cid, struct.pack(">HH", 404, len(text)) + text)
            self.acknowledged.append(queue.in_flight.pop(cid))
            return b""
        if kind == POLL:
            queue = self.queues.get(struct.unpack(">Q", payload)[0])
            if queue is None or self.mute:
                return b""
            queue.polls += 1
            if not queue.pending:
                return b""
            tag, value = queue.pending.popleft()
            queue.in_flight[tag] = value
            if self.torn:
                self.torn = False
                return None
            head = struct.pack(">BH", 1, len(queue.topic)) + queue.topic
            return frame(PUBLISH, tag, head + value)
        assert kind == PING
        return frame(PONG, cid, b"")


def frame(kind: int, cid: int, payload: bytes) -> bytes:
    return struct.pack(">IBQ", 9 + len(payload), kind, cid) + payload


@asynccontextmanager
async def blipping(blip: Blip, port: int = 0) -> AsyncIterator[None]:
    """The broker on a port; connections end with the block."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, blip.serve, port, host="127.0.0.1", handler_nursery=nursery)
        listeners = await nursery.start(serve)
        blip.port = listeners[0].socket.getsockname()[1]
        yield
        nursery.cancel_scope.cancel()
