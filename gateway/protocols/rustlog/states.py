"""A connection's states (RustLog wire 1.1 and 1.3).

There is no handshake: a connection is OPEN at once. A request that changes what the next one means, or that needs two
steps of the broker, holds the reading back (HELD) until it is through. After the peer's last byte what it sent is still
served (LAST); after a frame error or when the gateway goes down only what is under way is answered (ENDING).
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire.machine import Named


class State(Named):
    """Where a connection stands."""

    OPEN = "open"
    HELD = "held"
    LAST = "last"  # the peer sent its last byte
    LAST_HELD = "last and held"
    ENDING = "ending"  # nothing more is parsed
    CLOSED = "closed"


class Event(Named):
    """What moves it."""

    HOLD = "hold"
    RELEASE = "release"
    EOF = "eof"
    END = "end"  # a frame error, or a drain
    ANSWERED = "answered"  # nothing is under way any more
    LOST = "lost"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.OPEN, Event.HOLD): State.HELD,
    (State.OPEN, Event.EOF): State.LAST,
    (State.OPEN, Event.END): State.ENDING,
    (State.OPEN, Event.LOST): State.CLOSED,
    (State.HELD, Event.RELEASE): State.OPEN,
    (State.HELD, Event.EOF): State.LAST_HELD,
    (State.HELD, Event.END): State.ENDING,
    (State.HELD, Event.LOST): State.CLOSED,
    (State.LAST, Event.HOLD): State.LAST_HELD,
    (State.LAST, Event.END): State.ENDING,
    (State.LAST, Event.ANSWERED): State.CLOSED,
    (State.LAST, Event.LOST): State.CLOSED,
    (State.LAST_HELD, Event.RELEASE): State.LAST,
    (State.LAST_HELD, Event.END): State.ENDING,
    (State.LAST_HELD, Event.LOST): State.CLOSED,
    (State.ENDING, Event.EOF): State.ENDING,
    (State.ENDING, Event.END): State.ENDING,
    (State.ENDING, Event.ANSWERED): State.CLOSED,
    (State.ENDING, Event.LOST): State.CLOSED,
    (State.CLOSED, Event.EOF): State.CLOSED,
    (State.CLOSED, Event.END): State.CLOSED,
    (State.CLOSED, Event.LOST): State.CLOSED,
}

READING = frozenset({State.OPEN, State.HELD})
"""States in which bytes are kept at all."""

KEEPING = frozenset({State.OPEN, State.HELD, State.LAST_HELD})
"""States in which bytes that were not parsed yet still may be."""

HELD = frozenset({State.HELD, State.LAST_HELD})

LEAVING = frozenset({State.LAST, State.ENDING})
"""States that end when everything is answered."""
