"""TLS for TCP links: bytes in, bytes out, no socket; and the contexts for both roles."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Callable

import attrs

from gateway.transport.pipe import PipeFailed

CHUNK = 131_072


class TlsFailed(PipeFailed):
    """The handshake or a record was refused."""

    kind = "tls"


class TlsPipe:
    """One connection's TLS state. Feed it what came from the socket; send what `pending` holds."""

    most = CHUNK

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name
        )
        self.ready = False

    def start(self) -> bytes:
        self._shake()
        return self.pending()

    def feed(self, data: bytes) -> tuple[list[bytes], bool]:
        self._incoming.write(data)
        pieces: list[bytes] = []
        if not self.ready and not self._shake():
            return pieces, False
        try:
            while True:
                piece = self._tls.read(CHUNK)
                if not piece:
                    return pieces, True
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return pieces, False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return pieces, True
        except ssl.SSLError as error:
            raise TlsFailed(str(error)) from error

    def wrap(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def pending(self) -> bytes:
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        if self.ready:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        return self._outgoing.read()

    def peer_certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsFailed(str(error)) from error
        self.ready = True
        return True


@attrs.frozen
class ClientTls:
    ca: str = ""
    fingerprint: str = ""
    """SHA-256 of the leaf certificate, in hex; trusted instead of a CA."""
    insecure: bool = False
    server_name: str = ""
    cert: str = ""
    key: str = ""


def client_context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.insecure or tls.fingerprint:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key or None)
    return context


def server_context(cert: str, key: str, client_ca: str = "", client_cert: str = "") -> ssl.SSLContext:
    """A listener's context; with a CA it really asks for client certificates (`required` or `optional`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL if client_cert == "optional" else ssl.CERT_REQUIRED
    return context


class ReloadingContext:
    """A listener's context, made again when its certificate has changed."""

    def __init__(self, make: Callable[[], ssl.SSLContext], fingerprint: Callable[[], str]) -> None:
        self._make = make
        self._fingerprint = fingerprint
        self._made_for = fingerprint()
        self._context = make()

    def current(self) -> ssl.SSLContext:
        fingerprint = self._fingerprint()
        if fingerprint != self._made_for:
            self._context = self._make()
            self._made_for = fingerprint
        return self._context


def check_fingerprint(certificate: bytes | None, expected: str) -> None:
    """Raise TlsFailed unless the certificate is the one that was pinned."""
    wanted = expected.replace(":", "").lower()
    found = hashlib.sha256(certificate or b"").hexdigest()
    if found != wanted:
        raise TlsFailed(f"the server's certificate has SHA-256 fingerprint {found}, not {wanted}")
