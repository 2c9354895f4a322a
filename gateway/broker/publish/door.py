"""The accounting at the door: for each route what came in, and where all of it is now.

A message is `held` from its receipt until it is known what becomes of it. So the identity holds at every instant, while a
batch is being validated in a thread as well as between two commits.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from gateway.envelope import Columns
from gateway.errors import GatewayError
from gateway.recorder import DoorCounts, Recorder


@attrs.define(eq=False)
class Door:
    route: str
    received: int = 0
    held: int = 0
    """Being decided about, in an open transaction, or waiting for its time."""
    committing: int = 0
    stored: int = 0
    refused: int = 0
    filtered: int = 0
    duplicate: int = 0
    rolled_back: int = 0
    proxied: int = 0
    proxying: int = 0


class Doors:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._doors: dict[str, Door] = {}

    def of(self, route: str) -> Door:
        """A route's; "" is where what no route took is counted."""
        door = self._doors.get(route)
        if door is None:
            door = self._doors[route] = Door(route)
        return door

    def counts(self) -> Iterable[DoorCounts]:
        for door in self._doors.values():
            yield DoorCounts(
                route=door.route,
                received=door.received,
                stored=door.stored,
                refused=door.refused,
                filtered=door.filtered,
                duplicate=door.duplicate,
                rolled_back=door.rolled_back,
                committing=door.committing,
                in_transactions=door.held,
                proxied=door.proxied,
                proxying=door.proxying,
            )

    def receive(self, route: str, listener: str, columns: Columns) -> None:
        door = self.of(route)
        door.received += columns.count
        door.held += columns.count
        self._recorder.received(route, listener, columns.count, columns.value_bytes)

    def refuse(self, route: str, messages: int, error: GatewayError) -> None:
        if messages:
            door = self.of(route)
            door.held -= messages
            door.refused += messages
            self._recorder.refused(route, error.status, messages)

    def drop(self, route: str, messages: int, reason: str) -> None:
        """Held ones end here for a reason of ours: `filtered`, `duplicate`, `rolled_back`."""
        if messages:
            door = self.of(route)
            door.held -= messages
            setattr(door, reason, getattr(door, reason) + messages)
            self._recorder.dropped(route, reason, messages)
