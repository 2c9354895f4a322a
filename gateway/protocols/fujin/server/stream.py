"""One stream of a client's: bytes to commands, its role, and how it ends (wire 1.1, 1.4, 2).

A stream ends by DISCONNECT, by FIN, by RESET, or by a command it does not allow, and always in the same way: what is under
way is finished, a transaction is rolled back, a reader gives back what was not acknowledged; then exactly one `0a`, FIN
and STOP_SENDING. One that never had a role goes without the `0a`.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol

import attrs

from gateway.errors import WireError
from gateway.protocols.fujin.settings import FujinSettings
from gateway.protocols.fujin.states import EVENTS, TABLE, Event, State
from gateway.protocols.fujin.wire.codec import Incomplete, RefusedCommand
from gateway.protocols.fujin.wire.frames import Op, Reply
from gateway.protocols.fujin.wire.outbox import Outbox
from gateway.requests import Outcome, Request
from gateway.settings import Dialect
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import Machine
from gateway.wire.session import Finish, StopSending

GOODBYE = bytes((Reply.DISCONNECT,))
STOP = bytes((Op.STOP,))

MOST_HELD = 65_536
"""Bytes behind a command that has no reply yet."""

_EVERYTHING = 1 << 62
"""More than ever comes: while a stream waits for a reply its bytes are only collected."""


@attrs.frozen(eq=False)
class StreamContext:
    """What the streams of one connection share."""

    outbox: Outbox
    settings: FujinSettings
    dialect: Dialect
    users: dict[int, int]
    """How many streams of this connection use a subscription."""
    streams: Sized
    """Those that are there."""
    gone: Callable[[int], None]
    """A stream has ended."""


class Role(Protocol):
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


class Stream:
    """The part that all roles share."""

    def __init__(self, channel: int, context: StreamContext, connect: Callable[[Stream, bytes, int], int]) -> None:
        self.channel = channel
        self.context = context
        self.machine = Machine(TABLE, State.NEW)
        self.role: Role | None = None
        self.busy = False
        """A reply decides what the next command means: nothing is parsed until it is there."""
        self._connect = connect
        self._buffer = ReceiveBuffer()
        self._waiting = 0
        self._heard_end = False
        """The peer has finished or abandoned its side."""
        self._finish_after_bytes = False
        self._silent = False
        """No `0a`: there was no role, or its refusal was the last word."""
        self._closed = False

    @property
    def ending(self) -> bool:
        """Whether it takes no more commands."""
        return self.machine.state is State.ENDING

    @property
    def clogged(self) -> bool:
        """Whether too many bytes wait for a reply."""
        return self.busy and self._buffer.size > MOST_HELD

    @property
    def incomplete(self) -> int:
        """Bytes of commands that are not whole, or that wait."""
        return self._buffer.size

    # --- what comes in ---

    def receive(self, data: bytes, now: float) -> None:
        """Bytes came in."""
        if not self.ending:
            self._parse(self._buffer.feed(data), now)

    def eof(self, now: float) -> None:
        """The peer sends no more: a command that is not whole will never be (wire 1.5, row 5)."""
        self._heard_end = True
        if self.busy and not self.ending:
            self._finish_after_bytes = True
        else:
            self.end()

    def abandon(self) -> None:
        """The peer has reset its side, or reads no more."""
        self._heard_end = True
        self.busy = False
        self.end()

    def go_on(self, now: float) -> None:
        """The reply that was waited for is there."""
        self.busy = False
        if self.ending:
            return
        self._buffer.wanted = 0
        self._parse(self._buffer.feed(b""), now)
        if self._finish_after_bytes and not self.busy:
            self.end()

    # --- for the roles ---

    def ask(
        self, make: Callable[[int], Request], ended: Callable[[Outcome, float], None], *, background: bool = False
    ) -> int:
        """A request that the stream's end waits for. One in the `background` is not work under way: it waits for news."""
        self._waiting += 1

        def done(outcome: Outcome, now: float) -> None:
            self._waiting -= 1
            ended(outcome, now)
            self._close_if_done()

        return self.context.outbox.ask(make, done, background=background)

    def send(self, data: bytes) -> None:
        """Bytes for the client."""
        self.context.outbox.send(self.channel, data)

    def send_apart(self, data: bytes, *, notify: bool = False, alone: bool = False) -> None:
        """Bytes for the client with a wish."""
        self.context.outbox.send_apart(self.channel, data, notify=notify, alone=alone)

    def end(self, *, silent: bool = False) -> None:
        """Take no more commands, and close once nothing is under way."""
        if self.ending:
            return
        self._silent = silent or self.machine.state is State.NEW
        self.machine.step(Event.END)
        self._buffer.clear()
        if self.role is not None:
            self.role.end()
        self._close_if_done()

    def stop(self) -> None:
        """Ask the client to disconnect; stock clients throw away the rest of the read (wire 1.4)."""
        if not self.ending:
            self.context.outbox.send_apart(self.channel, STOP, alone=True)

    # --- inside ---

    def _parse(self, data: bytes, now: float) -> None:
        at = 0
        wanted = 0
        try:
            while at < len(data) and not self.busy and not self.ending:
                event = EVENTS.get(data[at])
                if event is None or not self.machine.allows(event):
                    if self.machine.state is State.IN_TX:
                        at += 1  # passed over silently (wire 2)
                        continue
                    self.end()
                    return
                if event is Event.END and self.machine.state is State.NEW:
                    self.end()  # `0a` is no first byte (wire 2)
                    return
                at = self._command(event, data, at, now)
        except Incomplete as error:
            wanted = error.wanted - at
        except RefusedCommand as error:
            self.refuse(error.reply)
        except WireError:
            self.end()
        if not self.ending:
            self._buffer.keep(data[at:], _EVERYTHING if self.busy else wanted)

    def _command(self, event: Event, data: bytes, at: int, now: float) -> int:
        if event is Event.END:
            self.end()
            return at + 1
        if self.role is None:
            return self._connect(self, data, at)
        return self.role.command(data[at], data, at, now)

    def refuse(self, reply: bytes) -> None:
        """The answer, then the end. A refused reader gets no `0a`, and its FIN in another packet than the text: stock
        clients read both together as an end without a reason (wire 0, rule 9; wire 2).
        """
        if reply[0] == Reply.READER:
            self.context.outbox.send_apart(self.channel, reply, alone=True)
            self.end(silent=True)
        else:
            self.send(reply)
            self.end()

    def _close_if_done(self) -> None:
        if not self.ending or self._waiting or self._closed:
            return
        if not self._silent:
            self.send(GOODBYE)
        channel = self.channel
        self.context.outbox.put(channel, Finish(channel))
        if not self._heard_end:
            self.context.outbox.put(channel, StopSending(channel))
        self._closed = True
        self.context.gone(channel)
