"""The pages in a terminal: nothing of the markup is left, nothing is lost, and they are as wide as they may be."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from gateway import docs
from gateway.cli.main import cli
from gateway.docs.terminal import rendered


def prose(shown: str) -> list[str]:
    """Its lines without code, which is left as it stands."""
    return [line for line in shown.splitlines() if not line.startswith("    ")]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("page", docs.pages())
def test_a_page_fits_and_shows_no_markup(page: str, width: int) -> None:
    shown = rendered(docs.text(page), width, colour=False)
    assert [line for line in prose(shown) if cell_len(line) > width] == []
    assert "```" not in shown
    assert "\x1b" not in shown
    assert [line for line in prose(shown) if re.search(r"^#|\]\(|\|---", line)] == []
    longest = {word for word in re.findall(r"`([\w.]+)`", docs.text(page)) if cell_len(word) < width - 2}
    assert {word for word in longest if word not in shown} == set()  # no table breaks the name of something


def test_a_link_is_its_text_and_the_page_it_leads_to_where_that_is_something_else() -> None:
    markdown = "See [security](security.md), [the bounds](configuration.md#memory) and [Bulk API](bulk-api.md)."
    assert rendered(markdown, 200, colour=False).strip() == "See security, the bounds (configuration) and Bulk API."


def test_code_is_not_broken() -> None:
    line = "gateway pub " + "x" * 100
    assert f"    {line}\n" in rendered(f"```sh\n{line}\n```\n", 40, colour=False)


def test_help_without_a_topic_lists_every_page() -> None:
    out = CliRunner().invoke(cli, ["help"])
    assert out.exit_code == 0
    assert all(page in out.stdout for page in docs.pages() if page != "index")


def test_help_for_a_command_is_its_own_help() -> None:
    of_command = CliRunner().invoke(cli, ["explain", "--help"], prog_name="gateway")
    assert CliRunner().invoke(cli, ["help", "explain"], prog_name="gateway").stdout == of_command.stdout


def test_an_unknown_page_says_which_was_meant() -> None:
    out = CliRunner().invoke(cli, ["help", "flimq"])
    assert out.exit_code == 2
    assert "Did you mean 'flymq'?" in out.stderr


def test_pages_are_completed() -> None:
    out = CliRunner().invoke(
        cli,
        [],
        prog_name="gateway",
        env={"_GATEWAY_COMPLETE": "bash_complete", "COMP_WORDS": "gateway help fu", "COMP_CWORD": "2"},
    )
    assert out.stdout == "plain,fujin\n"


@pytest.mark.processes
@pytest.mark.parametrize(("page", "rows", "paged"), [("routing", 20, True), ("routing", 500, False)])
def test_a_terminal_gets_a_pager_if_the_page_is_longer(page: str, rows: int, paged: bool, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\ncat\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PAGER": str(pager), "TERM": "xterm", "LINES": str(rows), "COLUMNS": "70"}
    running = subprocess.Popen(
        [sys.executable, "-m", "gateway", "help", page], stdin=theirs, stdout=theirs, env=environment
    )
    os.close(theirs)
    out = b""
    try:
        while chunk := os.read(ours, 65536):
            out += chunk
    except OSError:  # how the end of a terminal reads
        pass
    assert running.wait() == 0
    os.close(ours)
    assert (b"PAGED" in out) is paged
    assert paged or b"\x1b[1m" in out  # headings are bold; what a pager other than less understands is not known
    plain = re.sub(rb"\x1b\[[\d;]*m", b"", out).replace(b"\r", b"").decode()
    assert "Routing by example" in plain
    assert [line for line in prose(plain) if cell_len(line) > 70] == []
