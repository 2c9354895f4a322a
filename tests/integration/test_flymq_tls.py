"""TLS on FlyMQ listeners of the real process: encryption, and certificates of clients that are really asked for."""

from __future__ import annotations

import signal
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme

from tests.integration.flymq_raw import Flymq, fetch, flymq, frame, produce
from tests.integration.raw import TcpWire
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  own:      {{protocol: flymq, bind: "127.0.0.1:0", tls: self-signed}}
  required: {{protocol: flymq, bind: "127.0.0.1:0", tls: {{cert: "{d}/server.pem", key: "{d}/server.key", client_ca: "{d}/ca.pem"}}}}
  optional: {{protocol: [flymq, rustlog], bind: "127.0.0.1:0",
              tls: {{cert: "{d}/server.pem", key: "{d}/server.key", client_ca: "{d}/ca.pem", client_cert: optional}}}}
  clear:    {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{d}/data"}}
"""
AUTHORITY, STRANGER = trustme.CA(), trustme.CA()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process with its certificate from a CA that also signs the clients'."""
    directory = tmp_path_factory.mktemp("tls")
    AUTHORITY.cert_pem.write_to_path(directory / "ca.pem")
    server = AUTHORITY.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(directory / "server.pem")
    server.private_key_pem.write_to_path(directory / "server.key")
    served = Served(directory, CONFIG.format(d=directory))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


def context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, signer: trustme.CA | None = None) -> ssl.SSLContext:
    """A client's: it trusts the CA, and shows a certificate if somebody signed one."""
    made = ssl.create_default_context()
    made.minimum_version = made.maximum_version = version
    AUTHORITY.configure_trust(made)
    if signer is not None:
        signer.issue_cert("a-client@example.org").configure_cert(made)
    return made


@asynccontextmanager
async def over_tls(port: int, made: ssl.SSLContext) -> AsyncIterator[Flymq]:
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", port, ssl_context=made)
    async with stream:
        yield Flymq(TcpWire(stream))  # type: ignore[arg-type]  # it sends and receives like a socket's stream


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("signer", [None, STRANGER], ids=["without", "of-a-stranger"])
async def test_no_way_in_without_the_right_certificate(
    gateway: Served, version: ssl.TLSVersion, signer: trustme.CA | None
):
    topic = f"refused.{version.name}.{signer is None}"
    with trio.fail_after(20):
        with pytest.raises((ssl.SSLError, trio.BrokenResourceError)):
            async with over_tls(gateway.ports["required"], context(version, signer)) as client:
                await client.ask(1, produce(topic, b"x"))
        async with flymq(gateway.ports["clear"]) as client:
            assert topic.encode() not in await client.ask(8)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("listener", "signer"), [("required", AUTHORITY), ("optional", AUTHORITY), ("optional", None)])
async def test_with_it_all_is_as_in_the_clear(
    gateway: Served, listener: str, signer: trustme.CA | None, version: ssl.TLSVersion
):
    topic = f"let-in.{listener}.{version.name}.{signer is None}"
    large = bytes(range(256)) * 1200  # more than one TLS record each way
    with trio.fail_after(20):
        async with over_tls(gateway.ports[listener], context(version, signer)) as client:
            await client.wire.send(frame(1, produce(topic, large)) + frame(1, produce(topic, b"x", b"k")))
            assert [(await client.read())[0] for _ in range(2)] == [1, 1]
            assert await client.values(topic) == [large, b"x"]
            await client.wire.send(frame(7, fetch("no-such-topic")) + frame(8))
            assert [(await client.read())[0] for _ in range(2)] == [0xFF, 8]
        if listener == "optional":
            with pytest.raises((ssl.SSLError, trio.BrokenResourceError)):
                async with over_tls(gateway.ports[listener], context(version, STRANGER)) as client:
                    await client.ask(8)


async def test_who_speaks_in_the_clear_gets_no_answer(gateway: Served):
    with trio.fail_after(20):
        for listener in ("own", "required", "optional"):
            async with flymq(gateway.ports[listener]) as client:
                await client.wire.send(frame(8) * 3)
                with pytest.raises((AssertionError, trio.BrokenResourceError)):  # an alert at most, and the end
                    await client.read()


async def test_the_command_line_over_tls(gateway: Served, tmp_path: Path):
    """`pub` and `sub` trust whom they are told to trust, and nobody else."""
    url = f"flymq://127.0.0.1:{gateway.ports['optional']}/told"
    ca = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(ca)

    async def run(*words: str) -> tuple[int, bytes]:
        command = [sys.executable, "-m", "gateway", *words]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        return done.returncode, done.stdout

    with trio.fail_after(60):
        assert (await run("pub", url, "--tls", "--ca", str(ca), "--data", "hello"))[0] == 0
        reading = ("sub", url, "--tls", "--from", "earliest", "--count", "1")
        assert await run(*reading, "--insecure") == (0, b"hello\n")
        assert (await run(*reading))[0] == 2
