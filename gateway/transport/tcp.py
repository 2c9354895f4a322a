"""One TCP connection as a Link. A task of its own reads, or one that it shares with others and which leaves to its own only
what waits for a time; sending is synchronous, and only what the kernel does not take at once gets a task until it is gone.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from gateway.transport.link import GatheringHandler, LinkHandler
from gateway.transport.pipe import Pipe, PipeFailed
from gateway.wire.session import TURN_BYTES, Buffer, Kind

if TYPE_CHECKING:
    from gateway.transport.shared import SharedReader

READ_SIZE: Final = 131_072
"""Half of it costs twice as much per byte (a 128 KiB block is handed back to the system, a 64 KiB one is copied)."""
LOW_WATER: Final = 262_144
"""Who waits for room is told when so little is unsent. Not at nothing: the peer would wait for what is written then."""
MOST_PIECES: Final = 64
"""What one system call is given; the kernel takes no more than 1024."""
JOIN_LIMIT: Final = 1 << 20
"""Beyond this the copy that joins replies costs more than the sends that it saves."""
REQUEST_COST: Final = 4 << 10
"""A request takes as long as it takes to read, or to answer with, about so many bytes."""
WHOLE_READ: Final = 4 << 10
"""Who sends so much at once does not send a request in two small segments, of which the second waits for a word from us."""
LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 32 << 20
"""How long, and how much, a peer that was said goodbye to may still send. One that never stops is cut."""


def _unacknowledged(sock: socket.socket) -> int:
    # bytes that the kernel has and the peer does not
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return 0
    return int(size)


def tune(sock: socket.socket) -> None:
    """What every connection gets: no Nagle, and dead peers noticed."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    # replies leave in one send already: Nagle would only make a lone one wait for the peer's acknowledgement
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _leave(_raise_cancel: object) -> trio.lowlevel.Abort:
    # who waits for nothing but his scope: `trio.sleep` would make another one, which is as large as the rest of an idle task
    return trio.lowlevel.Abort.SUCCEEDED


