"""What a client's stream may say when, as tables (Fujin document; wire 1.1, 2, 3, 6.2).

The first byte fixes the role of a stream. A command that the table does not have ends the stream; inside a transaction an
unknown byte is passed over instead (wire 2).

    NEW --CONNECT_WRITER--> WRITER <--COMMIT/ROLLBACK-- IN_TX
                               +--------BEGIN------------^
    NEW --CONNECT_READER--> SUBSCRIBING --> PUSH or PULL
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.protocols.fujin.wire.bound_frames import BoundOp
from gateway.protocols.fujin.wire.frames import Op
from gateway.wire.machine import Named


class State(Named):
    """Where a stream is."""

    NEW = "new"
    WRITER = "writer"
    IN_TX = "in_tx"
    SUBSCRIBING = "subscribing"
    PUSH = "push"
    PULL = "pull"
    ENDING = "ending"


class Event(Named):
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


# --- the dialects that bind (wire 6.2) ---


class BoundState(Named):
    """Where a session of 0.5 or v1 is. The latter begins greeted."""

    NEW = "new"
    GREETED = "greeted"
    BOUND = "bound"
    IN_TX = "in_tx"
    ENDING = "ending"


class BoundEvent(Named):
    """What moves it: the commands, and what becomes of them."""

    HELLO = "hello"
    BIND = "bind"
    ACCEPTED = "accepted"
    PRODUCE = "produce"
    TX = "tx"  # BEGIN, COMMIT, ROLLBACK: answered with a failure when it is not their time
    BEGUN = "begun"
    TX_OVER = "tx_over"
    TX_PRODUCE = "tx_produce"
    SUBSCRIBE = "subscribe"  # before BIND it is answered
    READ = "read"  # what else is about readers
    PONG = "pong"
    DISCONNECT = "disconnect"
    END = "end"


SESSIONS: Mapping[tuple[BoundState, BoundEvent], BoundState] = {
    (BoundState.NEW, BoundEvent.HELLO): BoundState.GREETED,
    (BoundState.NEW, BoundEvent.END): BoundState.ENDING,
    (BoundState.GREETED, BoundEvent.BIND): BoundState.GREETED,
    (BoundState.GREETED, BoundEvent.ACCEPTED): BoundState.BOUND,
    (BoundState.GREETED, BoundEvent.SUBSCRIBE): BoundState.GREETED,
    (BoundState.GREETED, BoundEvent.PONG): BoundState.GREETED,
    (BoundState.GREETED, BoundEvent.END): BoundState.ENDING,
    (BoundState.BOUND, BoundEvent.PRODUCE): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.TX): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.BEGUN): BoundState.IN_TX,
    (BoundState.BOUND, BoundEvent.SUBSCRIBE): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.READ): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.PONG): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.DISCONNECT): BoundState.BOUND,
    (BoundState.BOUND, BoundEvent.END): BoundState.ENDING,
    (BoundState.IN_TX, BoundEvent.TX_PRODUCE): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.TX): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.TX_OVER): BoundState.BOUND,
    (BoundState.IN_TX, BoundEvent.SUBSCRIBE): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.READ): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.PONG): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.DISCONNECT): BoundState.IN_TX,
    (BoundState.IN_TX, BoundEvent.END): BoundState.ENDING,
}
"""Everything that is allowed; what is not ends the session."""

BOUND_EVENTS: Mapping[int, BoundEvent] = {
    BoundOp.HELLO.value: BoundEvent.HELLO,
    BoundOp.BIND.value: BoundEvent.BIND,
    BoundOp.PRODUCE.value: BoundEvent.PRODUCE,
    BoundOp.HPRODUCE.value: BoundEvent.PRODUCE,
    BoundOp.BEGIN.value: BoundEvent.TX,
    BoundOp.COMMIT.value: BoundEvent.TX,
    BoundOp.ROLLBACK.value: BoundEvent.TX,
    BoundOp.FETCH.value: BoundEvent.READ,
    BoundOp.HFETCH.value: BoundEvent.READ,
    BoundOp.ACK.value: BoundEvent.READ,
    BoundOp.NACK.value: BoundEvent.READ,
    BoundOp.SUBSCRIBE.value: BoundEvent.SUBSCRIBE,
    BoundOp.HSUBSCRIBE.value: BoundEvent.READ,
    BoundOp.UNSUBSCRIBE.value: BoundEvent.READ,
    BoundOp.DISCONNECT.value: BoundEvent.DISCONNECT,
    BoundOp.TX_PRODUCE.value: BoundEvent.TX_PRODUCE,
    BoundOp.TX_HPRODUCE.value: BoundEvent.TX_PRODUCE,
    BoundOp.PONG.value: BoundEvent.PONG,
}
"""Which event a client's op byte is."""
