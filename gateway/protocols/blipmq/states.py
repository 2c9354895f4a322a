"""The handshake ladder of one connection as a table (BlipMQ document, HELLO / AUTH Handshake; wire 1.2).

    NEW --HELLO--> GREETED --AUTH--> CHECKING --ACCEPTED--> READY
                      ^                  |
                      +-----REJECTED-----+

A frame the state does not allow is refused with the words of `REFUSALS` and changes nothing; no handshake failure closes
the connection. While CHECKING nothing is parsed, so no frame can arrive in that state.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.protocols.blipmq.wire import mapping
from gateway.protocols.blipmq.wire.frames import FrameType
from gateway.protocols.blipmq.wire.mapping import NackText
from gateway.wire.machine import Named


class State(Named):
    NEW = "new"
    GREETED = "greeted"
    CHECKING = "checking"
    READY = "ready"


class Event(Named):
    """What moves it: three kinds of frames, and the two ends of an AUTH."""

    HELLO = "hello"
    AUTH = "auth"
    OPERATION = "operation"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.NEW, Event.HELLO): State.GREETED,
    (State.GREETED, Event.AUTH): State.CHECKING,
    (State.CHECKING, Event.ACCEPTED): State.READY,
    (State.CHECKING, Event.REJECTED): State.GREETED,
    (State.READY, Event.OPERATION): State.READY,
}
"""Everything that is allowed."""

REFUSALS: Mapping[tuple[State, Event], NackText] = {
    (State.NEW, Event.AUTH): mapping.HELLO_MISSING,
    (State.NEW, Event.OPERATION): mapping.UNAUTHENTICATED,
    (State.GREETED, Event.HELLO): mapping.HELLO_AGAIN,
    (State.GREETED, Event.OPERATION): mapping.UNAUTHENTICATED,
    (State.READY, Event.HELLO): mapping.HELLO_AGAIN,
    (State.READY, Event.AUTH): mapping.AUTH_AGAIN,
}
"""What is said to frames that are not; their payload is not even looked at."""

EVENTS: Mapping[FrameType, Event] = {
    kind: {FrameType.HELLO: Event.HELLO, FrameType.AUTH: Event.AUTH}.get(kind, Event.OPERATION) for kind in FrameType
}
"""Which event a frame is: all but HELLO and AUTH are operations, even those only servers send."""
