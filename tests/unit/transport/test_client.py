"""A dialled connection: what goes wrong inside it stays there."""

from __future__ import annotations

import socket

import attrs
import pytest
import trio

from gateway.requests import Completion, WhoAmI
from gateway.transport.client import dial
from gateway.wire.session import ClientContext, Output, Send
from tests.unit.transport.test_tcp import spec


class Mistaken:
    """A client session with a mistake in one of its methods."""

    admitted = True
    in_flight = 0
    mistake = "receive"

    def __init__(self, _context: ClientContext) -> None:
        self._outputs: list[Output] = [Send(0, b"hello")]

    def _do(self, what: str) -> list[Completion]:
        if what == self.mistake:
            raise KeyError(what)
        return []

    def opened(self, channel, kind, now):
        return self._do("opened")

    def submit(self, request, now):
        return self._do("submit")

    def receive(self, channel, data, now):
        return self._do("receive")

    def lost(self):
        return self._do("lost")

    def close(self, now):
        return self._do("close")

    def timeout_at(self):
        return None

    def outputs(self):
        outputs, self._outputs = self._outputs, []
        return outputs


@pytest.mark.parametrize("mistake", ["opened", "submit", "receive", "lost", "close"])
async def test_a_mistake_in_a_client_session_ends_its_connection_and_nothing_else(
    mistake: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Mistaken, "mistake", mistake)
    made = attrs.evolve(spec(), client=Mistaken)
    with socket.create_server(("127.0.0.1", 0)) as listening, trio.fail_after(5):
        port = listening.getsockname()[1]
        async with dial(made, [("127.0.0.1", port)], lambda _done: None, context=ClientContext()) as driver:
            peer, _address = await trio.to_thread.run_sync(listening.accept)
            with peer:
                driver.submit([WhoAmI(1)])
                peer.sendall(b"an answer")
                if mistake == "lost":
                    await trio.to_thread.run_sync(peer.recv, 100)
                    peer.close()
                if mistake != "close":
                    await driver.ended.wait()
        await driver.ended.wait()
    assert driver.closed
