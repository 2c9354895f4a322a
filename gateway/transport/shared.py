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

    def _pass(self) -> None:
        now = self._clock()
        if not self._unanswered:
            ready, read, room = self._ready, 0, PASS_BYTES
            self._hold()
            try:
                for connection in ready:
                    room -= connection.gather(now)
                    read += 1
                    if room <= 0:
                        break
            finally:
                self._release(self._by)
            self._ready, self._unanswered = ready[read:], ready[:read]
        unanswered, answered, room = self._unanswered, 0, ANSWER_BYTES
        for connection in unanswered:
            room -= connection.answer(now)
            answered += 1
            if room <= 0:
                break
        self._unanswered = unanswered[answered:]
