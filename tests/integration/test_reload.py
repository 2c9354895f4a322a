"""SIGHUP to a real process: the file is read again under traffic, and a file that cannot be served changes nothing."""

from __future__ import annotations

import re
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.integration.raw import BlipMQ, Wire, rustlog_ask, s16, s32, tcp
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin:   {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", durability: none}}
upstreams:
  away: {{protocol: rustlog, address: "127.0.0.1:1"}}
routes:
  - name: orders
    match: {{topic: "orders.*"}}
    to: [{{store: {{topic: "old.{{1}}"}}}}]
  - name: sent
    match: {{topic: "sent.*"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: away, address: "far.{{1}}", accept_loss: all}}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
PROXY = '  - {name: ask, match: {topic: "ask.*"}, to: [{proxy: {upstream: away, address: "asked.{1}"}}]}\n'
DEADLINE = 120
WINDOW = 64


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Served, str]]:
    """A gateway that reads its file again, and what is in the file."""
    config = CONFIG.format(data=directory / "data")
    gateway = Served(directory, config)
    await trio.to_thread.run_sync(gateway.start)
    try:
        with trio.fail_after(DEADLINE):
            yield gateway, config
    finally:
        if gateway.running:
            gateway.end(signal.SIGKILL)


async def metrics(gateway: Served) -> str:
    stream = await trio.open_tcp_stream("127.0.0.1", gateway.ports["admin"])
    async with stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return b"".join([chunk async for chunk in stream]).decode()


async def reload(gateway: Served, config: str) -> tuple[str, bool]:
    """Write a file, have it read; what the metrics say became of it, and whether what is served is what it says."""
    name = r'^gateway_config_reloads_total\{outcome="(\w+)"\} (\S+)$'
    before = dict(re.findall(name, await metrics(gateway), re.MULTILINE))
    gateway.write(config)
    gateway.send_signal(signal.SIGHUP)
    while True:
        text = await metrics(gateway)
        now = dict(re.findall(name, text, re.MULTILINE))
        if now != before:
            (outcome,) = (one for one in now if now[one] != before[one])
            return outcome, "\ngateway_config_last_reload_success 1.0\n" in text
        await trio.sleep(0.01)


def produce(topic: str, value: bytes) -> bytes:
    """A binary Produce of one value (RustLog wire 1.2)."""
    return b"\1" + s16(topic) + struct.pack(">II", 0, 1) + s32(value)


async def read(wire: Wire, topic: str) -> list[bytes]:
    """All there is, from the beginning (RustLog wire 1.2)."""
    values: list[bytes] = []
    while True:
        request = b"\2\0\0" + s16(topic) + struct.pack(">IQI", 0, len(values), 1 << 20)
        answer = await rustlog_ask(wire, request)
        assert answer[0] == 2, answer
        (count,) = struct.unpack_from(">I", answer, 1)
        if not count:
            return values
        position = 5
        for _ in range(count):
            (size,) = struct.unpack_from(">I", answer, position)
            values.append(answer[position + 4 : position + 4 + size])
            position += 4 + size


async def holds(wire: Wire, topic: str, *values: bytes) -> None:
    """Wait until a topic holds these and no others."""
    while await read(wire, topic) != [*values]:  # noqa: ASYNC110  # what is waited for happens in another process
        await trio.sleep(0.01)


async def create(wire: Wire, *topics: str) -> None:
    for topic in topics:
        await rustlog_ask(wire, b"\5" + s16(topic) + struct.pack(">I", 1))


