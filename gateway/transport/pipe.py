"""What lies between a socket and the bytes of a protocol: TLS, WebSocket, or one in the other. Bytes in, bytes out, no socket."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import TargetError


class PipeFailed(TargetError):
    """The handshake, or what came behind it, was refused. `kind` is the reason in metrics."""

    kind = "pipe"


class Pipe(Protocol):
    """One connection's. Feed it what came from the socket; send what `pending` holds."""

    most: int
    """Bytes to be fed at once: what they may be, in the smallest pieces, is taken apart before others have the event loop."""

    @property
    def ready(self) -> bool:
        """Whether the handshake is done."""
        ...

    def start(self) -> bytes:
        """The client's first flight."""
        ...

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        """Wire bytes in; the protocol's bytes out, and whether the peer has said goodbye. Raises PipeFailed."""
        ...

    def wrap(self, data: bytes) -> bytes:
        """The protocol's bytes as wire bytes."""
        ...

    def pending(self) -> bytes:
        """What the pipe itself wants to send."""
        ...

    def goodbye(self) -> bytes:
        """What is sent last: a close frame, or close_notify."""
        ...


class SecuredPipe(Pipe, Protocol):
    """A pipe that knows the certificate of the other side."""

    def peer_certificate(self) -> bytes | None: ...


class PipeInPipe:
    """A pipe inside another one: WebSocket over TLS."""

    def __init__(self, outer: SecuredPipe, inner: Pipe) -> None:
        self._outer = outer
        self._inner = inner
        self.most = min(outer.most, inner.most)
        self._queued = b""

    @property
    def ready(self) -> bool:
        return self._inner.ready

    def start(self) -> bytes:
        return self._outer.start()

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        was_ready = self._outer.ready
        through, ended = self._outer.feed(data)
        if self._outer.ready and not was_ready:
            self._send(self._inner.start())
        pieces: list[bytes] = []
        for piece in through:
            found, over = self._inner.feed(piece)
            pieces += found
            ended = ended or over
        return pieces, ended

    def wrap(self, data: bytes) -> bytes:
        return self._outer.wrap(self._inner.wrap(data))

    def pending(self) -> bytes:
        if self._outer.ready:
            self._send(self._inner.pending())
        queued, self._queued = self._queued, b""
        return self._outer.pending() + queued

    def goodbye(self) -> bytes:
        if self._outer.ready:
            self._send(self._inner.goodbye())
        return self.pending() + self._outer.goodbye()

    def peer_certificate(self) -> bytes | None:
        return self._outer.peer_certificate()

    def _send(self, data: bytes) -> None:
        if data:
            self._queued += self._outer.wrap(data)
