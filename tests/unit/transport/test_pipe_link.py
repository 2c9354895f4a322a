"""What a pipe says of itself while much is on its way to a peer that does not read."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Ping, Pong, Request

from gateway.transport.tcp import TcpLink
from gateway.transport.websocket import WebSocketPipe, WebSocketRules
from tests.unit.transport.test_tcp_link import Silent


@pytest.mark.parametrize("pings", [1, 100])
async def test_a_pong_is_not_put_into_a_message_that_is_half_sent(pings: int):
    """A library that pings while its program is slow to read is not cut, and finds the message and the pongs whole."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _address = listening.accept()
    theirs.setblocking(False)
    client = WSConnection(ConnectionType.CLIENT)
    value = bytes(range(256)) * (16 << 10)

    async def read(until: type) -> list[object]:
        found: list[object] = []
        while not any(isinstance(event, until) for event in found):
            await trio.lowlevel.wait_readable(theirs)
            data = theirs.recv(1 << 20)
            assert data, "the gateway has cut the connection"
            client.receive_data(data)
            found += client.events()
        return found

    with theirs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            pipe = WebSocketPipe(WebSocketRules("/fujin"))
            link = TcpLink(ours, "peer", nursery, trio.current_time, pipe)
            nursery.start_soon(link.run, Silent())
            theirs.send(client.send(Request(host="gateway", target="/fujin")))
            await read(AcceptConnection)
            link.send(0, value)
            link.flush()
            await wait_all_tasks_blocked()
            assert link.waiting()[0], "all of it has left"
            for number in range(pings):
                theirs.send(client.send(Ping(payload=b"%d" % number)))
            await wait_all_tasks_blocked()
            got, pongs = b"", 0
            while len(got) < len(value) or pongs < pings:
                for event in await read(object):
                    if isinstance(event, Pong):
                        assert event.payload == b"%d" % pongs
                        pongs += 1
                    else:
                        assert isinstance(event, BytesMessage)
                        got += event.data
            assert got == value
            link.abort()
