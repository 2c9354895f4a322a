"""The numbers of the dialects whose sessions bind a connector: 0.5, which begins with HELLO, and v1, which does not (wire 6)."""

from __future__ import annotations

import enum

import attrs


class BoundOp(enum.IntEnum):
    """What a client sends."""

    HELLO = 0
    BIND = 1
    PRODUCE = 2
    HPRODUCE = 3
    BEGIN = 4
    COMMIT = 5
    ROLLBACK = 6
    FETCH = 7
    HFETCH = 8
    ACK = 9
    NACK = 10
    SUBSCRIBE = 11
    HSUBSCRIBE = 12
    UNSUBSCRIBE = 13
    DISCONNECT = 14
    TX_PRODUCE = 15
    TX_HPRODUCE = 16
    PONG = 99


class BoundReply(enum.IntEnum):
    """What a server sends."""

    SUBSCRIBE = 1
    HSUBSCRIBE = 2
    PRODUCE = 3
    HPRODUCE = 4
    BEGIN = 5
    COMMIT = 6
    ROLLBACK = 7
    MSG = 8
    HMSG = 9
    FETCH = 10
    HFETCH = 11
    ACK = 12
    NACK = 13
    UNSUBSCRIBE = 14
    DISCONNECT = 15
    BIND = 16
    TX_PRODUCE = 17
    TX_HPRODUCE = 18
    HELLO = 19
    STOP = 98
    PING = 99


class Code(enum.IntEnum):
    """The status byte: the numbers of gRPC."""

    OK = 0
    CANCELED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Applied(enum.IntEnum):
    """The outcome byte: whether what failed has happened all the same."""

    UNSPECIFIED = 0
    NO = 1
    YES = 2
    UNKNOWN = 3


class Can(enum.IntFlag):
    """What may be done with a route."""

    PRODUCE = 0x01
    HEADERS = 0x02
    TRANSACTIONS = 0x04
    SUBSCRIBE = 0x08
    FETCH = 0x10
    SETTLE = 0x20


class Guarantee(enum.IntEnum):
    """What the answer to PRODUCE means."""

    NONE = 0
    LOCAL = 1
    PEER = 2
    DURABLE = 3


@attrs.frozen
class Failure:
    """What follows a status that is not OK."""

    code: int
    applied: int
    reason: str
    message: str
    details: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class RouteProfile:
    """A route, what may be done with it, and how well."""

    name: str
    can: Can
    guarantee: int
    acknowledges: int
    """0: no ACK; 1: one message; 2: it and all before it."""
    nack: int
    """0: no NACK; 1: delivered again; 2: given back; 3: dropped."""


FORMAT = 1
"""The only layout of HELLO there is."""
VERSION = 1
"""The only version of the protocol there is, `fujin/1` in words."""
VERSION_IN_WORDS = "fujin/1"
MOST_VERSIONS = 16
LONGEST_NAME = 256
"""Bytes of a client's name or build in HELLO."""

LARGEST_BIND = 64 << 10
"""Bytes of a BIND: who sends it has not logged in."""
LONGEST_ROUTE = 65_536
MOST_SUBSCRIPTIONS = 256
"""Subscription ids are one byte."""

PING_FAILED_STRICTLY = 1
"""Close code of a connection whose pings failed too often."""
