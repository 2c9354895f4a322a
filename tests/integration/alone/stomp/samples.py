"""What clients of STOMP 1.2 send, for the conformance suite."""

from __future__ import annotations

from tests.conformance.sample import Sample

CONNECT = b"CONNECT\naccept-version:1.2\nhost:here\nheart-beat:0,0\n\n\0"
SEND = (
    b"SEND\ndestination:orders\nreceipt:r1\nkind:a\\cb\n\nhello\0\n"
    b"SEND\r\ndestination:orders\r\nreceipt:r2\r\ncontent-length:3\r\n\r\na\0b\0"
    b"SEND\ndestination:orders\n\n\0"
)
SUBSCRIBE = b"SUBSCRIBE\nid:0\ndestination:orders\nack:client\nreceipt:r3\n\n\0"
GOODBYE = b"DISCONNECT\nreceipt:bye\n\n\0"

SAMPLES = [
    Sample("publish", ((0, CONNECT), (0, SEND), (0, GOODBYE))),
    Sample("subscribe", ((0, b"\n\n" + CONNECT), (0, SUBSCRIBE), (0, b"\n"))),
    Sample("mistakes", ((0, CONNECT + b"NOTHING\n\n\0"),)),
    Sample("another version", ((0, CONNECT.replace(b"1.2", b"1.0")),)),
    Sample("nothing first", ((0, b"SEND\n\n\0"),)),
]
