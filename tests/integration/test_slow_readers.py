"""Whoever reads slowly, or not at all, keeps nobody from publishing and nobody from reading."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import httpx
import trio

from tests.integration.raw import TcpWire, rustlog_ask, s16, s32, tcp
from tests.integration.running import serving

CONFIG = """
version: 1
listeners: {{rustlog: {{protocol: rustlog, bind: "127.0.0.1:0", limits: {{write_timeout: 1h}}}}}}
admin: {{bind: "127.0.0.1:0"}}
memory: {{budget: {budget}}}
storage: {{path: "{path}", durability: memory}}
"""
BUDGET = 4 << 20
RECORDS, RECORD, READERS = 8, 1_000_000, 12


def fetch(offset: int) -> bytes:
    """A Fetch of all there is, in one answer if it may be."""
    return b"\2\0\0" + s16("t") + struct.pack(">IQI", 0, offset, RECORDS * (RECORD + 4))


def produce(value: bytes) -> bytes:
    return b"\1" + s16("t") + struct.pack(">II", 0, 1) + s32(value)


async def slow_reader(port: int) -> trio.SocketStream:
    """One for whom the system takes no more than it must."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


async def used(admin: httpx.AsyncClient) -> float:
    text = (await admin.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("gateway_budget_used_bytes "))
    return float(line.split()[1])


async def test_answers_that_nobody_takes_keep_nobody_from_publishing_and_reading(tmp_path: Path) -> None:
    with trio.fail_after(180):
        async with (
            serving(tmp_path, CONFIG.format(path=tmp_path / "data", budget=BUDGET)) as ports,
            tcp(ports["rustlog"]) as wire,
            httpx.AsyncClient(timeout=60, trust_env=False, base_url=f"http://127.0.0.1:{ports['admin']}") as admin,
        ):
            await rustlog_ask(wire, b"\5" + s16("t") + struct.pack(">I", 1))
            for _ in range(RECORDS):
                assert (await rustlog_ask(wire, produce(bytes(RECORD))))[0] == 1
            readers = [await slow_reader(ports["rustlog"]) for _ in range(READERS)]
            for reader in readers:
                await reader.send_all(s32(fetch(0)))
            while await used(admin) < BUDGET:
                await trio.lowlevel.checkpoint()
            for _ in range(20):
                assert (await rustlog_ask(wire, produce(b"quiet")))[0] == 1
            short = await rustlog_ask(wire, fetch(0))
            assert short[1:5] == struct.pack(">I", 1), "little, but something"
            assert await used(admin) >= BUDGET, "nobody has read meanwhile"
            async with trio.open_nursery() as nursery:
                for reader in readers:
                    nursery.start_soon(read_all, reader)
            while await used(admin):
                await trio.lowlevel.checkpoint()


async def read_all(reader: trio.SocketStream) -> None:
    """The answer that waits, and what comes behind it: all there is."""
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    wire, offset = TcpWire(reader), 0
    async with reader:
        while True:
            answer = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
            (count,), (following,) = struct.unpack_from(">I", answer, 1), struct.unpack(">Q", answer[-8:])
            assert 0 < count == following - offset
            offset = following
            if offset >= RECORDS:
                return
            await wire.send(s32(fetch(offset)))


async def test_who_takes_nothing_of_what_it_asked_for_keeps_nobody_from_reading_for_long(tmp_path: Path) -> None:
    """As much as readers may hold, which is twice the budget, by those who take nothing at all."""
    with trio.fail_after(180):
        async with (
            serving(tmp_path, CONFIG.format(path=tmp_path / "data", budget=BUDGET)) as ports,
            tcp(ports["rustlog"]) as wire,
            httpx.AsyncClient(timeout=60, trust_env=False, base_url=f"http://127.0.0.1:{ports['admin']}") as admin,
        ):
            await rustlog_ask(wire, b"\5" + s16("t") + struct.pack(">I", 1))
            for _ in range(RECORDS):
                assert (await rustlog_ask(wire, produce(bytes(RECORD))))[0] == 1
            async with trio.open_nursery() as nursery:
                hostile = [await slow_reader(ports["rustlog"]) for _ in range(READERS)]
                for one in hostile:
                    nursery.start_soon(one.send_all, s32(fetch(0)) * 16)
                while await used(admin) < 2 * BUDGET:
                    await trio.lowlevel.checkpoint()
                for offset in range(RECORDS):
                    answer = await rustlog_ask(wire, fetch(offset))
                    assert answer[1:5] != bytes(4)
                assert 'gateway_refused_connections_total{listener="rustlog",reason="unread"}' in (
                    (await admin.get("/metrics")).text
                )
                for one in hostile:
                    await trio.aclose_forcefully(one)
