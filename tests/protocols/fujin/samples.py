"""Legal client bytes for the conformance suite (Fujin wire 1.4)."""

from gateway.wire.session import Kind
from tests.conformance.sample import Sample
from tests.protocols.script import hexed

WRITER = hexed("01 00000000")
WRITE = hexed("03 00000001 00000003 707562 00000005 68656c6c6f")
BEGIN = hexed("04 00000001")
COMMIT = hexed("05 00000005")
ROLLBACK = hexed("06 00000005")
PUSH = hexed("02 01 01 00000003 737562")
PULL = hexed("02 02 00 00000003 737562")
FETCH = hexed("07 00000001 00000002")
ACK_NONE = hexed("08 00000003 00000000")
DISCONNECT = hexed("0a")

SAMPLES = [
    Sample("writer", ((0, WRITER), (0, WRITE * 3), (0, WRITE + DISCONNECT))),
    Sample("transaction", ((0, WRITER), (0, BEGIN), (0, WRITE), (0, COMMIT), (0, BEGIN), (0, WRITE), (0, ROLLBACK))),
    Sample("puller", ((0, PULL), (0, FETCH), (0, ACK_NONE), (0, DISCONNECT))),
    Sample("pusher", ((0, PUSH), (0, DISCONNECT))),
    Sample("streams", ((0, WRITER), (4, PULL), (0, WRITE)), ((0, Kind.DUPLEX), (4, Kind.DUPLEX))),
]

HELLO = hexed("00 01 01 01 00000001 74 00000001 30")  # wire 6.2, as all that follows
BIND = hexed("01 00000003 6d656d 0000 0000")
PRODUCE = hexed("02 00000001 00000003 707562 00000005 68656c6c6f")
HPRODUCE = hexed("03 00000002 00000003 707562 0002 00000001 6b 00000001 76 00000002 6869")
BOUND_BEGIN = hexed("04 00000004 00000003 707562")
TX_PRODUCE = hexed("0f 00000006 00000003 747831")
TX_HPRODUCE = hexed("10 00000007 0002 00000001 61 00000001 62 00000003 747832")
BOUND_COMMIT, BOUND_ROLLBACK = hexed("05 00000008"), hexed("06 00000009")
SUBSCRIBE = hexed("0b 00000001 01 00000003 737562")
HSUBSCRIBE = hexed("0c 00000003 00 00000003 737562")
UNSUBSCRIBE = hexed("0d 00000002 00")
BOUND_FETCH = hexed("07 00000001 00 00000003 737562 00000002")
HFETCH = hexed("08 0000000a 01 00000003 737562 00000002")
BOUND_ACK_NONE = hexed("09 00000005 00 00000000")
LEAVE = hexed("0e")
EARLY = hexed("01 00000000")
"""CONNECT of the second generation, where BIND has a name (wire 6.1)."""

SAMPLES += [
    Sample("bound-producer", ((0, HELLO + BIND), (0, PRODUCE * 3), (0, HPRODUCE), (0, LEAVE))),
    Sample(
        "bound-transactions",
        (
            (0, HELLO),
            (0, BIND),
            (0, BOUND_BEGIN),
            (0, TX_PRODUCE),
            (0, TX_HPRODUCE),
            (0, BOUND_COMMIT),
            (0, BOUND_ROLLBACK),
        ),
    ),
    Sample("bound-fetcher", ((0, HELLO + BIND), (0, BOUND_FETCH), (0, BOUND_ACK_NONE), (0, HFETCH), (0, LEAVE))),
    Sample("bound-subscriber", ((0, HELLO + BIND), (0, HSUBSCRIBE), (0, UNSUBSCRIBE), (0, LEAVE))),
    Sample("both-generations", ((0, HELLO + BIND), (4, WRITER), (0, PRODUCE)), ((0, Kind.DUPLEX), (4, Kind.DUPLEX))),
]
