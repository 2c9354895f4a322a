"""Replies in the order the wire wants, whatever order they become known in."""

from __future__ import annotations

from collections import deque


class ReplyQueue:
    """One channel's replies, released strictly in the order their slots were taken.

    A slot is taken when a request is parsed and filled when its reply is known; an empty reply still holds its place,
    so a reply behind it is a barrier for everything before.
    """

    __slots__ = ("_base", "size", "slots")

    def __init__(self) -> None:
        self.slots: deque[bytes | None] = deque()
        """Replies in their order, None in the place of one that is not known: to be looked at, and changed by nobody else."""
        self._base = 0
        self.size = 0
        """Bytes of the replies that are known and whose turn it is not."""

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

    def put(self, data: bytes) -> None:
        """Take a slot and fill it at once."""
        self.slots.append(data)
        self.size += len(data)

    def ready(self) -> list[bytes]:
        """Every reply whose turn it is, without the empty ones."""
        slots = self.slots
        ready: list[bytes] = []
        while slots and slots[0] is not None:
            data = slots.popleft()
            self._base += 1
            if data:
                self.size -= len(data)
                ready.append(data)
        return ready
