"""Replies in the order the wire wants, whatever order they become known in."""

from __future__ import annotations

import math
from collections import deque


class ReplyQueue:
    """One channel's replies, released strictly in the order their slots were taken.

    A slot is taken when a request is parsed and filled when its reply is known; an empty reply still holds its place,
    so a reply behind it is a barrier for everything before.
    """

    __slots__ = ("_base", "held_back", "size", "slots")

    def __init__(self) -> None:
        self.slots: deque[bytes | None] = deque()
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

    def fill(self, slot: int, data: bytes) -> None:
        """Put a reply in its place. Each slot is filled once."""
        index = slot - self._base
        if index < 0 or self.slots[index] is not None:
            raise RuntimeError(f"slot {slot} was answered twice")
        self.slots[index] = data
        self.size += len(data)

    def give_back(self) -> None:
        """The only place that is taken: what it was taken for leaves by itself."""
        self.slots.popleft()
        self._base += 1

    def put(self, data: bytes) -> None:
        """Take a slot and fill it at once."""
        self.slots.append(data)
        self.size += len(data)

    def ready(self, room: float = math.inf) -> list[bytes]:
        """Every reply whose turn it is, without the empty ones; no more of them than fill `room` (the last may be larger)."""
        slots = self.slots
        ready: list[bytes] = []
        while slots and slots[0] is not None and room > 0:
            data = slots.popleft()
            self._base += 1
            if data:
                size = len(data)
                self.size -= size
                room -= size
                ready.append(data)
        self.held_back = room <= 0 and bool(slots) and slots[0] is not None
        return ready
