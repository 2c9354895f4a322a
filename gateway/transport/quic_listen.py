"""QUIC listeners, with the face of `listen.TcpListener`: every connection is run by the one driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gateway.transport.driver import Driver, DriverContext
from gateway.transport.limits import Occupancy
from gateway.transport.link import Link
from gateway.transport.listen import Served
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer
from gateway.transport.quic.trust import ClientTrust
from gateway.transport.quic.udp import UdpSocket
from gateway.transport.workers import Handover
from gateway.wire.session import ServerSession


class CountedDriver(Driver):
    """A driver that says when its connection is gone."""

    __slots__ = ("_listener",)

    def __init__(
        self, context: DriverContext, session: ServerSession, link: Link, served: Served, listener: QuicListener
    ) -> None:
        super().__init__(context, session, link, served.attach)
        self._listener = listener

    def lost(self) -> None:
        super().lost()
        self._listener.left(self)


class QuicListener:
    """One UDP port; the ALPN of the ClientHello chooses the protocol."""

    def __init__(
        self,
        context: DriverContext,
        sockets: list[UdpSocket],
        served: Sequence[Served],
        certificate: CertificateFiles,
        clients: ClientTrust | None = None,
        handover: Handover | None = None,
        number: int = 0,
    ) -> None:
        """`handover` to other processes, to which this is the listener with this number."""
        self._context = context
        self._admission = Occupancy(context.limits.connections, context.limits.per_address)
        self._drivers: dict[CountedDriver, str] = {}
        handlers = {alpn: self._handler(one, alpn) for one in served for alpn in one.alpns or (None,)}
        self._server = QuicServer(
            sockets,
            handlers,
            certificate,
            limits=QuicLimits(handshake=context.limits.handshake),
            clients=clients,
            on_refusal=lambda why: context.recorder.refused_connection(context.listener, why),
            handover=handover,
            listener=number,
            hold=context.hold,
            release=context.release,
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def connections(self) -> int:
        return len(self._drivers)

    @property
    def drivers(self) -> Collection[Driver]:
        return self._drivers.keys()

    async def run(self) -> None:
        await self._server.run()

    def drain(self) -> None:
        self._server.stop_accepting()
        for driver in list(self._drivers):
            driver.drain()

    def abort(self) -> None:
        """Cut what is left; forced closes are counted."""
        if self._drivers:
            self._context.recorder.refused_connection(self._context.listener, "drain_deadline")
        self._server.abort()

    def left(self, driver: CountedDriver) -> None:
        address = self._drivers.pop(driver, None)
        if address is not None:
            self._admission.leave(address)
            self._context.recorder.connections(self._context.listener, -1)

    def _handler(self, served: Served, alpn: str | None) -> Callable[[QuicLink], CountedDriver]:
        def make(link: QuicLink) -> CountedDriver:
            driver = CountedDriver(self._context, served.session(alpn), link, served, self)
            address = link.peer.rsplit(":", 1)[0]
            refusal = self._admission.refusal(address)
            if refusal is not None:
                self._context.recorder.refused_connection(self._context.listener, refusal)
                link.close(0, "too many connections")
                return driver
            self._admission.enter(address)
            self._drivers[driver] = address
            self._context.recorder.connections(self._context.listener, +1)
            return driver

        return make
