"""`gateway pipeline` as a process: exit codes, one line for an error, nothing of Spark's in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main
from tests.pipeline.stored import Log, filled

pytestmark = pytest.mark.spark


async def some(log: Log) -> None:
    await log.create("orders")
    await log.append("orders", [b"a", b"b", b"c"])


def run(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "gateway", "pipeline", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        out, err = running.communicate(timeout=170)
    return running.returncode, out, err


def test_nothing_but_the_result_is_said(tmp_path: Path) -> None:
    store, out = str(tmp_path / "store"), str(tmp_path / "out")
    filled(tmp_path / "store", some)
    code, said, noise = run("archive", "--path", store, "--to", out, "--output", "json")
    assert code == 0
    assert json.loads(said)["records"] == 3
    assert noise == ""


def test_audit_says_by_its_exit_code_what_it_found(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = str(tmp_path / "store"), str(tmp_path / "out")
    filled(tmp_path / "store", some)
    assert main(["pipeline", "archive", "--path", store, "--to", out]) == 0
    assert main(["pipeline", "audit", "--path", store, "--archive", out]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "orders/0 by route orders: 3 records",
        "3 of 3 archived records compared with the store",
        "clean",
    ]
    filled(tmp_path / "store", lambda log: log.append("orders", [b"d"]))
    assert main(["pipeline", "audit", "--path", store, "--archive", out, "--output", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == ["gap: orders/0 [3, 4) is not archived"]
    assert main(["pipeline", "audit", "--path", store, "--archive", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("gateway: there is no archive at")
