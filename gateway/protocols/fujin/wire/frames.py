"""The numbers of Fujin's wire (Fujin document; wire 1.3). Requests and replies are numbered apart."""

from __future__ import annotations

import enum


class Op(enum.IntEnum):
    """What a client sends; PING and STOP are a server's."""

    CONNECT_WRITER = 1
    CONNECT_READER = 2
    WRITE = 3
    BEGIN = 4
    COMMIT = 5
    ROLLBACK = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10
    PING = 11
    STOP = 12


class Reply(enum.IntEnum):
    """What a server answers."""

    READER = 1
    WRITE = 2
    BEGIN = 3
    COMMIT = 4
    ROLLBACK = 5
    MESSAGE = 6
    FETCH = 7
    ACK = 8
    NACK = 9
    DISCONNECT = 10


class ReaderKind(enum.IntEnum):
    """The type byte of CONNECT READER."""

    PUSH = 1
    PULL = 2


ALPN = "fujin"
"""Of the seed's dialect, and of 0.5: the first byte of a stream tells them apart (wire 6.1)."""
V1_ALPN = "fujin/1"
"""Of v1, and of what was there between it and the seed."""

LARGEST_PUSH = 65_536
"""A pushed value beyond this kills stock clients (wire 0, rule 6)."""

LARGEST_NAME = 65_536
"""Bytes of a topic, a reader's name or a writer id (wire 5)."""

LARGEST_MESSAGE = 16 << 20
"""Bytes of a WRITE's message: the stock server dies above 65 536, this one takes more, and this is its bound."""

LARGEST_ACK = 1 << 20
"""Bytes of an ACK or NACK command."""

LARGEST_ERROR = 65_536
LARGEST_READER_ERROR = 506
"""Bytes of an error text: all of them, and that of CONNECT READER, which stock clients read in one go (rule 7)."""

MOST_UNACKED = 990
"""Pushed messages that may wait for their ACK on one stream: stock clients read 1000 ahead and then no ACK reply any more
(wire 0, rule 10)."""

PING_FAILED = 3
"""Close code of a connection that does not answer pings (wire 2)."""
