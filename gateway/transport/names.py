"""What a name means by whatever this machine asks: for those who connect and for those who listen."""

from __future__ import annotations

import socket
from typing import Any

import trio


async def addresses_of(
    host: str | None, port: int, kind: socket.SocketKind, flags: int = 0
) -> list[tuple[int, int, int, str, Any]]:
    """As `getaddrinfo`, for any text: one that is no name at all (an empty part, one of 64 characters) is nobody's, too."""
    try:
        return list(await trio.socket.getaddrinfo(host, port, type=kind, flags=flags))
    except UnicodeError as error:
        raise OSError(f"no name of a host: {host!r}") from error
