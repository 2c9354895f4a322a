"""What an ingest's remote address has while it is pulled from: a subscription on a connection, and one alarm."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from gateway.bridges.pool import PooledConnection
from gateway.broker.timers import Pump
from gateway.requests import Start

RESUME_SECONDS = 5.0
"""How long a subscription from before is given to show that it is still there. Longer than the first few redeliveries take."""


@attrs.define(eq=False)
class Intake:
    """A subscription on one connection. Answers for one that is no more are not looked at."""

    connection: PooledConnection
    subscription: int = 0
    start: Start | int = Start.EARLIEST
    replays: bool = False
    """Its offsets are the remote log's own: a bookmark made of them means something."""
    taking: bool = False
    fallback: int = 0
    """The subscription to change to unless the one from before gives a sign of life in time."""
    fallback_at: float = 0.0
    """When that is, 0 while nothing is asked for: then it could not give any."""

    def until(self, now: float, patience: float) -> float:
        """When an empty answer is due at the latest to what is asked for now."""
        if not self.fallback:
            return now + patience
        self.fallback_at = self.fallback_at or now + RESUME_SECONDS
        return min(now + patience, self.fallback_at)


class Alarm:
    """Calls back at a time; a later order replaces an earlier one."""

    def __init__(self, pump: Pump, callback: Callable[[], None]) -> None:
        self._pump = pump
        self._callback = callback
        self._cancel: Callable[[], None] | None = None

    def set(self, when: float) -> None:
        self.cancel()
        self._cancel = self._pump.call_at(when, self._fired)

    def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _fired(self) -> None:
        self._cancel = None
        self._callback()
