"""The commands of the pages, run as they stand there against `routes.yaml` as it is shipped: they print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest
import trio

from gateway import docs
from tests.integration.running import serving
from tests.integration.test_readme_start import SHIPPED, said, system_ports

SHOWN = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in docs.pages() if SHOWN.search(docs.text(page))]


@pytest.mark.parametrize("page", PAGES)
async def test_the_commands_of_a_page_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_ports(tmp_path, monkeypatch)
    with trio.fail_after(120):
        async with serving(tmp_path, SHIPPED) as port:
            for commands, shown in SHOWN.findall(docs.text(page)):
                lines = [line.removeprefix("gateway ") for line in commands.splitlines()]
                assert "".join([(await said(line, port)).decode() for line in lines]) == shown
            async with httpx.AsyncClient(
                timeout=60, trust_env=False, base_url=f"http://127.0.0.1:{port['admin']}"
            ) as client:
                assert (await client.get(f"/docs/{page}")).status_code == 200


async def test_what_the_page_on_the_bulk_api_sends_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = re.findall(r"^curl (.*?)\n```", docs.text("bulk-api"), re.MULTILINE | re.DOTALL)
    address, *options = shlex.split(line.replace("\\\n", " "))
    sent = dict(zip(options[::2], options[1::2], strict=True))
    system_ports(tmp_path, monkeypatch)
    with trio.fail_after(60):
        async with serving(tmp_path, SHIPPED) as port, httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(
                address.replace("9600", str(port["admin"])),
                headers=[tuple(sent["-H"].split(": "))],
                content=sent["-d"],
            )
            assert answer.status_code == 200
            assert await said("sub rustlog://127.0.0.1:9192/orders.eu --from earliest --count 1", port) == b'{"a": 1}\n'


def test_every_protocol_has_such_commands() -> None:
    assert {"blipmq", "flymq", "rustlog", "felix", "fujin"} <= set(PAGES)
