"""A gateway that is taken down leaves in its store how long messages waited, for the roll-up; one that goes on adds to it."""

from __future__ import annotations

import signal
from pathlib import Path

import trio

from gateway.pipeline.deliveries import DeliveryRows
from gateway.pipeline.frames import messages_at
from gateway.pipeline.options import TopicSelection
from gateway.store.reader import LogReader
from gateway.store.stats import TOPIC
from tests.integration.flymq_raw import flymq, i32, produce
from tests.integration.raw import s16
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}"}}
"""


async def test_going_down_writes_what_was_delivered_since(tmp_path: Path):
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    for written in (0, 1):
        served.start()
        running = DeliveryRows(messages_at(f"http://127.0.0.1:{served.ports['admin']}"), TopicSelection())
        assert sum(row[4] for row in await trio.to_thread.run_sync(running.rows)) == written
        with trio.fail_after(60):
            async with flymq(served.ports["flymq"]) as client:
                await client.ask(3, s16("a") + i32(1))
                await client.ask(1, produce("a", b"x"))
                await client.values("a")
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
    with LogReader(served.data) as reader:
        assert reader.topic(TOPIC).config.retention_seconds == 7 * 86_400
    rows = DeliveryRows(messages_at(str(served.data)), TopicSelection()).rows()
    # the first life has one message to hand out, the second has two; minutes may have ended between them
    assert {row[1:4] for row in rows} == {("identity", "a", "flymq")}
    assert sum(row[4] for row in rows) == 3
    for _minute, _route, _topic, _protocol, _messages, median, _p95, slowest in rows:
        assert 0 <= median <= slowest
