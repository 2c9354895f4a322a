"""One connection between two gateways: frames over TLS, with what is to be sent in a queue, and an end to silence."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from gateway.errors import WireError
from gateway.link.codec import LinkFrame, LinkFrames, encode

LOGIN_SECONDS = 5.0
"""For the connection and both certificates."""
BEAT_SECONDS = 3.0
SILENCE_SECONDS = 15.0
"""Nothing came for so long, not even a beat: the other one is frozen, or what is between us is cut."""
UNSENT = 8 << 20
"""Bytes that may wait to be sent before no more questions are read."""
READ = 1 << 16
Stream = trio.SSLStream[trio.SocketStream]


class LinkStream:
    """Frames in both directions, until one side ends."""

    def __init__(self, stream: Stream, frames: LinkFrames, largest: int) -> None:
        """`largest`: of what is sent."""
        self._stream = stream
        self._frames = frames
        self._largest = largest
        self._queue: list[bytes] = []
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._unsent = 0
        self.lost = ""
        """Why it has ended."""

    def put(self, frame: LinkFrame) -> None:
        """Raises FrameTooLarge; then nothing is sent."""
        data = encode(frame, self._largest)
        self._queue.append(data)
        self._unsent += len(data)
        self._wake.set()

    async def run(self, take: Callable[[object], None]) -> None:
        """Until it is over; `take` has every frame that comes."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive(take)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            self.lost = self.lost or "cut"
        except* trio.TooSlowError:
            self.lost = "silent"
        except* WireError:
            self.lost = "frame"
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    async def _receive(self, take: Callable[[object], None]) -> None:
        while True:
            with trio.fail_after(SILENCE_SECONDS):
                data = await self._stream.receive_some(READ)
            if not data:
                self.lost = "closed"
                return
            for frame in self._frames.feed(bytes(data)):
                take(frame)
            while self._unsent > UNSENT:
                self._sent = trio.Event()
                with trio.fail_after(SILENCE_SECONDS):
                    await self._sent.wait()

    async def _send(self) -> None:
        while True:
            if not self._queue:
                self._wake = trio.Event()
                await self._wake.wait()
            queue, self._queue = self._queue, []
            data = b"".join(queue)
            for start in range(0, len(data), UNSENT):
                with trio.fail_after(SILENCE_SECONDS):
                    await self._stream.send_all(data[start : start + UNSENT])
            self._unsent -= len(data)
            self._sent.set()


async def secured(
    stream: trio.SocketStream, context: ssl.SSLContext, *, server_side: bool
) -> tuple[Stream, bytes | None]:
    """With the certificate that the other one has shown."""
    tls = trio.SSLStream(stream, context, server_side=server_side, https_compatible=True)
    shaken = False
    try:
        await tls.do_handshake()
        shaken = True
    finally:
        if not shaken:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
    return tls, tls.getpeercert(binary_form=True)
