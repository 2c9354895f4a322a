"""`gateway serve --workers`: several processes on the same ports, over one log on Kafka, are one gateway."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.protocols.registry import protocol
from gateway.requests import CommitOffset, DescribeTopics, JoinGroup, Publish, Published, Topics
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from tests.integration.running import children_of, ports
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

    def workers(self) -> Sequence[int]:
        """Their process ids."""
        return children_of(self.process.pid)

    async def ask(self, path: str, method: str = "GET", body: str = "") -> str:
        return await ask(self.ports["admin"], path, method, body)

    async def metric(self, name: str) -> float:
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", await self.ask("/metrics"), re.MULTILINE)
        return sum(map(float, found))


async def ask(admin: int, path: str, method: str = "GET", body: str = "") -> str:
    async with await trio.open_tcp_stream("127.0.0.1", admin) as stream:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{length}\r\n"
        await stream.send_all((head + body).encode())
        return b"".join([chunk async for chunk in stream]).partition(b"\r\n\r\n")[2].decode()


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
async def test_processes_end_with_the_one_that_started_them(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """However it ends: nobody else would stop them, and they would stay on ports that the next start asks for."""
    path = tmp_path / "gateway.yaml"
    more = f', kafka: {{brokers: ["{kafka.brokers}"], prefix: "{topics}", replication: 1}}'
    path.write_text(CONFIG.format(data=tmp_path / "data", more=more))
    async with crew(path, 2) as both:
        os.kill(both.process.pid, signal.SIGKILL)
        with trio.fail_after(PATIENCE):
            for port in (both.ports["flymq"], both.ports["admin"]):
                await gone(port)


async def gone(port: int) -> None:
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            return
        await stream.aclose()
        await trio.sleep(0.05)


@pytest.mark.processes
async def test_the_api_speaks_for_all_processes(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Connections, what flows, the tap and a change of the file: wherever the system put who is connected."""
    path = tmp_path / "gateway.yaml"
    more = f', kafka: {{brokers: ["{kafka.brokers}"], prefix: "{topics}", replication: 1}}'
    path.write_text(CONFIG.format(data=tmp_path / "data", more=more))
    async with crew(path, 2) as both, trio.open_nursery() as nursery:
        flymq, enough = both.ports["flymq"], trio.Event()

        async def stay(task_status: trio.TaskStatus[Connection]) -> None:
            async with connect(protocol("flymq"), "127.0.0.1", flymq, timeout=60) as one:
                task_status.started(one)
                await enough.wait()

        opened = [await nursery.start(stay) for _ in range(16)]
        await publish(opened[0], b"first")
        found = json.loads(await both.ask("/v1/connections?limit=5"))
        ids = [one["id"] for one in found["connections"]]
        while found["following"] is not None:
            found = json.loads(await both.ask(f"/v1/connections?limit=5&after={found['following']}"))
            ids += [one["id"] for one in found["connections"]]
        assert found["total"] == len(ids) == len(set(ids)) == 16
        assert len({one % 64 for one in ids}) == 2  # of both processes: an id says of which
        async with await trio.open_tcp_stream("127.0.0.1", both.ports["admin"]) as tap:
            await tap.send_all(b"GET /v1/tap HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            seen = b""
            with trio.fail_after(PATIENCE):
                while seen.count(b"event: report") < 2:  # until both are looked at
                    seen += await tap.receive_some()
                for number, one in enumerate(opened):
                    await publish(one, b"%d" % number)
                while seen.count(b"event: message") < 16:
                    seen += await tap.receive_some()
        pulse = json.loads(await both.ask("/v1/pulse"))
        assert pulse["connections"]["flymq"] == 16
        accounts = json.loads(await both.ask("/v1/audit"))
        assert sum(door["received"] for door in accounts["doors"]) == 17
        assert [door["unaccounted"] for door in accounts["doors"]] == [0] * len(accounts["doors"])
        for number, one in enumerate(
            opened
        ):  # a group that is read is not put elsewhere, at whichever process it is read
            await one.request(JoinGroup(0, "orders", f"group-{number}"), timeout=PATIENCE)
            await one.request(CommitOffset(0, "orders", f"group-{number}", 0, 1), timeout=PATIENCE)
            asked = json.dumps({"group": f"group-{number}", "topic": "orders", "to": "earliest"})
            refused = json.loads(await both.ask("/v1/groups/reset", "POST", asked))
            assert (refused["type"], f"read orders as group-{number}" in refused["message"]) == ("Conflict", True)
        theirs = next(one for one in ids if one % 64 == 1)
        assert json.loads(await both.ask(f"/v1/connections?id={theirs}", method="DELETE"))["closed"]["id"] == theirs
        with trio.fail_after(PATIENCE):
            while json.loads(await both.ask("/v1/connections"))["total"] != 15:  # noqa: ASYNC110
                await trio.sleep(0.05)
            before = await both.metric("gateway_config_reloads_total")
            digest = json.loads(await both.ask("/v1/routes"))["digest"]
            text = path.read_text() + "routes: [{name: all, match: {}, to: [{store: {topic: '{topic}'}}]}]\n"
            changed = json.dumps({"text": text, "seen": digest})
            checked = json.loads(await both.ask("/v1/configuration/check", "POST", json.dumps({"text": text})))
            assert checked["plan"][0] == "route all: added"
            assert json.loads(await both.ask("/v1/configuration/apply", "POST", changed))["outcome"] == "applied"
            while await both.metric("gateway_config_reloads_total") != before + 2:  # noqa: ASYNC110  # both have read it
                await trio.sleep(0.05)
        enough.set()


@pytest.mark.processes
async def test_a_log_in_a_file_has_one_process(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(data=tmp_path / "data", more=""))
    line = [sys.executable, "-m", "gateway", "serve", "--config", str(path), "--workers", "2"]
    done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 2
    assert b"is a file that one process writes; with `storage.kafka` any number of them can" in done.stderr
