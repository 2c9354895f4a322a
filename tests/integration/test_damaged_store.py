"""A store whose disk has flipped a bit, under a real process: the range is named to clients, in the log and in the metrics, and
everything else is served.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path

import httpx
import trio

from gateway.store.database import PAGE_SIZE
from tests.integration.raw import rustlog_ask, rustlog_fetch, s16, s32, tcp
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin:   {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}"}}
"""

ALL = b"\2" + struct.pack(">I", 4) + b"".join(s32(b"value-%d" % number) for number in range(4)) + struct.pack(">Q", 4)
GOOD_RANGE = b"\2" + struct.pack(">I", 2) + s32(b"value-0") + s32(b"value-1") + struct.pack(">Q", 2)


async def fill(port: int, *, apart: bool = False) -> None:
    """Four records each in a topic that will be damaged and in one that will not; `apart`: in a chunk each, as a topic that is made
    takes along what the journal has.
    """
    async with tcp(port) as wire:
        for topic in ("bad", "good"):
            assert await rustlog_ask(wire, b"\5" + s16(topic) + struct.pack(">I", 1)) == b"\5\1"
            for number in range(4):
                record = s16(topic) + struct.pack(">II", 0, 1) + s32(b"value-%d" % number)
                assert await rustlog_ask(wire, b"\1" + record) == b"\1" + struct.pack(">QI", number, 1)
                if apart:
                    made = b"\5" + s16(f"{topic}-{number}") + struct.pack(">I", 1)
                    assert await rustlog_ask(wire, made) == b"\5\1"


def break_page(file: Path, table: str) -> None:
    """The root of a table."""
    at = 100  # behind SQLite's own header, which page 1 begins with
    if table != "sqlite_schema":
        at = _root(file, table)
    content = bytearray(file.read_bytes())
    content[at] = 0x77
    file.write_bytes(content)


