"""FlyMQ spoken by hand: frames and payloads as the notes spell them, without the gateway's codec."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.integration.raw import Wire, s16, s32, tcp

ERROR = 0xFF


def s8(text: str) -> bytes:
    """u8 length and text."""
    return bytes((len(text.encode()),)) + text.encode()


def i32(value: int) -> bytes:
    """i32."""
    return struct.pack(">i", value)


def u64(value: int) -> bytes:
    """u64."""
    return struct.pack(">Q", value)


def names(values: Sequence[str]) -> bytes:
    """A counted list of strings."""
    return struct.pack(">I", len(values)) + b"".join(map(s16, values))


def frame(op: int, payload: bytes = b"", flags: int = 1) -> bytes:
    """A whole frame (FlyMQ document, Message Structure)."""
    return bytes((0xAF, 1, op, flags)) + s32(payload)


def produce(topic: str, value: bytes, key: bytes = b"", partition: int = -1) -> bytes:
    """The payload of PRODUCE."""
    return s16(topic) + s32(key) + s32(value) + i32(partition)


def fetch(topic: str, offset: int = 0, most: int = 100, partition: int = 0) -> bytes:
    """The payload of FETCH in the document."""
    return s16(topic) + i32(partition) + u64(offset) + i32(most)


def commit(topic: str, group: str, offset: int) -> bytes:
    """The payload of COMMIT for partition 0."""
    return s16(topic) + s16(group) + i32(0) + u64(offset)


def user(name: str, password: str = "", old: str = "", roles: Sequence[str] = (), *, enabled: bool = True) -> bytes:
    """The payload of the account operations (FlyMQ wire 2.2, UserReq)."""
    return s16(name) + s16(password) + s16(old) + names(roles) + bytes((enabled,))


class Flymq:
    """One connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def read(self) -> tuple[int, int, bytes]:
        """(operation, flags, payload) of the next frame."""
        head = await self.wire.receive(8)
        assert head[:2] == b"\xaf\x01", head
        return head[2], head[3], await self.wire.receive(int.from_bytes(head[4:], "big"))

    async def ask(self, op: int, payload: bytes = b"", flags: int = 1) -> bytes:
        """The answer's payload, which has to be of the same operation."""
        await self.wire.send(frame(op, payload, flags))
        got, _, answer = await self.read()
        assert got == (0x71 if op == 0x70 else op), (hex(op), hex(got), answer)
        return answer

    async def refused(self, op: int, payload: bytes = b"", flags: int = 1) -> str:
        """The text of the ERROR in the document's shape."""
        await self.wire.send(frame(op, payload, flags))
        got, shown, answer = await self.read()
        assert (got, shown) == (ERROR, 1), (hex(op), hex(got), answer)
        assert answer[0] == 0
        assert int.from_bytes(answer[1:3], "big") == len(answer) - 3 <= 127
        return answer[3:].decode()

    async def values(self, topic: str, offset: int = 0, partition: int = 0, most: int = 1000) -> list[bytes]:
        """The values of a FETCH in the document's layout."""
        return (await self.fetched(topic, offset, partition, most))[0]

    async def fetched(self, topic: str, offset: int, partition: int, most: int) -> tuple[list[bytes], int]:
        """The same, with the offset where the next one begins."""
        answer = await self.ask(7, fetch(topic, offset, most, partition))
        count, position, found = int.from_bytes(answer[:4], "big"), 4, []
        for _ in range(count):
            for _part in range(2):
                size = int.from_bytes(answer[position : position + 4], "big")
                part = answer[position + 4 : position + 4 + size]
                position += 4 + size
            found.append(part)
            position += 8
        assert position + 8 == len(answer)
        return found, int.from_bytes(answer[position:], "big")

    async def everything(self, topic: str) -> list[bytes]:
        """The values of partition 0, over whatever gaps there are between offsets."""
        found: list[bytes] = []
        offset, following = -1, 0
        while offset < following:
            offset = following
            more, following = await self.fetched(topic, offset, 0, 500)
            found += more
        return found


@asynccontextmanager
async def flymq(port: int) -> AsyncIterator[Flymq]:
    """A connection."""
    async with tcp(port) as wire:
        yield Flymq(wire)


async def read_all(port: int, topic: str) -> list[bytes]:
    """By a connection of its own."""
    async with flymq(port) as client:
        return await client.everything(topic)
