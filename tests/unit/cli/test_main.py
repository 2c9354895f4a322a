"""The command line itself: what commands there are, how failures look, exit codes, and that help stays cheap."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
import trio

import gateway
from gateway.cli import main as module
from gateway.cli.main import cli, main
from gateway.errors import ConfigError, ConfigProblem, TargetError

EXPECTED = {"check", "metrics", "pub", "schema", "serve", "sub", "tail", "topics"}


async def run(*args: str, stdout: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a Python of this environment; keeps what it writes unless that goes to `stdout`."""
    out = {"capture_stdout": True} if stdout is None else {"stdout": stdout}
    with trio.fail_after(60):
        return await trio.run_process([sys.executable, *args], **out, capture_stderr=True, check=False)  # type: ignore[call-overload,no-any-return]


@pytest.mark.processes
async def test_every_command_is_listed_with_a_sentence() -> None:
    help_text = (await run("-m", "gateway", "--help")).stdout.decode()
    context = click.Context(cli)
    names = set(cli.list_commands(context))
    assert names >= EXPECTED
    for name in names:
        line = next(line for line in help_text.splitlines() if line.split()[:1] == [name])
        assert len(line.split()) > 2, f"{name} says nothing about itself"


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: gateway {name}" in text
    assert "--help" in text


@pytest.mark.processes
async def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import sys; from gateway.cli.main import main; main(['--help'])\n"
        "print([m for m in ('trio', 'aioquic', 'pyspark', 'grpc_tools', 'gateway.cli.pub', 'hypercorn') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = await run("-c", code)
    assert done.stderr.strip() == b"[]"


@pytest.mark.processes
async def test_the_version_is_told() -> None:
    assert (await run("-m", "gateway", "--version")).stdout.decode() == f"gateway {gateway.__version__}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["frobnicate"], "There is no command 'frobnicate'. See gateway --help."),
        (["pub"], "Missing argument 'URL'."),
        (["pub", "blipmq://h/t", "--key", "k"], "blipmq carries no keys; the admin address does"),
        (["pub", "blipmq://h/t", "--partition", "1"], "blipmq has no partitions to choose from"),
        (["sub", "rustlog://h/t", "--from", "yesterday"], "'yesterday' is neither earliest nor latest nor an offset"),
        (["topics", "rustlog://h", "--create"], "the URL has to name the topic"),
        (["serve", "--config", "/nonexistent/routes.yaml"], "/nonexistent/routes.yaml"),
    ],
)
def test_a_mistake_is_explained_and_ends_with_2(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert said in " ".join(captured.err.split())
    assert captured.out == ""
    assert "Traceback" not in captured.err


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "get_command", lambda _ctx, _name: command)


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (TargetError("cannot connect to h:1"), ["gateway: cannot connect to h:1"]),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), ["gateway: x.yaml: No such file or directory"]),
        (
            ExceptionGroup("nursery", [TargetError("lost"), ExceptionGroup("inner", [TargetError("lost")])]),
            ["gateway: lost"],
        ),
        (
            ConfigError("bad", [ConfigProblem("required", file="r.yaml", line=3, path="a"), ConfigProblem("b")]),
            ["gateway: r.yaml:3: a: required", "gateway: b"],
        ),
    ],
)
def test_an_expected_failure_is_a_line_for_each_cause(
    error: BaseException, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, error)
    assert main(["topics"]) == 2
    assert capsys.readouterr().err.splitlines() == lines


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ExceptionGroup("nursery", [TargetError("lost"), ZeroDivisionError()]))
    with pytest.raises(ExceptionGroup):
        main(["topics"])


def test_an_interrupt_has_the_shells_code(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["topics"]) == module.EXIT_INTERRUPTED


@pytest.mark.processes
async def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = await run("-m", "gateway", "metrics", stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (module.EXIT_PIPE, b"")


def test_a_module_without_a_command_is_none() -> None:
    assert "url" not in cli.list_commands(click.Context(cli))
    assert cli.get_command(click.Context(cli), "url") is None
