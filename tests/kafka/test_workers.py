"""`gateway serve --workers`: several processes on the same ports, over one log on Kafka, are one gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.protocols.registry import protocol
from gateway.requests import DescribeTopics, Publish, Published, Topics
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from tests.integration.running import ports
from tests.kafka.node import PATIENCE, Kafka

CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}"{more}}}
"""


class Crew:
    def __init__(self, process: trio.Process, listening: Mapping[str, int]) -> None:
        self.process = process
        self.ports = listening

    def workers(self) -> list[int]:
        """Their process ids."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return sorted(int(one) for task in tasks for one in task.read_text().split())

    async def ask(self, path: str) -> str:
        stream = await trio.open_tcp_stream("127.0.0.1", self.ports["admin"])
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return b"".join([chunk async for chunk in stream]).partition(b"\r\n\r\n")[2].decode()

    async def metric(self, name: str) -> float:
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", await self.ask("/metrics"), re.MULTILINE)
        return sum(map(float, found))


@asynccontextmanager
async def crew(config: Path, workers: int) -> AsyncIterator[Crew]:
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--workers", str(workers)]
    process = await trio.lowlevel.open_process(command, stdin=None, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = b""
        with trio.fail_after(PATIENCE):
            while b"\nready\n" not in said:
                chunk = await process.stdout.receive_some()
                assert chunk, said.decode()
                said += chunk
        yield Crew(process, ports(said.decode().splitlines()))
    finally:
        process.kill()
        await process.wait()


async def publish(connection: Connection, value: bytes) -> None:
    reply = await connection.request(Publish(0, Batch("orders", Columns.of([value]))), timeout=PATIENCE)
    assert isinstance(reply, Published)


async def stored(port: int) -> int:
    async with connect(protocol("flymq"), "127.0.0.1", port, timeout=PATIENCE) as connection:
        reply = await connection.request(DescribeTopics(0, "orders"), timeout=PATIENCE)
    assert isinstance(reply, Topics)
    return sum(part.end - part.start for one in reply.topics for part in one.partitions)


@pytest.mark.processes
async def test_two_processes_are_one_gateway_and_one_that_dies_is_replaced(kafka: Kafka, topics: str, tmp_path: Path):
    path = tmp_path / "gateway.yaml"
    more = f', kafka: {{brokers: ["{kafka.brokers}"], prefix: "{topics}", replication: 1}}'
    path.write_text(CONFIG.format(data=tmp_path / "data", more=more))
    trust = ClientTls(ca=str(tmp_path / "data" / "self-signed.crt"))
    async with crew(path, 2) as both:
        flymq, felix = both.ports["flymq"], both.ports["felix"]
        for number in range(12):  # each by a connection of its own: the system spreads them
            tls, kind, port = (trust, "felix", felix) if number % 3 == 0 else (None, "flymq", flymq)
            async with connect(protocol(kind), "localhost" if tls else "127.0.0.1", port, tls=tls, timeout=60) as one:
                await publish(one, b"%d" % number)
        assert await both.metric("gateway_connections_opened_total") == 12
        assert await both.metric("gateway_route_stored_messages_total") == 12
        assert json.loads(await both.ask("/readyz"))["ready"]
        before = both.workers()
        assert len(before) == 2
        os.kill(before[1], signal.SIGKILL)
        with trio.fail_after(PATIENCE):
            while len(after := both.workers()) < 2 or before[1] in after:  # noqa: ASYNC110
                await trio.sleep(0.05)
            while not json.loads(await both.ask("/readyz"))["ready"]:  # noqa: ASYNC110
                await trio.sleep(0.05)
            written = 0
            while written < 10:
                try:
                    async with connect(protocol("flymq"), "127.0.0.1", flymq, timeout=60) as one:
                        await publish(one, b"again")
                        written += 1
                except GatewayError:
                    await trio.sleep(0.05)
        assert await stored(flymq) >= 22
        both.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await both.process.wait() == 0


@pytest.mark.processes
async def test_a_log_in_a_file_has_one_process(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(data=tmp_path / "data", more=""))
    line = [sys.executable, "-m", "gateway", "serve", "--config", str(path), "--workers", "2"]
    done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 2
    assert b"is a file that one process writes; with `storage.kafka` any number of them can" in done.stderr
