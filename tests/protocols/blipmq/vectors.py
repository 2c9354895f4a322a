"""Every byte example there is for BlipMQ, with where it comes from: the document's hex samples and section 1.7 of the wire
notes (observed on the original broker)."""

from __future__ import annotations

import attrs

from gateway.protocols.blipmq.wire import frames, mapping
from gateway.protocols.blipmq.wire.frames import Ack, Auth, Frame, Hello, Nack, Ping, Poll, Pong, Publish, Subscribe
from tests.protocols.script import hexed


@attrs.frozen
class Vector:
    """A frame, and what it says."""

    origin: str
    data: bytes
    frame: Frame


def nacked(cid: int, refusal: mapping.NackText) -> Nack:
    return Nack(cid, refusal.code, refusal.text)


VECTORS = [
    Vector("document, HELLO", hexed("00 00 00 0B 01 00 00 00 00 00 00 00 01 00 01"), Hello(1, 1)),
    Vector(
        "document, AUTH", hexed("00 00 00 12 02 00 00 00 00 00 00 00 02 00 07 64 65 76 2D 6B 65 79"), Auth(2, "dev-key")
    ),
    Vector(
        "document, SUBSCRIBE",
        hexed("00 00 00 10 04 00 00 00 00 00 00 00 03 00 04 64 65 6D 6F 01"),
        Subscribe(3, "demo", 1),
    ),
    Vector(
        "document, PUBLISH",
        hexed("00 00 00 12 03 00 00 00 00 00 00 00 04 01 00 04 64 65 6D 6F 68 69"),
        Publish(4, 1, "demo", b"hi"),
    ),
    Vector("document, ACK", hexed("00 00 00 11 05 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2A"), Ack(3, 42)),
    Vector("1.7, ACK of HELLO", hexed("00 00 00 11 05 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00"), Ack(1, 0)),
    Vector("1.7, HELLO v2", hexed("00 00 00 0b 01 00 00 00 00 00 00 00 0d 00 02"), Hello(13, 2)),
    Vector(
        "1.7, NACK 426",
        hexed(
            "00 00 00 29 06 00 00 00 00 00 00 00 0d 01 aa 00 1c 75 6e 73 75 70 70 6f 72 74 65 64 20 70 72 6f 74 6f 63 6f 6c"
            "20 76 65 72 73 69 6f 6e"
        ),
        nacked(13, mapping.HELLO_VERSION),
    ),
    Vector(
        "1.7, HELLO twice",
        hexed(
            "00 00 00 24 06 00 00 00 00 00 00 00 0e 01 90 00 17 48 45 4c 4c 4f 20 61 6c 72 65 61 64 79 20 70 65 72 66 6f 72"
            "6d 65 64"
        ),
        nacked(14, mapping.HELLO_AGAIN),
    ),
    Vector(
        "1.7, HELLO empty",
        hexed(
            "00 00 00 22 06 00 00 00 00 00 00 00 0b 01 90 00 15 69 6e 76 61 6c 69 64 20 48 45 4c 4c 4f 20 70 61 79 6c 6f 61 64"
        ),
        nacked(11, mapping.HELLO_INVALID),
    ),
    Vector(
        "1.7, AUTH",
        hexed("00 00 00 14 02 00 00 00 00 00 00 00 0a 00 09 62 65 6e 63 68 2d 6b 65 79"),
        Auth(10, "bench-key"),
    ),
    Vector(
        "1.7, AUTH before HELLO",
        hexed(
            "00 00 00 20 06 00 00 00 00 00 00 00 0a 01 90 00 13 48 45 4c 4c 4f 20 6e 6f 74 20 70 65 72 66 6f 72 6d 65 64"
        ),
        nacked(10, mapping.HELLO_MISSING),
    ),
    Vector("1.7, ACK of AUTH", hexed("00 00 00 11 05 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00"), Ack(2, 0)),
    Vector("1.7, AUTH wrong", hexed("00 00 00 0f 02 00 00 00 00 00 00 00 12 00 04 6e 6f 70 65"), Auth(18, "nope")),
    Vector(
        "1.7, NACK of a wrong AUTH",
        hexed("00 00 00 1c 06 00 00 00 00 00 00 00 12 01 91 00 0f 69 6e 76 61 6c 69 64 20 41 50 49 20 6b 65 79"),
        nacked(18, mapping.AUTH_WRONG),
    ),
    Vector(
        "1.7, NACK of a malformed AUTH",
        hexed(
            "00 00 00 21 06 00 00 00 00 00 00 00 10 01 90 00 14 69 6e 76 61 6c 69 64 20 41 55 54 48 20 70 61 79 6c 6f 61 64"
        ),
        nacked(16, mapping.AUTH_INVALID),
    ),
    Vector(
        "1.7, AUTH twice",
        hexed(
            "00 00 00 22 06 00 00 00 00 00 00 00 13 01 90 00 15 61 6c 72 65 61 64 79 20 61 75 74 68 65 6e 74 69 63 61 74 65 64"
        ),
        nacked(19, mapping.AUTH_AGAIN),
    ),
    Vector(
        "1.7, PING before auth",
        hexed("00 00 00 1c 06 00 00 00 00 00 00 00 09 01 91 00 0f 75 6e 61 75 74 68 65 6e 74 69 63 61 74 65 64"),
        nacked(9, mapping.UNAUTHENTICATED),
    ),
    Vector("1.7, PING", hexed("00 00 00 09 07 00 00 00 00 00 00 00 15"), Ping(21)),
    Vector("1.7, PONG", hexed("00 00 00 09 08 00 00 00 00 00 00 00 15"), Pong(21)),
    Vector("1.7, ACK of SUBSCRIBE", hexed("00 00 00 11 05 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02"), Ack(3, 2)),
    Vector(
        "1.7, NACK empty topic",
        hexed("00 00 00 18 06 00 00 00 00 00 00 00 04 01 90 00 0b 65 6d 70 74 79 20 74 6f 70 69 63"),
        nacked(4, mapping.EMPTY_TOPIC),
    ),
    Vector(
        "1.7, NACK invalid qos",
        hexed("00 00 00 1e 06 00 00 00 00 00 00 00 05 01 90 00 11 69 6e 76 61 6c 69 64 20 51 6f 53 20 76 61 6c 75 65"),
        nacked(5, mapping.INVALID_QOS),
    ),
    Vector(
        "1.7, NACK short SUBSCRIBE",
        hexed(
            "00 00 00 26 06 00 00 00 00 00 00 00 06 01 90 00 19 69 6e 76 61 6c 69 64 20 53 55 42 53 43 52 49 42 45 20 70 61 79"
            "6c 6f 61 64"
        ),
        nacked(6, mapping.SUBSCRIBE_INVALID),
    ),
    Vector(
        "1.7, NACK short PUBLISH",
        hexed(
            "00 00 00 24 06 00 00 00 00 00 00 00 1e 01 90 00 17 69 6e 76 61 6c 69 64 20 50 55 42 4c 49 53 48 20 70 61 79 6c 6f"
            "61 64"
        ),
        nacked(30, mapping.PUBLISH_INVALID),
    ),
    Vector("1.7, POLL", hexed("00 00 00 11 09 00 00 00 00 00 00 00 3c 00 00 00 00 00 00 00 02"), Poll(60, 2)),
    Vector(
        "1.7, delivery tag 1",
        hexed("00 00 00 12 03 00 00 00 00 00 00 00 01 01 00 04 64 65 6d 6f 68 69"),
        Publish(1, 1, "demo", b"hi"),
    ),
    Vector(
        "1.7, ACK of a delivery", hexed("00 00 00 11 05 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02"), Ack(1, 2)
    ),
    Vector(
        "1.7, NACK 404",
        hexed(
            "00 00 00 31 06 00 00 00 00 00 00 00 01 01 94 00 24 75 6e 6b 6e 6f 77 6e 20 73 75 62 73 63 72 69 70 74 69 6f 6e 20"
            "6f 72 20 64 65 6c 69 76 65 72 79 20 74 61 67"
        ),
        nacked(1, mapping.UNKNOWN_TAG),
    ),
    Vector(
        "1.7, qos0 delivery",
        hexed("00 00 00 14 03 00 00 00 00 00 00 00 47 00 00 04 64 65 6d 6f 7a 65 72 6f"),
        Publish(0x47, 0, "demo", b"zero"),
    ),
    Vector(
        "1.7, NACK of POLL 0",
        hexed(
            "00 00 00 2d 06 00 00 00 00 00 00 00 2a 01 90 00 20 73 75 62 73 63 72 69 70 74 69 6f 6e 5f 69 64 20 6d 75 73 74 20"
            "62 65 20 6e 6f 6e 2d 7a 65 72 6f"
        ),
        nacked(42, mapping.ZERO_SUBSCRIPTION),
    ),
    Vector(
        "1.7, NACK of a short POLL",
        hexed(
            "00 00 00 21 06 00 00 00 00 00 00 00 2b 01 90 00 14 69 6e 76 61 6c 69 64 20 50 4f 4c 4c 20 70 61 79 6c 6f 61 64"
        ),
        nacked(43, mapping.POLL_INVALID),
    ),
    Vector(
        "1.7, NACK of an empty ACK",
        hexed(
            "00 00 00 20 06 00 00 00 00 00 00 00 33 01 90 00 13 69 6e 76 61 6c 69 64 20 41 43 4b 20 70 61 79 6c 6f 61 64"
        ),
        nacked(51, mapping.ACK_INVALID),
    ),
    Vector(
        "1.7, overload",
        hexed(
            "00 00 00 43 06 00 00 00 00 00 00 bf 1b 01 f4 00 36 64 75 72 61 62 6c 65 20 70 75 62 6c 69 73 68 20 66 61 69 6c 65"
            "64 3a 20 77 61 6c 20 6f 76 65 72 6c 6f 61 64 3a 20 77 61 6c 20 63 68 61 6e 6e 65 6c 20 66 75 6c 6c"
        ),
        Nack(0xBF1B, 500, "durable publish failed: wal overload: wal channel full"),
    ),
]


