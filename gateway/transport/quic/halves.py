"""The two directions of a stream as tasks use them: one user at a time, waiting, ends and closes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Generator

import trio

from gateway.transport.quic.connection import QuicLink

READ_SIZE = 65_536
CHUNK = 65_536


class Side:
    """One direction of a stream: who uses it, and how it ended."""

    def __init__(self, link: QuicLink, channel: int) -> None:
        self._link = link
        self._channel = channel
        self._busy = False
        self._event = trio.Event()
        self.closed = False
        self.broken = False
        self.ended = False

    @contextlib.contextmanager
    def _use(self) -> Generator[None, None, None]:
        if self._busy:
            raise trio.BusyResourceError("another task is using this stream")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def wake(self) -> None:
        """Have the waiting task look again."""
        self._event.set()

    async def _sleep(self) -> None:
        self._event = trio.Event()
        await self._event.wait()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("this side of the stream is closed")
        if self.broken:
            raise trio.BrokenResourceError("the peer has given up this stream")


class Receiving(Side):
    """Reading from a paused channel."""

    @property
    def readable(self) -> bool:
        """Whether bytes wait."""
        return self._link.readable(self._channel)

    async def receive_some(self, max_bytes: int | None) -> bytes:
        """Some bytes, or none at the end."""
        limit = READ_SIZE if max_bytes is None else operator.index(max_bytes)
        if limit < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._use():
            await trio.lowlevel.checkpoint()
            while True:
                if self.closed:
                    self._check()
                data = self._link.take(self._channel, limit)
                if data or self.ended:
                    return data
                self._check()
                await self._sleep()

    def close(self) -> None:
        """Read no more."""
        if not self.closed:
            self.closed = True
            self._link.stop_sending(self._channel, 0)
            self.wake()


class Sending(Side):
    """Writing, up to a high-water mark of unacknowledged bytes."""

    def __init__(self, link: QuicLink, channel: int, high_water: int) -> None:
        super().__init__(link, channel)
        self._high_water = high_water

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue all bytes."""
        with self._use():
            await trio.lowlevel.checkpoint()
            self._check_open()
            view = memoryview(data).cast("B")
            while view:
                await self._room()
                self._link.send(self._channel, bytes(view[:CHUNK]))
                view = view[CHUNK:]

    async def wait_send_all_might_not_block(self) -> None:
        """Until there is room."""
        with self._use():
            await trio.lowlevel.checkpoint()
            self._check_open()
            await self._room()

    async def send_eof(self) -> None:
        """Finish, unless another task is sending."""
        with self._use():
            await trio.lowlevel.checkpoint()
            self._check()
            self.end()

    def end(self) -> None:
        """Finish."""
        if not self.ended:
            self.ended = True
            self._link.finish(self._channel)

    def close(self) -> None:
        """Finish, and write no more."""
        if not self.closed:
            self.end()
            self.closed = True
            self.wake()

    def abandon(self) -> None:
        """Give up what is not delivered."""
        self._link.reset(self._channel, 0)

    async def _room(self) -> None:
        while self._link.buffered(self._channel) >= self._high_water:
            self._link.send(self._channel, b"", notify=True)
            await self._sleep()
            self._check()

    def _check_open(self) -> None:
        self._check()
        if self.ended:
            raise trio.ClosedResourceError("this side of the stream is finished")