def _root(file: Path, table: str) -> int:
    with closing(sqlite3.connect(file)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return (root - 1) * PAGE_SIZE


async def test_a_damaged_page_costs_what_is_in_it(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            await fill(served.ports["rustlog"])
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            break_page(tmp_path / "data" / "log.sqlite", "chunks")
            await trio.to_thread.run_sync(served.start)
            async with tcp(served.ports["rustlog"]) as wire:
                for topic in ("bad", "good"):
                    text = f"damaged chunk: topic={topic} partition=0 offsets=[0, 1)"
                    for _ in range(3):
                        answer = await rustlog_ask(wire, rustlog_fetch(topic, 0))
                        assert answer[:3] == b"\xfe" + struct.pack(">H", 4)
                        assert answer.endswith(text.encode())
                    record = s16(topic) + struct.pack(">II", 0, 1) + s32(b"new")
                    answer = await rustlog_ask(wire, b"\1" + record)
                    assert answer[0] == 0xFE
                    assert f"the end of {topic}/0 is damaged: nothing is added".encode() in answer
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                shown = (await client.get(f"http://127.0.0.1:{served.ports['admin']}/metrics")).text
            assert "\ngateway_store_damaged_ranges 2.0\n" in shown
            logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            assert len([line for line in logged if line["event"] == "a damaged range was met"]) == 2
            assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_a_damaged_table_of_groups_costs_what_is_in_it(tmp_path: Path) -> None:
    """The root of a small one, and so everything: what is left is that nobody takes it for nothing."""
    fetch, commit = b"\4" + s16("readers") + s16("good") + bytes(4), b"\3" + s16("readers") + s16("good") + bytes(4)
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            await fill(served.ports["rustlog"])
            async with tcp(served.ports["rustlog"]) as wire:
                assert await rustlog_ask(wire, commit + struct.pack(">Q", 3)) == b"\3\1"
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            break_page(tmp_path / "data" / "log.sqlite", "rows")
            await trio.to_thread.run_sync(served.start)
            async with tcp(served.ports["rustlog"]) as wire:
                assert await rustlog_ask(wire, rustlog_fetch("good", 0)) == ALL
                answer = await rustlog_ask(wire, fetch)
                assert answer[0] == 0xFE
                assert b"what readers has committed on good/0 may be among what the store has lost" in answer
                # a topic that was made since has lost nothing
                assert await rustlog_ask(wire, b"\5" + s16("new") + struct.pack(">I", 1)) == b"\5\1"
                unknown = b"\4" + s16("readers") + s16("new") + bytes(4)
                assert (await rustlog_ask(wire, unknown))[0] == 4
                assert await rustlog_ask(wire, commit + struct.pack(">Q", 3)) == b"\3\1"
                assert (await rustlog_ask(wire, fetch))[0] == 4
                record = s16("good") + struct.pack(">II", 0, 1) + s32(b"new")
                assert (await rustlog_ask(wire, b"\1" + record))[0] == 1
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                admin = f"http://127.0.0.1:{served.ports['admin']}"
                ready = await client.get(f"{admin}/readyz")
                assert ready.status_code == 200
                assert "accounts and schemas has lost everything" in ready.text
                assert "\ngateway_store_lost_ranges 1.0\n" in (await client.get(f"{admin}/metrics")).text
            logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            (said,) = [line for line in logged if line["event"] == "the store has lost something"]
            assert said["level"] == "error"
            assert "Traceback" not in (tmp_path / "log").read_text()
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            command = [sys.executable, "-m", "gateway", "store", "check", "--path", str(tmp_path / "data")]
            checked = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
            assert checked.returncode == 1
            assert b"accounts and schemas has lost everything" in checked.stdout + checked.stderr
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_a_store_without_its_own_table_is_served(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            await fill(served.ports["rustlog"])
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            break_page(tmp_path / "data" / "log.sqlite", "meta")
            await trio.to_thread.run_sync(served.start)
            async with tcp(served.ports["rustlog"]) as wire:
                for topic in ("bad", "good"):
                    assert await rustlog_ask(wire, rustlog_fetch(topic, 0)) == ALL
            assert "the last commit was damaged: it was made anew" in (tmp_path / "log").read_text()
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)


async def test_what_everything_hangs_on_is_refused_with_the_way_on(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    served.start()
    await fill(served.ports["rustlog"])
    assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
    break_page(tmp_path / "data" / "log.sqlite", "sqlite_schema")
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(data=tmp_path / "data"))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    done = await trio.run_process(command, capture_stderr=True, capture_stdout=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 2
    assert "page 1 is damaged" in said
    assert "gateway store salvage --accept-loss" in said
    assert "Traceback" not in said


async def test_a_damaged_range_is_named_to_everybody_and_the_rest_is_served(tmp_path: Path) -> None:
    served = Served(tmp_path, CONFIG.format(data=tmp_path / "data"))
    served.start()
    try:
        with trio.fail_after(180):
            await fill(served.ports["rustlog"], apart=True)
            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            file = tmp_path / "data" / "log.sqlite"
            content = bytearray(file.read_bytes())
            content[content.index(b"value-2") + 6] ^= 4  # the chunk of one of the two topics, whichever comes first
            file.write_bytes(content)
            await trio.to_thread.run_sync(served.start)
            async with tcp(served.ports["rustlog"]) as wire:
                answers = {topic: await rustlog_ask(wire, rustlog_fetch(topic, 2)) for topic in ("bad", "good")}
                (damaged,) = [topic for topic, answer in answers.items() if answer[0] == 0xFE]
                text = f"damaged chunk: topic={damaged} partition=0 offsets=[2, 3)"
                assert answers[damaged][:3] == b"\xfe" + struct.pack(">H", 4)
                assert answers[damaged].endswith(text.encode())
                assert await rustlog_ask(wire, rustlog_fetch(damaged, 2)) == answers[damaged]
                assert await rustlog_ask(wire, rustlog_fetch(damaged, 0)) == GOOD_RANGE
                behind = b"\2" + struct.pack(">I", 1) + s32(b"value-3") + struct.pack(">Q", 4)
                assert await rustlog_ask(wire, rustlog_fetch(damaged, 3)) == behind
                record = s16(damaged) + struct.pack(">II", 0, 1) + s32(b"new")
                assert await rustlog_ask(wire, b"\1" + record) == b"\1" + struct.pack(">QI", 4, 1)
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                admin = f"http://127.0.0.1:{served.ports['admin']}"
                shown = (await client.get(f"{admin}/metrics")).text
                assert (await client.get(f"{admin}/readyz")).status_code == 200
            assert "\ngateway_store_damaged_ranges 1.0\n" in shown
            assert "\ngateway_store_damaged_reads_total 2.0\n" in shown
            logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            (said,) = [line for line in logged if line["event"] == "a damaged range was met"]  # once, not at each read
            assert (said["level"], said["topic"], said["partition"]) == ("error", damaged, 0)
            assert (said["first"], said["next_offset"]) == (2, 3)
    finally:
        if served.running:
            await trio.to_thread.run_sync(served.end, signal.SIGKILL)
