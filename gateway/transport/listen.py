"""TCP and Unix listeners: accept, admit, find out which protocol it is, run it."""

from __future__ import annotations

import errno
import math
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from gateway.errors import TargetError
from gateway.protocols.registry import ProtocolSpec, Sniff
from gateway.transport.driver import Attach, Driver, DriverContext
from gateway.transport.limits import Occupancy
from gateway.transport.names import addresses_of
from gateway.transport.pipe import Pipe, PipeFailed, PipeInPipe
from gateway.transport.shared import SharedReader
from gateway.transport.tcp import READ_SIZE, TcpLink, tune
from gateway.transport.tls import TlsPipe
from gateway.wire.session import Kind, ServerSession

if TYPE_CHECKING:  # what only some listeners need is imported when they do
    from gateway.transport.websocket import WebSocketRules

PeerAddress = tuple[str, int] | str
"""As `accept` has it: nothing, for a Unix socket."""
BACKLOG = 4096
OUT_OF_FILES_PAUSE = 0.1
"""Without descriptors `accept` fails at once, again and again: without a pause the loop would do nothing else."""
LOCAL = "local"
"""The address of whoever comes by a Unix socket."""
SNIFF_LIMIT = 64
"""Bytes by which a protocol has to be known; who sends more that is none is none."""


@attrs.frozen
class Served:
    """One protocol of a listener: how to recognise it, make its session, and reach the broker."""

    spec: ProtocolSpec
    session: Callable[[str | None], ServerSession]
    """From the ALPN that was agreed upon, over QUIC."""
    attach: Attach
    alpns: Sequence[str] = ()
    """What is served over QUIC."""


