"""WebSocket for byte streams: binary messages whose borders mean nothing (Fujin wire 6.2). No socket here."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError

from gateway.transport.pipe import PipeFailed

LARGEST_MESSAGE = 4 << 20
"""Bytes of a message that comes in; those that go out have less."""
LARGEST_OUT = 1 << 20
MOST_AT_ONCE = 16 << 10
"""Bytes: nearly three thousand frames, if all are empty, take about a hundredth of a second."""


class WebSocketFailed(PipeFailed):
    """The upgrade or a frame was refused."""

    kind = "websocket"


@attrs.frozen
class WebSocketRules:
    path: str
    origins: Sequence[str] = ()
    """Pages that may connect, `*` for all; who sends no Origin is no page."""

    def refusal(self, request: Request) -> tuple[int, str] | None:
        origins = [value.decode("latin-1") for name, value in request.extra_headers if name.lower() == b"origin"]
        if request.target.partition("?")[0] != self.path:
            return 404, f"what is served is at {self.path}"
        if any(origin not in self.origins for origin in origins) and "*" not in self.origins:
            return 403, "this origin is not among those that the listener names"
        return None


class WebSocketPipe:
    """One connection, in either role."""

    most = MOST_AT_ONCE

    def __init__(self, rules: WebSocketRules | None = None, *, host: str = "", target: str = "") -> None:
        """With `rules` it serves; otherwise it asks that host for that target."""
        self._rules = rules
        self._asked = Request(host=host, target=target)
        self._connection = WSConnection(ConnectionType.SERVER if rules is not None else ConnectionType.CLIENT)
        self._out = bytearray()
        self._size = 0
        """Bytes of the message that is coming in."""
        self.ready = False

    def start(self) -> bytes:
        return self._connection.send(self._asked) if self._rules is None else b""

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        pieces: list[bytes] = []
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                if self._happened(event, pieces):
                    return pieces, True
        except ProtocolError as error:
            hint = getattr(error, "event_hint", None)
            if hint is not None:
                self._say(hint)
            raise WebSocketFailed(str(error)) from error
        return pieces, False

    def wrap(self, data: bytes) -> bytes:
        send = self._connection.send
        if len(data) <= LARGEST_OUT:
            return send(BytesMessage(data=data))
        return b"".join(send(BytesMessage(data=data[at : at + LARGEST_OUT])) for at in range(0, len(data), LARGEST_OUT))

    def pending(self) -> bytes:
        out, self._out = bytes(self._out), bytearray()
        return out

    def goodbye(self) -> bytes:
        if self.ready:
            self._close(CloseReason.NORMAL_CLOSURE)
        return self.pending()

    # --- inside ---

    def _happened(self, event: Event, pieces: list[bytes]) -> bool:
        # whether it is over
        match event:
            case BytesMessage():
                self._size += len(event.data)
                if self._size > LARGEST_MESSAGE:
                    self._fail(CloseReason.MESSAGE_TOO_BIG, "a message is too large")
                if event.message_finished:
                    self._size = 0
                if event.data:
                    pieces.append(bytes(event.data))
            case TextMessage():
                self._fail(CloseReason.UNSUPPORTED_DATA, "text is not spoken here")
            case Ping():
                self._say(event.response())
            case Request():
                self._upgrade(event)
            case AcceptConnection():
                self.ready = True
            case RejectConnection():
                raise WebSocketFailed(f"no WebSocket there: status {event.status_code}")
            case CloseConnection():
                if self.ready:
                    self._say(event.response())
                self.ready = False
                return True
        return False

    def _upgrade(self, request: Request) -> None:
        refusal = self._rules.refusal(request) if self._rules is not None else None
        if refusal is None:
            self._say(AcceptConnection())
            self.ready = True
            return
        status, why = refusal
        body = [
            (b"content-type", b"text/plain"),
            (b"content-length", str(len(why)).encode()),
            (b"connection", b"close"),
        ]
        self._say(RejectConnection(status_code=status, headers=body, has_body=True))
        self._say(RejectData(data=why.encode()))
        raise WebSocketFailed(why)

    def _fail(self, code: CloseReason, why: str) -> None:
        self._close(code)
        raise WebSocketFailed(why)

    def _close(self, code: CloseReason) -> None:
        self.ready = False
        self._say(CloseConnection(code=code))

    def _say(self, event: Event) -> None:
        self._out += self._connection.send(event)
