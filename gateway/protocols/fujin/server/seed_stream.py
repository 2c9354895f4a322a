"""A stream in the seed's dialect: its first command gives it a role, that of a writer or that of a reader (wire 1.1, 1.4, 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.protocols.fujin.server.stream import Stream, StreamContext
from gateway.protocols.fujin.states import EVENTS, TABLE, Event, State
from gateway.protocols.fujin.wire.codec import RefusedCommand
from gateway.protocols.fujin.wire.frames import Op, Reply
from gateway.wire.machine import Machine


class StreamRole(Protocol):
    """What a stream has become: a writer or a reader."""

    def command(self, op: int, data: bytes, at: int, now: float) -> int:
        """Take one command, allowed by the state; returns where the next one begins."""
        ...

    def end(self) -> None:
        """Give back everything; the stream closes when all requests have ended."""
        ...

    def room(self, now: float) -> None:
        """Output fell to low water."""
        ...

    def timeout_at(self) -> float | None:
        """When `on_timeout` wants to be called."""
        ...

    def on_timeout(self, now: float) -> None:
        """That time has come."""
        ...


class SeedStream(Stream):
    """The part that both roles share. One that never had a role goes without the `0a`."""

    timed = False
    GOODBYE = bytes((Reply.DISCONNECT,))
    STOP = bytes((Op.STOP,))

    def __init__(self, channel: int, context: StreamContext, connect: Callable[[SeedStream, bytes, int], int]) -> None:
        super().__init__(channel, context)
        self._connect = connect
        self.machine = Machine(TABLE, State.NEW)
        self.role: StreamRole | None = None

    def room(self, now: float) -> None:
        if self.role is not None:
            self.role.room(now)

    def let_go(self) -> None:
        self.role = None

    def timeout_at(self) -> float | None:
        return self.role.timeout_at() if self.role is not None else None

    def on_timeout(self, now: float) -> None:
        if self.role is not None:
            self.role.on_timeout(now)

    def refuse(self, reply: bytes) -> None:
        """The answer, then the end. A refused reader gets no `0a`, and its FIN in another packet than the text: stock
        clients read both together as an end without a reason (wire 0, rule 9; wire 2).
        """
        if reply[0] == Reply.READER:
            self.send_apart(reply, alone=True)
            self.end(silent=True)
        else:
            self.send(reply)
            self.end()

    def _command(self, data: bytes, at: int, now: float) -> int:
        event = EVENTS.get(data[at])
        if event is None or (self.machine.state, event) not in TABLE:
            if self.machine.state is State.IN_TX:
                return at + 1  # passed over silently (wire 2)
            self.end()
            return at
        if event is Event.END:  # as the first byte too (wire 2)
            self.end()
            return at + 1
        try:
            if self.role is None:
                return self._connect(self, data, at)
            return self.role.command(data[at], data, at, now)
        except RefusedCommand as error:
            self.refuse(error.reply)
            return at

    def _leave(self) -> bool:
        had_role = self.machine.state is not State.NEW
        self.machine.step(Event.END)
        if self.role is not None:
            self.role.end()
        return had_role
