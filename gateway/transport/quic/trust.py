"""Whom to trust: a server's pinned certificate, a client's certificate against an authority."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import Alert, AlertDescription, verify_certificate
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate

from gateway.transport.tls import check_fingerprint


@attrs.frozen
class ClientTrust:
    """A listener asks its clients for certificates that this authority has signed."""

    ca: str
    """PEM file."""
    required: bool = True

    def refusal(self, shown: Sequence[Certificate]) -> tuple[int, str] | None:
        """The transport error with which a client is turned away (RFC 9001, 4.8), or None when it may come in."""
        if not shown:
            if not self.required:
                return None
            return (
                QuicErrorCode.CRYPTO_ERROR + AlertDescription.certificate_required,
                "a client certificate is required",
            )
        try:
            verify_certificate(shown[0], chain=list(shown[1:]), cafile=self.ca)
        except Alert as alert:
            return QuicErrorCode.CRYPTO_ERROR + alert.description, str(alert)
        return None


def check_pinned(shown: Sequence[Certificate], fingerprint: str) -> None:
    """Raise TlsFailed unless the server showed the certificate that was pinned."""
    check_fingerprint(shown[0].public_bytes(Encoding.DER) if shown else None, fingerprint)
