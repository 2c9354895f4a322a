"""Why somebody cannot be connected to is said in the system's words, and what is no name of a host is an error like others."""

from __future__ import annotations

import re
import socket

import pytest

from gateway.errors import TargetError
from gateway.protocols.registry import protocol
from gateway.requests import DescribeTopics
from gateway.transport.client import connect, open_tcp
from gateway.transport.listen import open_tcp_sockets
from gateway.transport.quic.server import open_udp_sockets
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext

NO_NAMES = ["a..b", "x" * 64, "\u2603.."]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_who_refuses_is_said_to(host: str) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(TargetError, match=f"^{re.escape(f'cannot connect to {host}:{port}: Connection refused')}$"):
            await open_tcp(host, port, 10)


@pytest.mark.parametrize("name", ["flymq", "felix"])
@pytest.mark.parametrize("host", NO_NAMES, ids=["empty", "long", "not ascii"])
async def test_what_is_no_name_of_a_host_cannot_be_connected_to(host: str, name: str) -> None:
    with pytest.raises(TargetError, match="no name of a host"):
        async with connect(protocol(name), host, 1, tls=ClientTls(), timeout=10, context=ClientContext()) as connection:
            await connection.request(DescribeTopics(0), 10)


@pytest.mark.parametrize("host", NO_NAMES, ids=["empty", "long", "not ascii"])
async def test_what_is_no_name_of_a_host_cannot_be_listened_on(host: str) -> None:
    for listening in (open_tcp_sockets, open_udp_sockets):
        with pytest.raises(OSError, match="no name of a host"):
            await listening(host, 0)
