"""Dialling out: a client session on a link, and a connection object that awaits replies.

`connect` is for tools and tests: one request, one reply. Bridges use `ClientDriver` directly, in batches.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import attrs
import structlog
import trio
from msgspec.structs import replace

from gateway.errors import GatewayError, RequestTimeout, TargetError, TargetLost, Unsupported
from gateway.protocols.registry import ProtocolSpec, Reach, Remote, Transport
from gateway.requests import Completion, Outcome, Reply, Request
from gateway.settings import Dialect
from gateway.transport.edge import supervised
from gateway.transport.link import Link, apply
from gateway.transport.pipe import Pipe, PipeInPipe
from gateway.transport.tcp import TcpLink
from gateway.transport.tls import ClientTls, TlsPipe, check_fingerprint, client_context
from gateway.wire.session import (
    CONNECTION,
    ClientContext,
    ClientSession,
    Credentials,
    Kind,
)

GOODBYE_SECONDS = 1.0
SHORTEST_SILENCE, LONGEST_SILENCE = 3.0, 30.0
"""Seconds without a sign of life after which a peer over QUIC is gone: the time-out it is given for an answer, within these.
PINGs that any QUIC endpoint answers go out at a third of it.
"""
log = structlog.get_logger()


class ClientDriver:
    """One dialled connection: its session and its link. Implements LinkHandler; the mirror of `driver.Driver`."""

    def __init__(
        self, session: ClientSession, clock: Callable[[], float], on_completions: Callable[[Sequence[Completion]], None]
    ) -> None:
        self._session = session
        self._clock = clock
        self._on_completions = on_completions
        self._link: Link | None = None
        self.closed = False
        self.ended = trio.Event()
        """Set once the connection is gone."""
        self.heard = trio.Event()
        """Set once the peer has said something: that it took a connection is no sign of it, the system does so by itself."""
        self._settled = trio.Event()
        """Set once the broker has let us in or not."""

    def bind(self, link: Link) -> None:
        self._link = link

    @property
    def in_flight(self) -> int:
        return self._session.in_flight

    @property
    def keeps_turns(self) -> bool:
        return self._session.keeps_turns

    def speak(self, session: ClientSession) -> None:
        """What is spoken is known only now. Nothing was said before."""
        self._session = session

    async def is_understood(self, timeout: float) -> bool:
        """Whether the peer goes on after what was said first, for better or worse."""
        await self.refusal(timeout)
        return bool(self._session.admitted) or not self.closed  # it may have answered, and be gone

    async def refusal(self, timeout: float) -> GatewayError | None:
        """Wait until the broker has let us in; or why it has not."""
        self._settle()
        try:
            with trio.fail_after(timeout):
                await self._settled.wait()
        except trio.TooSlowError:
            return TargetError(f"no answer to the login within {timeout:g} s")
        answer = self._session.admitted
        if isinstance(answer, GatewayError):
            return answer
        return None if answer else TargetLost("the connection was closed during the login")

    @supervised
    def submit(self, requests: Sequence[Request]) -> None:
        now = self._clock()
        done: list[Completion] = []
        for request in requests:
            if self.closed:
                refused = self._session.admitted
                why = refused if isinstance(refused, GatewayError) else TargetLost("the connection is closed")
                done.append((request.id, why))
            else:
                done.extend(self._session.submit(request, now))
        self._report(done)
        self._flush()

    @supervised
    def close(self) -> None:
        if not self.closed:
            self._report(self._session.close(self._clock()))
            self._flush()

    # --- LinkHandler ---

    @supervised
    def opened(self, channel: int, kind: Kind) -> None:
        # both sides have taken part in it, where a TCP connection is taken by the system
        if channel == CONNECTION:  # the handshake of QUIC
            self.heard.set()
        self._report(self._session.opened(channel, kind, self._clock()))

    @supervised
    def received(self, channel: int, data: bytes) -> None:
        self.heard.set()
        self._report(self._session.receive(channel, data, self._clock()))

    @supervised
    def eof(self, channel: int) -> None:
        self._report(self._session.eof(channel, self._clock()))

    @supervised
    def reset(self, channel: int, code: int) -> None:
        self._report(self._session.reset(channel, code))

    @supervised
    def stopped(self, channel: int, code: int) -> None:
        self._report(self._session.stopped(channel, code))

    @supervised
    def room(self, channel: int) -> None:
        self._report(self._session.room(channel, self._clock()))

    @supervised
    def turn(self, now: float) -> None:
        if self.closed or self._link is None:
            return
        due = self._session.timeout_at()
        if due is not None and due <= now:
            self._report(self._session.on_timeout(now))
        self._flush()

    @supervised
    def lost(self) -> None:
        if not self.closed:
            self.closed = True
            self._report(self._session.lost())
            self.ended.set()

    def fail(self, error: Exception) -> None:
        # a mistake in the session, or in who is told of its answers: it ends this connection, and nothing else
        log.error("a dialled connection failed", exc_info=error)
        self.closed = True
        self._settled.set()
        self.ended.set()
        if self._link is not None:
            self._link.abort()

    def _report(self, completions: Sequence[Completion]) -> None:
        self._settle()
        if completions:
            self._on_completions(completions)

    def _settle(self) -> None:
        if self.closed or self._session.admitted:
            self._settled.set()

    def _flush(self) -> None:
        link = self._link
        if link is None or self.closed:
            return
        while outputs := self._session.outputs():
            apply(outputs, link)
        link.set_deadline(self._session.timeout_at())


async def open_tcp(host: str, port: int, timeout: float) -> socket.socket:
    """Connect to the first address of a host that answers."""
    try:
        with trio.fail_after(timeout):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError as error:
        raise TargetError(f"cannot connect to {host}:{port}: no answer in time") from error
    except OSError as error:
        raise TargetError(f"cannot connect to {host}:{port}: {_why(error)}") from error
    except UnicodeError as error:
        raise TargetError(f"cannot connect to {host}:{port}: no name of a host") from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


def _why(error: OSError) -> str:
    # trio tries every address of a host, and says of them together only that all have failed
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else [error]
    return ", ".join(dict.fromkeys(_system_word(cause) for cause in causes))


def _system_word(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # a name that nobody knows has one below
        return os.strerror(number)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextlib.asynccontextmanager
async def dial(
    spec: ProtocolSpec,
    addresses: Sequence[tuple[str, int]],
    on_completions: Callable[[Sequence[Completion]], None],
    *,
    context: ClientContext,
    tls: ClientTls | None = None,
    timeout: float = 10.0,
    soon: Callable[[object, Callable[[], None]], None] | None = None,
) -> AsyncIterator[Remote]:
    """A broker elsewhere, connected to: at the first address, or by whichever of them its library likes. Leaving the block
    closes it. `soon`: calls back in this turn of whoever asks; what is asked over QUIC leaves then, with all of that turn.
    """
    if spec.reach is not None:
        async with spec.reach(Reach(addresses, context, tls, timeout, on_completions)) as remote:
            yield remote
        return
    (host, port), *_ = addresses
    if spec.client is None:
        raise Unsupported(f"{spec.name} is served here and not dialled")
    driver = ClientDriver(spec.client(context), trio.current_time, on_completions)
    if (context.transport or spec.transport) is Transport.QUIC:
        from gateway.transport.quic.dial import dial_quic
        from gateway.transport.quic.limits import QuicLimits

        make = spec.client
        async with dial_quic(
            host,
            port,
            alpns=spec.alpns_of.get(context.dialect, spec.alpns),
            tls=tls or ClientTls(),
            handler=driver,
            agreed=lambda alpn: driver.speak(make(attrs.evolve(context, alpn=alpn))),
            timeout=timeout,
            limits=QuicLimits(idle=min(max(timeout, SHORTEST_SILENCE), LONGEST_SILENCE)),
            soon=soon,
        ) as quic_link:
            driver.bind(quic_link)
            try:
                yield driver
            finally:
                driver.close()
        return
    # which dialect a broker speaks shows with its first answer alone: each attempt has a connection of its own
    tried = [context] if context.dialect is not Dialect.AUTO else []
    tried = tried or [attrs.evolve(context, dialect=dialect) for dialect in spec.tried] or [context]
    for attempt in tried:
        driver = ClientDriver(spec.client(attempt), trio.current_time, on_completions)
        async with _dialled(driver, spec, host, port, attempt, tls, timeout):
            if attempt is tried[-1] or await driver.is_understood(timeout):
                yield driver
                return


@contextlib.asynccontextmanager
async def _dialled(
    driver: ClientDriver,
    spec: ProtocolSpec,
    host: str,
    port: int,
    context: ClientContext,
    tls: ClientTls | None,
    timeout: float,
) -> AsyncIterator[None]:
    # a byte stream, whatever it is made of
    if context.transport is Transport.UNIX:
        from gateway.transport.unix import open_unix

        sock = await open_unix(host, timeout)
    else:
        sock = await open_tcp(host, port, timeout)
    pipe = await _shaken(sock, _client_pipe(spec, host, port, context, tls), host, timeout)
    if tls is not None and tls.fingerprint and isinstance(pipe, TlsPipe | PipeInPipe):
        check_fingerprint(pipe.peer_certificate(), tls.fingerprint)
    peer = f"{host}:{port}" if port else host
    async with trio.open_nursery() as nursery:
        link = TcpLink(sock, peer, nursery, trio.current_time, pipe)
        driver.bind(link)
        if pipe is not None:
            driver.heard.set()  # it has shaken hands
            driver.opened(0, Kind.DUPLEX)
        nursery.start_soon(link.run, driver)
        try:
            yield
        finally:
            driver.close()
            # the goodbye is under way when the block is left; a peer that does not read it is not waited for
            nursery.cancel_scope.deadline = trio.current_time() + GOODBYE_SECONDS


def _client_pipe(
    spec: ProtocolSpec, host: str, port: int, context: ClientContext, tls: ClientTls | None
) -> Pipe | None:
    outer = None
    if tls is not None:
        outer = TlsPipe(client_context(tls), server_side=False, server_name=tls.server_name or host)
    if context.transport is not Transport.WEBSOCKET:
        return outer
    from gateway.transport.websocket import WebSocketPipe

    inner = WebSocketPipe(host=f"{host}:{port}", target=f"/{spec.name}")
    return inner if outer is None else PipeInPipe(outer, inner)


async def _shaken(sock: socket.socket, pipe: Pipe | None, host: str, timeout: float) -> Pipe | None:
    if pipe is None:
        return None
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        try:
            with trio.fail_after(timeout):
                await _shake_hands(sock, pipe)
        except (OSError, trio.TooSlowError) as error:
            raise TargetError(f"no handshake with {host}: {str(error) or 'no answer in time'}") from error
        stack.pop_all()
        return pipe


async def _shake_hands(sock: socket.socket, pipe: Pipe) -> None:
    sock.send(pipe.start())
    while not pipe.ready:
        await trio.lowlevel.wait_readable(sock)
        data = sock.recv(65_536)
        if not data:
            raise TargetError("the server closed the connection during the handshake")
        pipe.feed(data)
        sock.send(pipe.pending() or b"")


@attrs.define(eq=False)
class Connection:
    """A dialled connection that awaits replies one by one."""

    driver: Remote = attrs.field(init=False)
    _waiting: dict[int, trio.Event] = attrs.Factory(dict)
    _outcomes: dict[int, Outcome] = attrs.Factory(dict)
    _ids: itertools.count[int] = attrs.Factory(lambda: itertools.count(1))

    def next_id(self) -> int:
        return next(self._ids)

    async def request(self, request: Request, timeout: float | None = 10.0) -> Reply:
        """Send a request and wait for its reply. Raises the error it ended with. Its id is replaced by one of ours."""
        request = replace(request, id=self.next_id())
        event = self._waiting[request.id] = trio.Event()
        self.driver.submit([request])
        try:
            with trio.fail_after(timeout if timeout is not None else float("inf")):
                await event.wait()
        except trio.TooSlowError:
            raise RequestTimeout(f"no answer within {timeout:g} s") from None
        finally:
            del self._waiting[request.id]
        outcome = self._outcomes.pop(request.id)
        if isinstance(outcome, GatewayError):
            raise outcome
        return outcome

    def complete(self, completions: Sequence[Completion]) -> None:
        for request_id, outcome in completions:
            event = self._waiting.get(request_id)
            if event is not None:
                self._outcomes[request_id] = outcome
                event.set()


@contextlib.asynccontextmanager
async def connect(
    spec: ProtocolSpec,
    host: str,
    port: int,
    *,
    credentials: Credentials | None = None,
    tls: ClientTls | None = None,
    timeout: float = 10.0,
    context: ClientContext | None = None,
) -> AsyncIterator[Connection]:
    """A connection to any broker that speaks one of the protocols, this gateway included."""
    if context is None:
        context = ClientContext(credentials=credentials or Credentials())
    connection = Connection()
    async with dial(spec, [(host, port)], connection.complete, context=context, tls=tls, timeout=timeout) as driver:
        connection.driver = driver
        yield connection
