"""QUIC listeners. Several protocols may share one UDP port: the ALPN of the ClientHello chooses, `None` is "none offered"."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import trio

from gateway.transport.link import LinkHandler
from gateway.transport.names import addresses_of
from gateway.transport.quic.admission import Admission, Admitted
from gateway.transport.quic.aioquic_private import Core, peer_certificates
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.configuration import server_configuration
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.endpoint import QuicEndpoint
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.resets import ResetTokens
from gateway.transport.quic.trust import ClientTrust
from gateway.transport.quic.udp import Address, DatagramSocket, UdpSocket, open_socket
from gateway.transport.workers import Handover

AlpnHandlers = Mapping[str | None, Callable[[QuicLink], LinkHandler]]
"""By ALPN, what makes the handler of a connection whose handshake is done."""


def _ignore(reason: str) -> None:
    del reason


async def open_udp_sockets(host: str, port: int, *, offload: bool = True, shared: bool = False) -> list[UdpSocket]:
    """Sockets for a host (every address it has) and a port (0 lets the system choose one for all of them). `shared`: with other
    processes that say so, too.
    """
    found = await addresses_of(host or None, port, socket.SOCK_DGRAM, socket.AI_PASSIVE)
    sockets: list[UdpSocket] = []
    try:
        for family, _kind, _proto, _name, address in found:
            opened = open_socket(family, (address[0], port, *address[2:]), offload=offload, shared=shared)
            sockets.append(opened)
            port = opened.address[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


class QuicServer:
    """Endpoints that accept. `run` serves; `stop_accepting`, then `close` or `abort`, ends it."""

    def __init__(
        self,
        sockets: list[UdpSocket] | list[DatagramSocket],
        handlers: AlpnHandlers,
        certificate: CertificateFiles,
        *,
        limits: QuicLimits | None = None,
        clients: ClientTrust | None = None,
        on_refusal: Callable[[str], None] = _ignore,
        handover: Handover | None = None,
        listener: int = 0,
        clock: Callable[[], float] = trio.current_time,
        hold: Callable[[], None] = lambda: None,
        release: Callable[[int], None] = lambda _by: None,
    ) -> None:
        """`handover`: to the other processes that serve this port, to which it is this `listener`. `hold` and `release`: around
        what several connections ask for that should be committed together.
        """
        self._limits = limits or QuicLimits()
        self._handover = handover
        self._listener = listener
        self._handlers = handlers
        self._certificate = certificate
        self._clients = clients
        self._on_refusal = on_refusal
        self._clock = clock
        self._hold = hold
        self._release = release
        self._admission = Admission(self._limits, on_refusal)
        self._sockets = sockets
        self._resets = ResetTokens(certificate.current().key, self.port)
        self._by_cid: dict[bytes, QuicLink] = {}
        self._endpoints = [self._endpoint(number, sock) for number, sock in enumerate(sockets)]
        self._scope = trio.CancelScope()

    @property
    def port(self) -> int:
        port: int = self._sockets[0].address[1]
        return port

    @property
    def connections(self) -> int:
        """How many there are, half open and closing ones included."""
        return self._admission.connections

    @property
    def handshakes(self) -> int:
        return self._admission.handshakes

    @property
    def links(self) -> list[QuicLink]:
        return [link for endpoint in self._endpoints for link in endpoint.links]

    async def run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for endpoint in self._endpoints:
                    nursery.start_soon(endpoint.run)

    def stop_accepting(self) -> None:
        """Refuse new clients; `run` returns when the last connection is gone."""
        self._admission.closed = True
        for endpoint in self._endpoints:
            endpoint.until_idle = True
            endpoint.interrupt()

    def close(self, code: int = 0, reason: str = "") -> None:
        """Stop accepting, and close every connection after what is queued on it."""
        self.stop_accepting()
        for link in self.links:
            link.close(code, reason)

    def abort(self) -> None:
        """Go down now: one close packet for each peer."""
        self._scope.cancel()

    def _endpoint(self, number: int, sock: DatagramSocket) -> QuicEndpoint:
        handover, place = self._handover, (self._listener, number)

        def accept(admitted: Admitted, address: Address, now: float) -> QuicLink:
            core = Core(
                server_configuration(self._limits, self._certificate.current()),
                streams=self._limits.streams,
                alpns=self._handlers.keys(),
                ask_certificate=self._clients is not None,
                reset_token=self._resets.token,
                worker=handover.worker.number if handover is not None else None,
                original_destination_connection_id=admitted.original_destination,
                retry_source_connection_id=admitted.retry_source,
            )
            return QuicLink(
                core, self._limits, address, now, accept=self._accept, mark=endpoint.mark, clock=self._clock
            )

        endpoint = QuicEndpoint(
            sock,
            admission=self._admission,
            accept=accept,
            resets=self._resets,
            by_cid=self._by_cid,
            elsewhere=handover.gives(place) if handover is not None else None,
            hold=self._hold,
            release=self._release,
        )
        if handover is not None:
            handover.receive(place, endpoint.hand)
        return endpoint

    def _accept(self, link: QuicLink) -> LinkHandler | None:
        if self._clients is not None:
            refusal = self._clients.refusal(peer_certificates(link.core))
            if refusal is not None:
                self._on_refusal("client_certificate")
                link.reject(*refusal)
                return None
        return self._handlers[link.alpn](link)
