"""`pub`, `sub`, `tail`, `topics` and `bench` as a user runs them, over every protocol, against a real gateway."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.protocols.registry import Transport, served
from gateway.requests import Publish
from gateway.transport.client import Connection, connect
from tests.integration.running import serving

NAMES = sorted(served())
DEADLINE = 180.0


def config(directory: Path) -> str:
    """One listener for each protocol there is."""
    listeners = []
    for name, spec in served().items():
        tls = ", tls: self-signed" if spec.transport is Transport.QUIC else ""
        auth = ", auth: {api_keys: [key]}" if spec.api_key_required else ""
        listeners.append(f'  {name}: {{protocol: {name}, bind: "127.0.0.1:0"{tls}{auth}}}')
    storage = f'storage: {{path: "{directory}/data"}}'
    return "\n".join(["version: 1", "listeners:", *listeners, 'admin: {bind: "127.0.0.1:0"}', storage])


@attrs.frozen
class Shell:
    """Runs commands against a running gateway."""

    port: Mapping[str, int]

    def command(self, verb: str, protocol: str, address: str, *args: str) -> list[str]:
        url = f"{protocol}://127.0.0.1:{self.port[protocol]}/{address}"
        spec = served()[protocol]
        trust = ["--insecure"] if spec.transport is Transport.QUIC else []
        key = ["--api-key", "key"] if spec.api_key_required else []
        return [sys.executable, "-m", "gateway", verb, url, *trust, *key, *args]

    async def run(
        self, verb: str, protocol: str, address: str, *args: str, stdin: bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one to its end; its exit code has to be this."""
        line = self.command(verb, protocol, address, *args)
        done = await trio.run_process(line, stdin=stdin, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == code, (line[3:], done.returncode, done.stderr.decode())
        return done


@asynccontextmanager
async def gateway(tmp_path: Path) -> AsyncIterator[Shell]:
    with trio.fail_after(DEADLINE):
        async with serving(tmp_path, config(tmp_path)) as port:
            yield Shell(port)


@pytest.mark.parametrize("protocol", NAMES)
async def test_a_protocol_from_the_shell(protocol: str, tmp_path: Path) -> None:
    async with gateway(tmp_path) as shell:
        await what_is_published_is_stored_byte_for_byte(shell, protocol, trio.Path(tmp_path / "payload"))
        await a_subscriber_gets_what_is_published_from_now_on(shell, protocol)
        await the_bench_gets_back_what_it_sent(shell, protocol)
        await tail_follows(shell, protocol)
        if served()[protocol].carries.offset:
            await tail_shows_the_last_and_topics_what_there_is(shell, protocol)
            await a_group_goes_on_where_it_left_off(shell, protocol)


async def what_is_published_is_stored_byte_for_byte(shell: Shell, protocol: str, payload: trio.Path) -> None:
    odd = b"\x00\xff\r\n\n end"
    await payload.write_bytes(odd)
    said = await shell.run("pub", protocol, "bytes", "--data", "one", "--data", "naïve", "--file", str(payload))
    assert said.stdout.startswith(b"published 3 messages to bytes")
    said = await shell.run("pub", protocol, "bytes", "--output", "json", stdin=b"a\nb\r\nc")
    report = json.loads(said.stdout)
    assert report["published"] == 3
    assert report["first_offset"] == (3 if served()[protocol].carries.offset else None)
    read = await shell.run("sub", "rustlog", "bytes", "--from", "earliest", "--count", "6", "--output", "json")
    values = [b64decode(json.loads(line)["value"]) for line in read.stdout.splitlines()]
    assert values == [b"one", "naïve".encode(), odd, b"a", b"b", b"c"]


async def a_subscriber_gets_what_is_published_from_now_on(shell: Shell, protocol: str) -> None:
    await shell.run("pub", "rustlog", "live", "--data", "before")
    read: list[bytes] = []
    async with trio.open_nursery() as nursery:

        async def subscribe() -> None:
            done = await shell.run("sub", protocol, "live", "--count", "3", "--timeout", "30")
            read.extend(done.stdout.splitlines())
            nursery.cancel_scope.cancel()

        async def publish(connection: Connection) -> None:
            """Nothing tells when the other process has subscribed, so this goes on until it has enough."""
            for number in itertools.count():
                await connection.request(Publish(0, Batch("live", Columns.of([b"%d" % number]))))

        nursery.start_soon(subscribe)
        async with connect(served()["rustlog"], "127.0.0.1", shell.port["rustlog"]) as connection:
            await publish(connection)
    first = int(read[0])
    assert read == [b"%d" % number for number in range(first, first + 3)]


async def the_bench_gets_back_what_it_sent(shell: Shell, protocol: str) -> None:
    args = ["--messages", "500", "--batch", "20", "--connections", "2", "--output", "json", "--timeout", "30"]
    report = json.loads((await shell.run("bench", protocol, "bench", *args)).stdout)
    (target,) = report["targets"]
    (one,) = target["rounds"]
    assert (one["messages"], one["requests"], target["mark"]) == (500, 26, False)
    assert one["checked"] == {"lost": 0, "damaged": 0, "repeated": 0, "disordered": 0}
    (summary,) = report["summary"]
    assert summary["per_second"]["median"] > 0
    assert 0 < summary["milliseconds"]["p50"]["least"] <= summary["milliseconds"]["max"]["most"]


async def tail_follows(shell: Shell, protocol: str) -> None:
    """In every protocol, whether or not it can show what was before."""
    await shell.run("pub", "rustlog", "followed", stdin=b"old\n" * 5)
    command = shell.command("tail", protocol, "followed", "-n", "2")
    tail = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seen = b""
    try:
        assert tail.stdout is not None
        async with tail.stdout, connect(served()["rustlog"], "127.0.0.1", shell.port["rustlog"]) as connection:
            while b"marked\nmarked\n" not in seen:
                await connection.request(Publish(0, Batch("followed", Columns.of([b"marked"]))))
                with trio.move_on_after(0.2):
                    seen += await tail.stdout.receive_some()
    finally:
        tail.kill()
        with trio.CancelScope(shield=True):
            await tail.wait()
    assert seen.count(b"old") <= 2


async def tail_shows_the_last_and_topics_what_there_is(shell: Shell, protocol: str) -> None:
    await shell.run("pub", protocol, "tail", stdin=b"".join(b"%d\n" % number for number in range(30)))
    tail = await shell.run("tail", protocol, "tail", "-n", "3", "--no-follow")
    assert tail.stdout == b"27\n28\n29\n"
    await shell.run("topics", protocol, "made", "--create", "--partitions", "2")
    listed = json.loads((await shell.run("topics", protocol, "", "--output", "json")).stdout)
    ends = {topic["address"]: [partition["end"] for partition in topic["partitions"]] for topic in listed}
    assert (ends["bytes"], ends["tail"], ends["made"]) == ([6], [30], [0, 0])
    assert b"30" in (await shell.run("topics", protocol, "tail")).stdout


async def a_group_goes_on_where_it_left_off(shell: Shell, protocol: str) -> None:
    args = ["--group", "readers", "--from", "earliest", "--timeout", "20"]
    assert (await shell.run("sub", protocol, "tail", *args, "--count", "2")).stdout == b"0\n1\n"
    assert (await shell.run("sub", protocol, "tail", *args, "--count", "3")).stdout == b"2\n3\n4\n"


async def test_failures_are_said_in_a_line(tmp_path: Path) -> None:
    async with gateway(tmp_path) as shell:
        late = await shell.run("sub", "rustlog", "cli", "--count", "1", "--timeout", "0.3", code=1)
        assert late.stderr == b"waiting for 'cli' to exist\n0 of 1 messages came in 0.3 s\n"
        for (
            protocol
        ) in NAMES:  # without a count, ending by the time-out is what was asked for; that nothing came is said
            quiet = await shell.run("sub", protocol, "quiet", "--timeout", "0.1")
            assert quiet.stdout == b""
            assert quiet.stderr.endswith(b"0 messages came in 0.1 s\n"), quiet.stderr
        for done, said in (
            (await shell.run("tail", "rustlog", "cli", "--no-follow", code=2), b"there is no 'cli'"),
            (await shell.run("topics", "rustlog", "cli", code=2), b"there is no 'cli'"),
            (await shell.run("pub", "rustlog", "__cli", "--data", "x", code=2), b"__cli"),
            (await shell.run("pub", "blipmq", "cli", "--api-key", "wrong", "--data", "x", code=2), b"invalid API key"),
            (await shell.run("topics", "blipmq", "", code=2), b"blipmq has no way to list topics"),
            (await shell.run("sub", "blipmq", "cli", "--from", "earliest", code=2), b"blipmq cannot begin there"),
        ):
            (line,) = done.stderr.splitlines()
            assert line.startswith(b"gateway: ")
            assert said in line
            assert done.stdout == b""
        elsewhere = Shell({"rustlog": 1})
        refused = await elsewhere.run("pub", "rustlog", "cli", "--data", "x", code=2)
        assert refused.stderr.startswith(b"gateway: cannot connect to 127.0.0.1:1")


async def test_stopping_is_quick_and_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    async with gateway(tmp_path) as shell:
        await shell.run("pub", "rustlog", "cli", "--data", "kept")
    async with gateway(tmp_path) as shell:
        read = await shell.run("sub", "rustlog", "cli", "--from", "earliest", "--count", "1")
        assert read.stdout == b"kept\n"
