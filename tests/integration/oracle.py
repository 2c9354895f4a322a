"""An oracle: it gives every message an id, remembers which of them were acknowledged, and judges what arrived elsewhere.

Two real gateways: clients of all five protocols publish to the near one, which forwards over each of them to the far one,
through a network that misbehaves. After it has healed: what was acknowledged is there or in the dead letters, nothing is
there that was not issued, no payload was touched, and the first arrivals of each key are in the order they were issued.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Fetch, Fetched, Publish, Published
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import Credentials
from tests.integration.faults import Fault, Network, TcpNetwork, UdpNetwork
from tests.integration.running import Served
from tests.kafka.fixtures import Log

PROTOCOLS = ("blipmq", "flymq", "rustlog", "felix", "fujin")
CREDENTIALS = Credentials(api_key="key")
LETTERS = "lost"
FILE = Log()
LARGEST_FOR_FUJIN = 65_536
LARGEST_FILE = 4096
"""Bytes, while a disk is said to be full."""

LISTENERS = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
admin:     {{bind: "127.0.0.1:0"}}
storage:   {storage}
"""
UPSTREAM = '  {name}: {{protocol: {name}, address: "127.0.0.1:{port}", timeout: {timeout}s, pool: {pool}{more}}}\n'
ROUTE = """  - name: to-{name}
    match: {{topic: "{name}.*"}}
    to:
      - store: {{topic: "{name}.{{1}}"}}
"""
FORWARD = """      - forward:
          upstream: {name}
          address: "{name}.{{1}}"
          retry: {{max: 100000, backoff: 10ms..200ms}}
          window: {window}
          dead_letter: {letters}
          accept_loss: all
"""
COPY = '      - store: {topic: "copies.{topic}"}\n'
TOPICS = '  "*.flymq": {partitions: 2}\n'  # who has keys has partitions


@attrs.frozen
class Id:
    """Which message this is."""

    producer: str
    upstream: str
    key: str
    number: int

    @property
    def topic(self) -> str:
        return f"{self.upstream}.{self.producer}"

    def value(self, chance: random.Random, size: int) -> bytes:
        """A payload that says which it is and whether it is whole."""
        text = f"{self.producer}|{self.upstream}|{self.key}|{self.number}|".encode() + chance.randbytes(size)
        return text + zlib.crc32(text).to_bytes(4, "big")


def read_id(value: bytes) -> Id:
    """Which message a payload is; fails if a byte of it was changed."""
    assert zlib.crc32(value[:-4]).to_bytes(4, "big") == value[-4:], f"changed on the way: {value[:80]!r}"
    producer, upstream, key, number, _ = value.split(b"|", 4)
    return Id(producer.decode(), upstream.decode(), key.decode(), int(number))


@attrs.define(eq=False)
class Ledger:
    """What was issued and acknowledged, and what came out."""

    issued: set[Id] = attrs.Factory(set)
    acknowledged: set[Id] = attrs.Factory(set)
    acks: Counter[str] = attrs.Factory(Counter)
    """How many by topic."""
    arrived: dict[str, list[Id]] = attrs.Factory(lambda: defaultdict(list))
    dead: dict[Id, int] = attrs.Factory(dict)
    """In the dead letters, and how large."""
    refused_singly: bool = False
    """The far gateway may have refused some messages of a request: of those without a key, an upstream that is told each one's
    fate has the others before them."""

    def missing(self) -> set[Id]:
        """Acknowledged, and nowhere."""
        there = {one for arrivals in self.arrived.values() for one in arrivals} | self.dead.keys()
        return self.acknowledged - there

    def acknowledge(self, ids: Sequence[Id]) -> None:
        """A producer was told that they are stored."""
        self.acknowledged.update(ids)
        self.acks.update(one.topic for one in ids)

    def judge(self) -> None:
        """Everything but `missing`."""
        for topic, arrivals in self.arrived.items():
            assert self.issued.issuperset(arrivals), f"invented: {set(arrivals) - self.issued}"
            assert {one.topic for one in arrivals} == {topic}
            if arrivals and protocol(arrivals[0].upstream).carries.copies:
                twice = [one for one, count in Counter(arrivals).items() if count > 1]
                assert not twice, f"stored more than once: {len(twice)} of {topic}, {twice[:5]}"
            numbers: dict[str, list[int]] = defaultdict(list)
            for one in dict.fromkeys(arrivals):
                numbers[one.key].append(one.number)
            for key, seen in numbers.items():
                if not key and self.refused_singly and not protocol(arrivals[0].upstream).carries.batch_atomic:
                    continue
                assert seen == sorted(seen), f"out of order in {topic}, key {key!r}: {_where(seen)}"
        assert self.issued.issuperset(self.dead)
        hopeless = {one for one, size in self.dead.items() if one.upstream == "fujin" and size > LARGEST_FOR_FUJIN}
        assert hopeless == self.dead.keys(), f"given up without need: {self.dead.keys() - hopeless}"


