"""Certificates of listeners: from files, read again when they change, or one self-signed leaf that stays the same.

The self-signed one is made once and kept in a directory beside the store, so that clients can be told its path or its
fingerprint and go on trusting it over restarts. It is a leaf, not a CA: stock Felix clients refuse a CA certificate in a
server's place (Felix wire 2.1).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.errors import ConfigProblem
from gateway.files import PRIVATE, make_private_directory, write_whole

DEFAULT_NAMES = ("localhost", "127.0.0.1", "::1")
LIFETIME = dt.timedelta(days=3650)
RENEW_BEFORE = dt.timedelta(days=30)
CERTIFICATE_NAME = "self-signed.crt"
KEY_NAME = "self-signed.key"


@attrs.frozen(eq=False)
class LoadedCertificate:
    """A loaded certificate, its chain and its key."""

    certificate: x509.Certificate
    chain: Sequence[x509.Certificate]
    key: PrivateKeyTypes

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the leaf, in hex: what clients are told."""
        return hashlib.sha256(self.certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def read_certificates(path: Path) -> Sequence[x509.Certificate]:
    """The certificates in a PEM file, at least one."""
    try:
        data = path.read_bytes()
        if b"CERTIFICATE-----" not in data:  # what the library says of it is where its own documentation is
            raise ConfigProblem(f"there is no certificate in {path} (expected PEM)")
        return x509.load_pem_x509_certificates(data)
    except (OSError, ValueError) as error:
        raise ConfigProblem(f"cannot use the certificate {path}: {error}") from error


def load_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigProblem(f"cannot use the key {path}: {error}") from error


def load_identity(certificate: Path, key: Path | None = None) -> LoadedCertificate:
    """Read PEM files. The key may be in the certificate's file."""
    leaf, *rest = read_certificates(certificate)
    private = load_key(key or certificate)
    if leaf.public_key() != private.public_key():
        raise ConfigProblem(f"the key does not belong to the certificate {certificate}")
    return LoadedCertificate(leaf, tuple(rest), private)


class CertificateFiles:
    """A certificate in files. `current` follows changes; files that cannot be read leave the last good one in use."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        self.path = certificate
        self._key = key
        self._state = self._look()
        self._identity = load_identity(certificate, key)
        self.problem: ConfigProblem | None = None
        """Why the last change was not taken over."""

    def current(self) -> LoadedCertificate:
        state = self._look()
        if state != self._state:
            self._state = state
            try:
                self._identity = load_identity(self.path, self._key)
                self.problem = None
            except ConfigProblem as problem:
                # Half a replacement, most likely: the second file's change is another state.
                self.problem = problem
        return self._identity

    @property
    def fingerprint(self) -> str:
        return self.current().fingerprint

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self.path, self._key) if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def self_signed(directory: Path, names: Sequence[str] = DEFAULT_NAMES) -> CertificateFiles:
    """The self-signed certificate kept in a directory: the one that is there while it fits, else a new one."""
    certificate, key = directory / CERTIFICATE_NAME, directory / KEY_NAME
    wanted = tuple(dict.fromkeys(names))
    with contextlib.suppress(ConfigProblem):
        found = CertificateFiles(certificate, key)
        if _fits(found.current().certificate, wanted):
            return found
    make_private_directory(directory)
    leaf, private = make_self_signed(wanted)
    write_whole(
        key,
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        PRIVATE,
    )
    write_whole(certificate, leaf.public_bytes(serialization.Encoding.PEM), 0o644)
    return CertificateFiles(certificate, key)


def make_self_signed(
    names: Sequence[str] = DEFAULT_NAMES, now: dt.datetime | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A leaf for these names (DNS names and IP addresses), signed by its own key."""
    now = now or dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway self-signed")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _fits(certificate: x509.Certificate, names: Sequence[str]) -> bool:
    try:
        san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)
    return list(san) == [_general_name(name) for name in names] and left > RENEW_BEFORE
