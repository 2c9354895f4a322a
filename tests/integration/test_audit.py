"""`gateway audit` on a real process and on its store: balanced while nothing is lost, and not when a message is."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

import pytest
import trio

from gateway.bridges.forward_rows import cursor_row, read_cursor, row_key
from gateway.broker.identity import TABLE
from gateway.cli.main import main
from gateway.envelope import Batch, Columns
from gateway.protocols.registry import protocol
from gateway.requests import Publish, Subscribe
from gateway.store.ack_window import MAX_SPAN
from gateway.transport.client import connect
from tests.integration.running import Served
from tests.unit.bridges.peers import Peer, listening

CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  blipmq: {{protocol: blipmq, bind: "127.0.0.1:0", auth: open}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {{path: "{data}"}}
upstreams:
  far: {{protocol: flymq, address: "127.0.0.1:{port}"}}
routes:
  - name: orders
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}, {{forward: {{upstream: far, address: "{{topic}}", accept_loss: all}}}}]
"""


class Shell:
    """Runs `gateway audit` in this process."""

    def __init__(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        self.served = served
        self._capsys = capsys

    async def __call__(self, *args: str, code: int) -> str:
        self._capsys.readouterr()
        assert await trio.to_thread.run_sync(main, ["audit", *args]) == code, self._capsys.readouterr()
        return self._capsys.readouterr().out

    async def live(self, *args: str, code: int = 0) -> str:
        url = f"http://127.0.0.1:{self.served.ports['admin']}"
        return await self(*args, "--admin", url, "--token", "s3cret", code=code)


async def publish(served: Served, *values: bytes) -> None:
    async with connect(protocol("flymq"), "127.0.0.1", served.ports["flymq"]) as connection:
        await connection.request(Publish(0, Batch("orders", Columns.of(values))))


def lose_a_message(data: Path, offset: int, forward: str = "orders-far") -> None:
    """Settle one of `orders` that nobody delivered, and say nothing of it."""
    key = row_key(forward, "orders", 0)
    connection = sqlite3.connect(data / "log.sqlite")
    with connection:
        query = "SELECT value FROM rows WHERE name = ? AND key = ?"
        epoch, window, tally = read_cursor(connection.execute(query, (TABLE, key)).fetchone()[0], MAX_SPAN)
        assert window.settle(offset)
        row = cursor_row(forward, "orders", 0, epoch, window, tally).value
        connection.execute("UPDATE rows SET value = ? WHERE name = ? AND key = ?", (row, TABLE, key))
    connection.close()


async def test_a_lost_message_is_found_in_the_store_and_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    peer = Peer()
    async with listening(peer):
        served = Served(tmp_path, CONFIG.format(data=tmp_path / "data", port=peer.port))
        shell = Shell(served, capsys)
        await trio.to_thread.run_sync(served.start)
        try:
            await publish(served, *[b"%d" % number for number in range(20)])
            await peer.until(lambda: len(peer.taken) == 20)
            async with connect(protocol("blipmq"), "127.0.0.1", served.ports["blipmq"]) as connection:
                await connection.request(Subscribe(0, "orders", acknowledge=True, durable_grace=60.0))
            peer.say = lambda _key, _value: "mute"
            await publish(served, b"lost")
            found = json.loads(await shell.live("--output", "json"))
            while found["consumers"][-1]["backlog"] != 1:  # the last answers are on their way
                found = json.loads(await shell.live("--output", "json"))
            assert found["balanced"]
            (door,) = [one for one in found["doors"] if one["route"] == "orders"]
            assert (door["received"], door["stored"]) == (21, 21)
            (forward,) = [one for one in found["consumers"] if one["kind"] == "forward"]
            assert (forward["end"], forward["acknowledged"], forward["backlog"]) == (21, 20, 1)

            assert await trio.to_thread.run_sync(served.end, signal.SIGTERM) == 0
            out = await shell("--path", str(tmp_path / "data"), code=0)
            assert "balanced: forward orders-far of orders/0, offsets 0 to 21: acknowledged 20, backlog 1" in out
            assert "balanced: subscription" in out
            lose_a_message(tmp_path / "data", 20)
            out = await shell("--path", str(tmp_path / "data"), code=1)
            assert "UNACCOUNTED 1: forward orders-far of orders/0" in out

            await trio.to_thread.run_sync(served.start)
            assert "UNACCOUNTED 1: forward orders-far" in await shell.live(code=1)
        finally:
            if served.running:
                served.end(signal.SIGKILL)


async def test_what_cannot_be_looked_at_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    shell = Shell(Served(tmp_path, ""), capsys)
    await shell("--path", str(tmp_path / "nothing"), code=2)
    await shell("--admin", "http://127.0.0.1:1", code=2)
