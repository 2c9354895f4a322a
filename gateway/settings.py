"""Types of configuration values that protocols and configuration share. Plain values; parsing is in `gateway.config`."""

from __future__ import annotations

import enum
from typing import NewType

import attrs

Seconds = NewType("Seconds", float)
"""Written as `5ms`, `2s`, `7d` or `none` (infinity)."""

Size = NewType("Size", int)
"""Bytes, written as `64KiB`, `16MiB` or a number."""


class Dialect(enum.Enum):
    """How a listener treats peers that may follow the document or the stock implementation."""

    AUTO = "auto"
    DOCUMENT = "document"
    STOCK = "stock"


@attrs.frozen
class Backoff:
    """Written as `100ms..30s`: the first delay, doubling up to the longest."""

    first: Seconds
    longest: Seconds

    def delay(self, attempt: int) -> float:
        """Seconds to wait after this attempt (the first is 1)."""
        return float(min(self.first * 2 ** min(attempt - 1, 62), self.longest))


@attrs.frozen
class NoSettings:
    """For protocols without settings of their own."""


@attrs.frozen
class Limits:
    """Bounds of one listener. Each has a metric for being hit."""

    connections: int = 10_000
    per_address: int = 1_000
    in_flight: int = 1_024
    output: Size = Size(4 << 20)
    handshake: Seconds = Seconds(30.0)
    idle: Seconds = Seconds(float("inf"))
    write_timeout: Seconds = Seconds(60.0)
