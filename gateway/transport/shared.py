"""Many connections read by one task: their sockets share an epoll, which is one of those that the event loop waits for.

All that is ready is read, and what it asks for committed together; then all of them are answered. A task for each would
be woken for each, and none of them would know of the others.
"""

from __future__ import annotations

import operator
import select
from collections.abc import Callable
from typing import Final

import trio

from gateway.transport.edge import supervised
from gateway.transport.tcp import TcpLink

PASS_BYTES: Final = 256 << 10
"""So much is read, with what several requests cost beside, before others get the event loop; the rest of those that are ready
come first then.
"""
ANSWER_BYTES: Final = 1 << 20
"""So much is answered: the rest of those that were read come first then."""
AT_ONCE: Final = 512
"""Connections that are asked for at once."""

TOGETHER: Final = 0
_NUMBER = operator.itemgetter(0)


class SharedReader:
    def __init__(self, hold: Callable[[], None], release: Callable[[int], None], clock: Callable[[], float]) -> None:
        self._hold = hold
        self._release = release
        self._clock = clock
        self._epoll = select.epoll()
        self._connections: dict[int, TcpLink] = {}
        self._ready: list[TcpLink] = []
        """Found ready, not read yet."""
        self._unanswered: list[TcpLink] = []
        """Read, and what they asked for handed over."""
        self._at: TcpLink | None = None
        """Whose turn it is."""
        self._by = TOGETHER
        """Who they are, for the store, which serves at once who is alone: below zero, where no connection's own number is."""

    def add(self, number: int, connection: TcpLink) -> None:
        """Read it from now on whenever there is something: `number` is its socket's."""
        if not self._epoll.closed:
            self._connections[number] = connection
            self._epoll.register(number, select.EPOLLIN)

    def remove(self, number: int) -> None:
        """Leave it alone; before its socket is closed."""
        if self._connections.pop(number, None) is not None:
            self._epoll.unregister(number)

    async def run(self) -> None:
        try:
            while True:
                if not (self._ready or self._unanswered):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    if len(self._connections) == 1:  # it is that one, and to ask would be a call of the system's more
                        ((number, only),) = self._connections.items()
                        self._ready, self._by = [only], ~number
                        # should it have been another one, that has just gone, there is nothing to be read
                    else:
                        found = self._epoll.poll(0, AT_ONCE)
                        self._ready = list(map(self._connections.__getitem__, map(_NUMBER, found)))
                        self._by = ~found[0][0] if len(found) == 1 else TOGETHER
                else:
                    await trio.lowlevel.checkpoint()
                self._pass()
        finally:
            self._connections.clear()  # who is cancelled with us has nothing to take back
            trio.lowlevel.notify_closing(self._epoll.fileno())
            self._epoll.close()

    @supervised
    def _pass(self) -> None:
        # One call is supervised, which is all of them. Who fails ends the pass, and what is left of it comes in the next.
        now = self._clock()
        if not self._unanswered:
            ready, turns, room = self._ready, 0, PASS_BYTES
            self._hold()
            try:
                for connection in ready:
                    self._at = connection
                    turns += 1
                    room -= connection.gather(now)
                    if room <= 0:
                        break
                self._at = None
            finally:
                self._ready, self._unanswered = ready[turns:], ready[:turns]
                self._release(self._by)
        unanswered, turns, room = self._unanswered, 0, ANSWER_BYTES
        try:
            for connection in unanswered:
                self._at = connection
                turns += 1
                room -= connection.answer(now)
                if room <= 0:
                    break
            self._at = None
        finally:
            self._unanswered = unanswered[turns:]

    def fail(self, error: Exception) -> None:
        connection, self._at = self._at, None
        if connection is None:
            raise error  # a mistake of the store's, and not of who happened to ask
        connection.fail(error)
