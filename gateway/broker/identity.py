"""What tells this gateway from all others: sixteen bytes, made once and kept in its store."""

from __future__ import annotations

import functools
import os

from msgspec.structs import replace

from gateway.envelope import Origin
from gateway.store.interface import Put, Store

TABLE = "forwards"
KEY = b"\0store"
"""The row of the store's identity: no forward's name has such a character, so none can take it."""
MOST_HOPS = 8
"""Gateways that a message may come by before it counts as one that goes in circles."""


def identity_of(store: Store) -> bytes:
    """Empty in a store in which no gateway has been started yet."""
    return store.table(TABLE).get(KEY, b"")


def new_identity(store: Store) -> list[Put]:
    """What makes it, where there is none."""
    return [] if identity_of(store) else [Put(TABLE, KEY, os.urandom(16))]


@functools.lru_cache(maxsize=1024)
def came_by(origin: Origin, path: tuple[bytes, ...]) -> Origin:
    """Who sent it, and by which gateways it came."""
    return replace(origin, via=tuple(one.hex() for one in path))


@functools.lru_cache(maxsize=1024)
def path_on(via: tuple[str, ...], identity: bytes) -> tuple[bytes, ...]:
    """What is said to the next gateway."""
    return (*(bytes.fromhex(one) for one in via), identity)


def goes_round(path: tuple[bytes, ...], identity: bytes) -> bool:
    """Whether a message has been here before, or has come by too many to tell."""
    return identity in path or len(path) >= MOST_HOPS
