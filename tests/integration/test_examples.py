"""Every configuration in `gateway/docs/examples`, served as it is: only ports, directories and secrets come from the environment."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
import pytest
import trio
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.integration.running import ports, process, serving

EXAMPLES = Path("gateway/docs/examples")
THERE = """
version: 1
listeners:
  flymq: {protocol: flymq, bind: "127.0.0.1:0"}
  rustlog: {protocol: rustlog, bind: "127.0.0.1:0"}
  blipmq: {protocol: blipmq, bind: "127.0.0.1:0", auth: {api_keys: [dev-key]}}
storage: {path: %s}
"""


async def gateway(*arguments: str) -> str:
    """What a command prints; it has to succeed."""
    done = await trio.run_process([sys.executable, "-m", "gateway", *arguments], capture_stdout=True)
    return done.stdout.decode()


async def until_read(url: str, *arguments: str) -> str:
    """The first message of a topic that may still have to come into being."""
    while True:
        done = await trio.run_process(
            [sys.executable, "-m", "gateway", "sub", url, "--from", "earliest", "--count", "1", *arguments],
            capture_stdout=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.decode()


@asynccontextmanager
async def served(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environment: str
) -> AsyncIterator[Mapping[str, int]]:
    """An example that runs, with every port chosen by the system."""
    path = EXAMPLES / f"{name}.yaml"
    for variable in re.findall(r"\$\{(\w+_PORT):-", path.read_text()):
        monkeypatch.setenv(variable, "0")
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "here"))
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    with trio.fail_after(120):
        async with process(command, lambda out: b"\nready\n" in out) as lines:
            yield ports(lines)


@asynccontextmanager
async def served_with_upstream(
    name: str, upstream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environment: str
) -> AsyncIterator[tuple[Mapping[str, int], Mapping[str, int]]]:
    """(here, there): an example, and a gateway as the broker elsewhere, which it knows at its listener `upstream`."""
    async with serving(tmp_path, THERE % (tmp_path / "there")) as there:
        address = f"127.0.0.1:{there[upstream]}"
        known = {"UPSTREAM": address, "UPSTREAM_STANDBY": address, **environment}
        async with served(name, tmp_path, monkeypatch, **known) as here:
            yield here, there


def url(protocol: str, port: int, topic: str) -> str:
    return f"{protocol}://127.0.0.1:{port}/{topic}"


async def test_minimal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("minimal", tmp_path, monkeypatch) as here:
        await gateway("pub", url("flymq", here["flymq"], "greetings"), "--data", "hello")
        assert await until_read(url("flymq", here["flymq"], "greetings")) == "hello\n"


async def test_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_with_upstream("forward", "blipmq", tmp_path, monkeypatch) as (here, there):
        await gateway("pub", url("flymq", here["flymq"], "orders.eu"), "--key", "42", "--data", "one")
        assert await until_read(url("rustlog", there["rustlog"], "incoming-eu")) == "one\n"
        assert await until_read(url("flymq", here["flymq"], "orders.eu")) == "one\n"


async def test_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_with_upstream("ingest", "flymq", tmp_path, monkeypatch) as (here, there):
        await gateway("pub", url("flymq", there["flymq"], "alerts.fire"), "--data", "now")
        assert await until_read(url("rustlog", here["rustlog"], "legacy.fire")) == "now\n"


async def test_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_with_upstream("mirror", "flymq", tmp_path, monkeypatch, PERCENT="100") as (here, there):
        await gateway("pub", url("flymq", here["flymq"], "orders.eu"), "--data", "both")
        assert await until_read(url("flymq", here["flymq"], "orders.eu")) == "both\n"
        assert await until_read(url("flymq", there["flymq"], "orders.eu")) == "both\n"


async def test_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_with_upstream("proxy", "flymq", tmp_path, monkeypatch) as (here, there):
        await gateway("pub", url("flymq", there["flymq"], "live.x"), "--data", "theirs")
        answer = await gateway("pub", url("rustlog", here["rustlog"], "live.x"), "--data", "ours")
        assert answer == "published 1 message to live.x, partition 0, offset 1\n"  # as the broker there says
        assert await until_read(url("flymq", there["flymq"], "live.x"), "--from", "1") == "ours\n"


async def test_transform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("transform", tmp_path, monkeypatch) as here:
        place = url("flymq", here["flymq"], "orders.eu")
        for data in ('{"amount": 5}', '{"amount": 50, "note": "x"}', "no JSON"):
            await gateway("pub", place, "--data", data)
        assert json.loads(await until_read(place)) == {"amount": 50, "customer": "unknown"}
        shown = await gateway("dlq", "list", "--admin", f"http://127.0.0.1:{here['admin']}")
        assert "orders.eu.dlq: 1 letter" in shown
        assert "transform" in shown


async def test_secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    signing = Ed25519PrivateKey.generate()
    key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(signing.public_key())) | {
        "kid": "1",
        "use": "sig",
        "alg": "EdDSA",
    }
    for name, secret in {
        "root-password": "correct horse",
        "blipmq-keys": "first\nsecond",
        "felix-jwks": json.dumps({"keys": [key]}),
        "admin-token": "admin-secret",
    }.items():
        await trio.Path(tmp_path / name).write_text(secret)
    token = jwt.encode(
        {
            "iss": "felix-auth",
            "aud": "felix-broker",
            "sub": "loader",
            "tid": "t1",
            "exp": 4_000_000_000,
            "iat": 0,
            "perms": ["stream.publish:stream:t1/default/*"],
        },
        signing,
        "EdDSA",
        {"kid": "1"},
    )
    environment = {
        "BIND": "127.0.0.1",
        "TLS_CERT": str(tmp_path / "tls.crt"),
        "TLS_KEY": str(tmp_path / "tls.key"),
        "SECRETS": str(tmp_path),
    }
    trusted = ("--tls", "--ca", str(tmp_path / "ca.pem"))
    root = (*trusted, "--user", "root", "--password", "correct horse")
    async with served("secured", tmp_path, monkeypatch, **environment) as here:
        by_flymq = url("flymq", here["flymq"], "orders")
        await gateway("pub", by_flymq, "--data", "flymq", *root)
        await gateway(
            "pub", url("blipmq", here["blipmq"], "orders"), "--data", "blipmq", *trusted, "--api-key", "second"
        )
        await gateway(
            "pub",
            url("felix", here["felix"], "orders"),
            "--data",
            "felix",
            *trusted[1:],
            "--tenant",
            "t1",
            "--token",
            token,
        )
        assert await gateway("sub", by_flymq, "--from", "earliest", "--count", "3", *root) == "flymq\nblipmq\nfelix\n"
        refused = await trio.run_process(
            [sys.executable, "-m", "gateway", "pub", by_flymq, "--data", "x", *trusted],
            check=False,
            capture_stderr=True,
        )
        assert refused.returncode == 2
        address = f"https://127.0.0.1:{here['admin']}"
        await gateway("audit", "--admin", address, "--token", "admin-secret", "--ca", str(tmp_path / "ca.pem"))


def test_every_example_is_served_here() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.yaml")}
    assert names == {name.removeprefix("test_") for name in globals() if name.startswith("test_") and name[5:] in names}
    assert len(names) > 5
