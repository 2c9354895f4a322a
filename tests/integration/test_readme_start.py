"""The README's first steps, as they are written there, with `routes.yaml` as it is shipped: only the ports are others."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from gateway.config.load import load
from tests.integration.flymq_raw import flymq
from tests.integration.quic_raw import streams
from tests.integration.raw import felix_frame
from tests.integration.running import serving

START = Path("README.md").read_text().split("## Start")[1].split("\n## ")[0]
SHIPPED = Path("routes.yaml").read_text()
COMMANDS = re.findall(r"^gateway (.*)$", START, re.MULTILINE)


def here(line: str, port: Mapping[str, int]) -> list[str]:
    """A command line with the real port of the listener that has the one it names."""
    listeners = {one.port: name for name, one in load(Path("routes.yaml"), {}).listeners.items()}
    line = re.sub(r"127\.0\.0\.1:(\d+)", lambda match: f"127.0.0.1:{port[listeners[int(match[1])]]}", line)
    return [sys.executable, "-m", "gateway", *shlex.split(line)]


async def said(line: str, port: Mapping[str, int]) -> bytes:
    done = await trio.run_process(here(line, port), capture_stdout=True)
    return done.stdout


def system_ports(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system choose the ports of the shipped configuration, and keep its data here."""
    for name in re.findall(r"\$\{(\w+_PORT):-", SHIPPED):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("DATA_DIR", str(directory / "data"))


async def test_the_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system_ports(tmp_path, monkeypatch)
    subscribe, publish, *others = COMMANDS
    assert [line.split()[0] for line in COMMANDS] == ["sub", "pub", "sub", "tail", "topics"]
    with trio.fail_after(120):
        async with serving(tmp_path, SHIPPED) as port:
            subscriber = await trio.lowlevel.open_process(here(subscribe, port), stdout=subprocess.PIPE)
            try:
                assert subscriber.stdout is not None
                seen = b""
                async with subscriber.stdout:
                    while not seen:  # who subscribes too late for one message gets the next
                        assert (await said(publish, port)).startswith(b"published 1 message to orders.eu, partition 1")
                        with trio.move_on_after(3):
                            seen = await subscriber.stdout.receive_some()
            finally:
                subscriber.kill()
                with trio.CancelScope(shield=True):
                    await subscriber.wait()
            assert seen == b'{"amount": 10}\n'
            shown = [await said(line + " --no-follow" * line.startswith("tail"), port) for line in others]
    assert shown[0] == b'{"amount": 10}\n'
    assert b'"value": "eyJhbW91bnQiOiAxMH0="' in shown[1]
    assert b"orders.eu" in shown[2]


async def test_what_the_clients_in_the_readme_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both snippets as bytes: the newest Felix client logs in and subscribes, the FlyMQ client produces with a key."""
    system_ports(tmp_path, monkeypatch)
    login = {"type": "auth", "tenant_id": "acme", "token": "any", "client_flags": 63}
    wanted = {"type": "subscribe", "tenant_id": "acme", "namespace": "shop", "stream": "orders-eu"}
    value = b'{"amount": 10}'
    with trio.fail_after(60):
        async with serving(tmp_path, SHIPPED) as port, streams(port["felix"]) as felix, flymq(port["flymq"]) as fly:
            control = felix.open(felix_frame(login) + felix_frame(wanted), end=True)
            assert (await felix.said(control))["type"] == "auth_ok"
            assert (await felix.said(control))["type"] == "subscribed"
            events = await felix.incoming()
            assert (await felix.said(events))["type"] == "event_stream_hello"
            topic, key = b"\0\x09orders.eu", b"\0\0\0\x0242"
            answer = await fly.ask(1, topic + key + b"\0\0\0\x0e" + value + b"\xff\xff\xff\xff")
            assert answer.startswith(topic + b"\0\0\0\1" + bytes(8))  # partition 1, offset 0
            _flags, payload = await felix.felix(events)
            assert payload.endswith(b"\0\0\0\x0e" + value)
