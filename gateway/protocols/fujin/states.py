"""What a client's stream may say when, as a table (Fujin document; wire 1.1, 2, 3).

The first byte fixes the role of a stream. A command that the table does not have ends the stream; inside a transaction an
unknown byte is passed over instead (wire 2).

    NEW --CONNECT_WRITER--> WRITER <--COMMIT/ROLLBACK-- IN_TX
                               +--------BEGIN------------^
    NEW --CONNECT_READER--> SUBSCRIBING --> PUSH or PULL
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from gateway.protocols.fujin.wire.frames import Op


class State(enum.Enum):
    """Where a stream is."""

    NEW = "new"
    WRITER = "writer"
    IN_TX = "in_tx"
    SUBSCRIBING = "subscribing"
    PUSH = "push"
    PULL = "pull"
    ENDING = "ending"


class Event(enum.Enum):
    """What moves it: the commands, and what becomes of them."""

    CONNECT_WRITER = "connect_writer"
    CONNECT_READER = "connect_reader"
    WRITE = "write"
    TX = "tx"  # BEGIN, COMMIT, ROLLBACK: answered with an error when it is not their time
    BEGUN = "begun"
    TX_OVER = "tx_over"
    PUSHING = "pushing"
    PULLING = "pulling"
    FETCH = "fetch"
    SETTLE = "settle"
    END = "end"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.NEW, Event.CONNECT_WRITER): State.WRITER,
    (State.NEW, Event.CONNECT_READER): State.SUBSCRIBING,
    (State.NEW, Event.END): State.ENDING,
    (State.WRITER, Event.WRITE): State.WRITER,
    (State.WRITER, Event.TX): State.WRITER,
    (State.WRITER, Event.BEGUN): State.IN_TX,
    (State.WRITER, Event.END): State.ENDING,
    (State.IN_TX, Event.WRITE): State.IN_TX,
    (State.IN_TX, Event.TX): State.IN_TX,
    (State.IN_TX, Event.TX_OVER): State.WRITER,
    (State.IN_TX, Event.END): State.ENDING,
    (State.SUBSCRIBING, Event.PUSHING): State.PUSH,
    (State.SUBSCRIBING, Event.PULLING): State.PULL,
    (State.SUBSCRIBING, Event.END): State.ENDING,
    (State.PUSH, Event.FETCH): State.PUSH,
    (State.PUSH, Event.SETTLE): State.PUSH,
    (State.PUSH, Event.END): State.ENDING,
    (State.PULL, Event.FETCH): State.PULL,
    (State.PULL, Event.SETTLE): State.PULL,
    (State.PULL, Event.END): State.ENDING,
}
"""Everything that is allowed."""

EVENTS: Mapping[int, Event] = {
    Op.CONNECT_WRITER.value: Event.CONNECT_WRITER,
    Op.CONNECT_READER.value: Event.CONNECT_READER,
    Op.WRITE.value: Event.WRITE,
    Op.BEGIN.value: Event.TX,
    Op.COMMIT.value: Event.TX,
    Op.ROLLBACK.value: Event.TX,
    Op.FETCH.value: Event.FETCH,
    Op.ACK.value: Event.SETTLE,
    Op.NACK.value: Event.SETTLE,
    Op.DISCONNECT.value: Event.END,
}
"""Which event a client's op byte is."""
