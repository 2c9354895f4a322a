"""State machines as tables: a pair that is not in the table is a violation by construction."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from gateway.errors import WireError

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


class Named(enum.Enum):
    """A state or an event. There is one of each, so what it is hashed by is which one it is: an enumeration's own hash is a call
    of Python's, and the tables are looked up for every frame.
    """

    __hash__ = object.__hash__


class IllegalTransition(WireError):
    """The peer sent something its state does not allow."""

    def __init__(self, state: enum.Enum, event: enum.Enum) -> None:
        super().__init__(f"{event.name} is not allowed in state {state.name}")
        self.state = state
        self.event = event


class Machine(Generic[S, E]):
    """A current state and the table that moves it."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Mapping[tuple[S, E], S], initial: S) -> None:
        self._table = table
        self.state = initial

    def allows(self, event: E) -> bool:
        """Whether the table has a row for this event now."""
        return (self.state, event) in self._table

    def step(self, event: E) -> S:
        """Move; raises IllegalTransition and stays where it is when the table has no such row."""
        following = self._table.get((self.state, event))
        if following is None:
            raise IllegalTransition(self.state, event)
        self.state = following
        return following
