"""`gateway top` and `gateway tap` against a gateway that runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from gateway.app import Gateway
from gateway.cli.main import main
from gateway.cli.top import lines
from tests.unit.admin.api import serving_api
from tests.unit.admin.test_api import ORDER, pipeline_of, publish


async def shown(served: Gateway, capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Sequence[str]:
    where = ["--admin", f"http://127.0.0.1:{served.ports['admin']}", "--token", "look"]
    assert await trio.to_thread.run_sync(main, [*args, *where]) == code
    # the gateway in this process writes its log there as well
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("20")]


async def test_top_fits_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_api(tmp_path) as (served, _client):
        await publish(served, "orders.eu", ORDER)
        found = await shown(served, capsys, "top", "--count", "2")
        assert any(line.startswith("ready ") for line in found)
        assert [line.split()[0] for line in found if line.startswith(("orders ", "far "))][:2] == ["orders", "far"]
        assert all(len(line) <= 80 for line in found)
        (pulse,) = await shown(served, capsys, "top", "--count", "1", "--output", "json")
        assert json.loads(pulse)["unaccounted"] == 0
        assert next(lines(json.loads(pulse))).endswith("every message accounted for")


async def test_tap_shows_what_comes_in_on_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_api(tmp_path) as (served, _client):
        pipeline = pipeline_of(served)

        async def send() -> None:
            while pipeline.tap is None:  # noqa: ASYNC110  # until somebody looks
                await trio.sleep(0.02)
            await publish(served, "else\u202e", b"first\nsecond", b"\x1b[31m")
            await publish(served, "orders.eu", ORDER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            found = await shown(served, capsys, "tap", "--count", "3")
        text = "\n".join(found)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "first\\nsecond" in text
        assert "(5 bytes)" in text
        assert any(line.startswith("  after") and "region=eu" in line for line in found)
        await shown(served, capsys, "tap", "--expression", "value.(", code=2)
