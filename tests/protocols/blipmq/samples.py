"""Legal client bytes for the conformance suite (BlipMQ document, hex samples; wire 1.7)."""

from tests.conformance.sample import Sample
from tests.protocols.script import hexed

HELLO = hexed("00 00 00 0b 01 00 00 00 00 00 00 00 01 00 01")
AUTH = hexed("00 00 00 12 02 00 00 00 00 00 00 00 02 00 07 64 65 76 2d 6b 65 79")
SUBSCRIBE = hexed("00 00 00 10 04 00 00 00 00 00 00 00 03 00 04 64 65 6d 6f 01")
PUBLISH = hexed("00 00 00 12 03 00 00 00 00 00 00 00 04 01 00 04 64 65 6d 6f 68 69")
POLL = hexed("00 00 00 11 09 00 00 00 00 00 00 00 3c 00 00 00 00 00 00 00 02")
ACK = hexed("00 00 00 11 05 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02")
PING = hexed("00 00 00 09 07 00 00 00 00 00 00 00 15")

SAMPLES = [
    Sample("handshake", ((0, HELLO), (0, AUTH), (0, PING))),
    Sample("publisher", ((0, HELLO + AUTH), (0, PUBLISH * 3 + PING))),
    Sample("subscriber", ((0, HELLO + AUTH), (0, SUBSCRIBE), (0, POLL), (0, ACK + PING))),
    Sample("pipelined", ((0, HELLO + AUTH + SUBSCRIBE + PUBLISH + PUBLISH + POLL + PING),)),
]
