"""The life of a FlyMQ connection, as tables.

A serving session reads while READY; it stops at an operation whose answer comes before the next one may be looked at
(AUTH, operations of several steps) or while a bound is reached, and reads on when that is over. FINISHING: nothing more
is read, what is under way is still answered; then the connection is closed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """Of a serving session."""

    READY = "ready"
    BARRED = "barred"
    FINISHING = "finishing"
    CLOSED = "closed"


class Event(enum.Enum):
    """What moves a serving session."""

    BAR = "bar"
    LIFT = "lift"
    FINISH = "finish"
    CLOSE = "close"


SERVER: Mapping[tuple[State, Event], State] = {
    (State.READY, Event.BAR): State.BARRED,
    (State.READY, Event.LIFT): State.READY,
    (State.BARRED, Event.LIFT): State.READY,
    (State.READY, Event.FINISH): State.FINISHING,
    (State.BARRED, Event.FINISH): State.FINISHING,
    (State.FINISHING, Event.FINISH): State.FINISHING,
    (State.FINISHING, Event.LIFT): State.FINISHING,
    (State.CLOSED, Event.FINISH): State.CLOSED,
    (State.CLOSED, Event.LIFT): State.CLOSED,
    **{(state, Event.CLOSE): State.CLOSED for state in State},
}


class Phase(enum.Enum):
    """Of a client session."""

    DIALLING = "dialling"
    LOGIN = "login"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Step(enum.Enum):
    """What moves a client session."""

    LOG_IN = "log_in"
    ADMITTED = "admitted"
    CLOSE = "close"
    LOSE = "lose"


CLIENT: Mapping[tuple[Phase, Step], Phase] = {
    (Phase.DIALLING, Step.LOG_IN): Phase.LOGIN,
    (Phase.DIALLING, Step.ADMITTED): Phase.OPEN,
    (Phase.LOGIN, Step.ADMITTED): Phase.OPEN,
    (Phase.DIALLING, Step.CLOSE): Phase.CLOSING,
    (Phase.LOGIN, Step.CLOSE): Phase.CLOSING,
    (Phase.OPEN, Step.CLOSE): Phase.CLOSING,
    (Phase.CLOSING, Step.CLOSE): Phase.CLOSING,
    (Phase.CLOSED, Step.CLOSE): Phase.CLOSED,
    **{(phase, Step.LOSE): Phase.CLOSED for phase in Phase},
}
