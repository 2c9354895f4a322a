"""Bounds over all connections: how many there are, and how many bytes they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.settings import Limits


class Admission:
    """Counts the connections of one listener, in total and per address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: Counter[str] = Counter()
        self.total = 0

    def enter(self, address: str) -> str | None:
        """Admit a connection (None), or name the limit that forbids it."""
        if self.total >= self._limits.connections:
            return "connections"
        if self._addresses[address] >= self._limits.per_address:
            return "per_address"
        self.total += 1
        self._addresses[address] += 1
        return None

    def leave(self, address: str) -> None:
        """A connection that was admitted is gone."""
        self.total -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


class Budget:
    """One byte budget over everything connections hold: parsed requests, pending commits, unsent replies; and over what
    ingests have taken and not stored yet.

    A connection that finds the budget spent stops reading until others have given back. What only reads has a reserve
    of its own (`reserve`), so that a stalled disk, which makes writers hold all of the rest, does not stop readers.
    """

    def __init__(self, limit: int, reserve: float = 0.25) -> None:
        self.limit = limit
        self._for_writers = int(limit * (1 - reserve))
        self.used = 0
        self._waiting: dict[object, Callable[[], None]] = {}

    def spent(self, *, writer: bool) -> bool:
        """Whether a connection has to wait. `writer`: it has writes under way itself."""
        return self.used >= (self._for_writers if writer else self.limit)

    def wait(self, key: object, wake: Callable[[], None]) -> None:
        """Call back once there is room."""
        self._waiting[key] = wake

    def forget(self, key: object) -> None:
        """Do not call back any more."""
        self._waiting.pop(key, None)

    def change(self, amount: int) -> None:
        """Take (or give back, negative) bytes."""
        self.used += amount
        if amount < 0 and self._waiting and self.used < self._for_writers:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting.values():
                wake()
