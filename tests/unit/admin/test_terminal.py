"""What the command line asks of a gateway that runs: `top`, `tap`, `explain`, `fidelity` and `check`."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
import pytest
import trio

from gateway.admin.ways import FidelityReport, fidelity_report
from gateway.app import Gateway
from gateway.cli.either import Asking
from gateway.cli.main import main
from gateway.cli.top import lines
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.endpoint_http import EndpointCaller, EndpointUnreachable
from tests.unit.admin.api import CONFIG, serving_api
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
        assert "flymq flymq" not in text  # listener and protocol of one name
        assert not any(line.startswith("  before") and "first" in line for line in found)  # there is nothing after it
        assert any(line.startswith("  before") for line in found)
        assert any(line.startswith("  after") and "region=eu" in line for line in found)
        await shown(served, capsys, "tap", "--expression", "value.(", code=2)


ASKED = ("explain", "--protocol", "flymq", "--address", "orders.eu", "--data", ORDER.decode())


async def test_a_gateway_that_runs_and_its_file_give_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving_api(tmp_path) as (served, _client):
        file = str(tmp_path / "gateway.yaml")
        for command in (ASKED, (*ASKED, "--output", "json"), ("fidelity",), ("fidelity", "--output", "json")):
            running = await shown(served, capsys, *command)
            assert await trio.to_thread.run_sync(main, [*command, "--config", file]) == 0
            out = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("20")]
            assert running == out
            assert len(out) > 5
        (refused,) = await shown(served, capsys, *ASKED[:4], "orders.\x01", code=1)
        assert refused.startswith("refused: ")
        await shown(served, capsys, "explain", "--protocol", "smtp", "--address", "x", code=2)


async def test_a_gateway_that_runs_says_what_a_file_would_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving_api(tmp_path) as (served, _client):
        where = ("--token", "do", "--admin", f"http://127.0.0.1:{served.ports['admin']}")

        async def checked(*args: str, code: int = 0) -> list[str]:
            assert await trio.to_thread.run_sync(main, ["check", *args, *where]) == code
            return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("20")]

        assert await checked() == [
            f"{tmp_path / 'gateway.yaml'}: good (5 listeners, 3 routes)",
            "  it is what the gateway does",
        ]
        text = (tmp_path / "gateway.yaml").read_text()
        changed = tmp_path / "changed.yaml"
        changed.write_text(text.replace("- name: away", "- name: gone-away"))
        assert (await checked(str(changed)))[1:] == ["  route gone-away: added", "  route away: removed"]
        changed.write_text(text.replace("match: {}", "match: {colour: red}"))
        (problem,) = await checked(str(changed), code=1)
        assert "colour" in problem
        (tmp_path / "gateway.yaml").write_text(text.replace("- name: away", "- name: elsewhere"))
        assert "  route elsewhere: added" in await checked()
        await checked(str(changed), "--live", code=2)


def test_where_no_gateway_runs_the_file_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody said which gateway is meant, or there is no file."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = attrs.evolve(Endpoint.of(f"http://127.0.0.1:{closed.getsockname()[1]}"), patience=0.0)

    def ask(caller: EndpointCaller) -> FidelityReport:
        return caller.ask("GET", "/v1/fidelity", FidelityReport)

    with pytest.raises(click.ClickException, match=r"nothing listens at .* and there is no routes.yaml here"):
        Asking(None, nobody, named=False).answer(ask, fidelity_report)
    (tmp_path / "routes.yaml").write_text(CONFIG.format(data=tmp_path / "data", closed=1))
    assert len(Asking(None, nobody, named=False).answer(ask, fidelity_report).routes) == 2
    with pytest.raises(EndpointUnreachable):
        Asking(None, nobody, named=True).answer(ask, fidelity_report)
