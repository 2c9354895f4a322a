"""What services with waiting requests offer to Cancel."""

from __future__ import annotations

from typing import Protocol

from gateway.broker.service import Caller


class Waiters(Protocol):
    """A service in which requests of a connection may wait."""

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer the waiting request with what it has; False if none waits under that id."""
        ...
