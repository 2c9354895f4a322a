"""Legal client bytes for the conformance suite (FlyMQ document; wire 2.4)."""

from tests.conformance.sample import Sample
from tests.protocols.script import hexed


def frame(operation: int, payload: str = "", flags: int = 1) -> bytes:
    """A frame around a payload in hex."""
    data = hexed(payload)
    return bytes([0xAF, 1, operation, flags]) + len(data).to_bytes(4, "big") + data


TEST = "0004 74657374"
GROUP = TEST + "0002 6731"
PRODUCE = frame(0x01, TEST + "00000000 00000005 68656c6c6f ffffffff")
KEYED = frame(0x01, TEST + "00000001 6b 00000005 68656c6c6f ffffffff")
FETCH = frame(0x07, TEST + "00000000 0000000000000000 000001f4")
CONSUME = frame(0x02, TEST + "00000000 0000000000000000")
SUBSCRIBE = frame(0x05, GROUP + "00000000 0008 6561726c69657374")
COMMIT = frame(0x06, GROUP + "00000000 000000000000002b")
CREATE = frame(0x03, TEST + "00000002")
LIST = frame(0x08)
DELETE = frame(0x09, TEST)
METADATA = frame(0x04, TEST)
GROUPS = [
    frame(0x60, GROUP + "00000000"),
    frame(0x61, GROUP + "00000000 06 6c6174657374"),
    frame(0x62),
    frame(0x63, GROUP),
    frame(0x64, GROUP + "00000000"),
    frame(0x65, GROUP),
    frame(0x66, GROUP + "00000000 0000000000000001"),
]
SCHEMAS = [
    frame(0x10, "0006 6f7264657273 04 6a736f6e 00000002 7b7d"),
    frame(0x11, "0006 6f7264657273 00000000"),
    frame(0x12, "0000"),
    frame(0x13, "0006 6f7264657273 00000002 7b7d"),
    frame(0x14, TEST + "0006 6f7264657273 00000002 7b7d"),
    frame(0x15, "0006 6f7264657273 00000001"),
]
LETTERS = [frame(0x20, TEST + "0000000a"), frame(0x21, TEST + "0003 303a31"), frame(0x22, TEST)]
LATER = [
    frame(0x30, TEST + "00000002 6869 00000000000005dc"),
    frame(0x31, TEST + "0003 303a31"),
    frame(0x35, TEST + "00000002 6869 000000000000ea60"),
]
TRANSACTION = [
    frame(0x40),
    frame(0x43, "0005 74786e2d31" + TEST + "00000002 6869"),
    frame(0x41, "0005 74786e2d31"),
    frame(0x40),
    frame(0x42, "0005 74786e2d31"),
]
ACCOUNTS = [frame(0x70, "0005 61646d696e 0006 736563726574"), frame(0x72), frame(0x76), frame(0x7B), frame(0x7D)]
CLUSTER = [frame(0x50, "0006 683a39303933"), frame(0x52), frame(0x51)]
STOCK = [frame(0x05, GROUP + "00000000 08 6561726c69657374"), FETCH, frame(0x72), frame(0x53, "0000")]

SAMPLES = [
    Sample("produce", ((0, PRODUCE), (0, PRODUCE * 3 + KEYED * 2 + PRODUCE))),
    Sample("read", ((0, CREATE + FETCH + CONSUME + SUBSCRIBE + COMMIT + METADATA + LIST + DELETE),)),
    Sample("groups", tuple((0, one) for one in GROUPS)),
    Sample("schemas", ((0, b"".join(SCHEMAS)),)),
    Sample("dead-letters", ((0, b"".join(LETTERS)),)),
    Sample("later", ((0, b"".join(LATER)),)),
    Sample("transaction", tuple((0, one) for one in TRANSACTION)),
    Sample("accounts", ((0, b"".join(ACCOUNTS)),)),
    Sample("cluster", ((0, b"".join(CLUSTER)),)),
    Sample("stock", ((0, b"".join(STOCK)),)),
]
