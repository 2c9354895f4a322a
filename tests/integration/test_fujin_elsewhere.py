"""Our Fujin client against servers that are nothing but the bytes of wire 6.2, on real sockets: what `auto` finds out over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import TargetRefused
from gateway.protocols.registry import protocol
from gateway.requests import Publish, Published
from gateway.settings import Dialect, Transport
from gateway.transport.client import connect
from gateway.wire.session import ClientContext
from tests.protocols.script import hexed

HELLO = hexed("00 01 01 01 00000007 67617465776179 00000001 31")
GREETED = hexed("13 00 01 01 00000003 646576")
BIND = hexed("01 00000007 67617465776179 0000 0000")
ROUTES = hexed("10 00 00000001 00000003 707562 07 03 00 00")
PRODUCE = hexed("03 00000001 00000003 707562 0002 00000001 6b 00000001 76 00000005 68656c6c6f")
PRODUCED = hexed("04 00000001 00")
UNKNOWN = hexed("13 0c 01 0000001c 50524f544f434f4c5f56455253494f4e5f554e535550504f52544544 00000002 6e6f 0000")
BYE, LEFT = b"\x0e", b"\x0f"
Dialogue = list[tuple[bytes, bytes]]

SERVERS: dict[str, Dialogue] = {
    "0.5": [(HELLO, GREETED), (BIND, ROUTES), (PRODUCE, PRODUCED), (BYE, LEFT)],
    "v1": [(BIND, ROUTES), (PRODUCE, PRODUCED), (BYE, LEFT)],
}


@asynccontextmanager
async def serving(dialogue: Dialogue) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers what it expects, and ends without a word where it hears something else; the first bytes it was told."""
    first: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            heard = b""
            for expected, answer in dialogue:
                while len(heard) < len(expected):
                    more = await stream.receive_some()
                    if not more:
                        return
                    if not heard and expected is dialogue[0][0]:
                        first.append(more[:1])
                    heard += more
                    if not expected.startswith(heard[: len(expected)]):
                        return
                heard = heard[len(expected) :]
                await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1], first
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("server", "dialect", "tried"),
    [
        ("0.5", Dialect.AUTO, [b"\0"]),
        ("0.5", Dialect.SESSION, [b"\0"]),
        ("v1", Dialect.AUTO, [b"\0", b"\1"]),
        ("v1", Dialect.V1, [b"\1"]),
    ],
)
async def test_what_is_spoken_is_told_or_found_out(server: str, dialect: Dialect, tried: list[bytes]) -> None:
    with trio.fail_after(60):
        async with serving(SERVERS[server]) as (port, first):
            context = ClientContext(dialect=dialect, transport=Transport.TCP)
            async with connect(protocol("fujin"), "127.0.0.1", port, context=context, timeout=30) as connection:
                columns = Columns.of([b"hello"], None, [(("k", b"v"),)])
                reply = await connection.request(Publish(0, Batch("pub", columns)), timeout=30)
                assert isinstance(reply, Published)
                assert not reply.refused
            assert first == tried


async def test_a_server_that_answers_hello_with_no_is_not_asked_again() -> None:
    with trio.fail_after(60):
        async with serving([(HELLO, UNKNOWN)]) as (port, first):
            context = ClientContext(transport=Transport.TCP)
            async with connect(protocol("fujin"), "127.0.0.1", port, context=context, timeout=30) as connection:
                with pytest.raises(TargetRefused, match="PROTOCOL_VERSION_UNSUPPORTED"):
                    await connection.request(Publish(0, Batch("pub", Columns.of([b"x"]))), timeout=30)
            assert first == [b"\0"]
