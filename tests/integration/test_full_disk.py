"""A disk without room, under a real process: writes are refused in words, readers are served, everybody is told, and it heals."""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from pathlib import Path

import httpx
import trio

from tests.integration.raw import (
    BLIPMQ_PING,
    BLIPMQ_PONG,
    BlipMQ,
    blipmq_frame,
    rustlog_ask,
    rustlog_fetch,
    s16,
    s32,
    tcp,
)
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin:   {{bind: "127.0.0.1:0"}}
storage: {{path: "{}", free_space_floor: 1}}
"""


def produce(value: bytes) -> bytes:
    return b"\1" + s16("t") + struct.pack(">II", 0, 1) + s32(value)


async def test_a_full_disk(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            async with (
                tcp(served.ports["rustlog"]) as wire,
                tcp(served.ports["blipmq"]) as other,
                httpx.AsyncClient(
                    timeout=60, trust_env=False, base_url=f"http://127.0.0.1:{served.ports['admin']}"
                ) as client,
            ):
                await rustlog_ask(wire, b"\5" + s16("t") + struct.pack(">I", 1))
                assert (await rustlog_ask(wire, produce(b"kept")))[0] == 1
                await BlipMQ.greet(other)
                # the log's files may not grow: what a full disk is to a process, whoever runs it
                written = await trio.Path(tmp_path / "data" / "log.sqlite-wal").stat()
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (written.st_size, resource.RLIM_INFINITY))
                refused = await rustlog_ask(wire, produce(bytes(100_000)))
                assert refused[:3] == b"\xfe\x01\xf4"
                assert refused[5:].startswith(b"Failed to write record: ")
                await other.send(blipmq_frame(3, 7, b"\1" + s16("t") + b"refused") + BLIPMQ_PING)
                nack = await other.receive(struct.unpack(">I", await other.receive(4))[0])
                assert nack[:11] == b"\6" + struct.pack(">QH", 7, 500)
                assert nack[13:].startswith(b"durable publish failed: ")
                await other.expect(BLIPMQ_PONG)
                ready = await client.get("/readyz")
                assert ready.status_code == 503
                assert ready.json()["problems"][0].startswith("store is read-only: ")
                assert "\ngateway_store_writable 0.0\n" in (await client.get("/metrics")).text
                assert (await client.get("/livez")).status_code == 200
                kept = b"\2\0\0\0\1" + s32(b"kept") + struct.pack(">Q", 1)
                assert await rustlog_ask(wire, rustlog_fetch("t", 0)) == kept
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                while (answer := await rustlog_ask(wire, produce(b"again")))[0] != 1:
                    await trio.lowlevel.checkpoint()
                assert answer == b"\1" + struct.pack(">QI", 1, 1)
                assert (await client.get("/readyz")).status_code == 200
            events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            said = [one for one in events if one["event"].startswith("the store takes")]
            assert [one["event"] for one in said] == ["the store takes no writes", "the store takes writes again"]
            assert said[0]["reason"]
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_a_log_that_takes_no_line_ends_nothing(tmp_path: Path) -> None:
    """It lies on the same disk, as a rule, and is what tells that it is full."""
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    (tmp_path / "log").write_text("from earlier\n")
    served.start()
    try:
        with trio.fail_after(180):
            async with tcp(served.ports["rustlog"]) as wire:
                await rustlog_ask(wire, b"\5" + s16("t") + struct.pack(">I", 1))
                assert (await rustlog_ask(wire, produce(b"kept")))[0] == 1
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
                assert (await rustlog_ask(wire, produce(b"refused")))[:3] == b"\xfe\x01\xf4"
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                while (answer := await rustlog_ask(wire, produce(b"again")))[0] != 1:
                    await trio.lowlevel.checkpoint()
                assert answer == b"\1" + struct.pack(">QI", 1, 1)
        assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
        assert "the store takes writes again" in (tmp_path / "log").read_text()
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_a_start_that_cannot_note_where_it_serves_serves(tmp_path: Path) -> None:
    """The store opens on a disk without room for one more file, and readers are served: that they are is all the note would say."""
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    await trio.to_thread.run_sync(served.end, signal.SIGKILL)
    note = tmp_path / "data" / "serving.json"
    note.unlink()
    (note / "in the way").mkdir(parents=True)
    await trio.to_thread.run_sync(served.start)
    try:
        with trio.fail_after(180):
            async with tcp(served.ports["rustlog"]) as wire:
                await rustlog_ask(wire, b"\5" + s16("t") + struct.pack(">I", 1))
                assert (await rustlog_ask(wire, produce(b"kept")))[0] == 1
        assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
        said = (tmp_path / "log").read_text()
        assert "where the store is served cannot be noted" in said
        assert "Traceback" not in said
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_a_start_where_nothing_can_be_written_says_where(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(tmp_path / "data"))
    served.start()
    await trio.to_thread.run_sync(served.end, signal.SIGKILL)
    limited = ["prlimit", f"--fsize={1 << 15}", sys.executable, "-m", "gateway", "serve", "--config"]
    done = await trio.run_process(
        [*limited, str(tmp_path / "gateway.yaml")], capture_stderr=True, capture_stdout=True, check=False
    )
    assert done.returncode == 2
    assert f"gateway: the store in {tmp_path / 'data'} takes no writes: " in done.stderr.decode()
    assert b"Traceback" not in done.stderr
