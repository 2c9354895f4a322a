"""Felix and Fujin in the benchmark: the gateway and a bare aioquic loop in turns, behind the same client.

The client is the gateway's own dialler with nothing but bytes on it. What arrives is counted, and what went through has to
have the checksum of what was sent.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path

import trio

from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.dial import dial_quic
from gateway.transport.tls import ClientTls
from gateway.wire.session import Kind
from tests.bench.bare_quic import felix
from tests.bench.beside import BesideBare, PairedRound, keep
from tests.bench.loads import connect, receive
from tests.bench.loads_flymq import frame
from tests.bench.processes import Process, running

ROUNDS = 3
BATCH, SIZE = 64, 256
BATCHES = 1_500
BATCH_WINDOW = 96
EXCHANGES = 3_000
WRITES, WRITE_SIZE = 300_000, 32
WRITE_WINDOW = 12_000
PUSHED = 300_000
CONNECTIONS, STREAMS = 200, 10
LARGE = 8 << 20
PATIENCE = 120.0
"""Seconds that any wait may take."""

CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  quic:
    protocol: [felix, fujin]
    bind: "127.0.0.1:0"
    tls: self-signed
  filled:
    protocol: fujin
    bind: "127.0.0.1:0"
    tls: self-signed
    readers: {{filled: {{topic: memory.filled, start: earliest}}}}
storage: {{path: "{path}", durability: fsync}}
routes:
  - {{name: memory, match: {{topic: "memory.**"}}, to: [{{store: {{topic: "{{topic}}", durability: memory}}}}]}}
  - {{name: durable, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""

Report = Callable[[str, str, str, str], None]
Load = Callable[[int, str], Awaitable[tuple[int, float]]]


class Client:
    """One connection: hands the bytes of each channel to whoever wants them."""

    link: QuicLink

    def __init__(self) -> None:
        self.take: dict[int, Callable[[bytes], None]] = {}
        self.on_room: Callable[[int], None] = lambda channel: None
        self.incoming: Callable[[bytes], None] = lambda data: None
        self._lost = False
        self._awaited: set[trio.Event] = set()

    async def until(self, event: trio.Event, what: str) -> None:
        """Wait for what an answer sets. Raises when the connection ends before that, or nothing comes for long."""
        self._awaited.add(event)
        if self._lost:
            event.set()
        try:
            with trio.fail_after(PATIENCE):
                await event.wait()
        except trio.TooSlowError:
            raise RuntimeError(f"{what}: not within {PATIENCE:g} s") from None
        finally:
            self._awaited.discard(event)
        if self._lost:
            raise RuntimeError(f"{what}: the connection was lost before")

    def opened(self, channel: int, kind: Kind) -> None:
        if channel >= 0:
            self.take[channel] = self.incoming

    def received(self, channel: int, data: bytes) -> None:
        self.take.get(channel, len)(data)

    def room(self, channel: int) -> None:
        self.on_room(channel)

    def eof(self, channel: int) -> None:
        # the end of a stream of Fujin's server is a ping: who does not end it too is cut after some seconds
        if channel >= 0:
            self.link.finish(channel)

    def reset(self, channel: int, code: int) -> None: ...
    def stopped(self, channel: int, code: int) -> None: ...
    def turn(self, now: float) -> None: ...

    def lost(self) -> None:
        self._lost = True
        for event in self._awaited:
            event.set()

    def send(self, channel: int, data: bytes) -> None:
        """Bytes on a channel."""
        self.link.send(channel, data)
        self.link.flush()


class Dialled:
    """`async with`: a client that is connected."""

    def __init__(self, port: int, alpn: str | None) -> None:
        self.client = Client()
        self._dial = dial_quic(
            "127.0.0.1", port, alpns=[alpn] if alpn else (), tls=ClientTls(insecure=True), handler=self.client
        )

    async def __aenter__(self) -> Client:
        self.client.link = await self._dial.__aenter__()
        return self.client

    async def __aexit__(self, *error: object) -> None:
        await self._dial.__aexit__(*error)  # type: ignore[arg-type]


def text(value: str) -> bytes:
    """u16 length and text."""
    return struct.pack(">H", len(value)) + value.encode()


def sized(value: bytes) -> bytes:
    """u32 length and bytes."""
    return struct.pack(">I", len(value)) + value


def scope(topic: str) -> str:
    """The fields that name a stream."""
    return f'"tenant_id":"t1","namespace":"default","stream":"{topic}"'


async def batches(port: int, topic: str) -> tuple[int, float]:
    """Binary batches, unacknowledged, through to one subscriber on another connection."""
    return await through(port, topic, 1, BATCHES)


async def batches_to_ten(port: int, topic: str) -> tuple[int, float]:
    """The same to ten, a connection each. What is counted is deliveries."""
    return await through(port, topic, 10, BATCHES // 5)


class Subscriber:
    """Counts events, and keeps a checksum of them."""

    def __init__(self, on_events: Callable[[], None]) -> None:
        self.hello = trio.Event()
        self.count = self.crc = 0
        self._rest = b""
        self._on_events = on_events

    def take(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        position, end = 0, len(data)
        while end - position >= 12:
            flags, length = struct.unpack_from(">HI", data, position + 6)
            start, position = position + 12, position + 12 + length
            if position > end:
                position = start - 12
                break
            if not flags:
                self.hello.set()
                continue
            self.count += int.from_bytes(data[start + 8 : start + 12])
            self.crc = zlib.crc32(data[start + 12 : position], self.crc)
        self._rest = data[position:]
        if self.count:
            self._on_events()


async def through(port: int, topic: str, subscribers: int, count: int) -> tuple[int, float]:
    """So many batches, to each of so many."""
    packed = [b"".join(sized(struct.pack(">II", n, m) + bytes(SIZE - 8)) for m in range(BATCH)) for n in range(count)]
    names = text("t1") + text("default") + text(topic)
    frames = [felix(1, names + struct.pack(">I", BATCH) + values) for values in packed]
    expected = 0
    for values in packed:
        expected = zlib.crc32(values, expected)
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(Dialled(port, None))
        done, sent, readers, clients = trio.Event(), 0, list[Subscriber](), list[Client]()

        def send() -> None:
            nonlocal sent
            slowest = min(reader.count for reader in readers)
            more = min(count, slowest // BATCH + BATCH_WINDOW)
            if more > sent:
                publisher.send(-1, b"".join(frames[sent:more]))
                sent = more
            if slowest == BATCH * count:
                done.set()

        for _ in range(subscribers):
            client = await stack.enter_async_context(Dialled(port, None))
            reader = Subscriber(send)
            readers.append(reader)
            clients.append(client)
            client.incoming = reader.take
            client.link.open(-1, Kind.DUPLEX)
            client.send(-1, felix(0, b'{"type":"auth","tenant_id":"t1","token":"x"}'))
            client.send(-1, felix(0, b'{"type":"subscribe",%b}' % scope(topic).encode()))
            await client.until(reader.hello, "the answer to subscribe")
        publisher.link.open(-1, Kind.DUPLEX)
        started = time.perf_counter()
        send()
        async with trio.open_nursery() as nursery:
            for client in (publisher, *clients):
                nursery.start_soon(client.until, done, f"{count} batches at {subscribers} subscribers")
        seconds = time.perf_counter() - started
    if any(reader.crc != expected for reader in readers):
        raise RuntimeError("what came out is not what went in")
    return subscribers * BATCH * count, seconds


async def acked(port: int, topic: str) -> tuple[int, float]:
    """JSON publishes, one at a time, each waiting for its `publish_ok`."""
    return await asked(port, topic, 1, EXCHANGES)


async def acked_by_many(port: int, topic: str) -> tuple[int, float]:
    """The same by sixteen connections."""
    return await asked(port, topic, 16, EXCHANGES // 8)


async def asked(port: int, topic: str, connections: int, each: int) -> tuple[int, float]:
    """So many exchanges on each of so many connections."""
    request = felix(0, b'{"type":"publish",%b,"payload":"aGVsbG8=","request_id":1}' % scope(topic).encode())
    answer = felix(0, b'{"type":"publish_ok","request_id":1}')

    return await in_turns(port, None, connections, each, b"", request, answer)


async def in_turns(
    port: int, alpn: str | None, connections: int, each: int, first: bytes, request: bytes, answer: bytes
) -> tuple[int, float]:
    """Each connection asks when it was answered, so many times; before the first time it says who it is."""

    async def one(client: Client) -> None:
        done, left = trio.Event(), each

        def again(data: bytes) -> None:
            nonlocal left
            if data != answer:
                raise RuntimeError(f"answered {data!r}")
            left -= 1
            if left:
                client.send(-1, request)
            else:
                done.set()

        client.take[-1] = again
        client.link.open(-1, Kind.DUPLEX)
        client.send(-1, first + request)
        await client.until(done, f"{each} answers")

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Dialled(port, alpn)) for _ in range(connections)]
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(one, client)
        return connections * each, time.perf_counter() - started


async def write(port: int, topic: str) -> tuple[int, float]:
    """WRITEs in a pipeline, each answered."""
    return await written(port, topic, WRITES)


async def written(port: int, topic: str, count: int) -> tuple[int, float]:
    """So many."""
    one = b"\3" + bytes(4) + sized(topic.encode()) + sized(bytes(WRITE_SIZE))
    block = one * 500
    async with Dialled(port, "fujin") as client:
        done, sent, got = trio.Event(), 0, 0

        def answers(data: bytes) -> None:
            nonlocal got
            got += len(data)
            if got == 6 * count:
                done.set()
            else:
                send()

        def send() -> None:
            nonlocal sent
            while sent < count and sent - got // 6 <= WRITE_WINDOW - 500:
                client.link.send(-1, block)
                sent += 500
            client.link.flush()

        client.take[-1] = answers
        client.link.open(-1, Kind.DUPLEX)
        client.send(-1, b"\1\0\0\0\0")
        started = time.perf_counter()
        send()
        await client.until(done, f"the answers to {count} WRITEs")
        return count, time.perf_counter() - started


async def written_by_many(port: int, topic: str) -> tuple[int, float]:
    """One WRITE at a time by each of sixteen connections."""
    return await written_in_turns(port, topic, 16, EXCHANGES // 8)


async def written_by_one(port: int, topic: str) -> tuple[int, float]:
    """The same by one."""
    return await written_in_turns(port, topic, 1, EXCHANGES)


async def written_in_turns(port: int, topic: str, connections: int, each: int) -> tuple[int, float]:
    request = b"\3" + bytes(4) + sized(topic.encode()) + sized(b"x" * WRITE_SIZE)
    return await in_turns(port, "fujin", connections, each, b"\1\0\0\0\0", request, b"\2" + bytes(5))


async def push(port: int, name: str) -> tuple[int, float]:
    """A reader that is pushed to, with auto commit, over what is there already."""
    async with Dialled(port, "fujin") as client:
        done, got, started = trio.Event(), -2, 0.0

        def messages(data: bytes) -> None:
            nonlocal got, started
            if got == -2:
                started = time.perf_counter()
            got += len(data)
            if got >= PUSHED * (5 + WRITE_SIZE):
                done.set()

        client.take[-1] = messages
        client.link.open(-1, Kind.DUPLEX)
        client.send(-1, b"\2\1\1" + sized(name.encode()))
        await client.until(done, f"{PUSHED} messages")
        return PUSHED, time.perf_counter() - started


async def large(flymq: int, port: int) -> float:
    """A large message from a FlyMQ producer to a Felix subscriber, until its last byte is there."""
    async with Dialled(port, None) as client:
        done, got, hello = trio.Event(), 0, trio.Event()

        def events(data: bytes) -> None:
            nonlocal got
            got += len(data)
            hello.set()
            if got > LARGE:
                done.set()

        client.incoming = events
        client.link.open(-1, Kind.DUPLEX)
        client.send(-1, felix(0, b'{"type":"auth","tenant_id":"t1","token":"x"}'))
        client.send(-1, felix(0, b'{"type":"subscribe",%b}' % scope("large").encode()))
        await client.until(hello, "the answer to subscribe")
        with connect(flymq) as sock:
            request = frame(1, text("large") + sized(b"") + sized(bytes(LARGE)) + b"\xff" * 4)
            started = time.perf_counter()
            await trio.to_thread.run_sync(sock.sendall, request)
            await trio.to_thread.run_sync(receive, sock, 8)
            await client.until(done, "the large message")
            return time.perf_counter() - started


async def crowd(port: int, process: Process) -> tuple[int, int]:
    """Connections with streams on which something was published: resident bytes before and after."""
    before = process.memory()
    request = felix(0, b'{"type":"publish",%b,"payload":"aGVsbG8=","request_id":1}' % scope("memory.crowd").encode())
    async with trio.open_nursery() as nursery:
        ready, answered = trio.Event(), 0

        def answer(data: bytes) -> None:
            nonlocal answered
            answered += len(data) // len(felix(0, b'{"type":"publish_ok","request_id":1}'))
            if answered == CONNECTIONS * STREAMS:
                ready.set()

        async def one() -> None:
            async with Dialled(port, None) as client:
                for channel in range(-STREAMS, 0):
                    client.take[channel] = answer
                    client.link.open(channel, Kind.DUPLEX)
                    client.send(channel, request)
                await client.until(ready, f"the answers on {CONNECTIONS} connections")
                await over.wait()

        over = trio.Event()
        for _ in range(CONNECTIONS):
            nursery.start_soon(one)
        await ready.wait()
        after = process.memory()
        over.set()
    return before, after


def bare(mode: str) -> AbstractContextManager[Process]:
    """The bare loop."""
    return running([sys.executable, "-m", "tests.bench.bare_quic", mode, str(PUSHED)])


def measured(process: Process, load: Load, topic: str) -> tuple[float, float]:
    """Messages per second by the clock, and per second of the server's CPU."""
    port = process.ports["quic"]
    if load is push and "filled" in process.ports:  # each round's are new to the reader
        port = process.ports["filled"]
        trio.run(written, process.ports["quic"], "memory.filled", PUSHED)
    before = process.processor()
    count, seconds = trio.run(load, port, topic)
    return count / seconds, count / (process.processor() - before)


