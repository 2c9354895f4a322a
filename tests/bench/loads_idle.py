"""Connections that have nothing to say: fresh from their handshakes, and again after each has published a message. What they take of a
gateway's memory, and what a gateway takes that nobody has connected to.

Over TCP they are plain sockets and ready-made bytes, over QUIC our own client.
"""

from __future__ import annotations

import functools
import resource
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from gateway.envelope import Batch, Columns
from gateway.protocols.registry import protocol
from gateway.requests import Publish
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext
from tests.bench import loads, loads_flymq
from tests.bench.processes import Process, running

TOPIC = "memory.idle"
VALUE = b"idle"
TIMEOUT = 60.0

Ask = Callable[[], Awaitable[None]]
"""Has each of them publish a message, one after the other, and waits for the answer."""
Report = Callable[[str, str, str, str], None]
Connected = Callable[[int, int], AbstractAsyncContextManager[Ask]]
"""(port, how many)"""


def _flymq(sock: socket.socket) -> None:
    sock.sendall(loads_flymq.produce_frame(TOPIC.encode(), len(VALUE)))
    loads.receive(sock, int.from_bytes(loads.receive(sock, 8)[4:], "big"))


def _rustlog(sock: socket.socket) -> None:
    sock.sendall(loads.produce_frame(TOPIC.encode(), [VALUE]))
    loads.receive(sock, int.from_bytes(loads.receive(sock, 4), "big"))


def _blipmq(sock: socket.socket) -> None:
    sock.sendall(loads.publish(TOPIC.encode(), 1, VALUE) + loads.PING)
    loads.receive(sock, loads.PONG_SIZE)


def over_tcp(
    begin: Callable[[int], socket.socket], publish: Callable[[socket.socket], None], port: int, count: int
) -> AbstractAsyncContextManager[Ask]:
    @asynccontextmanager
    async def connected() -> AsyncIterator[Ask]:
        with ExitStack() as stack:
            socks = [stack.enter_context(begin(port)) for _ in range(count)]

            async def ask() -> None:
                for sock in socks:
                    publish(sock)

            yield ask

    return connected()


def over_quic(name: str, port: int, count: int) -> AbstractAsyncContextManager[Ask]:
    @asynccontextmanager
    async def connected() -> AsyncIterator[Ask]:
        spec, tls, context = protocol(name), ClientTls(insecure=True), ClientContext()
        leave = trio.Event()

        async def stay(task_status: trio.TaskStatus[Connection]) -> None:
            async with connect(spec, "127.0.0.1", port, tls=tls, timeout=TIMEOUT, context=context) as one:
                task_status.started(one)
                await leave.wait()

        async with trio.open_nursery() as nursery:
            those: list[Connection] = [await nursery.start(stay) for _ in range(count)]

            async def ask() -> None:
                for one in those:
                    await one.request(Publish(0, Batch(TOPIC, Columns.of([VALUE]))), timeout=TIMEOUT)

            yield ask
            leave.set()  # all at once: each says goodbye, and waits a moment for who does not hear it

    return connected()


@attrs.frozen
class Kind:
    connected: Connected
    meant: str
    """What one may take."""
    quic: bool = False


KINDS: Mapping[str, Kind] = {
    "blipmq": Kind(functools.partial(over_tcp, loads.blipmq, _blipmq), "9 KiB"),
    "flymq": Kind(functools.partial(over_tcp, loads.connect, _flymq), "9 KiB"),
    "rustlog": Kind(functools.partial(over_tcp, loads.connect, _rustlog), "9 KiB"),
    "felix": Kind(functools.partial(over_quic, "felix"), "64 KiB", quic=True),
    "fujin": Kind(functools.partial(over_quic, "fujin"), "64 KiB", quic=True),
}


CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, limits: {many}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0", limits: {many}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0", limits: {many}}}
{quic}
storage: {{path: "{path}", free_space_floor: 1, durability: {durability}}}
"""
QUIC = """
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed, limits: {many}}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed, limits: {many}}}
"""
MANY = "{connections: 20000, per_address: 20000}"
OVER_TCP, OVER_QUIC = 5_000, 300
WARM = 20
TOPICS, RECORDS, RECORD = 5_000, 400, b"x" * 100
TOPICS_AT_ONCE = 100


@contextmanager
def _gateway(directory: str, *, quic: bool = False, durability: str = "memory") -> Iterator[Process]:
    config = Path(directory) / "gateway.yaml"
    listeners = QUIC.format(many=MANY) if quic else ""
    config.write_text(CONFIG.format(path=Path(directory) / "data", many=MANY, quic=listeners, durability=durability))
    with running(
        [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
    ) as process:
        yield process


async def _taken(kind: Kind, port: int, process: Process, count: int) -> float:
    # KiB of one that has published: by then the gateway has heard of all of them
    async with kind.connected(port, WARM) as warm:
        await warm()
        before = process.memory()
        async with kind.connected(port, count) as ask:
            await ask()
            return (process.memory() - before) / count / 1024


def idle(report: Report) -> None:
    """At rest, and with connections that are: each protocol on a gateway of its own, as what one gives back another takes."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for what, quic, meant in (("BlipMQ, RustLog and FlyMQ", False, "52 MiB"), ("all five protocols", True, "68 MiB")):
        with tempfile.TemporaryDirectory() as directory:
            with _gateway(directory, quic=quic):
                """Makes the store, the certificate and the byte code."""
            with _gateway(directory, quic=quic) as process:
                report(f"a gateway of {what} at rest", f"{process.memory() / (1 << 20):.1f} MiB", "", meant)
                report("its start, processor time", f"{process.processor():.2f} s", "", "1 s")
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as directory, _gateway(directory, quic=kind.quic) as process:
            count = OVER_QUIC if kind.quic else OVER_TCP
            each = trio.run(_taken, kind, process.ports[name], process, count)
            report(f"{count:,} idle connections of {name}, each", f"{each:.1f} KiB", "", kind.meant)


def restart(report: Report) -> None:
    """A start on a store that has much."""
    with tempfile.TemporaryDirectory() as directory:
        with (
            _gateway(directory, durability="{interval: 5ms}") as process,
            loads.connect(process.ports["rustlog"]) as sock,
        ):
            for first in range(0, TOPICS, TOPICS_AT_ONCE):
                names = [b"many.%d" % number for number in range(first, first + TOPICS_AT_ONCE)]
                sock.sendall(b"".join(map(loads.create_topic, names)))
                for _ in names:
                    loads.receive(sock, int.from_bytes(loads.receive(sock, 4), "big"))
                for name in names:
                    sock.sendall(loads.produce_frame(name, [RECORD] * RECORDS))
                    loads.receive(sock, int.from_bytes(loads.receive(sock, 4), "big"))
        with _gateway(directory, durability="{interval: 5ms}") as process:
            name = f"restart on {TOPICS * RECORDS:,} records in {TOPICS:,} topics, processor time"
            report(name, f"{process.processor():.2f} s", "", "1.5 s")
