"""What may be the name of a topic."""

from __future__ import annotations

import re

from gateway.errors import InvalidRequest

LONGEST = 512
"""Bytes of a topic's name."""
RESERVED = "__"
"""Names that start so belong to the gateway: hidden, and refused to clients."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
_ODD_SEGMENTS = frozenset(("", ".", ".."))


def complaint(name: str) -> str:
    """Why this cannot be a topic's name; empty if it can (reserved names can)."""
    if not name:
        return "a topic's name must not be empty"
    if len(name) > LONGEST:
        return f"a topic's name has at most {LONGEST} bytes"
    if _FORBIDDEN.search(name):
        return "a topic's name has no control characters and no backslash"
    if len(name.encode()) > LONGEST:
        return f"a topic's name has at most {LONGEST} bytes"
    # every odd segment shows as one of these; most names have no slash and need no split
    if ("/" in name or name in _ODD_SEGMENTS) and not _ODD_SEGMENTS.isdisjoint(name.split("/")):
        return "a topic's name has no segment that is empty, '.' or '..'"
    return ""


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


def check_topic(name: str) -> str:
    """The name, if a client may use it; raises InvalidRequest."""
    problem = complaint(name)
    if problem:
        raise InvalidRequest(f"{problem}: {name[:64]!r}")
    if is_reserved(name):
        raise InvalidRequest(f"names that start with {RESERVED!r} are reserved: {name[:64]!r}")
    return name
