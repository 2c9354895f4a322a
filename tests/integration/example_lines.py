"""A gateway, a directory in which there is what the examples of `--help` speak of, and the examples."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs
import click
import pytest
import trio

from gateway.broker.letters import Facts
from gateway.cli.main import cli
from gateway.envelope import Columns
from gateway.pipeline.endpoint import Endpoint, EndpointWriter
from gateway.protocols.registry import protocol
from gateway.requests import CommitOffset, RegisterSchema, Subscribe
from gateway.transport.client import connect
from gateway.transport.tls import ClientTls
from tests.integration.running import Served
from tests.pipeline.s3 import object_store

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: ["{key}"]}}}}
  flymq:   {{protocol: flymq, bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
  fujin:
    protocol: fujin
    bind: "127.0.0.1:0"
    tls: self-signed
    readers: {{billing: {{topic: orders}}}}
storage: {{path: "{data}"}}
admin: {{bind: "127.0.0.1:0"}}
"""
AVRO = '{"type": "record", "name": "order", "fields": [{"name": "amount", "type": "long"}]}'
TEN = b"\x14"  # {"amount": 10} as Avro writes it
PORTS = {"blipmq": 5555, "flymq": 9092, "rustlog": 9192, "felix": 5000, "admin": 9600}
"""Where the examples say that a gateway is."""


def examples(group: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """(command, line) of every example below a command."""
    for line in (group.epilog or "").splitlines():
        if re.match(r"  ?\S*.*\bgateway |  sqlite3 ", line):
            yield name, line.strip()
    if isinstance(group, click.Group):
        context = click.Context(group, info_name=name)
        for one in group.list_commands(context):
            command = group.get_command(context, one)
            assert command is not None
            yield from examples(command, f"{name} {one}")


EXAMPLES = {line: name for name, line in examples(cli, "gateway") if "COMMAND --help" not in line}


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Nothing of it is left behind, whatever becomes of the test."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


FEWER = {
    "--messages 1000000": "--messages 2000",
    "--rate 500 --messages 2000": "--rate 500 --messages 200",
    "--window 1": "--window 1 --messages 2500",
    "--workload one": "--workload one --messages 200",
}


@attrs.frozen
class World:
    """A gateway that runs, and a directory in which there is what the examples speak of."""

    served: Served
    directory: Path
    environment: Mapping[str, str] = attrs.Factory(dict)
    """What a line finds, beside where the gateway is."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.of(f"http://127.0.0.1:{self.served.ports['admin']}")

    def publish(self, topic: str, *values: bytes, times: int = 1, facts: Facts | None = None) -> None:
        columns = Columns.of(values * times, headers=[facts.headers()] * len(values) * times if facts else None)
        with EndpointWriter(self.endpoint) as out:
            out.append(topic, columns, producer=os.urandom(8).hex(), epoch=0, sequence=0)

    def die(self) -> None:
        """Eighteen dead letters, and what they died of."""
        for reason in ("max_deliveries", "size"):
            self.publish("orders.eu.dlq", TEN, times=9, facts=Facts(reason=reason, topic="orders.eu", attempts=16))

    def run(self, line: str) -> subprocess.Popen[bytes]:
        """Start one in a shell of its own, as somebody would type it."""
        for name, port in PORTS.items():
            line = line.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.served.ports[name]}")
        # another gateway of the same kind, and one behind a certificate: the one there is
        admin = f"http://127.0.0.1:{self.served.ports['admin']}"
        line = line.replace("http://127.0.0.1:9601", admin).replace("https://gateway:9600 --ca ca.pem", admin)
        # as many messages would only take time; a subscriber ends with its first
        for said, done in FEWER.items():
            line = line.replace(said, done)
        line = re.sub(r"^(gateway sub \S+)(?!.*--count)", r"\1 --count 1", line)
        environment = {
            **os.environ,
            "GATEWAY_ADMIN": admin,
            "PATH": f"{self.directory}/bin:{os.environ['PATH']}",
            **self.environment,
        }
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self, line: str) -> bytes:
        """Run one to its end, which has to be good; what it said. There is no JSON here: who leaves out what is none ends with 1."""
        with ended(self.run(line)) as process:
            said, _ = process.communicate(b"y\n")
        wanted = 1 if "--skip-undecodable" in line else 0
        assert process.returncode == wanted, f"{line}: {process.returncode}\n{said.decode()}"
        return said


async def prepare(ports: dict[str, int]) -> None:
    async with connect(protocol("flymq"), "127.0.0.1", ports["flymq"]) as flymq:
        await flymq.request(RegisterSchema(0, "order", "avro", AVRO.encode()))


async def read_some(ports: dict[str, int]) -> None:
    """A group that has read most of the orders, and a reader that has read none."""
    async with connect(protocol("flymq"), "127.0.0.1", ports["flymq"]) as flymq:
        await flymq.request(CommitOffset(0, "orders.eu", "billing", partition=0, offset=1_250))
    async with connect(
        protocol("fujin"), "localhost", ports["fujin"], tls=ClientTls(insecure=True), timeout=60
    ) as fujin:
        await fujin.request(Subscribe(0, "billing"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("examples")
    home = directory / "home"
    (home / "bin").mkdir(parents=True)
    gateway = home / "bin" / "gateway"
    gateway.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
    gateway.chmod(0o755)
    (home / "order.json").write_text('{"amount": 10}')
    served = Served(directory, CONFIG.format(data=directory / "data", key="dev-key"))
    served.start()
    world = World(served, home)
    try:
        trio.run(prepare, dict(served.ports))
        world.publish("orders", TEN, times=12)
        world.publish("orders.eu", TEN, times=1_300)
        trio.run(read_some, dict(served.ports))
        world.die()
        assert served.end(signal.SIGTERM) == 0
        shutil.copytree(directory / "data", home / "data")  # of a gateway that does not run at the moment
        for name in ("routes.yaml", "gateway.yaml"):
            key = "${BLIPMQ_KEY}" if name == "gateway.yaml" else "dev-key"
            (home / name).write_text(CONFIG.format(data=home / "fresh", key=key))
        served.start()
        with object_store():  # for those that speak of s3a://
            yield world
    finally:
        if served.running:
            served.end(signal.SIGTERM)


def goes_on(process: subprocess.Popen[bytes], works: bytes, number: int) -> None:
    """It works when it has said a line that ends so, and ends by a signal."""
    assert process.stdout is not None
    said = b""
    while not said.endswith(works):
        line = process.stdout.readline()
        assert line, said.decode()
        said += line
    os.killpg(process.pid, number)
    rest, _ = process.communicate()
    assert process.returncode in (0, 130, -signal.SIGINT), (said + rest).decode()
