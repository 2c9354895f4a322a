"""`gateway consumers` on real processes: what is put back comes again, at a broker elsewhere that knows copies too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from gateway.cli.main import main
from gateway.protocols.registry import protocol
from gateway.requests import Subscribe, Take, Taken
from gateway.transport.client import connect
from gateway.transport.tls import ClientTls
from tests.integration.running import started
from tests.integration.test_bridges import publish, stored

FAR = """
version: 1
listeners:
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}"}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  fujin: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {{path: "{data}"}}
upstreams:
  far: {{protocol: felix, address: "localhost:{port}", tls: {{ca: "{certificate}"}}}}
routes:
  - name: orders
    match: {{}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{name: copy, upstream: far, address: "{{topic}}", accept_loss: all}}
"""
VALUES = [b"%d" % number for number in range(20)]


async def test_consumers_are_put_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    with started(tmp_path / "far", FAR.format(data=tmp_path / "far/data")) as far:
        config = NEAR.format(
            data=tmp_path / "near/data", port=far.ports["felix"], certificate=tmp_path / "far/data/self-signed.crt"
        )
        with started(tmp_path / "near", config) as near, trio.fail_after(120):
            admin = ("--admin", f"http://127.0.0.1:{near.ports['admin']}", "--token", "s3cret")

            async def shell(*args: str, code: int = 0) -> str:
                capsys.readouterr()
                assert await trio.to_thread.run_sync(main, (*args, *admin)) == code, capsys.readouterr()
                shown = capsys.readouterr()
                return shown.err if code else shown.out

            async def balanced() -> dict[str, int]:
                (one,) = json.loads(await shell("consumers", "list", "--search", "copy", "--output", "json"))
                assert one["unaccounted"] == 0
                return {name: one[name] for name in ("position", "acknowledged", "skipped", "repeated", "backlog")}

            async def settled() -> dict[str, int]:
                while (found := await balanced())["backlog"]:  # noqa: ASYNC110  # in another process
                    await trio.sleep(0.02)
                return found

            await publish(near.ports["flymq"], VALUES)
            assert await stored(far.ports["flymq"], 20) == VALUES
            await settled()

            back = ("consumers", "reset", "forward", "copy", "--topic", "orders", "--to", "15")
            preview = (await shell(*back, "--dry-run")).split()
            assert preview[6:12] == ["0", "20", "15", "0", "5", "5"]
            assert (await balanced())["repeated"] == 0
            await shell(*back)
            # what it was told to send again is no copy to be left out there
            assert await stored(far.ports["flymq"], 25) == [*VALUES, *VALUES[15:]]
            assert await settled() == {"position": 20, "acknowledged": 25, "skipped": 0, "repeated": 5, "backlog": 0}

            reader = ("consumers", "reset", "reader", "orders", "--topic", "orders", "--to", "latest")
            tls = ClientTls(ca=str(tmp_path / "near/data/self-signed.crt"))
            async with connect(protocol("fujin"), "localhost", near.ports["fujin"], tls=tls) as fujin:
                opened = await fujin.request(Subscribe(0, "orders", name="orders"))  # what its reader is called there
                assert "1 connections read from reader orders" in await shell(*reader, code=2)
                await shell(*reader, "--force")
                await publish(near.ports["flymq"], [b"after"])
                taken = await fujin.request(Take(0, opened.subscription, 10, hold_until=trio.current_time() + 60))
                assert isinstance(taken, Taken)
                assert [value for one in taken.deliveries for value in one.run.columns.values()] == [b"after"]
            assert "no reader bills" in await shell("consumers", "reset", "reader", "bills", *reader[4:], code=2)
            assert "balanced: forward copy of orders/0" in await shell("audit")
