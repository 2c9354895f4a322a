"""Types of configuration values that protocols and configuration share. Plain values; parsing is in `gateway.config`."""

from __future__ import annotations

import enum
from ipaddress import ip_address
from typing import Annotated, NewType

import attrs


@attrs.frozen
class Says:
    """About a key of the configuration, in its annotation: one sentence for its users, and the version that brought it."""

    text: str
    since: str = "0.1.0"
    key: str = ""
    """What the file calls it, where that is another word."""


Seconds = NewType("Seconds", float)
"""Written as `5ms`, `2s`, `7d` or `none` (infinity)."""

Size = NewType("Size", int)
"""Bytes, written as `64KiB`, `16MiB` or a number."""


class Transport(enum.Enum):
    """What a protocol runs over."""

    TCP = "tcp"
    QUIC = "quic"
    WEBSOCKET = "websocket"
    UNIX = "unix"


class Dialect(enum.Enum):
    """How a listener treats peers that may follow the document or the stock implementation, or one of its later releases."""

    AUTO = "auto"
    DOCUMENT = "document"
    STOCK = "stock"
    SESSION = "0.5"
    V1 = "v1"


DOCUMENT_OR_STOCK = (Dialect.AUTO, Dialect.DOCUMENT, Dialect.STOCK)


@attrs.frozen
class Backoff:
    """Written as `100ms..30s`: the first delay, doubling up to the longest."""

    first: Seconds
    longest: Seconds

    def delay(self, attempt: int) -> float:
        """Seconds to wait after this attempt (the first is 1)."""
        return float(min(self.first * 2 ** min(attempt - 1, 62), self.longest))


@attrs.frozen
class NoSettings:
    """For protocols without settings of their own."""


@attrs.frozen
class Limits:
    """Bounds of one listener. Each has a metric for being hit."""

    connections: Annotated[int, Says("Open connections.")] = 10_000
    per_address: Annotated[int, Says("Open connections from one address.")] = 1_000
    in_flight: Annotated[int, Says("Requests under way on one connection before it is read no further.")] = 1_024
    output: Annotated[Size, Says("Unsent bytes on one connection before it is read no further.")] = Size(4 << 20)
    handshake: Annotated[Seconds, Says("How long a handshake may take, with the login where one is asked for.")] = (
        Seconds(30.0)
    )
    idle: Annotated[Seconds, Says("How long a connection may be without traffic before it is closed.")] = Seconds(
        float("inf")
    )
    write_timeout: Annotated[Seconds, Says("How long a peer may refuse to read before it is closed.")] = Seconds(60.0)
    subscriptions: Annotated[int, Says("Subscriptions there are, those without a client included.")] = 50_000
    subscriptions_per_connection: Annotated[int, Says("Subscriptions that one connection has open.")] = 1_024


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 that an IPv6 host owns anyway."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 6 and address.ipv4_mapped is None:
        return address.packed[:8].hex()
    return str(getattr(address, "ipv4_mapped", None) or address)
