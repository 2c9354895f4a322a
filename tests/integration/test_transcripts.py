"""Exchanges of the documents that only a whole process can get right: session, broker, commits in a thread, sockets."""

from __future__ import annotations

import struct
from pathlib import Path

import trio

from tests.integration.raw import BlipMQ, blipmq_frame, s16, tcp
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
