"""What the core tells the outside about itself. Injected, so that nothing below imports a metrics library."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import Status


class Recorder(Protocol):
    """Counters and histograms. Called once per batch, never per message."""

    def received(self, route: str, listener: str, messages: int, size: int) -> None:
        """A batch came through the door."""
        ...

    def stored(self, route: str, messages: int, size: int) -> None:
        """Offsets were given to them."""
        ...

    def delivered(self, route: str, target: str, messages: int, size: int) -> None:
        """They were handed to a reader. `target` is the reader's listener or upstream."""
        ...

    def acknowledged(self, route: str, target: str, messages: int, size: int) -> None:
        """Their reader confirmed them."""
        ...

    def refused(self, route: str, reason: Status, messages: int) -> None:
        """They were not taken."""
        ...

    def dropped(self, route: str, reason: str, messages: int) -> None:
        """They were taken and will not be delivered (filtered, duplicate, rolled back, expired, trimmed)."""
        ...

    def dead_lettered(self, route: str, reason: str, messages: int) -> None:
        """They went to a dead-letter topic."""
        ...

    def publish_latency(self, route: str, seconds: float) -> None:
        """From receipt to reply."""
        ...

    def connections(self, listener: str, change: int) -> None:
        """A connection came (+1) or went (-1)."""
        ...

    def refused_connection(self, listener: str, reason: str) -> None:
        """A connection was turned away or cut by a limit."""
        ...

    def limit_hit(self, listener: str, limit: str) -> None:
        """A bound was reached (in_flight, output, budget, ...)."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a declared gauge."""
        ...

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        ...


class NullRecorder:
    """Records nothing."""

    def received(self, route: str, listener: str, messages: int, size: int) -> None: ...  # noqa: D102
    def stored(self, route: str, messages: int, size: int) -> None: ...  # noqa: D102
    def delivered(self, route: str, target: str, messages: int, size: int) -> None: ...  # noqa: D102
    def acknowledged(self, route: str, target: str, messages: int, size: int) -> None: ...  # noqa: D102
    def refused(self, route: str, reason: Status, messages: int) -> None: ...  # noqa: D102
    def dropped(self, route: str, reason: str, messages: int) -> None: ...  # noqa: D102
    def dead_lettered(self, route: str, reason: str, messages: int) -> None: ...  # noqa: D102
    def publish_latency(self, route: str, seconds: float) -> None: ...  # noqa: D102
    def connections(self, listener: str, change: int) -> None: ...  # noqa: D102
    def refused_connection(self, listener: str, reason: str) -> None: ...  # noqa: D102
    def limit_hit(self, listener: str, limit: str) -> None: ...  # noqa: D102
    def gauge(self, name: str, value: float, **labels: str) -> None: ...  # noqa: D102

    def text(self) -> str:
        """Nothing."""
        return ""
