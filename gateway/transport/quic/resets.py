"""Stateless resets (RFC 9000, 10.3): telling a peer that its connection is not known here any more.

A gateway that was killed and started again has forgotten its connections. Its peers would go on sending into nothing until
their idle time is over; a reset tells them at once. Its last 16 bytes are a token that the peer was given when the
connection was made: a keyed hash of the connection id, so that whoever has the key can make it again.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

TOKEN_SIZE = 16
SMALLEST = 21
"""Bytes of a datagram that may be a reset (RFC 9000, 10.3)."""
LARGEST = 43
"""Bytes of ours: enough to look like any packet."""


class ResetTokens:
    """The tokens of one listener. Made from its certificate's key, which a new process has again, and from its port: what
    another listener with the same certificate says about an id that it does not know must not end a connection here
    (RFC 9000, 21.11).
    """

    def __init__(self, key: PrivateKeyTypes, port: int) -> None:
        private = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        self._secret = hashlib.sha256(b"stateless reset %d " % port + private).digest()

    def token(self, cid: bytes) -> bytes:
        return hmac.digest(self._secret, cid, "sha256")[:TOKEN_SIZE]

    def answer(self, size: int, cid: bytes) -> bytes | None:
        """The reset for a datagram of that size that nobody here knows. It is smaller than that, so that two sides that
        know nothing of each other come to an end, and nothing is amplified.
        """
        length = min(size - 1, LARGEST)
        if length < SMALLEST:
            return None
        noise = os.urandom(length - TOKEN_SIZE)
        return bytes([0x40 | noise[0] & 0x3F]) + noise[1:] + self.token(cid)
