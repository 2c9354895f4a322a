"""`gateway pipeline` as a process: exit codes, one line for an error, nothing of Spark's in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gateway.cli.main import main
from gateway.cli.pipeline_parts import Lines, jars_of
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


def test_a_report_a_rehearsal_and_a_mistake_that_needs_no_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of these starts Spark: there is nothing to do for it."""
    monkeypatch.setattr("gateway.cli.pipeline_parts.JobCluster.session", None)
    store, out, report = str(tmp_path / "store"), str(tmp_path / "out"), tmp_path / "report.json"
    filled(tmp_path / "store", some)
    where = ["--path", store, "--to", out, "--report", str(report)]
    assert main(["pipeline", "archive", *where, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["orders/0 [0, 3)", f"3 records would be archived to {out}"]
    said = json.loads(report.read_text())
    assert (said["job"], said["exit_code"], said["result"]["records"]) == ("archive", 0, 3)
    assert not Path(out).exists()
    for wrong, message in (
        (["archive", "--path", str(tmp_path / "no"), "--to", out], "there is no store at"),
        (["archive", *where[:4], "--topics", "nothing"], "there is no topic nothing"),
        (["rollup", "--from", store, "--to", out, "--topics", "nothing"], "there is no topic nothing"),
        (["compact", "--from", str(tmp_path / "no"), "--to", out], "there is no store at"),
        (["compact", "--from", store, "--to", store], "is not empty"),
        (["export", "--from", store, "--to", store], "is not empty"),
        (["merge", "--archive", out], "there is no archive at"),
    ):
        assert main(["pipeline", *wrong, "--report", str(report)]) == 2
        assert message in capsys.readouterr().err
        failed = json.loads(report.read_text())
        assert (failed["exit_code"], failed["result"]) == (2, None)
        assert message in failed["error"]["message"]
    assert not Path(out).exists()


def test_lines_for_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 1.0, 10.0, 11.0, 19.9, 20.0, 31.0])
    lines = Lines("archiving", lambda: next(now, 31.0))
    for done in (1, 2, 3, 4, 5, 6):
        lines(done, 6)
    assert capsys.readouterr().err.splitlines() == ["gateway: archiving: 2 of 6", "gateway: archiving: 5 of 6"]


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


def test_jars_are_files_or_directories_of_them(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    assert jars_of(f"{tmp_path},{tmp_path}/b.jar") == f"{tmp_path}/a.jar,{tmp_path}/b.jar,{tmp_path}/b.jar"
    assert jars_of("") == ""
    (tmp_path / "empty").mkdir()
    for wrong in (f"{tmp_path}/c.jar", f"{tmp_path}/empty"):
        with pytest.raises(click.BadParameter, match="there is no jar at"):
            jars_of(wrong)


@pytest.mark.parametrize("job", ["rollup", "compact", "export", "report"])
def test_an_output_is_on_this_machine_or_in_an_object_store(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said before Spark starts."""
    monkeypatch.setattr("gateway.cli.pipeline_parts.JobCluster.session", None)
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "store", some)
    assert main(["pipeline", job, "--from", "store", "--to", "hdfs://lake/made"]) == 2
    assert "files can be put into a directory, or at s3://" in capsys.readouterr().err
    there = "store/log.sqlite" if job != "report" else "store"
    assert main(["pipeline", job, "--from", "store", "--to", there]) == 2
    assert f"'{there}' is a {'directory' if job == 'report' else 'file'}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
