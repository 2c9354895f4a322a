"""A stream that a client session opens: logs in, sends requests, hands each reply to the request it belongs to.

Replies come in request order (Felix wire 2.5), so a queue of handlers is all the correlation there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import attrs

from gateway.errors import GatewayError, Status, TargetLost, TargetRefused, WireError
from gateway.protocols.felix.wire.codec import Auth, AuthOk, Error, Ok, decode_server, encode
from gateway.protocols.felix.wire.frames import BETWEEN_GATEWAYS, HEADER, HEADER_SIZE, KNOWN, UNADVERTISED, check_header
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import Finish, Kind, Open, Output, Send

ReplyHandler = Callable[[int, bytes], None]
"""Told the flags and the payload of a reply."""


class FrameReader:
    """Whole frames from the bytes of one stream."""

    def __init__(self) -> None:
        self._buffer = ReceiveBuffer()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(flags, payload) of each frame that is whole now. Raises WireError for what is none."""
        whole = self._buffer.feed(data)
        position, wanted = 0, 0
        while len(whole) - position >= HEADER_SIZE:
            magic, version, flags, length = HEADER.unpack_from(whole, position)
            check_header(magic, version, length)
            start = position + HEADER_SIZE
            if start + length > len(whole):
                wanted = HEADER_SIZE + length
                break
            position = start + length
            yield flags, whole[start:position]
        if position < len(whole):
            self._buffer.keep(whole[position:] if position else whole, wanted)


@attrs.define(eq=False)
class Login:
    """What every stream begins with, and what the server said to it."""

    message: Auth | None
    server_flags: int = UNADVERTISED


@attrs.define(eq=False)
class _AfterLogin:
    """What is to be done when the login is through, or when there will be no login."""

    ready: Callable[[], None]
    failed: Callable[[GatewayError], None]


class Line:
    """One stream of requests."""

    def __init__(self, token: int, outputs: list[Output], login: Login, *, single: bool = False) -> None:
        """`single`: one request, then FIN."""
        self.token = token
        self.gone = False
        self._outputs = outputs
        self._login = login
        self._single = single
        self._reader = FrameReader()
        self.ready = login.message is None
        self._backlog: deque[_AfterLogin] = deque()
        self._expected: deque[tuple[ReplyHandler, Callable[[GatewayError], None]]] = deque()
        outputs.append(Open(token, Kind.DUPLEX))
        if login.message is not None:
            outputs.append(Send(token, encode(login.message)))

    def when_ready(self, ready: Callable[[], None], failed: Callable[[GatewayError], None]) -> None:
        """Call back once the login is through: what can be sent depends on what the server said."""
        if self.ready:
            ready()
        else:
            self._backlog.append(_AfterLogin(ready, failed))

    def ask(self, data: bytes, handler: ReplyHandler, failed: Callable[[GatewayError], None]) -> None:
        if not self.ready:
            self._backlog.append(_AfterLogin(lambda: self.ask(data, handler, failed), failed))
            return
        self._outputs.append(Send(self.token, data))
        self._expected.append((handler, failed))
        if self._single:
            self._outputs.append(Finish(self.token))

    def receive(self, data: bytes) -> None:
        """Replies. Raises WireError when the server breaks the protocol."""
        for flags, payload in self._reader.feed(data):
            if not self.ready:
                self._logged_in(payload)
                continue
            if not self._expected:
                raise WireError("a reply that nobody waits for")
            self._expected.popleft()[0](flags, payload)

    def _logged_in(self, payload: bytes) -> None:
        match decode_server(payload):
            case AuthOk(server_flags=flags):
                self._login.server_flags = flags & (KNOWN | BETWEEN_GATEWAYS)
            case Ok():
                self._login.server_flags = UNADVERTISED
            case Error(message=text):
                self.fail(TargetRefused(text, refusal=Status.UNAUTHENTICATED, final=True))
                return
            case _:
                raise WireError("no answer to a login")
        self.ready = True
        while self._backlog:
            self._backlog.popleft().ready()

    def fail(self, error: GatewayError | None = None) -> None:
        self.gone = True
        failed = [failed for _, failed in self._expected] + [waiting.failed for waiting in self._backlog]
        self._expected.clear()
        self._backlog.clear()
        for callback in failed:
            callback(error or TargetLost("the server ended the stream"))
