"""Archive and audit: exactly once, and every way in which an archive can differ from its store is named."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.errors import NotAStore, StoreDamaged, StoreInUse, UnknownTopic
from gateway.pipeline.archive import Archived, Planned, archive, planned
from gateway.pipeline.audit import Audited, audit
from gateway.pipeline.frames import messages_at
from gateway.pipeline.manifest import Archive, ArchiveWriter, named_topic, topic_directory
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone
from gateway.pipeline.spread import OnSpark, TaskFailed
from tests.pipeline.served import gateway
from tests.pipeline.stored import Log, after_retention, before_retention, filled

DAY_MS = 86_400_000


async def orders(log: Log) -> None:
    await log.create("orders/eu 1", partitions=2)
    await log.create("none")
    for number in range(10):
        await log.append(
            "orders/eu 1", [b"%d" % number, b"", b"x" * number], 0, [b"k", None, b""], [(("h", b"1"),), (), ()]
        )
        await log.append("orders/eu 1", [b"c"], 1, expires=[log.clock.ms + 1])
        log.clock.ms += DAY_MS // 4


async def more(log: Log) -> None:
    await log.append("orders/eu 1", [b"later"], 1)
    await log.create("new")
    await log.append("new", [b"1", b"2"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path / "store", orders)
    return tmp_path / "store"


def rows(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """What a reader that knows nothing of manifests sees."""
    found = pq.read_table(directory, partitioning=None)
    files = sorted(directory.glob("topic=*/day=*/*.parquet"))
    assert found.num_rows == sum(pq.read_metadata(file).num_rows for file in files)
    return sorted(
        zip(found["partition"].to_pylist(), found["offset"].to_pylist(), found["value"].to_pylist(), strict=True)
    )


def test_a_second_run_adds_only_what_is_new(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[tuple[int, int]] = []
    first = archive(str(store), out, records_per_file=16, progress=lambda done, total: seen.append((done, total)))
    assert first.records == 40
    assert seen[-1] == (40, 40)
    assert sorted(path.name for path in out.iterdir()) == [
        "_lock",
        "_manifests",
        "_sources.json",
        "_staging",
        "topic=orders%2Feu 1",
    ]
    assert sorted(path.name for path in (out / "topic=orders%2Feu 1").iterdir()) == [
        "day=2023-11-14",
        "day=2023-11-15",
        "day=2023-11-16",
        "day=2023-11-17",
    ]
    assert len(rows(out)) == 40
    found = audit(str(store), out)
    assert (found.compared, found.archived, found.findings) == (40, 40, ())
    assert found.routes == {("orders/eu 1", 0, "orders"): 30, ("orders/eu 1", 1, "orders"): 10}
    assert archive(str(store), out) == Archived()
    filled(store, more)
    assert audit(str(store), out).findings == (
        "gap: new/0 [0, 2) is not archived",
        "gap: orders/eu 1/1 [10, 11) is not archived",
    )
    assert archive(str(store), out, topics=TopicSelection(("new",))).records == 2
    assert archive(str(store), out).records == 1
    assert audit(str(store), out).findings == ()
    assert len(set(rows(out))) == 43


@pytest.mark.spark
def test_a_running_gateway_gives_the_same_archive_as_its_store(store: Path, tmp_path: Path) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    with gateway(store) as served:
        assert archive(served.endpoint, remote, records_per_file=16).records == 40
        assert archive(served.endpoint, remote, records_per_file=16).records == 0
        assert audit(served.endpoint, remote).findings == ()
    archive(str(store), local, records_per_file=16)
    assert rows(remote) == rows(local)
    assert audit(str(store), remote).findings == ()


def test_on_spark(spark: Any, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert archive(str(store), out, spread=OnSpark(spark), records_per_file=16).records == 40
    found = audit(str(store), out, spread=OnSpark(spark))
    assert (found.compared, found.findings) == (40, ())
    frame = spark.read.parquet(str(out))
    assert frame.where("topic = 'orders/eu 1' and day = '2023-11-15'").count() > 0
    assert frame.count() == 40
    with pytest.raises(TaskFailed, match="NotAStore: there is no store at /nowhere"):
        OnSpark(spark)(_open, ["/nowhere"])
    with pytest.raises(TaskFailed, match="No space left on device: make room where the output"):
        OnSpark(spark)(_fill, [""])


def _fill(_path: str) -> None:
    raise OSError(errno.ENOSPC, "no room")


def _open(path: str) -> None:
    from gateway.store.reader import LogReader

    LogReader(path)


def test_killed_before_every_step(store: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.pipeline.killed", "archive", str(store), str(tmp_path / "work")]
    (tmp_path / "work").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        out, _ = running.communicate(timeout=400)
    assert running.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) > 15
    assert all(line == {"compared": 40, "findings": []} for line in lines)
    for target in (tmp_path / "work").iterdir():
        assert len(rows(target)) == 40


def test_what_an_audit_finds(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=16)
    files = Archive.existing(out).files()
    victim = out / files[0].path
    whole = victim.read_bytes()

    def found() -> str:
        (finding,) = audit(str(store), out).findings
        return finding

    victim.unlink()
    assert found() == f"gap: orders/eu 1/0 [0, {files[0].end}): the file {files[0].path} is missing"
    victim.write_bytes(whole[:-1])
    assert "does not have its checksum" in found()
    victim.write_bytes(whole)
    stray = victim.with_name("stray.parquet")
    stray.write_bytes(whole)
    assert found().startswith("unlisted file topic=orders%2Feu 1/day=2023-11-14/stray.parquet")
    stray.unlink()
    manifest = out / "_manifests" / "00000001.json"
    text = manifest.read_text()
    kept = json.loads(text)
    del kept["files"][0]
    manifest.write_text(json.dumps(kept))
    victim.unlink()
    assert found() == f"gap: orders/eu 1/0 [0, {files[0].end}) is not archived"
    victim.write_bytes(whole)
    manifest.write_text(json.dumps({**kept, "files": [*json.loads(text)["files"], json.loads(text)["files"][0]]}))
    assert f"duplicate: orders/eu 1/0 [0, {files[0].end}) is archived twice" in audit(str(store), out).findings
    manifest.write_text('{"version": 2}')
    with pytest.raises(StoreDamaged, match="has version 2"):
        audit(str(store), out)
    manifest.write_text("{")
    with pytest.raises(StoreDamaged, match="is no manifest"):
        audit(str(store), out)
    with pytest.raises(NotAStore, match="there is no archive at"):
        audit(str(store), tmp_path / "none")


def test_an_archive_that_lies_consistently_is_still_found_out(store: Path, tmp_path: Path) -> None:
    """File, checksum and manifest agree with each other; only the store knows better."""
    from gateway.pipeline.manifest import checksum

    out = tmp_path / "out"
    archive(str(store), out)
    manifest = out / "_manifests" / "00000001.json"
    kept = json.loads(manifest.read_text())
    place = out / Archive.existing(out).files()[0].path
    table = pq.ParquetFile(place).read()
    values = table["value"].to_pylist()
    values[2] = b"forged"
    forged = table.set_column(
        table.schema.get_field_index("value"), table.schema.field("value"), pa.array(values, pa.binary())
    )
    pq.write_table(forged, place)
    kept["files"][0] |= {"crc32c": checksum(pa.memory_map(str(place))), "size": place.stat().st_size}
    manifest.write_text(json.dumps(kept))
    assert audit(str(store), out).findings == ("different: orders/eu 1/0 offset 2 is not what is stored",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 1}, r"damaged: orders/eu 1/0 \[3, 15\): .* does not have 1 bytes"),
        ({"end": 14}, r"gap: orders/eu 1/0 \[14, 15\) is not archived"),
        ({"partition": 7}, r"beyond: orders/eu 1/7 \[3, 15\) is archived and was never stored"),
        ({"partition": 1}, r"damaged: orders/eu 1/1 \[3, 15\): .* does not hold this partition"),
        ({"day": "2023-11-16"}, r"damaged: orders/eu 1/0 \[3, 15\): .* holds another day than 2023-11-16"),
        ({"crc32c": 0}, r"damaged: orders/eu 1/0 \[3, 15\): .* does not have its checksum"),
        ({"epoch": 1}, r"gap: orders/eu 1/0 \[3, 15\) is not archived"),
    ],
)
def test_a_manifest_that_was_altered(store: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    out = tmp_path / "out"
    archive(str(store), out)
    manifest = out / "_manifests" / "00000001.json"
    kept = json.loads(manifest.read_text())
    file = Archive.existing(out).files()[1]
    assert (file.partition, file.start, file.end) == (0, 3, 15)
    kept["files"][1] |= change
    manifest.write_text(json.dumps(kept))
    place = out / Archive.existing(out).files()[1].path
    place.parent.mkdir(exist_ok=True)
    (out / file.path).rename(place)  # whoever moves a day moves the file as well
    assert any(re.match(said, one) for one in audit(str(store), out).findings)


def test_a_file_that_was_lost_is_written_again_while_the_store_has_it(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=12)
    lost = Archive.existing(out).files()[1:3]
    for file in lost:
        (out / file.path).unlink()
    assert [one.partition(":")[0] for one in audit(str(store), out).findings] == ["gap", "gap"]
    assert archive(str(store), out, topics=TopicSelection(("none",))).records == 0
    assert archive(str(store), out).records == sum(file.end - file.start for file in lost)
    found = audit(str(store), out)
    assert (found.compared, found.findings, len(rows(out))) == (40, (), 40)
    assert archive(str(store), out).records == 0


def test_a_manifest_that_is_gone_is_a_finding_and_nothing_is_written_over_others(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out, records_per_file=6)
    manifests = sorted((out / "_manifests").iterdir())
    texts = [one.read_text() for one in manifests[1:]]
    manifests[0].unlink()
    filled(store, more)
    found = audit(str(store), out).findings
    assert found[0] == "gap: the manifest 00000001.json is missing, and what it named"
    assert "gap: orders/eu 1/0 [0, 12) is not archived" in found
    with pytest.raises(StoreDamaged, match=r"00000001\.json is missing: put it back"):
        archive(str(store), out)
    with pytest.raises(StoreDamaged, match=r"00000001\.json is missing"):
        Archive.existing(out).files()
    assert [one.read_text() for one in manifests[1:]] == texts


def test_what_no_manifest_names_is_found_wherever_it_lies(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(str(store), out)
    strays = ["topic=a/b.parquet", "note.txt", "topic=new/day=2023-11-14/deeper/x"]
    for name in [*strays, "_notes/x.parquet", "topic=new/.hidden", "topic=new/_SUCCESS"]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    found = audit(str(store), out).findings
    assert found == tuple(f"unlisted file {name}: readers of the directory would see it" for name in sorted(strays))


def test_what_retention_took_first(tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    filled(store, before_retention)
    assert archive(str(store), out).records == 2
    filled(store, after_retention)
    with pytest.raises(HistoryGone, match=r"t/0 \[2, 5\): removed before it was archived. All else is archived"):
        archive(str(store), out)
    assert [file.topic for file in Archive.existing(out).files()] == ["t", "u"]
    assert audit(str(store), out).findings == ("gap: t/0 [5, 6) is not archived",)
    assert planned(str(store), out).gaps == ("t/0 [2, 5)",)
    done = archive(str(store), out, accept_gaps=True)
    assert (done.records, done.gaps) == (1, ("t/0 [2, 5)",))
    for _ in range(2):  # it stays accepted
        found = audit(str(store), out)
        assert (found.compared, found.archived) == (2, 4)
        assert found.findings == ()
        assert found.accepted == ("t/0 [2, 5): removed before it was archived",)
        assert archive(str(store), out) == Archived()
        assert planned(str(store), out) == Planned(0, (), ())


def test_a_mistake_leaves_nothing_behind(store: Path, tmp_path: Path) -> None:
    for source, topics in ((tmp_path / "none", "**"), (store, "nothing")):
        with pytest.raises((NotAStore, UnknownTopic)):
            archive(str(source), tmp_path / "out", topics=TopicSelection.parse(topics))
        with pytest.raises((NotAStore, UnknownTopic)):
            planned(str(source), tmp_path / "out", topics=TopicSelection.parse(topics))
    assert not (tmp_path / "out").exists()
    assert planned(str(store), tmp_path / "out").records == archive(str(store), tmp_path / "out").records > 0


def test_a_topic_whose_name_is_too_long_for_a_directory(tmp_path: Path) -> None:
    names = ["ü" * 200 + end for end in ("a", "b")]

    async def fill(log: Log) -> None:
        for name in names:
            await log.create(name)
            await log.append(name, [name[-1].encode()])

    filled(tmp_path / "store", fill)
    assert archive(str(tmp_path / "store"), tmp_path / "out").records == 2
    assert len(list((tmp_path / "out").glob("topic=ü*%5C*/day=*/*.parquet"))) == 2
    assert audit(str(tmp_path / "store"), tmp_path / "out") == Audited(
        2, 2, {(name, 0, "orders"): 1 for name in names}, ()
    )


@pytest.mark.spark
def test_a_job_over_such_a_topic_says_its_whole_name(spark: Any, tmp_path: Path) -> None:
    names = ["x" * 300 + end for end in ("a", "b")]

    async def fill(log: Log) -> None:
        for name in (*names, "short"):
            await log.create(name)
            await log.append(name, [name[-1].encode()])

    filled(tmp_path / "store", fill)
    archive(str(tmp_path / "store"), tmp_path / "out")
    messages = messages_at(str(tmp_path / "out"))
    frame = messages.frame(spark, messages.spans(TopicSelection()), ["topic", "value"])
    assert {row.topic: bytes(row.value) for row in frame.collect()} == {names[0]: b"a", names[1]: b"b", "short": b"t"}


def test_what_is_damaged_holds_up_only_what_follows_it(tmp_path: Path) -> None:
    """Several tasks a partition: what lies behind the damage waits, what lies in other partitions does not."""
    path, out = tmp_path / "store", tmp_path / "out"

    async def fill(log: Log) -> None:
        for topic in ("bad", "good"):
            await log.create(topic)
            for number in range(6):
                await log.append(topic, [b"%d" % number] * 2)

    filled(path, fill)
    with contextlib.closing(sqlite3.connect(path / "log.sqlite", isolation_level=None)) as store:
        key, whole = store.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 2").fetchone()
        store.execute("UPDATE chunks SET data = ? WHERE id = ?", (whole[:-1] + b"?", key))
        for _ in range(2):
            with pytest.raises(Damaged, match=r"topic=bad partition=0 offsets=\[4, 6\)\. All else is archived"):
                archive(str(path), out, records_per_file=3)
            files = Archive.existing(out).files()
            assert sorted((file.topic, file.start, file.end) for file in files) == [
                ("bad", 0, 3), ("bad", 3, 4), ("good", 0, 3), ("good", 3, 6), ("good", 6, 9), ("good", 9, 12),
            ]  # fmt: skip
        copy = tmp_path / "copy"
        shutil.copytree(out, copy)
        around = archive(str(path), copy, records_per_file=3, accept_gaps=True)
        assert (around.records, len(around.gaps)) == (6, 1)
        found = audit(str(path), copy)
        assert found.findings == ()
        assert found.accepted == ("bad/0 [4, 6): damaged chunk: topic=bad partition=0 offsets=[4, 6)",)
        assert archive(str(path), copy) == Archived()  # and nobody has to accept it again
        store.execute("UPDATE chunks SET data = ? WHERE id = ?", (whole, key))
    assert archive(str(path), out).records == 8
    assert audit(str(path), out).findings == ()


def test_one_archiving_process_at_a_time(store: Path, tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "out"), pytest.raises(StoreInUse, match="another process adds to"):
        archive(str(store), tmp_path / "out")


def test_names_of_topics_as_directories() -> None:
    assert topic_directory("a/b=c%ü") == "topic=a%2Fb%3Dc%25ü"
    for name in ("x" * 250, "ü" * 125, "/" * 100, "x" * 512):
        cut = topic_directory(name)
        assert len(cut.encode()) <= 255
        assert "%5C" in cut
        assert named_topic(name) == unquote(cut.removeprefix("topic="))
    assert topic_directory("x" * 250) != topic_directory("x" * 251)
