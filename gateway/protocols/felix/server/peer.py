"""What the streams of one connection share: what the peer has shown, requests under way, output."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import attrs

from gateway.errors import WireError
from gateway.protocols.felix.settings import FelixSettings
from gateway.requests import Outcome, Request
from gateway.settings import Dialect
from gateway.wire.session import Output

Handler = Callable[[Outcome, float], None]
"""What is to be done with a request's outcome."""


@attrs.define(eq=False)
class Peer:
    settings: FelixSettings
    dialect: Dialect
    auth_required: bool
    authenticated: bool = False
    """Some stream of it has logged in."""
    flags: int | None = None
    """What it said it understands, if it named flags (Felix wire 1.2)."""
    outputs: list[Output] = attrs.Factory(list)
    asked: list[Request] = attrs.Factory(list)
    closed: list[int] = attrs.Factory(list)
    """Streams that have ended."""
    owed: int = 0
    """Replies that are not handed out yet, over all streams."""
    held: int = 0
    """Streams that are held back."""
    document: bool = attrs.field(init=False)
    """Whether the document is followed to the byte."""
    next_id: Callable[[], int] = attrs.field(factory=lambda: itertools.count(1).__next__)
    next_token: Callable[[], int] = attrs.field(factory=lambda: itertools.count(-1, -1).__next__)
    _pending: dict[int, Handler] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        self.document = self.dialect is Dialect.DOCUMENT

    def ask(self, request: Request, handler: Handler) -> None:
        self._pending[request.id] = handler
        self.asked.append(request)

    def finish(self, request_id: int, outcome: Outcome, now: float) -> None:
        handler = self._pending.pop(request_id, None)
        if handler is not None:
            handler(outcome, now)

    def check_tenant(self, tenant: str, logged_in: str | None) -> None:
        # whoever logged in stays in its tenant (Felix wire 1.2)
        if self.auth_required and tenant != logged_in:
            raise WireError("tenant mismatch")

    def forget(self) -> None:
        self._pending.clear()
        self.outputs.clear()
        self.asked.clear()
