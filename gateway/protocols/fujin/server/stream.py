"""One stream of a client's, whatever is spoken on it: bytes to commands, requests under way, and how it ends (wire 1.1, 1.4, 2).

A stream ends by DISCONNECT, by FIN, by RESET, or by a command it does not allow, and always in the same way: what is under
way is finished, a transaction is rolled back, a reader gives back what was not acknowledged; then exactly one goodbye, FIN
and STOP_SENDING.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import attrs

from gateway.errors import WireError
from gateway.protocols.fujin.settings import FujinSettings
from gateway.protocols.fujin.wire.codec import Incomplete, Part
from gateway.protocols.fujin.wire.outbox import Outbox
from gateway.requests import Outcome, Pause, Request
from gateway.settings import Dialect
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import Finish, StopSending

MOST_HELD = 65_536
"""Bytes behind a command that has no reply yet."""

PUSH_WINDOW = 256 << 10
UNREAD_BYTES = 4 << 20
LEAST_WINDOW = 16 << 10
"""Bytes on their way to a client that is not known to read: a share of what its connection may have, so that many readers
and no time to read them cost little. Nothing holds the other streams back meanwhile."""

MOST_COMMANDS = 500
"""Read at once; many of the same kind and name are one. Others have the event loop before the next, also where none of these
asks the broker for anything.
"""

_EVERYTHING = 1 << 62
"""More than ever comes: while a stream waits for a reply its bytes are only collected."""


@attrs.define(eq=False)
class StreamContext:
    """What the streams of one connection share."""

    outbox: Outbox
    settings: FujinSettings
    dialect: Dialect
    users: dict[int, int]
    """How many streams of this connection use a subscription."""
    open: Callable[[], int]
    """How many streams there are."""
    gone: Callable[[int], None]
    """A stream has ended."""
    auth_required: bool = False
    build: str = ""
    """What HELLO is told that serves it."""

    def forget(self) -> None:
        """The connection is gone. It and its streams refer to each other, which the collector alone would find."""
        self.open, self.gone = _none, _unheard


def _none() -> int:
    return 0


def _unheard(_channel: int) -> None:
    """Nobody counts them any more."""


class Stream(ABC):
    GOODBYE: bytes
    STOP: bytes
    timed = True
    """Whether `timeout_at` may say something."""

    def __init__(self, channel: int, context: StreamContext) -> None:
        self.channel = channel
        self.context = context
        self.send: Callable[[bytes], None] = partial(context.outbox.send, channel)
        self.busy = False
        """A reply decides what the next command means: nothing is parsed until it is there."""
        self.ending = False
        """It takes no more commands."""
        self.buffer = ReceiveBuffer()
        self._part: Part | None = None
        """What was read of the command that is not whole."""
        self._waiting = 0
        self._heard_end = False
        """The peer has finished or abandoned its side."""
        self._finish_after_bytes = False
        self._silent = False
        """No goodbye: there was nobody yet who would know it, or a refusal was the last word."""
        self._closed = False

    @property
    def clogged(self) -> bool:
        """Whether too many bytes wait for a reply."""
        return self.busy and self.buffer.size > MOST_HELD

    @property
    def window(self) -> int:
        """Bytes that may be on their way to it unread."""
        return min(PUSH_WINDOW, max(LEAST_WINDOW, UNREAD_BYTES // max(1, self.context.open())))

    # --- what a dialect says ---

    @abstractmethod
    def _command(self, data: bytes, at: int, now: float) -> int:
        """Take one command; returns where the next one begins."""

    @abstractmethod
    def _leave(self) -> bool:
        """Give back everything; the stream closes when all requests have ended. Whether a goodbye would be understood."""

    def let_go(self) -> None:  # noqa: B027
        """It is over. A dialect whose parts refer to each other separates them, or the collector alone would find them."""

    def room(self, now: float) -> None:  # noqa: B027 - a dialect may have nothing to do
        """Output fell to low water."""

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, now: float) -> None:  # noqa: B027 - nor anything timed
        """That time has come."""

    # --- what comes in ---

    def receive(self, data: bytes, now: float) -> None:
        if not self.ending:
            buffer = self.buffer
            self._parse(buffer.feed(data) if buffer.size or buffer.wanted else data, now)

    def eof(self, now: float) -> None:
        """The peer sends no more: a command that is not whole will never be (wire 1.5, row 5)."""
        self._heard_end = True
        # what came before the end is still worked on: a reply that is awaited decides how
        if self.busy and not self.ending:
            self._finish_after_bytes = True
        else:
            self.end()

    def abandon(self) -> None:
        self._heard_end = True
        self.busy = False
        self.end()

    def go_on(self, now: float) -> None:
        self.busy = False
        if self.ending:
            return
        self.buffer.wanted = 0
        self._parse(self.buffer.feed(b""), now)
        if self._finish_after_bytes and not self.busy:
            self.end()

    # --- for the dialects ---

    def ask(
        self, make: Callable[[int], Request], ended: Callable[[Outcome, float], None], *, background: bool = False
    ) -> int:
        """A request that the stream's end waits for. One in the `background` is not work under way: it waits for news."""
        self._waiting += 1

        def done(outcome: Outcome, now: float) -> None:
            self._waiting -= 1
            ended(outcome, now)
            if self.ending:
                self._close_if_done()

        return self.context.outbox.ask(make, done, background=background)

    def send_apart(self, data: bytes, *, notify: bool = False, alone: bool = False) -> None:
        self.context.outbox.send_apart(self.channel, data, notify=notify, alone=alone)

    def end(self, *, silent: bool = False) -> None:
        """Take no more commands, and close once nothing is under way."""
        if self.ending:
            return
        self.ending = True
        self.buffer.clear()
        self._silent = not self._leave() or silent
        self._close_if_done()

    def stop(self) -> None:
        # ask the client to disconnect; stock clients throw away the rest of the read (wire 1.4)
        if not self.ending:
            self.context.outbox.send_apart(self.channel, self.STOP, alone=True)

    # --- inside ---

    def part(self, at: int) -> Part | None:
        """What was there before of the command that begins here."""
        return self._part if not at else None

    def _parse(self, data: bytes, now: float) -> None:
        if not data:
            return
        at = wanted = 0
        part, left = None, MOST_COMMANDS
        try:
            while at < len(data) and not self.busy and not self.ending:
                if not left:
                    self.busy = True
                    self.ask(Pause, self._paused)
                    break
                left -= 1
                at = self._command(data, at, now)
        except Incomplete as error:
            # the buffer says nothing until so much is there: a command that comes byte by byte is not parsed again for each
            wanted, part = error.wanted - at, error.part
        except WireError:
            self.end()
        self._part = part
        if not self.ending and (self.busy or at < len(data)):
            self.buffer.keep(data[at:], _EVERYTHING if self.busy else wanted)

    def _paused(self, _outcome: Outcome, now: float) -> None:
        self.go_on(now)

    def _close_if_done(self) -> None:
        if not self.ending or self._waiting or self._closed:
            return
        if not self._silent:
            self.send(self.GOODBYE)
        channel = self.channel
        self.context.outbox.put(channel, Finish(channel))
        # or the client's window would stay spent by what it goes on sending
        if not self._heard_end:
            self.context.outbox.put(channel, StopSending(channel))
        self._closed = True
        self.let_go()
        self.context.gone(channel)
