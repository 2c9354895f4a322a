"""The commands of the pages, run as they stand there against `routes.yaml` as it is shipped: they print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_protocol_has_such_commands() -> None:
    assert {"blipmq", "flymq", "rustlog", "felix", "fujin"} <= set(PAGES)
