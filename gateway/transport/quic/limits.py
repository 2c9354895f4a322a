"""The bounds of the QUIC layer. All are configuration; each says why its default is what it is."""

from __future__ import annotations

from ipaddress import ip_address

import attrs


@attrs.frozen
class QuicLimits:
    """What one endpoint grants its peers and demands of them."""

    stream_window: int = 16 << 20
    connection_window: int = 64 << 20
    """Both as the stock Felix clients' publish connections announce them (Felix wire 2.1)."""
    streams: int = 1024
    """Streams of each kind that a peer may have open (Felix wire 2.1)."""
    idle: float = 30.0
    """What every stock peer announces; the smaller of both sides counts."""
    handshake: float = 30.0
    """After this a half-open connection is forgotten."""
    handshakes: int = 1024
    """Half-open connections at once; each holds about 80 kB."""
    handshakes_per_address: int = 256
    """Stock Felix clients open 20 connections in a row, and many clients may stand behind one address."""
    retry_above: int = 128
    """Half-open connections from which on a peer has to prove its address first (RFC 9000, 8.1.2)."""
    connections: int = 10_000
    per_address: int = 1_000
    pending_opens: int = 1024
    """Opened streams that wait for the peer's stream limit."""
    low_water: int = 256 << 10
    """Unacknowledged bytes of a stream below which `room` is reported: about a loopback's bandwidth times delay."""
    close: float = 5.0
    """A close gives up waiting for queued bytes after this."""
    datagram: int = 1200
    loopback_datagram: int = 16_384
    """Sent to peers on this machine that accept it: as large as aioquic writes them,
    for half of what a packet costs does not depend on its bytes."""

    @property
    def keep_alive(self) -> float:
        """Silence after which a PING goes out."""
        return self.idle / 3


def is_loopback(host: str) -> bool:
    """Whether an address is this machine: nothing between the two ends can be too narrow for a large datagram."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
