"""When the next messages of a replay are due: as far apart as they once were, or no faster than a rate.

Apart from the replay: a pace is arithmetic over times, and is tested without any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BURST_SECONDS = 0.1
"""What a rate lets through at once, as time: less would make requests of single messages."""


class Pacer:
    """Told the time, says how many may go."""

    def __init__(self, *, speed: float | None = None, rate: float | None = None) -> None:
        """`speed` 1.0 is as it was, None as fast as it goes; `rate` is messages per second at most."""
        self._speed = speed
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS) if rate is not None else 0.0
        self._allowed = 0.0
        self._seen = 0.0
        self._began: tuple[float, float] | None = None

    def ready(self, times_ms: Any, now: float) -> int:
        """How many of these messages (their times, ascending, not empty) may go now."""
        count = len(times_ms)
        if self._speed is not None:
            began, first = self._start(float(times_ms[0]), now)
            reached = first + (now - began) * 1000.0 * self._speed
            count = int(np.searchsorted(times_ms, reached, side="right"))
        if self._rate is not None:
            self._refill(now)
            count = min(count, int(self._allowed))
        return count

    def sent(self, count: int) -> None:
        self._allowed -= count

    def pause(self, time_ms: float, now: float) -> float:
        """Seconds until the message with this time may go."""
        seconds = 0.0
        if self._speed is not None:
            began, first = self._start(time_ms, now)
            seconds = began + (time_ms - first) / 1000.0 / self._speed - now
        if self._rate is not None:
            self._refill(now)
            seconds = max(seconds, (1.0 - self._allowed) / self._rate)
        return max(seconds, 0.0)

    def _start(self, time_ms: float, now: float) -> tuple[float, float]:
        if self._began is None:
            self._began = (now, time_ms)
        return self._began

    def _refill(self, now: float) -> None:
        assert self._rate is not None
        if self._seen:
            self._allowed = min(self._burst, self._allowed + (now - self._seen) * self._rate)
        else:
            self._allowed = self._burst
        self._seen = now
