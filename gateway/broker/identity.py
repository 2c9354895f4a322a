"""What tells this gateway from all others: sixteen bytes, made once and kept in its store; and what says by which gateways a
message came: the protocol (`Copies.path`), or a header where a protocol carries headers and has no other place for it.
"""

from __future__ import annotations

import functools
import os
import re
from typing import AnyStr

from msgspec.structs import replace

from gateway.envelope import Headers, Origin
from gateway.store.interface import Put, Store

TABLE = "forwards"
KEY = b"\0store"
"""The row of the store's identity: no forward's name has such a character, so none can take it."""
MOST_HOPS = 8
"""Gateways that a message may come by before it counts as one that goes in circles."""
LOOP = "loop"
"""The reason of the dead letter."""
VIA = "x-gateway-via"
_VIA = re.compile(rb"[0-9a-f]{32}(,[0-9a-f]{32}){0,99}")


def identity_of(store: Store) -> bytes:
    """Empty in a store in which no gateway has been started yet."""
    return store.table(TABLE).get(KEY, b"")


def new_identity(store: Store) -> list[Put]:
    """The row of a new identity; nothing where there is one."""
    return [] if identity_of(store) else [Put(TABLE, KEY, os.urandom(16))]


@functools.lru_cache(maxsize=1024)
def came_by(origin: Origin, path: tuple[bytes, ...]) -> Origin:
    """Who sent it, and by which gateways it came."""
    return replace(origin, via=tuple(one.hex() for one in path))


@functools.lru_cache(maxsize=1024)
def path_on(via: tuple[str, ...], identity: bytes) -> tuple[bytes, ...]:
    return (*(bytes.fromhex(one) for one in via), identity)


def goes_round(path: tuple[AnyStr, ...], identity: AnyStr) -> bool:
    """Whether a message has been here before, or has come by too many to tell."""
    return identity in path or len(path) >= MOST_HOPS


def via_in(headers: Headers) -> tuple[str, ...]:
    """The gateways that a message came by, as its headers say; what a client wrote there says nothing."""
    for name, value in headers:
        if name == VIA and _VIA.fullmatch(value):
            return tuple(value.decode().split(","))
    return ()


def with_via(headers: Headers, path: tuple[bytes, ...]) -> Headers:
    own = tuple([one for one in headers if one[0] != VIA])
    return (*own, (VIA, b",".join([one.hex().encode() for one in path])))
