"""`gateway store` as it is run on good, damaged, shortened and absent stores: what it prints, its exit codes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.errors import StoreDamaged
from gateway.store.database import PAGE_SIZE
from gateway.store.interface import MakeTopic, TopicConfig
from tests.store.kit import NO_CACHE, append, open_stepwise, unit

NEW = [MakeTopic("t", TopicConfig())]


async def filled(path: Path) -> Path:
    """Ten commits of one record, and a copy as a crash would leave it: all of it in the write-ahead log."""
    async with open_stepwise(path / "origin", options=NO_CACHE) as store:
        for number in range(10):
            store.submit(unit(append("t", b"value-%d-" % number * 20), creates=NEW))
            store.committer.step()
        shutil.copytree(path / "origin", path / "crashed", ignore=shutil.ignore_patterns("*-shm"))
    return path / "crashed"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["store", *args])
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_a_good_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(await filled(tmp_path))
    code, out, _ = run(capsys, "check", "--path", path)
    assert (code, out[:6]) == (0, "good, ")
    code, out, _ = run(capsys, "salvage", "--path", path, "--accept-loss", "--output", "json")
    assert code == 0
    assert (json.loads(out)["accepted"], json.loads(out)["damaged"]) == (False, [])


async def test_a_damaged_range_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await filled(tmp_path)
    database = tmp_path / "origin" / "log.sqlite"
    data = bytearray(database.read_bytes())
    data[data.index(b"value-4-value-4-") + 3] ^= 0x10
    database.write_bytes(data)
    code, out, _ = run(capsys, "check", "--path", str(database.parent))
    assert (code, out) == (1, "damaged: topic t, partition 0, offsets 4 to 4\n")
    code, out, _ = run(capsys, "check", "--path", str(database.parent), "--output", "json")
    assert (code, json.loads(out)["damaged"]) == (1, [{"topic": "t", "partition": 0, "first": 4, "next_offset": 5}])
    assert run(capsys, "salvage", "--path", str(database.parent))[0] == 0


async def test_a_damaged_database_is_named_and_salvaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await filled(tmp_path)
    path = tmp_path / "origin"
    with closing(sqlite3.connect(path / "log.sqlite")) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))
    data = bytearray((path / "log.sqlite").read_bytes())
    for name in ("rows", "chunks"):
        data[(roots[name] - 1) * PAGE_SIZE] = 0x77
    (path / "log.sqlite").write_bytes(data)
    for verb in ("check", "salvage"):
        code, out, _ = run(capsys, verb, "--path", str(path))
        assert code == 1
        rows, records, gone, way_on = out.splitlines()
        assert rows.startswith("damaged: the table of cursors, groups, accounts and schemas has lost something: page")
        assert records.startswith("damaged: the table of records: page")
        assert gone == "damaged: topic t, partition 0, offsets 0 and all behind it"
        assert way_on == "`gateway store salvage --accept-loss` writes all that can be read into a new database"
    code, out, _ = run(capsys, "salvage", "--path", str(path), "--accept-loss", "--output", "json")
    said = json.loads(out)
    assert (code, said["accepted"], len(said["database"])) == (0, True, 2)
    assert said["damaged"] == [{"topic": "t", "partition": 0, "first": 0, "next_offset": None}]
    assert (path / "log.sqlite.damaged-1").read_bytes() == data
    assert said["kept"] == str(path / "log.sqlite.damaged-1")
    assert run(capsys, "check", "--path", str(path))[0] == 0


async def test_lost_commits_are_given_up_only_when_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = await filled(tmp_path)
    log = path / "log.sqlite-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    for verb in ("check", "salvage"):
        code, out, _ = run(capsys, verb, "--path", str(path))
        assert code == 1
        assert "lost" in out
    with pytest.raises(StoreDamaged, match="gateway store salvage"):
        async with open_stepwise(path):
            raise AssertionError
    code, out, _ = run(capsys, "salvage", "--path", str(path), "--accept-loss")
    assert code == 0
    assert "given up" in out
    async with open_stepwise(path):
        pass
    assert run(capsys, "check", "--path", str(path))[0] == 0


def test_what_cannot_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "check", "--path", str(tmp_path / "none")) == (
        2,
        "",
        f"gateway: there is no store at {tmp_path / 'none'}\n",
    )
