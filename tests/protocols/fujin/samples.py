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