class TcpLink:
    """Implements Link over one non-blocking socket, TCP or Unix, with or without TLS or WebSocket in between."""

    __slots__ = (
        "_at_once",
        "_clock",
        "_closing",
        "_dead",
        "_deadline",
        "_drained",
        "_eof",
        "_finishing",
        "_gathering",
        "_handler",
        "_hurries",
        "_notify",
        "_nursery",
        "_out",
        "_paused",
        "_pipe",
        "_queue",
        "_queued",
        "_reader",
        "_scope",
        "_silent",
        "_size",
        "_sock",
        "_watched",
        "_whole",
        "_woken",
        "_writing",
        "failed",
        "peer",
    )
    immediate = True

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        nursery: trio.Nursery,
        clock: Callable[[], float],
        pipe: Pipe | None = None,
    ) -> None:
        tune(sock)
        self.peer = peer
        self._sock = sock
        self._nursery = nursery
        self._clock = clock
        self._pipe = pipe
        self._at_once = READ_SIZE if pipe is None else min(READ_SIZE, pipe.most)
        self.failed = ""
        """What of the pipe was refused."""
        self._hurries = sock.family != socket.AF_UNIX
        self._handler: LinkHandler | None = None
        self._gathering: GatheringHandler | None = None
        """The same, where somebody else reads for us."""
        self._reader: SharedReader | None = None
        self._watched = False
        self._silent = False
        """Nothing was sent since the last read, so nothing has told the peer that it came."""
        self._whole = False
        """What was read last is no part of a request, as far as its size tells."""
        self._queue: list[Buffer] = []
        self._out: list[Buffer] = []
        """What goes to the kernel as it is: joined, and encrypted under TLS."""
        self._size = 0
        self._queued = 0
        """All that was ever to be sent."""
        self._notify = False
        self._writing = False
        self._paused = False
        self._finishing = False
        self._closing = False
        self._dead = False
        self._eof = False
        self._woken = False
        self._drained = False
        """The last read took all there was."""
        self._deadline = math.inf
        self._scope: trio.CancelScope | None = None

    # --- Link ---

    def send(self, channel: int, data: Buffer, notify: bool = False, alone: bool = False) -> None:  # noqa: ARG002
        if self._dead or self._finishing:
            return
        self._queue.append(data)
        size = len(data)
        self._size += size
        self._queued += size
        self._notify = self._notify or notify

    def finish(self, channel: int) -> None:  # noqa: ARG002
        self._finishing = True

    def reset(self, channel: int, code: int) -> None:  # noqa: ARG002
        # a TCP connection has one channel: abandoning it is abandoning the connection
        self.abort()

    def stop_sending(self, channel: int, code: int) -> None:
        """TCP has no such thing; unread bytes simply wait."""

    def open(self, token: int, kind: Kind) -> None:
        # TCP has one channel
        raise RuntimeError(f"a TCP connection cannot open {kind.value} channel {token}")

    def close(self, code: int, reason: str) -> None:  # noqa: ARG002
        self._closing = self._finishing = True
        self._watch()
        self.wake()

    def abort(self) -> None:
        self._dead = True
        self._queue.clear()
        self._out.clear()
        self._size = 0
        self._watch()
        self.wake()

    def pause(self, _channel: int | None = None, /) -> None:
        # stop reading: there is one channel
        self._paused = True
        self._watch()

    def resume(self, _channel: int | None = None, /) -> None:
        self._paused = False
        if self._reader is None:
            self.wake()
        else:
            self._watch()

    def _watch(self) -> None:
        reader = self._reader
        if reader is not None:
            wanted = not (self._paused or self._eof or self._closing or self._dead)
            if wanted != self._watched:
                self._watched = wanted
                if wanted:
                    reader.add(self._sock.fileno(), self)
                else:
                    reader.remove(self._sock.fileno())

    def waiting(self) -> tuple[int, int, int]:
        """Bytes the kernel has not taken, twice: there is one channel, and reading less is what bounds it; and what it has."""
        size = self._size
        return size, size, self._queued - size

    def held(self) -> tuple[int, int]:
        """Bytes the kernel has not taken; and what the peer's has of all: ours takes megabytes in one piece, and then, from
        who reads slowly, nothing for minutes.
        """
        size = self._size
        return size, self._queued - size - _unacknowledged(self._sock)

    def wake(self) -> None:
        scope = self._scope
        if scope is None:
            self._woken = True
        elif scope.deadline != -math.inf:
            scope.deadline = -math.inf

    def set_deadline(self, when: float | None) -> None:
        """When the reading task comes round at the latest."""
        deadline = math.inf if when is None else when
        if deadline != self._deadline:
            self._deadline = deadline
            if self._scope is not None and self._scope.deadline != -math.inf:
                self._scope.deadline = deadline

    def flush(self) -> None:
        # hand the queue to the kernel; what it does not take is written by a task
        if self._writing or self._dead:
            return
        if self._pipe is None and len(self._queue) == 1:  # as nearly always
            self._out.append(self._queue.pop())
        else:
            self._seal()
        if self._out:
            try:
                self._hand_over()
            except BlockingIOError:
                pass
            except OSError:
                self.abort()
                return
        if self._out or (self._queue and self._pipe is not None and self._pipe.ready):
            self._write_later()
        if self._notify:
            self._room()

    def _hand_over(self) -> None:
        # give the kernel as much as a turn may have: it would take megabytes, and nobody else is served while it copies them
        out = self._out
        if len(out) == 1 and len(out[0]) <= TURN_BYTES:
            sent = self._sock.send(out[0])
        else:
            given: list[Buffer] = []
            size = 0
            for piece in out[:MOST_PIECES]:
                room = TURN_BYTES - size
                given.append(piece if len(piece) <= room else memoryview(piece)[:room])
                size += len(given[-1])
                if size == TURN_BYTES:
                    break
            sent = self._sock.sendmsg(given)
        self._silent = False
        self._size -= sent
        whole = 0
        for piece in out:
            if sent < len(piece):
                break
            sent -= len(piece)
            whole += 1
        del out[:whole]
        if sent:
            out[0] = memoryview(out[0])[sent:]

    def _put(self, data: bytes) -> bool:
        # send bytes before which nothing waits; False if some of them, or other things, wait now
        if self._pipe is not None or self._queue or self._out or self._writing or self._dead or self._finishing:
            self.send(0, data)
            self.flush()
            return False
        size = len(data)
        self._queued += size
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.abort()
            return False
        self._silent = False
        if sent == size:
            return True
        self._size += size - sent
        self._out.append(memoryview(data)[sent:])
        self._write_later()
        return False

    def _write_later(self) -> None:
        self._writing = True
        self._nursery.start_soon(self._write_out)

    def _seal(self) -> None:
        if not self._queue or (self._pipe is not None and not self._pipe.ready):
            return
        queue, self._queue = self._queue, []
        if self._pipe is not None:
            # no more than a turn may have, as it is encrypted in one go; at least one piece
            sizes = itertools.accumulate(map(len, queue))
            count = max(sum(size <= TURN_BYTES for size in sizes), 1)
            self._queue = queue[count:]
            plain = b"".join(queue[:count])
            sealed = self._pipe.wrap(plain)
            grown = len(sealed) - len(plain)
            self._size += grown
            self._queued += grown
            self._out.append(sealed)
        elif len(queue) == 1 or self._size > JOIN_LIMIT:
            # small pieces are joined, as a system call each costs more than the copy; large ones are not worth copying
            self._out.extend(queue)
        else:
            self._out.append(b"".join(queue))

    # --- the tasks ---

    def share(self, reader: SharedReader, handler: GatheringHandler, already: bytes = b"") -> Awaitable[None]:
        """As `run`, but a reader reads."""
        self._reader, self._gathering = reader, handler
        return self.run(handler, already)

    async def run(self, handler: LinkHandler, already: bytes = b"") -> None:
        """Read until the connection ends. `already`: what was read (and decrypted) to find out which protocol it is.

        Who has made the TLS handshake before this has told the handler `opened` too.
        """
        self._handler = handler
        try:
            if self._pipe is None:
                handler.opened(0, Kind.DUPLEX)
            if already:
                handler.received(0, already)
            handler.turn(self._clock())
            self._watch()
            while self._going():
                await self._until_woken(handler)
                handler.turn(self._clock())
            if not self._dead:
                await self._say_goodbye()
        finally:
            self._dead = True
            self._watch()
            handler.lost()
            # who refers to each other would be found by the collector alone
            self._handler = self._gathering = self._reader = None
            # or who waits to write would be woken by the next connection that is given this number
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    def _going(self) -> bool:
        return not self._dead and not (self._finishing and not self._size and (self._closing or self._eof))

    async def _until_woken(self, handler: LinkHandler) -> None:
        # Read. One scope for many reads: to make one for each costs as much as the read.
        with trio.CancelScope(deadline=-math.inf if self._woken else self._deadline) as scope:
            self._scope, self._woken = scope, False
            try:
                if self._reader is not None:
                    await trio.lowlevel.wait_task_rescheduled(_leave)
                while self._going():
                    await self._step(handler)
            finally:
                self._scope = None

    async def _step(self, handler: LinkHandler) -> None:
        # wait for something to read, unless the last read may have left something, and read it
        if self._paused or self._eof or self._closing:
            await trio.lowlevel.wait_task_rescheduled(_leave)
        # after a short read the kernel had no more: to ask it again would be a system call for nothing
        if self._drained:
            await trio.lowlevel.wait_readable(self._sock)
        data = self._receive()
        if data is None:
            return
        if data and self._pipe is None:
            handler.received(0, data)
        else:
            self._take(data)
        handler.turn(self._clock())
        if self._silent:
            self._confirm()
        # who always has more to send must not keep the others from being read
        if not self._drained:
            await trio.lowlevel.checkpoint()

    def _receive(self) -> bytes | None:
        # what there is to read, nothing at its end; None if there is nothing yet, or no connection any more
        try:
            data = self._sock.recv(self._at_once)
        except BlockingIOError:
            self._drained = True
            return None
        except OSError:
            self.abort()
            return None
        self._silent = True
        self._drained = len(data) < self._at_once
        return data

    def _confirm(self) -> None:
        # Stock clients write one request in two segments with Nagle on, and what is not answered at once they wait for:
        # without this each costs them 40 ms. An answer says it too.
        if self._hurries and self._drained and not (self._dead or self._eof):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def gather(self, now: float) -> int:
        """Read, for the reader that is shared; returns how many bytes, as which requests count too where there are several."""
        handler = self._gathering
        if not self._watched or handler is None:
            return 0  # one that was read before has led to this
        data = self._receive()
        if data is None:
            return 0
        self._whole = len(data) >= WHOLE_READ
        if data and self._pipe is None:
            several = handler.take(0, data, now)
        else:
            asked = handler.asked
            self._take(data)
            several = handler.asked - asked
        cost = len(data) * (READ_SIZE // self._at_once)  # where less is read at once, it may take as long
        return cost + several * REQUEST_COST if several > 1 else cost

    def answer(self, now: float) -> int:
        """What was gathered is under way or done; returns how many bytes the answers have, as which requests count too."""
        handler = self._gathering
        if handler is None:
            return 0
        before = self._queued + handler.asked * REQUEST_COST
        data = handler.answer(now)
        if data and not self._put(data):
            handler.turn(now)
        # where an answer follows for certain it says that it came, and what would say so before costs as much as that
        if self._silent and (data is None or not self._whole):
            self._confirm()
        if self._finishing or self._eof:
            self._watch()
            self.wake()
        return self._queued + handler.asked * REQUEST_COST - before

    def fail(self, error: Exception) -> None:
        if self._gathering is not None:
            self._gathering.fail(error)

    def _take(self, data: bytes) -> None:
        handler = self._handler
        assert handler is not None
        if not data:
            self._eof = True
            # no end of a handshake: nothing of the protocol's was ever said
            if self._pipe is not None and not self._pipe.ready:
                self.abort()
            else:
                handler.eof(0)
            return
        assert self._pipe is not None
        was_ready = self._pipe.ready
        try:
            pieces, ended = self._pipe.feed(data)
        except PipeFailed as error:
            self.failed = error.kind
            self._send_raw(self._pipe.pending())
            self.abort()
            return
        self._send_raw(self._pipe.pending())
        if self._pipe.ready and not was_ready:
            handler.opened(0, Kind.DUPLEX)
        for piece in pieces:
            handler.received(0, piece)
        if ended:
            self._eof = True
            handler.eof(0)

    def _send_raw(self, data: bytes) -> None:
        # what the pipe itself has to say: behind what waits for the kernel already, since in the middle of a frame or a record
        # that is half sent the peer would take it for that one's content
        if data:
            self._out.append(data)
            self._size += len(data)
            self._queued += len(data)
            self.flush()

    async def _write_out(self) -> None:
        # write what the kernel did not take, then hand the queue back to `flush`
        while not self._dead:
            self._seal()
            if not self._out:
                break
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            if not self._out:  # aborted meanwhile
                return
            try:
                self._hand_over()
            except BlockingIOError:
                continue
            except OSError:
                self.abort()
                return
            self._room()
            if self._handler is not None and self._size < LOW_WATER:
                self._handler.turn(self._clock())
        self._writing = False
        self.wake()

    def _room(self) -> None:
        if self._notify and self._size < LOW_WATER and self._handler is not None:
            self._notify = False
            self._handler.room(0)

    async def _say_goodbye(self) -> None:
        # send FIN, then read what the peer still had under way: closing over unread bytes would make the kernel answer with
        # a reset that can overtake our last reply
        try:
            if self._pipe is not None:
                self._send_raw(self._pipe.goodbye())
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return
        if self._eof:
            return
        discarded = 0
        with trio.move_on_after(LINGER_SECONDS):
            while discarded < LINGER_BYTES:
                await trio.lowlevel.wait_readable(self._sock)
                try:
                    data = self._sock.recv(READ_SIZE)
                except OSError:
                    return
                if not data:
                    return
                discarded += len(data)