class Producer:
    """Publishes one number after the other, some of them always under way, and counts what was confirmed."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._stop = False
        self.sent = 0
        self.confirmed = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._confirm)
            task_status.started()
            while not self._stop:
                if self.sent - self.confirmed < WINDOW:
                    await self._wire.send(s32(produce("orders.eu", b"%d" % self.sent)))
                    self.sent += 1
                else:
                    await trio.sleep(0.001)
            while self.confirmed < self.sent:  # noqa: ASYNC110  # as in `more`
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    async def _confirm(self) -> None:
        while True:
            answer = await self._wire.receive(struct.unpack(">I", await self._wire.receive(4))[0])
            assert answer[0] == 1, answer
            self.confirmed += 1

    async def more(self, count: int) -> None:
        """Until so many more are confirmed."""
        goal = self.confirmed + count
        while self.confirmed < goal:  # noqa: ASYNC110  # looked at from afar: counting wakes nobody
            await trio.sleep(0.005)

    def stop(self) -> None:
        self._stop = True


async def test_a_route_changes_under_a_producer_and_nothing_is_lost_or_in_two_places(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (gateway, config),
        tcp(gateway.ports["rustlog"]) as wire,
        tcp(gateway.ports["rustlog"]) as other,
        tcp(gateway.ports["blipmq"]) as subscriber,
    ):
        await create(other, "old.eu", "new.eu", "old.asia")
        reader = BlipMQ()
        await reader.subscribe(subscriber, "orders.asia")
        producer = Producer(wire)
        async with trio.open_nursery() as nursery:
            await nursery.start(producer.run)
            await producer.more(500)
            both = 'store: {topic: "new.{1}"}}, {store: {topic: "copy.{1}"}}]'
            assert await reload(gateway, config.replace('store: {topic: "old.{1}"}}]', both)) == ("applied", True)
            await producer.more(500)
            producer.stop()
        old, new = await read(other, "old.eu"), await read(other, "new.eu")
        assert len(old) >= 500 <= len(new)
        assert [*old, *new] == [b"%d" % number for number in range(producer.sent)]
        assert await read(other, "copy.eu") == new  # nobody had to make that topic
        assert await read(other, "orders.eu") == new  # who asks now is answered by the new table
        await rustlog_ask(other, produce("old.asia", b"as before"))
        await reader.next(subscriber, "orders.asia", b"as before")  # and who had subscribed goes on where it was
        assert gateway.logged()[-1]["changed"] == ["orders"]


async def test_what_cannot_be_served_leaves_the_last_good_configuration(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, config), tcp(gateway.ports["rustlog"]) as wire:
        await create(wire, "orders.eu", "new.eu")

        async def is_served(topic: str) -> None:
            before = await read(wire, topic)
            assert (await rustlog_ask(wire, produce("orders.eu", b"x")))[0] == 1
            assert await read(wire, topic) == [*before, b"x"]

        new = config.replace("old.{1}", "new.{1}")
        bad = new.replace("match: {}", "match: {topc: x}").replace("new.{1}", "new.{2}")
        assert await reload(gateway, bad) == ("invalid", False)
        problems = [one for one in gateway.logged() if one["event"] == "configuration problem"]
        lines = [number for number, line in enumerate(bad.splitlines(), 1) if "topc" in line or "{2}" in line]
        assert [one["where"] for one in problems] == [f"{tmp_path / 'gateway.yaml'}:{line}" for line in lines]
        await is_served("old.eu")

        for asked, named in (
            (new.replace('rustlog, bind: "127.0.0.1:0"', 'rustlog, bind: "127.0.0.2:0"'), "listeners.rustlog.bind"),
            (new.replace("durability: none", "durability: fsync"), "storage.durability"),
        ):
            assert asked != new
            assert await reload(gateway, asked) == ("refused", False), named
            assert gateway.logged()[-1]["restart_for"] == named
        await is_served("old.eu")

        (tmp_path / "gateway.yaml").unlink()
        assert await reload(gateway, new) == ("applied", True)
        await is_served("new.eu")


async def test_a_gateway_that_goes_down_reads_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, config):
        async with tcp(gateway.ports["rustlog"]) as wire:
            await create(wire, "large")
            assert (await rustlog_ask(wire, produce("large", bytes(4 << 20))))[0] == 1
            fetch = s32(b"\2\0\0" + s16("large") + struct.pack(">IQI", 0, 0, 8 << 20))
            await wire.send(fetch * 8)  # the answers are not read: going down waits for who takes them
            await wire.receive(4)
            gateway.send_signal(signal.SIGTERM)
            await logged(gateway, "draining")
            gateway.write(config.replace("old.{1}", "new.{1}"))
            gateway.send_signal(signal.SIGHUP)
            await logged(gateway, "the configuration is not reloaded: the gateway goes down")
        await logged(gateway, "drained")
        assert "configuration reloaded" not in [one["event"] for one in gateway.logged()]


async def logged(gateway: Served, event: str) -> None:
    """Wait until it has said so."""
    while event not in [one["event"] for one in gateway.logged()]:  # noqa: ASYNC110  # it happens in another process
        await trio.sleep(0.01)


async def test_bridges_change_while_it_serves(tmp_path: Path) -> None:
    forward = '      - forward: {upstream: away, address: "far.{1}", accept_loss: all}\n'
    async with served(tmp_path) as (gateway, config), tcp(gateway.ports["rustlog"]) as wire:
        await create(wire, "sent.a", "asked.a", "far.a", "pulled")
        for number in range(3):
            assert (await rustlog_ask(wire, produce("sent.a", b"%d" % number)))[0] == 1
        assert 'gateway_forward_backlog_messages{forward="sent-away"} 3.0' in await metrics(gateway)

        used = config.index("upstreams:")
        without = config[:used] + config[used:].replace(forward, "")
        assert await reload(gateway, without) == ("applied", True)
        (left,) = [one for one in gateway.logged() if one["event"].startswith("a forward that is no more")]
        assert (left["forward"], left["messages"]) == ("sent-away", 3)
        text = await metrics(gateway)
        assert 'gateway_forward_backlog_messages{forward="sent-away"} 0.0' in text
        assert 'gateway_upstream_connected{upstream="away"}' not in text

        # the upstream is this gateway itself, by now
        port = gateway.ports["rustlog"]
        there = config.replace("127.0.0.1:1", f"127.0.0.1:{port}").replace(
            "  - {name: rest", f"{PROXY}  - {{name: rest"
        )
        assert await reload(gateway, there) == ("applied", True)
        await holds(wire, "far.a", b"0", b"1", b"2")
        answer = await rustlog_ask(wire, produce("ask.a", b"x"))
        assert answer[0] == 1, answer
        assert await read(wire, "asked.a") == [b"x"]

        pulled = f'"127.0.0.1:{port}", ingest: [{{from: asked.a, into: pulled}}]'
        assert await reload(gateway, there.replace(f'"127.0.0.1:{port}"', pulled)) == ("applied", True)
        await holds(wire, "pulled", b"x")
        assert gateway.logged()[-1]["upstreams_changed"] == ["away"]
        assert 'gateway_consumer_unaccounted_messages{kind="forward"} 0.0' in await metrics(gateway)
