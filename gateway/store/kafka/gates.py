"""In which order units go to Kafka: those that touch the same topic one after the other as they were submitted, except where
they can do no harm to each other. A unit goes when it may pass all its gates; who came later to one of them waits behind it.

Apart from the engine: a queueing rule over names, which needs no Kafka to be shown right.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol


class GateMode(enum.Enum):
    """How a unit uses a topic. Many may do so in one mode at once, and nobody in another meanwhile."""

    PLAIN = "plain"  # one append by the producer that keeps the order
    UNIT = "unit"  # part of a transaction: these are made one after the other
    ADMIN = "admin"  # makes, changes or drops it: one at a time


class Passing(Protocol):
    blocked: int
    """How many gates it waits at; 0 at first."""

    @property
    def needs(self) -> Sequence[tuple[str, GateMode]]: ...

    @property
    def go(self) -> Callable[[], None]: ...


class _Gate:
    __slots__ = ("inside", "mode", "queue")

    def __init__(self, mode: GateMode) -> None:
        self.mode = mode
        self.inside = 0
        self.queue: deque[tuple[Passing, GateMode]] = deque()

    def lets(self, mode: GateMode) -> bool:
        return not self.inside or (mode is self.mode and mode is not GateMode.ADMIN)


class Gates:
    """One gate for each name."""

    def __init__(self) -> None:
        self._gates: dict[str, _Gate] = {}

    def changing(self, name: str) -> bool:
        """Whether somebody makes, changes or drops it, or waits to."""
        gate = self._gates.get(name)
        return gate is not None and (
            gate.mode is GateMode.ADMIN or any(mode is GateMode.ADMIN for _passing, mode in gate.queue)
        )

    def enter(self, passing: Passing) -> None:
        for name, mode in passing.needs:
            gate = self._gates.get(name)
            if gate is None:
                gate = self._gates[name] = _Gate(mode)
            if not gate.queue and gate.lets(mode):
                gate.mode = mode
                gate.inside += 1
            else:
                gate.queue.append((passing, mode))
                passing.blocked += 1
        if not passing.blocked:
            passing.go()

    def leave(self, passing: Passing) -> None:
        ready: list[Passing] = []
        for name, _mode in passing.needs:
            gate = self._gates[name]
            gate.inside -= 1
            while gate.queue and gate.lets(gate.queue[0][1]):
                following, gate.mode = gate.queue.popleft()
                gate.inside += 1
                following.blocked -= 1
                if not following.blocked:
                    ready.append(following)
            if not gate.inside and not gate.queue:
                del self._gates[name]
        for one in ready:
            one.go()