class _Refused(TargetError):
    """A connection ends before anything was served; the reason is counted unless it is empty (the peer simply left)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def open_tcp_sockets(
    host: str, port: int, *, shared: bool = False, listening: bool = True
) -> list[socket.socket]:
    """Listening sockets for a host (every address it has) and a port (0 lets the system choose one for all of them). `shared`:
    with other processes that say so, too; one that does not listen keeps the port, and gets no connections.
    """
    found = await addresses_of(host or None, port, socket.SOCK_STREAM, socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _name, address in found:
            sock = socket.socket(family, kind, proto)
            sockets.append(sock)
            sock.setblocking(False)
            # a restart may bind while connections of the process before are still in TIME_WAIT
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # or it would take the IPv4 port, which has a socket of its own
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((address[0], port, *address[2:]))
            if listening:
                sock.listen(BACKLOG)
            port = sock.getsockname()[1]  # what the system chose for the first, the others get too
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class TcpListener:
    """Accepts on its sockets until closed, then drains what it accepted."""

    def __init__(
        self,
        context: DriverContext,
        sockets: Sequence[socket.socket],
        served: Sequence[Served],
        tls: Callable[[], ssl.SSLContext] | None = None,
        websocket: WebSocketRules | None = None,
    ) -> None:
        self._context = context
        self._sockets = sockets
        self._served = served
        self._tls = tls
        self._websocket = websocket
        self._admission = Occupancy(context.limits.connections, context.limits.per_address)
        self._reader = SharedReader(context.hold, context.release, context.clock)
        self._drivers: set[Driver] = set()
        self._accepting = trio.CancelScope()
        self._sniffing: set[trio.CancelScope] = set()
        self._nursery: trio.Nursery | None = None

    @property
    def port(self) -> int:
        """0 for a Unix socket."""
        sock = self._sockets[0]
        return 0 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])

    @property
    def connections(self) -> int:
        return self._admission.total

    @property
    def drivers(self) -> Collection[Driver]:
        return self._drivers

    async def run(self) -> None:
        async with trio.open_nursery() as reading:
            reading.start_soon(self._reader.run)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for sock in self._sockets:
                                accepting.start_soon(self._accept, sock)
                finally:
                    for sock in self._sockets:
                        sock.close()
            reading.cancel_scope.cancel()

    def drain(self) -> None:
        """Accept no more; every session says goodbye."""
        self._accepting.cancel()
        for scope in list(self._sniffing):
            scope.cancel()
        for driver in list(self._drivers):
            driver.drain()

    def abort(self) -> None:
        """Cut what is left; forced closes are counted."""
        if self._drivers:
            self._context.recorder.refused_connection(self._context.listener, "drain_deadline")
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        assert self._nursery is not None
        while True:
            await trio.lowlevel.wait_readable(listening)
            while True:
                try:
                    sock, address = listening.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                        # Nothing can be accepted until something closes; the peers wait in the backlog.
                        self._context.recorder.limit_hit(self._context.listener, "open_files")
                        await trio.sleep(OUT_OF_FILES_PAUSE)
                    break
                host = _host(address)
                refusal = self._admission.refusal(host)
                if refusal is not None:
                    self._context.recorder.refused_connection(self._context.listener, refusal)
                    sock.close()
                    continue
                self._admission.enter(host)
                self._nursery.start_soon(self._serve, sock, address)

    async def _serve(self, sock: socket.socket, address: PeerAddress) -> None:
        recorder, listener = self._context.recorder, self._context.listener
        recorder.connections(listener, +1)
        try:
            await self._run_connection(sock, address)
        finally:
            sock.close()
            self._admission.leave(_host(address))
            recorder.connections(listener, -1)

    async def _run_connection(self, sock: socket.socket, address: PeerAddress) -> None:
        assert self._nursery is not None
        tune(sock)
        pipe = self._pipe()
        served, already = self._served[0], b""
        # with one protocol there is nothing to find out: nothing has to have come before it is served. Who has to be let in by
        # TLS or WebSocket first has as long as who has to say what he speaks: his session knows nothing of that
        if pipe is not None or len(self._served) > 1:
            try:
                served, already = await self._choose(sock, pipe)
            except _Refused as refusal:
                if refusal.reason:
                    self._context.recorder.refused_connection(self._context.listener, refusal.reason)
                return
        link = TcpLink(sock, _shown(address), self._nursery, self._context.clock, pipe)
        driver = Driver(self._context, served.session(None), link, served.attach)
        self._drivers.add(driver)
        # it was accepted while the listener was being closed: it is told so, like those before it
        if self._accepting.cancel_called:
            driver.drain()
        try:
            if pipe is not None and pipe.ready:
                driver.opened(0, Kind.DUPLEX)
            await link.share(self._reader, driver, already)
        finally:
            self._drivers.discard(driver)
            if link.failed:
                self._context.recorder.refused_connection(self._context.listener, link.failed)

    def _pipe(self) -> Pipe | None:
        tls = TlsPipe(self._tls(), server_side=True) if self._tls is not None else None
        if self._websocket is None:
            return tls
        from gateway.transport.websocket import WebSocketPipe

        inner = WebSocketPipe(self._websocket)
        return PipeInPipe(tls, inner) if tls is not None else inner

    async def _choose(self, sock: socket.socket, pipe: Pipe | None) -> tuple[Served, bytes]:
        # be let in, and find out which protocol it is, until the time for that is over or the gateway goes down
        with trio.move_on_after(_finite(self._context.limits.handshake)) as scope:
            if self._accepting.cancel_called:
                scope.cancel()
            self._sniffing.add(scope)
            try:
                return await self._sniff(sock, pipe)
            finally:
                self._sniffing.discard(scope)
        raise _Refused("" if self._accepting.cancel_called else "handshake")

    async def _sniff(self, sock: socket.socket, pipe: Pipe | None) -> tuple[Served, bytes]:
        # read until the handshake is done, and the first bytes tell the protocol (under TLS: the first decrypted ones)
        seen = b""
        while len(seen) < SNIFF_LIMIT:
            await trio.lowlevel.wait_readable(sock)
            try:
                data = sock.recv(READ_SIZE)
            except BlockingIOError:
                continue
            except OSError:
                raise _Refused("") from None
            if not data:
                raise _Refused("")
            seen += data if pipe is None else _decrypt(sock, pipe, data)
            if pipe is not None and not pipe.ready:
                continue
            if len(self._served) == 1:
                return self._served[0], seen
            undecided = not seen
            for served in self._served:
                verdict = served.spec.sniff(seen) if served.spec.sniff is not None else Sniff.NO
                if verdict is Sniff.YES:
                    return served, seen
                undecided = undecided or verdict is Sniff.MORE
            if not undecided:
                break
        raise _Refused("unknown_protocol")


def _decrypt(sock: socket.socket, pipe: Pipe, data: bytes) -> bytes:
    reason = ""
    plain = b""
    try:
        plain = b"".join(pipe.feed(data)[0])
    except PipeFailed as error:
        reason = error.kind
    try:
        sock.send(pipe.pending())
    except OSError:
        raise _Refused(reason) from None
    if reason:
        raise _Refused(reason)
    return plain


def _host(address: PeerAddress) -> str:
    return address[0] if isinstance(address, tuple) else LOCAL


def _shown(address: PeerAddress) -> str:
    if not isinstance(address, tuple):
        return LOCAL
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _finite(seconds: float) -> float:
    return seconds if seconds < math.inf else 30.0
