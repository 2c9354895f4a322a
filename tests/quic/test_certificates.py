"""Certificates: stable when self-signed, a leaf, private; from files, followed when they change, never half."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import os
import ssl
import stat
from pathlib import Path

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.errors import ConfigProblem
from gateway.transport.quic.aioquic_private import peer_certificates
from gateway.transport.quic.certificates import (
    CERTIFICATE_NAME,
    KEY_NAME,
    CertificateFiles,
    make_self_signed,
    self_signed,
)
from tests.quic.support import World


def san(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def write(directory: Path, authority: trustme.CA, *names: str) -> tuple[Path, Path]:
    leaf = authority.issue_cert(*names)
    certificate, key = directory / "server.crt", directory / "server.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    return certificate, key


def test_it_is_a_leaf_that_stock_clients_take(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path).current().certificate
    # what rustls demands of a server certificate (Felix wire 2.1)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    names = san(certificate)
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert certificate.version is x509.Version.v3


def test_it_stays_the_same_until_its_names_change(tmp_path: Path) -> None:
    directory = tmp_path / "not there yet"
    first = self_signed(directory)
    fingerprint = first.fingerprint
    assert self_signed(directory).fingerprint == fingerprint
    assert first.path == directory / CERTIFICATE_NAME
    other = self_signed(directory, ["gateway.example", "192.0.2.7"])
    assert other.fingerprint != fingerprint
    assert san(other.current().certificate).get_values_for_type(x509.DNSName) == ["gateway.example"]
    assert self_signed(directory, ["gateway.example", "192.0.2.7"]).fingerprint == other.fingerprint


def test_the_fingerprint_is_what_other_tools_compute(tmp_path: Path) -> None:
    files = self_signed(tmp_path)
    der = ssl.PEM_cert_to_DER_cert(files.path.read_text())
    assert files.fingerprint == hashlib.sha256(der).hexdigest()


def test_the_key_is_private_and_nothing_half_written_is_left(tmp_path: Path) -> None:
    self_signed(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [CERTIFICATE_NAME, KEY_NAME]


@pytest.mark.parametrize("damage", ["certificate", "key", "old"])
def test_a_damaged_or_ending_one_is_replaced(tmp_path: Path, damage: str) -> None:
    fingerprint = self_signed(tmp_path).fingerprint
    if damage == "old":
        certificate, key = make_self_signed(now=dt.datetime.now(dt.UTC) - dt.timedelta(days=3640))
        (tmp_path / CERTIFICATE_NAME).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (tmp_path / KEY_NAME).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    else:
        (tmp_path / (CERTIFICATE_NAME if damage == "certificate" else KEY_NAME)).write_text("broken")
    second = self_signed(tmp_path)
    assert second.fingerprint != fingerprint
    assert second.current().certificate.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(days=3000)


def test_files_are_followed_and_half_a_replacement_is_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write(tmp_path, authority, "one.example")
    files = CertificateFiles(certificate, key)
    before = files.fingerprint
    kept = certificate.read_bytes()
    write(tmp_path, authority, "two.example")
    fresh = certificate.read_bytes()
    certificate.write_bytes(kept)  # the key is the new one already, the certificate is not
    os.utime(certificate, ns=(1, 1))
    assert files.fingerprint == before
    assert isinstance(files.problem, ConfigProblem)
    certificate.write_bytes(fresh)
    assert files.fingerprint != before
    assert files.problem is None
    assert len(files.current().chain) >= 0
    certificate.unlink()
    assert files.current() is not None
    assert files.problem is not None


def test_files_that_do_not_belong_together_are_a_configuration_problem(tmp_path: Path) -> None:
    certificate, _key = write(tmp_path, trustme.CA(), "a.example")
    (tmp_path / "b").mkdir()
    _other, key = write(tmp_path / "b", trustme.CA(), "a.example")
    with pytest.raises(ConfigProblem, match="does not belong"):
        CertificateFiles(certificate, key)
    with pytest.raises(ConfigProblem, match="cannot use"):
        CertificateFiles(tmp_path / "nothing")


async def test_new_connections_get_the_new_certificate_and_old_ones_live_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    authority = trustme.CA()
    certificate, key = write(tmp_path, authority, "localhost")
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    files = CertificateFiles(certificate, key)
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, files)
        world.trust = trusted
        first, _server, link, _serving = await world.pair()
        (shown,) = peer_certificates(link.core)
        write(tmp_path, authority, "localhost")
        second, _server, other, _serving = await world.pair()
        (fresh,) = peer_certificates(other.core)
        assert fresh != shown
        assert hashlib.sha256(fresh.public_bytes(serialization.Encoding.DER)).hexdigest() == files.fingerprint
        assert not first.gone
        assert not second.gone
        nursery.cancel_scope.cancel()
