"""How passwords and keys are kept and compared.

A module of its own: who reviews how secrets are kept reads this and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from argon2 import PasswordHasher

LONGEST_PASSWORD = 1024
"""Bytes: argon2 would take 4 GiB of them."""

NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$dXULu4Kw+xUwNgXveV+KaA$en60Ad1aao9GrZrsfi0vsY9uiyzPDSmn9hXM0I0t2Y8"
"""What a login for an unknown name is checked against, so that it takes as long as any other: the hash of 32 bytes that
nobody has kept. Not made at every start, which would take as long as a login.
"""


@functools.cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher  # only where there are accounts

    # 19 MiB, two passes, one lane: the OWASP recommendation, about 25 ms, and two hashes at once stay below 40 MiB
    return PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


def check_password(password: str) -> str:
    if not password:
        raise InvalidRequest("a password is required")
    if len(password.encode()) > LONGEST_PASSWORD:
        raise InvalidRequest(f"a password has at most {LONGEST_PASSWORD} bytes")
    return password


def hash_password(password: str) -> str:
    """What is stored of a password. Slow on purpose: not for the event loop."""
    return _hasher().hash(password)


def matches(stored: str, password: str) -> bool:
    """Whether this is the password. Slow on purpose: not for the event loop."""
    if len(password.encode()) > LONGEST_PASSWORD:
        return False
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return _hasher().verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False


def key_name(key: str) -> str:
    """What a holder of this key is called in the log: the same for the same key, and not the key."""
    return "key-" + hashlib.sha256(b"gateway api key\0" + key.encode()).hexdigest()[:8]


def has_key(keys: Iterable[str], offered: str) -> bool:
    """Whether it is one of the keys; takes as long whichever it is."""
    candidate = offered.encode()
    found = False
    for key in keys:
        found |= hmac.compare_digest(key.encode(), candidate)
    return found
