"""Small files of an archive become fewer, and at no moment are its records fewer or more."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gateway.errors import NotAStore, StoreDamaged
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.manifest import Archive
from gateway.pipeline.merge import Merged, merge
from tests.pipeline.stored import Log, filled

DAY_MS = 86_400_000


async def two_days(log: Log) -> None:
    await log.create("orders", partitions=2)
    for number in range(8):
        await log.append("orders", [b"%d" % number, b"", b"x" * number], 0, [b"k", None, b""], [(("h", b"1"),), (), ()])
        await log.append("orders", [b"c"], 1)
        log.clock.ms += DAY_MS // 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path / "store", two_days)
    return tmp_path / "store"


def rows(directory: Path) -> list[tuple[int, int, bytes, bytes]]:
    """What a reader that knows nothing of manifests sees."""
    found = pq.read_table(directory, partitioning=None)
    columns = [found[name].to_pylist() for name in ("partition", "offset", "key", "value")]
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


def test_neighbours_of_one_day_become_one_file(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=3)
    before, whole = Archive.existing(out).files(), rows(out)
    seen: list[tuple[int, int]] = []
    done = merge(out, progress=lambda *numbers: seen.append(numbers))
    after = Archive.existing(out).files()
    places = {(file.partition, file.day) for file in before}
    merged = {place for place in places if sum((file.partition, file.day) == place for file in before) > 1}
    assert len(after) == len(places) < len(before)
    assert done.after == len(merged)
    assert done.before == len(before) - (len(places) - len(merged))
    assert seen[-1] == (done.before, done.before)
    assert rows(out) == whole
    assert audit(str(store), out).findings == ()
    assert merge(out) == Merged()
    # what comes later goes on behind it
    filled(store, two_days_more)
    assert archive(str(store), out).records == 1
    assert audit(str(store), out).findings == ()


async def two_days_more(log: Log) -> None:
    log.clock.ms += 3 * DAY_MS
    await log.append("orders", [b"later"], 1)


def test_only_what_is_small_and_only_up_to_a_size(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=3)
    count = len(Archive.existing(out).files())
    assert merge(out, small=1) == Merged()
    assert merge(out, fewest=100) == Merged()
    largest = max(file.size for file in Archive.existing(out).files())
    merge(out, large=largest * 2)
    assert len({(file.partition, file.day) for file in Archive.existing(out).files()}) < len(
        Archive.existing(out).files()
    ) < count  # fmt: skip
    assert audit(str(store), out).findings == ()


def test_a_damaged_file_gets_no_fresh_checksum(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=3)
    files = Archive.existing(out).files()
    victim = next(
        out / one.path for one, after in pairwise(files) if (one.partition, one.day) == (after.partition, after.day)
    )
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(StoreDamaged, match="does not have its checksum"):
        merge(out)
    with pytest.raises(NotAStore, match="there is no archive at"):
        merge(tmp_path / "none")


def test_a_manifest_that_replaces_what_was_never_there_is_refused(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out)
    (out / "_manifests" / "00000002.json").write_text('{"version": 1, "files": [], "replaces": ["other.parquet"]}')
    with pytest.raises(StoreDamaged, match="replaces files that no manifest before it names"):
        audit(str(store), out)


def test_killed_before_every_step(store: Path, tmp_path: Path) -> None:
    begin, work = tmp_path / "begin", tmp_path / "work"
    archive(str(store), begin, records_per_file=6)
    whole = rows(begin)
    work.mkdir()
    command = [sys.executable, "-m", "tests.pipeline.killed", "merge", str(store), str(work), str(begin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        out, _ = running.communicate(timeout=300)
    assert running.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) > 8
    assert all(line == {"compared": 32, "findings": []} for line in lines)
    for target in work.iterdir():
        assert rows(target) == whole
