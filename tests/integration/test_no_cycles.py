"""What ends leaves no cycles: connections, subscriptions, groups and streams of every protocol come and go in a gateway that collects
nothing, and then the collector finds nothing of ours. What was frozen alive (`observe/collecting.py`) would never be found.

Of the connections that are counted a few may still wait for the end of their timers; what they are made of is gone by then.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway.wire.session import Kind
from tests.integration.flymq_raw import frame
from tests.integration.raw import (
    BlipMQ,
    Felix,
    Fujin,
    Fujin05,
    FujinTcp,
    FujinV1,
    QuicWire,
    Wire,
    blipmq_frame,
    quic,
    rustlog_ask,
    rustlog_fetch,
    s16,
    s32,
    tcp,
)

CONFIG = """
version: 1
listeners:
  blipmq:   {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:    {{protocol: flymq,   bind: "127.0.0.1:0"}}
  flymqtls: {{protocol: flymq,   bind: "127.0.0.1:0", tls: self-signed}}
  rustlog:  {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:    {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:    {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
  fujintcp: {{protocol: fujin,   bind: "127.0.0.1:0", transport: tcp}}
storage: {{path: "{data}", free_space_floor: 1}}
"""
TIMES = 10
LINE = re.compile(r"listening (\w+): \S+ on (?:tcp|udp) 127\.0\.0\.1:(\d+)")


@attrs.frozen
class Process:
    """The gateway."""

    ports: dict[str, int]
    ask: Callable[[], Awaitable[dict[str, object]]]


@asynccontextmanager
async def uncollected(directory: Path) -> AsyncIterator[Process]:
    config = directory / "routes.yaml"
    config.write_text(CONFIG.format(data=directory / "data"))
    command = [sys.executable, "-m", "tests.integration.uncollected", str(config)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    unread = b""

    async def line() -> str:
        nonlocal unread
        while b"\n" not in unread:
            more = await process.stdout.receive_some()
            assert more, "the gateway is gone"
            unread += more
        found, _, unread = unread.partition(b"\n")
        return found.decode()

    async def ask() -> dict[str, object]:
        process.send_signal(signal.SIGUSR1)
        return json.loads(await line())

    ports: dict[str, int] = {}
    try:
        while (said := await line()) != "ready":
            if found := LINE.match(said):
                ports[found[1]] = int(found[2])
        await ask()  # what the start has left is no matter
        yield Process(ports, ask)
    finally:
        process.kill()
        await process.wait()


async def flymq_ask(wire: Wire, data: bytes) -> bytes:
    await wire.send(data)
    head = await wire.receive(8)
    return await wire.receive(struct.unpack(">I", head[4:])[0])


async def flymq(wire: Wire) -> None:
    """Publish, fetch, commit in a group, begin a transaction, and go in the middle of a frame."""
    await flymq_ask(wire, frame(1, s16("orders") + s32(b"") + s32(b"x") + b"\xff\xff\xff\xff"))
    await flymq_ask(wire, frame(7, s16("orders") + struct.pack(">iQi", 0, 0, 10)))
    await flymq_ask(wire, frame(6, s16("orders") + s16("group") + struct.pack(">iQ", 0, 1)))
    await wire.send(frame(1, s16("orders") + s32(b"") + s32(b"x" * 100))[:50])


async def rustlog(wire: Wire) -> None:
    await rustlog_ask(wire, b"\5" + s16("orders") + struct.pack(">I", 1))
    await rustlog_ask(wire, b"\1" + s16("orders") + struct.pack(">II", 0, 1) + s32(b"x"))
    await rustlog_ask(wire, rustlog_fetch("orders", 0))
    await rustlog_ask(wire, b"\3" + s16("group") + s16("orders") + struct.pack(">IQ", 0, 1))


async def blipmq(wire: Wire) -> None:
    """Subscribe, poll, take what is there without acknowledging it, and end one of two subscriptions."""
    await BlipMQ.greet(wire)
    numbers: list[bytes] = []
    for _ in range(2):
        await wire.send(blipmq_frame(4, 3, s16("queue") + b"\1"))
        numbers.append((await wire.receive(21))[13:])
    await wire.send(blipmq_frame(3, 4, b"\1" + s16("queue") + b"x"))
    await wire.send(blipmq_frame(9, 60, numbers[0]))
    while (await wire.receive(struct.unpack(">I", await wire.receive(4))[0]))[0] != 3:
        await wire.send(blipmq_frame(9, 60, numbers[0]))
    await wire.send(blipmq_frame(9, 61, numbers[1]) + blipmq_frame(9, 62, numbers[1]))


async def felix(wire: Wire) -> None:
    client = Felix()
    await client.publish(wire, "events", b"x")
    await client.subscribe(wire, "events")
    await client.publish(wire, "events", b"y")


async def fujin_reader(wire: Wire) -> None:
    await Fujin().subscribe(wire, "names")


async def fujin_streams(wire: Wire) -> None:
    """Streams of one connection that come and go: writers, readers, and one that says nothing."""
    assert isinstance(wire, QuicWire)
    await Fujin().publish(wire, "names", b"x")
    for token in range(-2, -2 - TIMES, -1):
        wire.link.open(token, Kind.DUPLEX)
        wire.link.send(token, b"\1" + bytes(4) + b"\3" + struct.pack(">I", 1) + s32(b"names") + s32(b"x"))
        if token % 2:
            wire.link.finish(token)
        wire.link.open(token - 1_000, Kind.DUPLEX)
        wire.link.send(token - 1_000, b"\2\1\1" + s32(b"names"))
        wire.link.flush()


def bound(client: Fujin05) -> Callable[[Wire], Awaitable[None]]:
    async def use(wire: Wire) -> None:
        await client.subscribe(wire, "names")
        await wire.send(b"\2" + struct.pack(">I", 1) + s32(b"names") + s32(b"x"))
        await wire.receive(1)

    return use


CASES = {
    "flymq": (lambda ports: tcp(ports["flymq"]), flymq),
    "rustlog": (lambda ports: tcp(ports["rustlog"]), rustlog),
    "blipmq": (lambda ports: tcp(ports["blipmq"]), blipmq),
    "felix": (lambda ports: quic(ports["felix"], None), felix),
    "fujin: readers": (lambda ports: quic(ports["fujin"], "fujin"), fujin_reader),
    "fujin: streams": (lambda ports: quic(ports["fujin"], "fujin"), fujin_streams),
    "fujin 0.5": (lambda ports: quic(ports["fujin"], "fujin"), bound(Fujin05())),
    "fujin v1": (lambda ports: quic(ports["fujin"], "fujin/1"), bound(FujinV1())),
    "fujin over tcp": (lambda ports: tcp(ports["fujintcp"]), bound(FujinTcp())),
    "who says nothing": (lambda ports: tcp(ports["flymqtls"]), None),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_ends_leaves_no_cycles(tmp_path: Path, name: str):
    connect, use = CASES[name]
    with trio.fail_after(120):
        async with uncollected(tmp_path) as process:
            for _ in range(TIMES):
                async with connect(process.ports) as wire:
                    if use is not None:
                        await use(wire)
            found: dict[str, int] = {}
            while True:  # until all of them have ended
                told = await process.ask()
                for kind, count in told["found"].items():
                    found[kind] = found.get(kind, 0) + count
                if told["connections"] < TIMES // 2:
                    break
                await trio.sleep(0.1)
    assert not found
