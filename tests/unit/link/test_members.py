"""Who shows which certificate, to gateways that know those of many: real TLS over real sockets."""

from __future__ import annotations

import itertools
import socket
import ssl
from pathlib import Path

import pytest
import trio

from gateway.link.members import LinkIdentity
from gateway.link.stream import secured

PATIENCE = 60
REFUSED = b"refused"


async def met(one: LinkIdentity, other: LinkIdentity) -> tuple[bytes | None, bytes | None]:
    """Whom each of the two has seen at the other end of a connection from the one to the other."""
    streams = [trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in socket.socketpair()]
    seen: list[bytes | None] = [REFUSED, REFUSED]

    async def side(role: int, context: ssl.SSLContext) -> None:
        try:
            tls, certificate = await secured(streams[role], context, server_side=role == 1)
            # with TLS 1.3 who asks has shaken hands before he knows whether he may
            await tls.send_all(b"!")
            if await tls.receive_some(1) == b"!":
                seen[role] = certificate
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(streams[role])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(side, 0, one.asking)
        nursery.start_soon(side, 1, other.answering)
    return seen[0], seen[1]


@pytest.mark.parametrize("order", [1, -1], ids=["as they came", "the other way round"])
async def test_each_of_many_is_known_to_each(tmp_path: Path, order: int) -> None:
    gateways = [LinkIdentity(tmp_path) for _ in range(4)]
    for one in gateways:
        for other in gateways[::order]:
            if other is not one:
                one.know(other.certificate)
    with trio.fail_after(PATIENCE):
        for one, other in itertools.permutations(gateways, 2):
            assert await met(one, other) == (other.certificate, one.certificate)


async def test_whom_nobody_knows_nobody_takes(tmp_path: Path) -> None:
    """Though he knows all others, and his certificate says of him what theirs say of them."""
    members, stranger = [LinkIdentity(tmp_path) for _ in range(2)], LinkIdentity(tmp_path)
    for one, other in itertools.permutations([*members, stranger], 2):
        if other is not stranger:
            one.know(other.certificate)
    with trio.fail_after(PATIENCE):
        assert await met(stranger, members[0]) == (REFUSED, REFUSED)
        assert await met(members[0], stranger) == (REFUSED, REFUSED)
