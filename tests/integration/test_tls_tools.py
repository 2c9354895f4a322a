"""The client tools over TLS against a real process: every way to trust a certificate, and every way not to, over TCP and QUIC."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
import trio
import trustme

from tests.integration.running import serving

CONFIG = """
version: 1
listeners:
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0", tls: {{cert: "{cert}", key: "{key}"}}}}
  felix:   {{protocol: felix, bind: "127.0.0.1:0", tls: {{cert: "{cert}", key: "{key}"}}}}
storage: {{path: "{data}"}}
"""


@attrs.frozen
class Trust:
    """Where the certificate authority is, and what the certificate's fingerprint is."""

    ca: str
    fingerprint: str


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    return Trust(str(tmp_path / "ca.pem"), hashlib.sha256(der).hexdigest())


async def tool(verb: str, protocol: str, port: int, *args: str, code: int = 0) -> tuple[bytes, bytes]:
    """Run a tool to its end; what it wrote."""
    line = [sys.executable, "-m", "gateway", verb, f"{protocol}://127.0.0.1:{port}/orders", *args]
    done = await trio.run_process(line, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == code, (line[3:], done.returncode, done.stderr.decode())
    return done.stdout, done.stderr


async def test_every_way_to_trust_a_certificate_and_to_refuse_it(trust: Trust, tmp_path: Path) -> None:
    config = CONFIG.format(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem", data=tmp_path / "data")
    ca, fingerprint = ("--ca", trust.ca), ("--fingerprint", trust.fingerprint)
    with trio.fail_after(180):
        async with serving(tmp_path, config) as port:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tool, "pub", "rustlog", port["rustlog"], "--data", "over tcp", *ca)
                nursery.start_soon(tool, "pub", "felix", port["felix"], "--data", "over quic", *fingerprint)
                nursery.start_soon(untrusted, port, trust, tmp_path)
            read: dict[str, bytes] = {}

            async def read_by(verb: str, protocol: str, *args: str) -> None:
                read[f"{verb} {protocol}"], _ = await tool(verb, protocol, port[protocol], *args)

            async with trio.open_nursery() as nursery:
                everything = ("--from", "earliest", "--count", "2", "--timeout", "60")
                nursery.start_soon(read_by, "sub", "rustlog", *everything, *fingerprint)
                nursery.start_soon(read_by, "sub", "felix", *everything, *ca)
                nursery.start_soon(read_by, "tail", "rustlog", "-n", "9", "--no-follow", "--tls", "--insecure")
                nursery.start_soon(tail_over_quic, port["felix"], 2, read)
            assert len(read) == 4
            for name, out in read.items():
                assert sorted(out.splitlines()) == [b"over quic", b"over tcp"], name


async def untrusted(port: Mapping[str, int], trust: Trust, directory: Path) -> None:
    """Each way to find that it is not the right certificate: a line on standard error, exit code 2, nothing published."""
    other = directory / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    for protocol, args in (
        ("rustlog", ["--tls"]),
        ("felix", ["--ca", str(other)]),
        ("rustlog", ["--fingerprint", "ab" * 32]),
    ):
        out, said = await tool("pub", protocol, port[protocol], "--data", "secret", *args, code=2)
        (line,) = said.splitlines()
        assert line.startswith(b"gateway: ")
        assert (trust.fingerprint.encode() in line) == ("--fingerprint" in args), line
        assert out == b""


async def tail_over_quic(port: int, count: int, read: dict[str, bytes]) -> None:
    """It shows what was there; how long it waits for more is not its business to say."""
    command = [sys.executable, "-m", "gateway", "tail", f"felix://127.0.0.1:{port}/orders", "--insecure"]
    tail = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert tail.stdout is not None
        seen = b""
        async with tail.stdout:
            while seen.count(b"\n") < count:
                more = await tail.stdout.receive_some()
                assert more, seen
                seen += more
    finally:
        tail.kill()
        with trio.CancelScope(shield=True):
            await tail.wait()
    read["tail felix"] = seen
