"""The first packet of a client that nobody knows yet: version negotiation, Retry, limits. No connection state before that.

Every answer is smaller than what it answers, so that nothing here amplifies (RFC 9000, 8.1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import attrs
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    encode_quic_version_negotiation,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler

from gateway.settings import network_of
from gateway.transport.limits import Occupancy
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.udp import Address

VERSIONS: Sequence[int] = (QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2)
CID_LENGTH = 8


@attrs.frozen
class Admitted:
    """A client may have a connection: the ids the transport parameters have to prove."""

    original_destination: bytes
    retry_source: bytes | None


class Admission:
    """Decides about first packets, and counts what was let in."""

    def __init__(self, limits: QuicLimits, on_refusal: Callable[[str], None]) -> None:
        self._limits = limits
        self._on_refusal = on_refusal
        self._retry = QuicRetryTokenHandler()
        self._handshakes = Occupancy(limits.handshakes, limits.handshakes_per_address)
        self._connections = Occupancy(limits.connections, limits.per_address)
        self.closed = False
        """Refuse everybody from now on."""

    @property
    def handshakes(self) -> int:
        return self._handshakes.total

    @property
    def connections(self) -> int:
        return self._connections.total

    def consider(self, header: QuicHeader, size: int, address: Address, now: float) -> Admitted | bytes | None:
        """Let a client in, or answer it with a datagram, or with nothing."""
        if size < SMALLEST_MAX_DATAGRAM_SIZE or header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in VERSIONS:
            return encode_quic_version_negotiation(
                source_cid=header.destination_cid, destination_cid=header.source_cid, supported_versions=list(VERSIONS)
            )
        if header.packet_type is not QuicPacketType.INITIAL:
            return None
        if self.closed:
            return self._refuse(header, "draining", QuicErrorCode.CONNECTION_REFUSED)
        network = network_of(address[0])
        for what, occupancy in (("handshakes", self._handshakes), ("connections", self._connections)):
            bound = occupancy.refusal(network)
            if bound is not None:
                reason = what if bound == "connections" else f"{what}_per_address"
                return self._refuse(header, reason, QuicErrorCode.CONNECTION_REFUSED)
        if header.token:
            return self._redeem(header, address, now)
        if self._handshakes.total >= self._limits.retry_above:
            return self._ask_again(header, address, now)
        return Admitted(header.destination_cid, None)

    def enter(self, address: Address) -> None:
        network = network_of(address[0])
        self._handshakes.enter(network)
        self._connections.enter(network)

    def handshaken(self, address: Address) -> None:
        """A connection is no longer half open: completed, failed or timed out."""
        self._handshakes.leave(network_of(address[0]))

    def leave(self, address: Address) -> None:
        self._connections.leave(network_of(address[0]))

    def _refuse(self, header: QuicHeader, reason: str, code: int) -> bytes:
        self._on_refusal(reason)
        return refuse_initial(header.version or VERSIONS[0], header.destination_cid, header.source_cid, code)

    def _ask_again(self, header: QuicHeader, address: Address, now: float) -> bytes:
        self._on_refusal("retry")
        source = os.urandom(CID_LENGTH)
        token = self._retry.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=now,
        )
        return encode_quic_retry(
            version=header.version or VERSIONS[0],
            source_cid=source,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def _redeem(self, header: QuicHeader, address: Address, now: float) -> Admitted | bytes:
        try:
            original = self._retry.validate_token(
                address=address, destination_cid=header.destination_cid, token=header.token, now=now
            )
        except ValueError:
            return self._refuse(header, "invalid_token", QuicErrorCode.INVALID_TOKEN)
        return Admitted(original, header.destination_cid)


def refuse_initial(version: int, client_destination: bytes, client_source: bytes, code: int) -> bytes:
    """A CONNECTION_CLOSE in an Initial packet, for a client that gets no connection (RFC 9000, 8.1.3 and 5.2.2)."""
    crypto = CryptoPair()
    crypto.setup_initial(cid=client_destination, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=client_destination, is_client=False, max_datagram_size=1200, peer_cid=client_source, version=version
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=32)
    frame.push_uint_var(code)
    frame.push_uint_var(QuicFrameType.PADDING)
    frame.push_uint_var(0)
    datagrams, _packets = builder.flush()
    return datagrams[0]
