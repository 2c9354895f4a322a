"""One self-signed certificate for all QUIC tests."""

import pytest

from gateway.transport.quic.certificates import CertificateFiles, self_signed


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return self_signed(tmp_path_factory.mktemp("certificate"))
