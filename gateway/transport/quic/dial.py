"""Dialling out: one connection on a socket of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import trio
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

from gateway.errors import TargetError
from gateway.transport.link import LinkHandler
from gateway.transport.names import addresses_of
from gateway.transport.quic.aioquic_private import Core, peer_certificates
from gateway.transport.quic.configuration import client_configuration
from gateway.transport.quic.connection import Phase, QuicLink
from gateway.transport.quic.endpoint import QuicEndpoint, Soon
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.trust import check_pinned
from gateway.transport.quic.udp import Address, open_socket
from gateway.transport.tls import ClientTls
from gateway.wire.session import CONNECTION, Kind

GOODBYE_SECONDS = 1.0
"""How long leaving may take for what is still queued."""
LINGER_SECONDS = 0.1
"""How long a socket that is otherwise unused is kept to repeat the close packet to a peer that missed it."""


@contextlib.asynccontextmanager
async def dial_quic(
    host: str,
    port: int,
    *,
    alpns: Sequence[str],
    tls: ClientTls,
    handler: LinkHandler,
    agreed: Callable[[str | None], None] = lambda _alpn: None,
    timeout: float = 10.0,
    limits: QuicLimits | None = None,
    soon: Soon | None = None,
) -> AsyncIterator[QuicLink]:
    """A connection whose handshake is done. The handler has heard `opened(CONNECTION)`. Leaving the block closes it. `soon`: by
    which what is said on it leaves.
    """
    limits = limits or QuicLimits()
    try:
        async with trio.open_nursery() as nursery:
            link = await _connect(
                nursery,
                host,
                port,
                alpns=alpns,
                tls=tls,
                handler=handler,
                agreed=agreed,
                timeout=timeout,
                limits=limits,
                soon=soon,
            )
            try:
                yield link
            finally:
                link.close()
                nursery.cancel_scope.deadline = trio.current_time() + GOODBYE_SECONDS
                nursery.start_soon(_linger, link, nursery.cancel_scope)
    except BaseExceptionGroup as group:
        # The nursery is an implementation detail: what the block or the handshake raised is what the caller gets.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


async def _linger(link: QuicLink, scope: trio.CancelScope) -> None:
    await link.over.wait()
    scope.deadline = min(scope.deadline, trio.current_time() + LINGER_SECONDS)


async def _connect(
    nursery: trio.Nursery,
    host: str,
    port: int,
    *,
    alpns: Sequence[str],
    tls: ClientTls,
    handler: LinkHandler,
    agreed: Callable[[str | None], None],
    timeout: float,
    limits: QuicLimits,
    soon: Soon | None,
) -> QuicLink:
    name = tls.server_name or host
    try:
        with trio.fail_after(timeout):
            found = await addresses_of(host, port, socket.SOCK_DGRAM)
            for index, (family, _kind, _proto, _name, address) in enumerate(found):
                attempt = _Attempt(family, address, name, alpns, tls, limits, handler, agreed, soon)
                last = index == len(found) - 1
                with trio.CancelScope() as patience:
                    if not last:
                        patience.deadline = trio.current_time() + timeout / len(found)
                    return await attempt.run(nursery)
    except OSError as error:
        raise TargetError(f"cannot connect to {host}:{port}: {error}") from error
    except trio.TooSlowError:
        pass
    raise TargetError(f"cannot connect to {host}:{port}: no answer in time")


class _Attempt:
    def __init__(
        self,
        family: int,
        address: Address,
        server_name: str,
        alpns: Sequence[str],
        tls: ClientTls,
        limits: QuicLimits,
        handler: LinkHandler,
        agreed: Callable[[str | None], None],
        soon: Soon | None,
    ) -> None:
        any_address = ("::", 0) if family == socket.AF_INET6 else ("", 0)
        self._core = Core(client_configuration(limits, tls, server_name, alpns), streams=limits.streams)
        self._address = address
        self._tls = tls
        self._handler = handler
        self._agreed = agreed
        self._refused: TargetError | None = None
        self._endpoint = QuicEndpoint(open_socket(family, any_address), until_idle=True, soon=soon)
        now = trio.current_time()
        self._link = QuicLink(
            self._core,
            limits,
            address,
            now,
            accept=self._accept,
            mark=self._endpoint.mark,
            clock=trio.current_time,
        )

    async def run(self, nursery: trio.Nursery) -> QuicLink:
        """Shake hands. The endpoint's task stays in the nursery for as long as the connection lives."""
        self._core.connect(self._address, now=trio.current_time())
        self._endpoint.adopt(self._link)
        nursery.start_soon(self._endpoint.run)
        try:
            await self._link.settled.wait()
        except trio.Cancelled:
            self._link.abort()
            raise
        if self._refused is not None:
            raise self._refused
        if self._link.phase is not Phase.OPEN:
            end = self._core.end
            raise TargetError(f"{self._link.peer} refused the connection: {_why(end)}")
        self._handler.opened(CONNECTION, Kind.DUPLEX)
        self._link.wake()
        return self._link

    def _accept(self, link: QuicLink) -> LinkHandler | None:
        if self._tls.fingerprint:
            try:
                check_pinned(peer_certificates(self._core), self._tls.fingerprint)
            except TargetError as error:
                self._refused = error
                link.reject(QuicErrorCode.CRYPTO_ERROR + AlertDescription.bad_certificate, "not the pinned certificate")
                return None
        self._agreed(link.alpn)
        return self._handler


def _why(end: tuple[int, bool, str] | None) -> str:
    if end is None:
        return "the handshake failed"
    code, application, reason = end
    return f"{'application' if application else 'transport'} error 0x{code:x} {reason}".rstrip()
