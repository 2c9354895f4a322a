"""Where the other gateways of one log are, and by what they are known: each writes its address and a certificate into the log
that it made at its start. Whoever may write there may read all messages anyhow: so the log is whom everybody trusts.

    a start ─► key and certificate, in memory ─► a row: this member, its address, its certificate
    a connection ─► both sides show theirs ─► it is exactly one of the rows' ─► it is that member
    an orderly end ─► no row        it dies ─► who has the job takes its row away
"""

from __future__ import annotations

import datetime as dt
import ssl
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.broker.ownership import Owners
from gateway.broker.presence import GoneGateways
from gateway.broker.service import Clock, StartJob, Timers
from gateway.files import PRIVATE, write_whole
from gateway.store.interface import Put, Store, Ticket, Unit

TABLE = "links"
LIFETIME = dt.timedelta(days=3650)
LARGEST_ROW = 16 << 10
WRITE_AGAIN = 1.0


class MemberRow(msgspec.Struct, frozen=True):
    host: str
    port: int
    certificate: bytes


class LinkIdentity:
    """A key and a certificate for as long as this process lives, and the TLS of both roles."""

    def __init__(self, directory: Path) -> None:
        """`directory`: where files may be, for the moment that TLS needs to read them."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway of a shared log")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.DER)
        self._known: set[bytes] = set()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with tempfile.TemporaryDirectory(dir=directory) as made:
            files = Path(made) / "certificate", Path(made) / "key"
            write_whole(files[0], certificate.public_bytes(serialization.Encoding.PEM), PRIVATE)
            write_whole(files[1], private, PRIVATE)
            self.asking = _context(ssl.PROTOCOL_TLS_CLIENT, *files)
            self.answering = _context(ssl.PROTOCOL_TLS_SERVER, *files)

    def know(self, certificate: bytes) -> None:
        """TLS takes it from now on; whose it is, and whether he still counts, is asked of the rows each time."""
        if certificate not in self._known:
            self._known.add(certificate)
            for context in (self.asking, self.answering):
                context.load_verify_locations(cadata=certificate)


def _context(role: int, certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it is known as a whole, and not by a name
    context.verify_mode = ssl.CERT_REQUIRED
    # by itself: else OpenSSL looks for who has issued it by that name, which all have, and finds another gateway's
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(certificate, key)
    return context


class LinkMembers:
    def __init__(
        self,
        store: Store,
        owners: Owners,
        clock: Clock,
        timers: Timers,
        start_soon: StartJob,
        identity: LinkIdentity,
    ) -> None:
        self._store = store
        self._owners = owners
        self.identity = identity
        self._clock = clock
        self._timers = timers
        self._members: dict[bytes, MemberRow] = {}
        self._row: bytes | None = None
        """What this one has written of itself, while it is a member."""
        self._gone = GoneGateways(store, owners, clock, timers, start_soon, TABLE, self._rows_of_others, self._told)
        self._told(store.table(TABLE))
        store.on_rows(TABLE, self._told)

    def find(self, member: bytes) -> MemberRow | None:
        return self._members.get(member)

    def whose(self, certificate: bytes | None) -> bytes | None:
        """The member that has shown this certificate; None if nobody who counts has it."""
        return next((name for name, row in self._members.items() if row.certificate == certificate), None)

    async def come(self, host: str, port: int) -> None:
        self._row = msgspec.msgpack.encode(MemberRow(host, port, self.identity.certificate))
        await self._store.submit(Unit(puts=[Put(TABLE, self._owners.name, self._row)])).wait()

    def _come_again(self) -> None:
        # somebody took this gateway for dead
        if self._row is None:
            return

        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                self._timers.call_at(self._clock.now() + WRITE_AGAIN, self._come_again)

        self._store.submit(Unit(puts=[Put(TABLE, self._owners.name, self._row)])).on_done(done)

    async def leave(self) -> None:
        self._row = None
        await self._store.submit(Unit(puts=[Put(TABLE, self._owners.name, None)])).wait()

    def _told(self, rows: Mapping[bytes, bytes | None]) -> None:
        for name, value in rows.items():
            if name == self._owners.name:
                if value != self._row:
                    self._come_again()
                continue
            row = _read(value)
            if row is None:
                self._members.pop(name, None)
                continue
            try:
                self.identity.know(row.certificate)
            except (ssl.SSLError, ValueError):
                continue  # no certificate: nobody can show it
            self._members[name] = row
            self._gone.heard(name)

    def _rows_of_others(self, serving: Container[bytes]) -> list[Put]:
        return [Put(TABLE, name, None) for name in self._members if name not in serving]


def _read(value: bytes | None) -> MemberRow | None:
    if value is None or len(value) > LARGEST_ROW:
        return None
    try:
        return msgspec.msgpack.decode(value, type=MemberRow)
    except msgspec.DecodeError:
        return None
