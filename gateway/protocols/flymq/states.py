"""The life of a FlyMQ connection, as tables.

A serving session reads while READY; it stops at an operation whose answer comes before the next one may be looked at
(AUTH, operations of several steps) or while a bound is reached, and reads on when that is over. FINISHING: nothing more
is read, what is under way is still answered; then the connection is closed.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire.machine import Named


class State(Named):
    """Where a serving session is."""

    READY = "ready"
    BARRED = "barred"
    FINISHING = "finishing"
    CLOSED = "closed"


class Event(Named):
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


class ClientPhase(Named):
    """Where a client session is."""

    DIALLING = "dialling"
    LOGIN = "login"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class ClientStep(Named):
    """What moves a client session."""

    LOG_IN = "log_in"
    ADMITTED = "admitted"
    CLOSE = "close"
    LOSE = "lose"


CLIENT: Mapping[tuple[ClientPhase, ClientStep], ClientPhase] = {
    (ClientPhase.DIALLING, ClientStep.LOG_IN): ClientPhase.LOGIN,
    (ClientPhase.DIALLING, ClientStep.ADMITTED): ClientPhase.OPEN,
    (ClientPhase.LOGIN, ClientStep.ADMITTED): ClientPhase.OPEN,
    (ClientPhase.DIALLING, ClientStep.CLOSE): ClientPhase.CLOSING,
    (ClientPhase.LOGIN, ClientStep.CLOSE): ClientPhase.CLOSING,
    (ClientPhase.OPEN, ClientStep.CLOSE): ClientPhase.CLOSING,
    (ClientPhase.CLOSING, ClientStep.CLOSE): ClientPhase.CLOSING,
    (ClientPhase.CLOSED, ClientStep.CLOSE): ClientPhase.CLOSED,
    **{(phase, ClientStep.LOSE): ClientPhase.CLOSED for phase in ClientPhase},
}
