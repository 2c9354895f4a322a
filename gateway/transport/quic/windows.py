"""Receive credit that is granted by consuming: a peer may send one window beyond what was consumed, and no more.

Half-window rule: a new limit is announced once half of the window has been consumed, so that a steady reader costs two
announcements per window and a peer never stalls in between.
"""

from __future__ import annotations


class Credit:
    """The receive limit of one stream or of one connection, in bytes since its start."""

    __slots__ = ("_window", "consumed", "due", "limit")

    def __init__(self, window: int) -> None:
        self._window = window
        self.consumed = 0
        self.limit = window
        self.due = window - window // 2
        """With so many consumed the limit is to be raised."""

    def consume(self, count: int) -> bool:
        """Count bytes as consumed; True when `limit` was raised by it."""
        self.consumed += count
        if self.consumed < self.due:
            return False
        self.limit = self.consumed + self._window
        self.due = self.limit - self._window // 2
        return True
