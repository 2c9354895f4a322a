"""Exchanges of the documents that only a whole process can get right: session, broker, commits in a thread, sockets."""

from __future__ import annotations

import struct
from pathlib import Path

import trio

from tests.integration.raw import BlipMQ, RustLog, blipmq_frame, s16, s32, tcp
from tests.integration.running import serving

CONFIG = """
version: 1
listeners:
  blipmq: {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
storage: {{path: "{}"}}
"""


async def test_all_of_blipmq_in_one_segment(tmp_path: Path) -> None:
    """SUBSCRIBE, PUBLISH a, PUBLISH b, POLL, POLL, POLL, PING give ACK, a, b, PONG (BlipMQ wire 1.5)."""
    topic = s16("new")
    with trio.fail_after(60):
        async with serving(tmp_path, CONFIG.format(tmp_path / "data")) as ports, tcp(ports["blipmq"]) as wire:
            await BlipMQ.greet(wire)
            for qos, subscription in ((1, 2), (0, 3)):
                poll = struct.pack(">Q", subscription)
                await wire.send(
                    blipmq_frame(4, 3, topic + bytes([qos]))
                    + blipmq_frame(3, 4, bytes([qos]) + topic + b"a")
                    + blipmq_frame(3, 5, bytes([qos]) + topic + b"b")
                    + b"".join(blipmq_frame(9, cid, poll) for cid in (1, 2, 3))
                    + blipmq_frame(7, 9)
                )
                await wire.expect(blipmq_frame(5, 3, poll))
                await wire.expect(blipmq_frame(3, 1, bytes([qos]) + topic + b"a"))
                await wire.expect(blipmq_frame(3, 2, bytes([qos]) + topic + b"b"))
                await wire.expect(blipmq_frame(8, 9))


ADMIN_TOKEN = """
version: 1
listeners: {{rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}}}
storage: {{path: "{}"}}
admin: {{bind: "127.0.0.1:0", token: "0123456789abcdef0123456789abcdef"}}
"""


async def test_rustlogs_metrics_are_true(tmp_path: Path) -> None:
    """Operation 09 (RustLog wire 7), which asks no more than the listener does, whatever guards the admin address."""
    with trio.fail_after(60):
        async with serving(tmp_path, ADMIN_TOKEN.format(tmp_path / "data")) as ports, tcp(ports["rustlog"]) as wire:
            rustlog = RustLog()
            await rustlog.publish(wire, "t", b"four")
            await rustlog.next(wire, "t", b"four")
            await wire.send(s32(b"\5" + s16("t") + struct.pack(">I", 1)) + s32(b"\x09"))
            await wire.receive(struct.unpack(">I", await wire.receive(4))[0])  # CreateTopic again: it is there
            body = await wire.receive(struct.unpack(">I", await wire.receive(4))[0])
            assert body[0] == 9
            assert struct.unpack(">I", body[1:5])[0] == len(body) - 5
            lines = [line.split(" ") for line in body[5:].decode().splitlines() if not line.startswith("#")]
            values = {name: int(value) for name, value in lines}
            assert len(values) == 23
            totals = [
                values[f"{name}_total"] for name in ("messages_produced", "bytes_in", "messages_fetched", "bytes_out")
            ]
            assert totals == [1, 4, 1, 4]
            assert values["active_connections"] == 1
            assert values["produce_latency_ns_p50"] > 0
            assert values["fetch_latency_ns_p50"] > 0
