"""What the requests of a client session are made of: generators that yield questions or pauses, and get answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from gateway.errors import TargetRefused
from gateway.protocols.flymq.wire.codec import REQUESTS, read_reply
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import Reply
from gateway.settings import Dialect


@attrs.frozen
class Ask:
    """Send this, and wait for its answer's payload. A refusal is raised where the question was asked."""

    op: Op
    payload: bytes


@attrs.frozen
class WaitUntil:
    """Wait until then, or until somebody cancels."""

    until: float


ClientSteps = Generator[Ask | WaitUntil, bytes | None, Reply]
Answer = Generator[Ask | WaitUntil, bytes | None, tuple[Any, ...]]


@attrs.define(eq=False)
class ClientShared:
    """What the generators of one connection share."""

    dialect: Dialect
    now: float = 0.0
    cancelled: set[int] = attrs.Factory(set)
    """Requests that shall wait no longer."""
    readers: dict[int, Any] = attrs.Factory(dict)
    """Open subscriptions by number (`client_reader.Reader`)."""
    last_reader: int = 1

    def request(self, op: Op, *values: object) -> bytes:
        return REQUESTS[op].encode(*values)

    def ask(self, op: Op, *values: object) -> Answer:
        payload = yield Ask(op, self.request(op, *values))
        return read_reply(op, payload or b"")

    def number(self) -> int:
        """A subscription's number; never below 2."""
        self.last_reader += 1
        return self.last_reader


def must(done: bool, text: str, refused: TargetRefused) -> None:
    """Raise the refusal that an answer's flag stands for."""
    if not done:
        raise TargetRefused(text or refused.message, refusal=refused.refusal, final=refused.final)