LOADS: tuple[tuple[str, str, Load, str, str], ...] = (
    ("Felix, acknowledged publish, one connection one at a time", "acked", acked, "memory", "4 k/s"),
    ("Felix, the same by sixteen connections", "acked", acked_by_many, "memory.many", "15 k/s"),
    ("Felix, the same by one, synced (the bare loop syncs nothing)", "acked", acked, "durable", ""),
    ("Felix, 64 x 256 B in a batch to one subscriber, a message", "batches", batches, "memory", "150 k/s"),
    ("Felix, the same to ten subscribers, a delivery", "batches", batches_to_ten, "memory.ten", ""),
    ("Fujin, WRITE of 32 B, one connection one at a time", "write", written_by_one, "memory.one", ""),
    ("Fujin, the same by sixteen connections", "write", written_by_many, "memory.many", "15 k/s"),
    ("Fujin, WRITE of 32 B, pipelined", "write", write, "memory", "300 k/s"),
    ("Fujin, push of 32 B, a message", "push", push, "filled", "300 k/s"),
)


def quic(report: Report, rounds: int = ROUNDS) -> list[BesideBare]:
    """All of it, on a gateway of its own."""
    found: list[BesideBare] = []
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "gateway.yaml"
        config.write_text(CONFIG.format(path=Path(directory) / "data"))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
        with running(command) as process:
            port = process.ports["quic"]
            for name, mode, load, kept, meant in LOADS:
                ours, theirs = [], []
                with bare(mode) as mark:
                    for number in range(rounds):
                        topic = kept if kept == "filled" else f"{kept}.{mode}.{number}"
                        theirs.append(measured(mark, load, topic))
                        ours.append(measured(process, load, topic))
                for what, index in (("", 0), (", per CPU second", 1)):
                    mine, beside = (statistics.median(pair[index] for pair in pairs) for pairs in (ours, theirs))
                    report(
                        name + what, f"{mine:,.0f}/s", f"{mine / beside:.2f} of {beside:,.0f}", "" if index else meant
                    )
                found.append(
                    BesideBare(name, [PairedRound(*one, *other) for one, other in zip(ours, theirs, strict=True)])
                )
            seconds = statistics.median(trio.run(large, process.ports["flymq"], port) for _ in range(ROUNDS))
            report("8 MiB from FlyMQ to Felix, fsync", f"{seconds:.3f} s", "", "1 s")
            before, after = trio.run(crowd, port, process)
            mib = 1 << 20
            report(
                "200 connections x 10 streams", f"{after / mib:.0f} MiB", f"{before / mib:.0f} MiB before", "300 MiB"
            )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--into", type=Path, help="the directory that what was found is kept in, for the page")
    given = parser.parse_args()
    figures = quic(lambda *line: print("{:<76} {:>13} {:>22}   {}".format(*line), flush=True), given.rounds)
    if given.into is not None:
        keep(figures, given.into)
