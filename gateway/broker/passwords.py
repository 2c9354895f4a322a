"""How passwords and keys are kept and compared."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from gateway.errors import InvalidRequest

LONGEST_PASSWORD = 1024
"""Bytes: argon2 would take 4 GiB of them."""

# 19 MiB, two passes, one lane: the OWASP recommendation, about 25 ms, and two hashes at once stay below 40 MiB
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
NOBODY = _HASHER.hash("no account has this password")
"""What a login for an unknown name is checked against, so that it takes as long as any other."""


def check_password(password: str) -> str:
    """The password, if it may be one."""
    if not password:
        raise InvalidRequest("a password is required")
    if len(password.encode()) > LONGEST_PASSWORD:
        raise InvalidRequest(f"a password has at most {LONGEST_PASSWORD} bytes")
    return password


def hash_password(password: str) -> str:
    """What is stored of a password. Slow on purpose: not for the event loop."""
    return _HASHER.hash(password)


def matches(stored: str, password: str) -> bool:
    """Whether this is the password. Slow on purpose: not for the event loop."""
    if len(password.encode()) > LONGEST_PASSWORD:
        return False
    try:
        return _HASHER.verify(stored, password)
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
