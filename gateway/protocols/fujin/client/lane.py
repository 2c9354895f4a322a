"""One stream of a client session: what writers and readers share (Fujin document; wire 1.1, 1.4)."""

from __future__ import annotations

import itertools

import attrs

from gateway.errors import GatewayError, Status, TargetLost, TargetRefused, WireError
from gateway.protocols.fujin.wire.codec import Incomplete
from gateway.protocols.fujin.wire.frames import Op, Reply
from gateway.protocols.fujin.wire.outbox import Outbox
from gateway.requests import Completion, Outcome
from gateway.settings import Dialect
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import Finish, Kind, Open

GOODBYE = bytes((Op.DISCONNECT,))


@attrs.define(eq=False)
class ClientCore:
    """What the lanes of one connection share."""

    dialect: Dialect
    outbox: Outbox = attrs.Factory(Outbox)
    completions: list[Completion] = attrs.Factory(list)

    def done(self, request_id: int, outcome: Outcome) -> None:
        self.completions.append((request_id, outcome))

    def take(self) -> list[Completion]:
        completions, self.completions = self.completions, []
        return completions


def refused(text: str) -> TargetRefused:
    """What a server's error is to the rest of the house. Errors are text here, and text is never interpreted."""
    return TargetRefused(text, refusal=Status.UNAVAILABLE)


class StreamLane:
    """A stream of ours with one role."""

    def __init__(self, core: ClientCore, channel: int, hello: bytes) -> None:
        self.core = core
        self.channel = channel
        self.over = False
        self.leaving = False
        """The goodbye (`0a`) has been sent."""
        self._cids = itertools.count(1)
        self._buffer = ReceiveBuffer()
        core.outbox.put(channel, Open(channel, Kind.DUPLEX))
        self.send(hello)

    def send(self, data: bytes) -> None:
        self.core.outbox.send(self.channel, data)

    def cid(self) -> int:
        """The next correlation id; it wraps to 0 (wire 1.4)."""
        return next(self._cids) & 0xFFFF_FFFF

    def receive(self, data: bytes, now: float) -> None:
        """Bytes of the server's. What stands where a reply should begin and is none is passed over byte by byte, as stock
        clients do (wire 2).
        """
        data = self._buffer.feed(data)
        at = 0
        wanted = 0
        try:
            while at < len(data) and not self.over:
                op = data[at]
                if op == Reply.DISCONNECT:
                    self.core.outbox.put(self.channel, Finish(self.channel))
                    self.fail(TargetLost("the broker ended the stream"))
                elif op == Op.STOP:
                    self.stopping()
                    at += 1
                else:
                    at = self.reply(op, data, at, now)
        except Incomplete as error:
            wanted = error.wanted - at
        except WireError as error:
            self.core.outbox.put(self.channel, Finish(self.channel))
            self.fail(TargetLost(f"the broker broke the protocol: {error.message}"))
        if not self.over:
            self._buffer.keep(data[at:], wanted)

    def leave(self) -> None:
        # say goodbye; the server answers everything before it answers that (wire 1.4)
        if not self.leaving and not self.over:
            self.leaving = True
            self.send(GOODBYE)

    def fail(self, error: GatewayError) -> None:
        self.over = True

    def reply(self, op: int, data: bytes, at: int, now: float) -> int:
        return at + 1

    def stopping(self) -> None:
        self.leave()
