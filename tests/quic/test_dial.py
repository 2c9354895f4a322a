"""Dialling and serving over real sockets: trust, refusals, drain, datagram sizes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from gateway.broker.timers import Pump
from gateway.errors import TargetError
from gateway.transport.link import LinkHandler
from gateway.transport.quic.certificates import CertificateFiles, self_signed
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.dial import dial_quic
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer, open_udp_sockets
from gateway.transport.quic.trust import ClientTrust
from gateway.transport.quic.udp import Datagram, UdpSocket
from gateway.transport.tls import ClientTls, TlsFailed
from gateway.wire.session import CONNECTION, Kind
from tests.quic.support import Heard, until


class Echo(Heard):
    """Sends everything back."""

    def __init__(self, link: QuicLink) -> None:
        super().__init__(link)
        self.on_received = link.send
        self.on_eof = link.finish


@contextlib.asynccontextmanager
async def serving(
    certificate: CertificateFiles,
    handler: Callable[[QuicLink], LinkHandler] = Echo,
    *,
    limits: QuicLimits | None = None,
    clients: ClientTrust | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[QuicServer]:
    async with trio.open_nursery() as nursery:
        sockets = await open_udp_sockets(host, 0)
        handlers = {None: handler, "fujin": handler}
        server = QuicServer(sockets, handlers, certificate, limits=limits, clients=clients)
        nursery.start_soon(server.run)
        yield server
        server.abort()


async def echo(link: QuicLink, heard: Heard, data: bytes) -> bytes:
    done = trio.Event()
    heard.on_eof = lambda channel: done.set()
    link.open(-1, Kind.DUPLEX)
    link.send(-1, data)
    link.finish(-1)
    with trio.fail_after(10):
        await done.wait()
    return bytes(heard.data[-1])


async def test_what_is_said_in_somebody_s_turn_leaves_at_its_end(
    certificate: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = UdpSocket.send

    def noted(self: UdpSocket, datagrams: Sequence[Datagram]) -> Sequence[Datagram]:
        sent.append(len(datagrams))
        return send(self, datagrams)

    pump, heard = Pump(trio.current_time), Heard()
    async with trio.open_nursery() as nursery, serving(certificate) as server:
        nursery.start_soon(pump.run)
        tls = ClientTls(insecure=True)
        async with dial_quic("127.0.0.1", server.port, alpns=[], tls=tls, handler=heard, soon=pump.soon) as link:
            link.open(-1, Kind.DUPLEX)
            link.send(-1, b"first")
            await until(lambda: heard.size(-1) == 5)
            monkeypatch.setattr(UdpSocket, "send", noted)
            pump.hold()
            for data in (b"one", b"two"):
                link.send(-1, data)
                link.flush()
            assert not sent
            pump.later("news", lambda: sent.append(-1))
            pump.release()
            assert sent == [1, -1]  # in this very moment, together, and before those who wait for news have theirs
            await until(lambda: heard.size(-1) == 11)
            link.send(-1, b"three")  # in nobody's turn: in the next one
            link.flush()
            await until(lambda: heard.size(-1) == 16)
        link.send(-1, b"late")
        link.flush()  # nobody is there any more
        pump.release()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trust", ["ca", "fingerprint", "insecure"])
async def test_every_way_of_trusting_works(certificate: CertificateFiles, trust: str) -> None:
    tls = {
        "ca": ClientTls(ca=str(certificate.path), server_name="localhost"),
        "fingerprint": ClientTls(fingerprint=certificate.fingerprint.upper()),
        "insecure": ClientTls(insecure=True),
    }[trust]
    async with serving(certificate) as server:
        heard = Heard()
        async with dial_quic("127.0.0.1", server.port, alpns=["fujin"], tls=tls, handler=heard) as link:
            assert heard.events[0] == ("opened", CONNECTION, Kind.DUPLEX)
            data = bytes(range(256)) * 2000
            assert await echo(link, heard, data) == data
            assert link.alpn == "fujin"
            assert link.peer == f"127.0.0.1:{server.port}"
        assert heard.events[-1] == ("lost",)


async def test_an_address_may_be_the_name_that_is_trusted(certificate: CertificateFiles) -> None:
    async with serving(certificate) as server:
        tls = ClientTls(ca=str(certificate.path))
        async with dial_quic("127.0.0.1", server.port, alpns=(), tls=tls, handler=Heard()) as link:
            assert link.phase.name == "OPEN"


async def test_wrong_fingerprints_names_and_authorities_are_refused(
    certificate: CertificateFiles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = self_signed(tmp_path_factory.mktemp("other"))
    async with serving(certificate) as server:
        for tls, error in (
            (ClientTls(fingerprint=other.fingerprint), TlsFailed),
            (ClientTls(ca=str(other.path)), TargetError),
            (ClientTls(ca=str(certificate.path), server_name="elsewhere.example"), TargetError),
            (ClientTls(), TargetError),
        ):
            with pytest.raises(error):
                async with dial_quic("127.0.0.1", server.port, alpns=(), tls=tls, handler=Heard()):
                    pytest.fail("trusted somebody else")


async def test_a_refused_protocol_says_why(certificate: CertificateFiles) -> None:
    async with serving(certificate) as server:
        with pytest.raises(TargetError, match="0x178"):
            async with dial_quic("127.0.0.1", server.port, alpns=["h3"], tls=ClientTls(insecure=True), handler=Heard()):
                pytest.fail("accepted")


@pytest.mark.parametrize(
    ("shows", "required", "code"),
    [
        ("ours", True, None),
        ("ours", False, None),
        ("nothing", False, None),
        ("nothing", True, "0x174"),  # certificate_required
        ("a stranger's", True, "0x12a"),  # bad_certificate
        ("a stranger's", False, "0x12a"),
    ],
)
async def test_clients_show_certificates_where_they_are_asked_for(
    certificate: CertificateFiles, tmp_path: Path, shows: str, required: bool, code: str | None
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ClientTls(insecure=True)
    if shows != "nothing":
        leaf = (authority if shows == "ours" else stranger).issue_cert("client@example.org")
        leaf.private_key_pem.write_to_path(str(tmp_path / "client.key"))
        leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "client.crt"))
        tls = ClientTls(insecure=True, cert=str(tmp_path / "client.crt"), key=str(tmp_path / "client.key"))
    accepted: list[QuicLink] = []

    def accept(link: QuicLink) -> Echo:
        accepted.append(link)
        return Echo(link)

    trust = ClientTrust(str(tmp_path / "ca.pem"), required)
    async with serving(certificate, accept, clients=trust) as server:
        heard = Heard()
        try:
            async with dial_quic("127.0.0.1", server.port, alpns=(), tls=tls, handler=heard) as link:
                if code is None:
                    assert await echo(link, heard, b"welcome") == b"welcome"
                    return
                # in TLS 1.3 a client is done before the server has looked at its certificate
                with trio.fail_after(5):
                    await link.over.wait()
                assert link.core.end is not None
                assert hex(link.core.end[0]) == code
        except TargetError as error:  # the server was quicker than the task that dials
            if code is None or code not in error.message:
                raise
        assert not accepted


async def test_nobody_there_is_a_target_error_in_time() -> None:
    with pytest.raises(TargetError, match="no answer in time"):
        async with dial_quic("127.0.0.1", 9, alpns=(), tls=ClientTls(insecure=True), handler=Heard(), timeout=0.05):
            pytest.fail("answered")
    with pytest.raises(TargetError, match="cannot connect"):
        async with dial_quic("no-such-host.invalid", 9, alpns=(), tls=ClientTls(insecure=True), handler=Heard()):
            pytest.fail("resolved")


async def test_what_the_block_raises_arrives_as_it_was(certificate: CertificateFiles) -> None:
    async with serving(certificate) as server:
        with pytest.raises(LookupError, match="mine"):
            async with dial_quic("127.0.0.1", server.port, alpns=(), tls=ClientTls(insecure=True), handler=Heard()):
                raise LookupError("mine")


async def test_a_drain_finishes_what_is_queued_and_refuses_newcomers(certificate: CertificateFiles) -> None:
    accepted: list[Echo] = []

    def accept(link: QuicLink) -> Echo:
        accepted.append(Echo(link))
        return accepted[-1]

    async with serving(certificate, accept) as server:
        heard = Heard()
        tls = ClientTls(insecure=True)
        async with dial_quic("127.0.0.1", server.port, alpns=(), tls=tls, handler=heard) as link:
            await echo(link, heard, b"up")
            serving_link = accepted[0].link
            assert serving_link is not None
            serving_link.open(-1, Kind.WRITE_ONLY)
            serving_link.send(-1, bytes(500_000))
            serving_link.finish(-1)
            server.close(0, "broker shutting down")
            with pytest.raises(TargetError, match="0x2"):
                async with dial_quic("127.0.0.1", server.port, alpns=(), tls=tls, handler=Heard()):
                    pytest.fail("accepted")
            with trio.fail_after(10):
                await link.over.wait()
            assert heard.size(3) == 500_000
            assert link.core.end == (0, True, "broker shutting down")


async def test_every_address_of_a_name_is_served_on_one_port(certificate: CertificateFiles) -> None:
    found = await trio.socket.getaddrinfo("localhost", 0, type=trio.socket.SOCK_DGRAM)
    async with serving(certificate, host="localhost") as server:
        for *_, address in found:
            tls = ClientTls(ca=str(certificate.path))
            async with dial_quic(address[0], server.port, alpns=(), tls=tls, handler=Heard()) as link:
                assert link.phase.name == "OPEN"


@pytest.mark.parametrize(("accepts", "largest"), [(None, 16_384), (1452, 1452)])
async def test_datagrams_grow_on_loopback_as_far_as_the_peer_takes_them(
    certificate: CertificateFiles, monkeypatch: pytest.MonkeyPatch, accepts: int | None, largest: int
) -> None:
    sizes: set[int] = set()
    from gateway.transport.quic import udp

    original = udp.UdpSocket.send

    def spy(self: udp.UdpSocket, datagrams: list[udp.Datagram]) -> object:
        sizes.update(len(data) for data, _ in datagrams)
        return original(self, datagrams)

    monkeypatch.setattr(udp.UdpSocket, "send", spy)
    if accepts is not None:
        from aioquic.quic import connection as core

        parse = core.pull_quic_transport_parameters

        def narrow(buffer: object) -> object:
            parameters = parse(buffer)  # type: ignore[arg-type]
            parameters.max_udp_payload_size = accepts
            return parameters

        monkeypatch.setattr("gateway.transport.quic.aioquic_private.pull_quic_transport_parameters", narrow)
    async with serving(certificate) as server:
        heard = Heard()
        async with dial_quic("127.0.0.1", server.port, alpns=(), tls=ClientTls(insecure=True), handler=heard) as link:
            assert len(await echo(link, heard, bytes(200_000))) == 200_000
    assert max(sizes) == largest


async def test_cancelling_a_server_tells_peers_and_handlers(certificate: CertificateFiles) -> None:
    accepted: list[Echo] = []

    def accept(link: QuicLink) -> Echo:
        accepted.append(Echo(link))
        return accepted[-1]

    async with serving(certificate, accept) as server:
        heard = Heard()
        async with dial_quic("127.0.0.1", server.port, alpns=(), tls=ClientTls(insecure=True), handler=heard) as link:
            server.abort()
            with trio.fail_after(5):
                await link.over.wait()
            assert heard.gone
            assert accepted[0].gone
