"""Replies in the order the wire wants, whatever order they become known in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gateway.wire.session import TURN_BYTES, Buffer, Send

LONG = TURN_BYTES
"""Bytes. What is longer is not put together: to fill fresh memory with megabytes takes milliseconds, and nobody else is served
meanwhile.
"""


class Pieces(msgspec.Struct, frozen=True):
    """An answer as it lies in memory, piece by piece."""

    pieces: Sequence[Buffer]
    size: int


Answer = bytes | Pieces


def answer_of(pieces: Sequence[Buffer], size: int) -> Answer:
    """So many bytes, put together unless they are long."""
    return Pieces(pieces, size) if size > LONG else b"".join(pieces)


def sends(channel: int, ready: Sequence[Buffer], size: int, *, notify: bool) -> Sequence[Send]:
    """Replies whose turn it is, so many bytes together, as one piece unless they are long."""
    if len(ready) == 1:
        return (Send(channel, ready[0], notify),)
    if size <= LONG:
        return (Send(channel, b"".join(ready), notify),)
    return [*(Send(channel, piece) for piece in ready[:-1]), Send(channel, ready[-1], notify)]


class ReplyQueue:
    """One channel's replies, released strictly in the order their slots were taken.

    A slot is taken when a request is parsed and filled when its reply is known; an empty reply still holds its place,
    so a reply behind it is a barrier for everything before.
    """

    __slots__ = ("_base", "held_back", "size", "slots")

    def __init__(self) -> None:
        self.slots: list[Answer | None] = []
        """Replies in their order, None in the place of one that is not known: to be looked at, and changed by nobody else."""
        self._base = 0
        self.size = 0
        """Bytes of the replies that are known and have not left."""
        self.held_back = False
        """There was no room for some of which it was the turn."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def head(self) -> int:
        """The slot whose turn it is, or the next that will be taken when none waits."""
        return self._base

    @property
    def last(self) -> int:
        return self._base + len(self.slots) - 1

    def take(self) -> int:
        """Reserve the next place; returns the slot's number."""
        self.slots.append(None)
        return self._base + len(self.slots) - 1

    def fill(self, slot: int, data: Answer) -> None:
        """Put a reply in its place. Each slot is filled once."""
        index = slot - self._base
        if index < 0 or self.slots[index] is not None:
            raise RuntimeError(f"slot {slot} was answered twice")
        self.slots[index] = data
        self.size += len(data) if isinstance(data, bytes) else data.size

    def give_back(self) -> None:
        """The only place that is taken: what it was taken for leaves by itself."""
        del self.slots[0]
        self._base += 1

    def put(self, data: bytes) -> None:
        """Take a slot and fill it at once."""
        self.slots.append(data)
        self.size += len(data)

    def ready(self, room: float = math.inf) -> list[Buffer]:
        """Every reply whose turn it is, without the empty ones; no more of them than fill `room` (the last may be larger)."""
        slots = self.slots
        ready: list[Buffer] = []
        count, most = 0, len(slots)
        while count < most and room > 0:
            data = slots[count]
            if data is None:
                break
            count += 1
            if not data:
                continue
            if isinstance(data, bytes):
                size = len(data)
                ready.append(data)
            else:
                size = data.size
                ready += data.pieces
            self.size -= size
            room -= size
        if count:
            del slots[:count]
            self._base += count
        self.held_back = room <= 0 and bool(slots) and slots[0] is not None
        return ready