@attrs.frozen
class Refused:
    """A frame whose payload is refused, with the NACK that says so (all of them from 1.7)."""

    origin: str
    data: bytes
    nack: bytes


def answer_to(name: str) -> bytes:
    """The bytes of a vector by its origin."""
    return next(vector.data for vector in VECTORS if vector.origin == name)


REFUSED = [
    Refused(
        "SUBSCRIBE to nothing",
        hexed("00 00 00 0c 04 00 00 00 00 00 00 00 04 00 00 01"),
        answer_to("1.7, NACK empty topic"),
    ),
    Refused(
        "SUBSCRIBE qos 2",
        hexed("00 00 00 10 04 00 00 00 00 00 00 00 05 00 04 64 65 6d 6f 02"),
        answer_to("1.7, NACK invalid qos"),
    ),
    Refused(
        "SUBSCRIBE too short",
        hexed("00 00 00 0b 04 00 00 00 00 00 00 00 06 00 01"),
        answer_to("1.7, NACK short SUBSCRIBE"),
    ),
    Refused(
        "PUBLISH too short", hexed("00 00 00 0b 03 00 00 00 00 00 00 00 1e 00 00"), answer_to("1.7, NACK short PUBLISH")
    ),
    Refused(
        "POLL of subscription 0",
        hexed("00 00 00 11 09 00 00 00 00 00 00 00 2a 00 00 00 00 00 00 00 00"),
        answer_to("1.7, NACK of POLL 0"),
    ),
    Refused(
        "POLL of 7 bytes",
        hexed("00 00 00 10 09 00 00 00 00 00 00 00 2b 00 00 00 00 00 00 00"),
        answer_to("1.7, NACK of a short POLL"),
    ),
    Refused("ACK of nothing", hexed("00 00 00 09 05 00 00 00 00 00 00 00 33"), answer_to("1.7, NACK of an empty ACK")),
]

HELLO = VECTORS[0].data
HELLO_DONE = answer_to("1.7, ACK of HELLO")
AUTH = hexed("00 00 00 14 02 00 00 00 00 00 00 00 02 00 09 62 65 6e 63 68 2d 6b 65 79")
AUTH_DONE = answer_to("1.7, ACK of AUTH")
PING = answer_to("1.7, PING")
PONG = answer_to("1.7, PONG")
SUBSCRIBE = answer_to("document, SUBSCRIBE")
SUBSCRIBED = answer_to("1.7, ACK of SUBSCRIBE")
PUBLISH = answer_to("document, PUBLISH")
POLL = answer_to("1.7, POLL")
DELIVERY = answer_to("1.7, delivery tag 1")
ACK = answer_to("1.7, ACK of a delivery")
UNKNOWN_TAG = answer_to("1.7, NACK 404")

LENGTHS_THAT_CLOSE = [0, 1, frames.MIN_LENGTH - 1, frames.MAX_LENGTH + 1, 0x47455420]
"""Wire 1.6; the last one is what an HTTP request looks like."""
