"""Who reads much has it in turns with others: counted in bytes for each pass of the event loop."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.broker.consume.fetches import FetchService
from gateway.broker.service import Caller
from gateway.requests import Fetch
from gateway.transport.shared import ANSWER_BYTES
from gateway.transport.tcp import REQUEST_COST, TcpLink
from tests.integration.inside import gateway, publish
from tests.integration.raw import rustlog_ask, rustlog_fetch, s32, tcp

CONFIG = """
version: 1
listeners:
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1, tail_cache: {memory}}}
"""
READERS, FETCHES = 16, 10
MOST_IN_A_PASS = 3
"""Answers, each of which is more than a pass of the lane may have. A turn of a connection puts out one. What is answered beside the
lane makes it busy, and then waits for it; of that there may be one before the lane's turn, if nothing waits in it, and two behind it:
the reader of many goes on until it has answered `ANSWER_BYTES`.
"""


class Passes(trio.abc.Instrument):
    """How much is put out for connections between two times at which the loop looks for what is new."""

    def __init__(self) -> None:
        self.bytes = 0
        self.most = 0

    def before_io_wait(self, timeout: float) -> None:
        self.most = max(self.most, self.bytes)
        self.bytes = 0


@pytest.mark.parametrize("memory", ["64MiB", "1KiB"])
async def test_many_that_ask_for_much_at_once_have_it_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str
):
    """From memory and from the disk: what leaves in one pass of the loop does not grow with how many ask."""
    passes, send = Passes(), TcpLink.send

    def counted(link: TcpLink, channel: int, data: bytes, *others: bool) -> None:
        passes.bytes += len(data)
        send(link, channel, data, *others)

    async def read(stream: trio.SocketStream) -> None:
        expected, at = s32(one), 0
        for _ in range(FETCHES):
            while at < len(expected):
                got = await stream.receive_some(min(1 << 18, len(expected) - at))
                assert got == expected[at : at + len(got)]
                at += len(got)
            at = 0

    async with gateway(CONFIG.format(data=tmp_path, memory=memory)) as house:
        ports = house.ports
        await publish(ports["flymq"], [bytes([65 + number]) * 90_000 for number in range(12)], "much")
        async with tcp(ports["rustlog"]) as first:
            one = await rustlog_ask(first, rustlog_fetch("much", 0))
        assert len(one) > 900_000
        monkeypatch.setattr(TcpLink, "send", counted)
        trio.lowlevel.add_instrument(passes)
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            for _ in range(READERS):
                stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", ports["rustlog"]))
                await stream.send_all(s32(rustlog_fetch("much", 0)) * FETCHES)
                nursery.start_soon(read, stream)
        trio.lowlevel.remove_instrument(passes)
    assert passes.most <= MOST_IN_A_PASS * len(s32(one))


async def test_many_that_ask_for_little_at_once_have_it_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    passes, fetch = Passes(), FetchService.fetch

    def counted(service: FetchService, caller: Caller, request: Fetch) -> None:
        passes.bytes += 1
        fetch(service, caller, request)

    monkeypatch.setattr(FetchService, "fetch", counted)
    connections, each = 12, 50
    async with gateway(CONFIG.format(data=tmp_path, memory="64MiB")) as house:
        async with tcp(house.ports["rustlog"]) as first:
            refused = s32(await rustlog_ask(first, rustlog_fetch("nothing", 0)))
        socks = [socket.create_connection(("127.0.0.1", house.ports["rustlog"])) for _ in range(connections)]
        with ExitStack() as stack:
            for sock in socks:
                stack.enter_context(sock)
            await wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(passes)
            for sock in socks:  # all of it while the event loop stands
                sock.sendall(s32(rustlog_fetch("nothing", 0)) * each)
            for sock in socks:
                answer = b""
                while len(answer) < each * len(refused):
                    with trio.fail_after(60):
                        await trio.lowlevel.wait_readable(sock)
                    answer += sock.recv(1 << 16)
                assert answer == refused * each
            trio.lowlevel.remove_instrument(passes)
    at_once = ANSWER_BYTES // REQUEST_COST
    assert at_once < connections * each / 2
    assert passes.most < at_once + each