def _where(seen: Sequence[int]) -> str:
    index = next(index for index in range(1, len(seen)) if seen[index] < seen[index - 1])
    return f"... {seen[max(0, index - 3) : index + 3]} ..."


class Oracle:
    """Two gateways, a network between them for each protocol, a producer of each."""

    def __init__(
        self, directory: Path, seed: int, log: Log = FILE, *, upstreams: Sequence[str] = PROTOCOLS, pool: int = 1
    ) -> None:
        """`log`: where the near gateway's is."""
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self.upstreams = upstreams
        self._directory = directory
        self._pool = pool
        self._variant = 0
        for name in ("near", "far"):
            (directory / name).mkdir(parents=True)
        self.log = log
        self.far = Served(directory / "far", self._listeners("far", FILE))
        self.near: Served
        self._next: Counter[str] = Counter()
        self._wanted: dict[str, int] = {}
        self._nursery: trio.Nursery
        self._producers: trio.CancelScope
        self._asked = trio.Event()
        self._numbers: Counter[tuple[str, str]] = Counter()
        self.networks: dict[str, Network] = {}
        for name in upstreams:
            kind = UdpNetwork if protocol(name).transport is Transport.QUIC else TcpNetwork
            self.networks[name] = kind(lambda name=name: self.far.ports[name], self.chance)

    # --- the gateways ---

    async def start(self, nursery: trio.Nursery) -> None:
        """Both gateways, everything between them, and the producers."""
        await trio.to_thread.run_sync(self.far.start)
        for network in self.networks.values():
            await nursery.start(network.run)
        self.near = Served(self._directory / "near", self._near_config())
        await trio.to_thread.run_sync(self.near.start)
        self._nursery = nursery
        self._start_producing()

    async def restart(self, gateway: Served, number: int) -> None:
        """End a gateway by a signal, and start it again over its data."""
        code = await trio.to_thread.run_sync(gateway.end, number)
        assert code == (0 if number == signal.SIGTERM else -number)
        if gateway is self.near:  # who speaks QUIC would wait long for one that is gone
            self._producers.cancel()
        await trio.to_thread.run_sync(gateway.start)
        if gateway is self.near:
            self._start_producing()

    def end(self) -> None:
        """Whatever runs."""
        for gateway in (self.far, getattr(self, "near", self.far)):
            if gateway.running:
                gateway.end(signal.SIGKILL)

    async def reload(self) -> None:
        """The near gateway reads a file by which its routes have one store more, or one less, and its forwards another window,
        while it is published to. Of three times, once the first upstream's forwards are gone, then they are there again, and then
        every upstream has another time-out.
        """
        name, applied = "gateway_config_reloads_total", 'outcome="applied"'
        before = await self.metric(name, label=applied)
        self._variant += 1
        self.near.write(self._near_config())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_busy)
            while await self.metric(name, label=applied) == before:
                said = await self.metric(name)
                self.near.send_signal(signal.SIGHUP)  # it refuses while its disk is full
                while await self.metric(name) == said:  # noqa: ASYNC110  # as below
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    async def freeze(self) -> None:
        """The near gateway stands still until others take it for dead, and goes on."""
        self.near.send_signal(signal.SIGSTOP)
        await self.log.unattended()
        self.near.send_signal(signal.SIGCONT)

    async def full_disk(self, gateway: Served) -> None:
        """The files of a gateway may not grow until it has noticed."""
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.RLIM_INFINITY))
        self.ledger.refused_singly |= gateway is self.far
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_busy)
            while await self.metric("gateway_store_writable", gateway):  # noqa: ASYNC110  # it happens in another process
                await trio.sleep(0.05)
            resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            nursery.cancel_scope.cancel()

    async def _keep_busy(self) -> None:
        while True:
            await self.more(1)

    @property
    def _is_one_gone(self) -> bool:
        return self._variant % 3 == 1

    def _listeners(self, name: str, log: Log) -> str:
        return LISTENERS.format(storage=log.storage(self._directory / name / "data", ", free_space_floor: 1MiB"))

    def _near_config(self) -> str:
        text = self._listeners("near", self.log) + "topics:\n" + TOPICS + "upstreams:\n"
        for name in self.upstreams:
            certificate = self._directory / "far" / "data" / "self-signed.crt"
            more = f', tls: {{ca: "{certificate}"}}' if protocol(name).transport is Transport.QUIC else ""
            more += ", auth: {api_key: key}" if name == "blipmq" else ""
            timeout = 4 if self._variant % 3 == 0 < self._variant else 3
            port = self.networks[name].port
            text += UPSTREAM.format(name=name, port=port, pool=self._pool, more=more, timeout=timeout)
        text += "routes:\n"
        for name in self.upstreams:
            text += ROUTE.format(name=name) + (COPY if self._variant % 2 else "")
            if not (self._is_one_gone and name == self.upstreams[0]):
                text += FORWARD.format(name=name, letters=LETTERS, window=64 - 16 * (self._variant % 2))
        return text + '  - {name: rest, match: {}, to: [{store: {topic: "{topic}"}}]}\n'

    def set_faults(self, fault: Fault) -> None:
        """All networks alike."""
        for network in self.networks.values():
            network.set(fault)

    # --- producing ---

    async def more(self, messages: int) -> None:
        """Until every pair has so many more that are acknowledged. Nothing is issued when nobody asks for more."""
        topics = [f"{upstream}.{name}" for upstream in self.upstreams for name in PROTOCOLS]
        self._wanted = {topic: self.ledger.acks[topic] + messages for topic in topics}
        self._asked.set()
        self._asked = trio.Event()
        while self._lacking(topics):  # noqa: ASYNC110  # what is waited for happens in other processes
            await trio.sleep(0.02)

    def _lacking(self, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if self.ledger.acks[topic] < self._wanted.get(topic, 0)]

    def _tls(self, gateway: str) -> ClientTls:
        return ClientTls(ca=str(self._directory / gateway / "data" / "self-signed.crt"))

    def stop_producing(self) -> None:
        """From now on nothing is issued."""
        self._producers.cancel()

    def _start_producing(self) -> None:
        self._producers = trio.CancelScope()
        self._nursery.start_soon(self._produce_all, self._producers)

    async def _produce_all(self, until: trio.CancelScope) -> None:
        with until:
            async with trio.open_nursery() as nursery:
                for name in PROTOCOLS:
                    nursery.start_soon(self._produce, name)

    async def _produce(self, name: str) -> None:
        """Publish what is asked for; whatever was not confirmed is not tried again, it counts as not sent."""
        while True:
            try:
                tls = self._tls("near") if protocol(name).transport is Transport.QUIC else None
                async with connect(
                    protocol(name), "127.0.0.1", self.near.ports[name], credentials=CREDENTIALS, tls=tls, timeout=5
                ) as connection:
                    while not connection.driver.closed:
                        lacking = self._lacking([f"{upstream}.{name}" for upstream in self.upstreams])
                        for topic in lacking:
                            await self._publish(connection, name, topic.partition(".")[0])
                        if not lacking:
                            await self._asked.wait()
            except* (GatewayError, OSError):
                pass
            await trio.sleep(0.05)

    async def _publish(self, connection: Connection, name: str, upstream: str) -> None:
        ids: list[Id] = []
        keys: list[bytes | None] = []
        for _ in range(self.chance.randint(1, 12)):
            key = self.chance.choice("abc") if name == "flymq" else ""
            ids.append(Id(name, upstream, key, self._numbers[name, upstream]))
            keys.append(key.encode() or None)
            self._numbers[name, upstream] += 1
        self.ledger.issued.update(ids)
        values = [one.value(self.chance, self.chance.choice((0, 30, 300, 3000))) for one in ids]
        if name != "fujin" and self.chance.random() < 0.02:
            values[0] = ids[0].value(self.chance, LARGEST_FOR_FUJIN)
        columns = Columns.of(values, keys if name == "flymq" else None)
        reply = await connection.request(Publish(0, Batch(ids[0].topic, columns)), timeout=15)
        assert isinstance(reply, Published)
        self.ledger.acknowledge([one for index, one in enumerate(ids) if index not in reply.refused])

    # --- judging ---

    async def collect(self) -> None:
        """Read what is new at the far gateway, and in the near one's dead letters."""
        async with connect(protocol("flymq"), "127.0.0.1", self.far.ports["flymq"]) as connection:
            for upstream in self.upstreams:
                for name in PROTOCOLS:
                    topic = f"{upstream}.{name}"
                    for columns in await self._read(connection, topic):
                        self.ledger.arrived[topic] += map(read_id, columns.values())
        async with connect(protocol("flymq"), "127.0.0.1", self.near.ports["flymq"]) as connection:
            for topic in (LETTERS, *(f"{upstream}.{name}.dlq" for upstream in self.upstreams for name in PROTOCOLS)):
                for columns in await self._read(connection, topic):
                    self.ledger.dead |= {read_id(value): len(value) for value in columns.values()}

    async def _read(self, connection: Connection, topic: str) -> list[Columns]:
        found: list[Columns] = []
        while True:
            try:
                reply = await connection.request(Fetch(0, topic, 0, self._next[topic], 1000, 4 << 20))
            except GatewayError:
                return found
            assert isinstance(reply, Fetched)
            if not reply.runs:
                return found
            found += [run.columns for run in reply.runs]
            self._next[topic] = reply.next_offset

    async def swallow(self, messages: int) -> None:
        """Until something is stored at the far gateway, and the near one cannot know. It has to be connected when the answers begin to
        get lost, and after it was killed that takes as long as its jobs and its upstream take.
        """
        while True:
            self.set_faults(Fault.NONE)
            await self.more(1)
            await self.settle()
            before = sum(map(len, self.ledger.arrived.values()))
            self.set_faults(Fault.SWALLOW)
            await self.more(messages)
            await self.collect()
            if sum(map(len, self.ledger.arrived.values())) > before:
                return

    async def count(self, topic: str) -> int:
        """How many messages the near gateway has in the first partition of a topic."""
        async with connect(protocol("flymq"), "127.0.0.1", self.near.ports["flymq"]) as connection:
            return sum(map(len, await self._read(connection, topic)))

    async def settle(self) -> None:
        """Until all that was acknowledged is somewhere, and the near gateway has nothing left to deliver. A forward that was
        removed goes on first.
        """
        if self._is_one_gone:
            await self.reload()
        while True:
            try:
                await self.collect()
                if not self.ledger.missing() and not await self.metric("gateway_forward_backlog_messages"):
                    return
            except (GatewayError, OSError):
                pass
            await trio.sleep(0.1)

    async def metric(self, name: str, gateway: Served | None = None, label: str = "") -> float:
        """The sum of the absolute values of a metric, of the near gateway if none is named."""
        stream = await trio.open_tcp_stream("127.0.0.1", (gateway or self.near).ports["admin"])
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            text = b"".join([chunk async for chunk in stream]).decode()
        labels = rf"\{{[^}}]*{label}[^}}]*\}}" if label else r"(?:\{[^}]*\})?"
        values = re.findall(rf"^{name}{labels} (\S+)$", text, re.MULTILINE)
        assert values, text[-2000:]
        return sum(abs(float(value)) for value in values)

    async def balanced(self) -> None:
        """The near gateway can say where every message is."""
        assert await self.metric("gateway_route_unaccounted_messages") == 0
        assert await self.metric("gateway_consumer_unaccounted_messages") == 0
