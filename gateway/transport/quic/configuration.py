"""aioquic's configuration, made from ours."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from aioquic.quic.configuration import QuicConfiguration

from gateway.errors import TargetError
from gateway.transport.quic.admission import CID_LENGTH, VERSIONS
from gateway.transport.quic.certificates import LoadedCertificate
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.tls import ClientTls


def _base(limits: QuicLimits, *, is_client: bool) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=is_client,
        connection_id_length=CID_LENGTH,
        idle_timeout=limits.idle,
        max_data=limits.connection_window,
        max_stream_data=limits.stream_window,
        max_datagram_size=limits.datagram,
        supported_versions=list(VERSIONS),
    )


def server_configuration(limits: QuicLimits, identity: LoadedCertificate) -> QuicConfiguration:
    """A listener's. ALPN is not in it: `aioquic_private.Core` decides that."""
    configuration = _base(limits, is_client=False)
    configuration.certificate = identity.certificate
    configuration.certificate_chain = list(identity.chain)
    configuration.private_key = identity.key
    return configuration


def client_configuration(
    limits: QuicLimits, tls: ClientTls, server_name: str, alpns: Sequence[str]
) -> QuicConfiguration:
    """A dialler's. A fingerprint is checked when the handshake is done; without a CA the system's roots count."""
    configuration = _base(limits, is_client=True)
    configuration.server_name = server_name
    configuration.alpn_protocols = list(alpns) or None
    if tls.insecure or tls.fingerprint:
        configuration.verify_mode = ssl.CERT_NONE
    else:
        roots = ssl.get_default_verify_paths()
        configuration.load_verify_locations(cafile=tls.ca or roots.cafile, capath=None if tls.ca else roots.capath)
    if tls.cert:
        try:
            configuration.load_cert_chain(tls.cert, tls.key or None)
        except (OSError, ValueError, LookupError) as error:
            raise TargetError(f"cannot use the client certificate {tls.cert}: {error}") from error
    return configuration
