"""An archive in an object store, by a real S3: exactly once, whoever dies or comes in between; and how an archive is divided."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.cli.main import main
from gateway.errors import AlreadyExists, InvalidRequest, NotAStore, StoreDamaged, StoreInUse
from gateway.pipeline.archive import Archived, archive, planned, write_range
from gateway.pipeline.audit import audit
from gateway.pipeline.compact import compact
from gateway.pipeline.decoding import Decoding
from gateway.pipeline.export import export
from gateway.pipeline.history import history
from gateway.pipeline.layout import NOTHING, ArchiveLayout
from gateway.pipeline.manifest import Archive, ArchiveFile, ArchiveWriter
from gateway.pipeline.merge import Merged, merge, mergeable
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.output import appearing
from gateway.pipeline.ranges import Range
from gateway.pipeline.rollup import follow, rollup
from gateway.pipeline.rollup_table import rollup_table
from gateway.pipeline.session import s3a_settings
from gateway.pipeline.shelves import STAGING, ObjectShelf, shelf_at
from gateway.pipeline.spread import Here, OnSpark
from gateway.store.reader import LogReader
from tests.pipeline.quick import quick
from tests.pipeline.s3 import JARS, ObjectStore, object_store
from tests.pipeline.stored import Log, filled

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


async def orders(log: Log) -> None:
    await log.create("orders", partitions=2)
    for number in range(8):
        values = [b'{"region": "eu", "n": %d}' % number, b'{"region": "a/b", "n": 1}', b"not json", b'{"n": 2}']
        await log.append("orders", values, number % 2, [b"k%d" % number] * 4, [((("kind", b"x"),))] * 4)
        log.clock.ms += DAY_MS // 4


async def more(log: Log) -> None:
    await log.append("orders", [b'{"region": "us"}'], 1)


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(tmp_path: Path) -> str:
    filled(tmp_path / "store", orders)
    return str(tmp_path / "store")


def held(place: Path | str) -> Counter[tuple[str, int, int, bytes]]:
    """What the files hold that the manifests name; each row as often as it is there."""
    found: Counter[tuple[str, int, int, bytes]] = Counter()
    existing = Archive.existing(place)
    for file in existing.files():
        with existing.shelf.opened(file.path) as opened:
            rows = pq.ParquetFile(opened).read(["partition", "offset", "value"])
        found.update((file.topic, *row.values()) for row in rows.to_pylist())
    return found


def test_a_second_run_adds_only_what_is_new(s3: ObjectStore, store: str, tmp_path: Path) -> None:
    out = s3.prefix()
    with pytest.raises(NotAStore, match="there is no archive at s3a://"):
        audit(store, out)
    assert planned(store, out).records == 32
    assert archive(store, out, records_per_file=6).records == 32
    assert archive(store, out) == Archived()
    names = Archive(out).shelf.files()
    assert {name.split("/")[0] for name in names} == {"_manifests", "_sources.json", "topic=orders"}
    assert set(held(out).values()) == {1}
    found = audit(store, out)
    assert (found.compared, found.archived, found.findings) == (32, 32, ())
    filled(tmp_path / "store", more)
    assert archive(store, out).records == 1
    would = mergeable(out)
    done = merge(out)
    assert would == done
    assert 20 < done.records <= 33
    assert merge(out) == Merged()
    assert len(Archive(out).files()) < len([name for name in names if name.endswith(".parquet")])
    assert Archive(out).unlisted() == []
    assert (audit(store, out).findings, held(out).total(), len(held(out))) == ((), 33, 33)


def test_what_the_bucket_lost_is_written_again(s3: ObjectStore, store: str) -> None:
    out = s3.prefix()
    archive(store, out, records_per_file=6)
    existing = Archive(out)
    lost = existing.files()[1]
    existing.shelf.remove(lost.path)
    assert [one.partition(":")[0] for one in audit(store, out).findings] == ["gap"]
    assert archive(store, out).records == lost.end - lost.start
    assert (audit(store, out).findings, held(out).total()) == ((), 32)


def staged(writer: ArchiveWriter, store: str, end: int) -> list[ArchiveFile]:
    """What a writer has brought into `_staging` when it is overtaken."""
    return write_range(store, writer.shelf, ArchiveLayout(), Range("orders", 0, 0, end, epoch(store))).files


def epoch(store: str) -> int:
    with LogReader(store) as reader:
        return reader.topic("orders").epoch


def test_whoever_comes_later_goes_first_and_the_other_hears_it(s3: ObjectStore, store: str) -> None:
    out = s3.prefix()
    with ArchiveWriter(out) as slow:
        slow.claim()
        files = staged(slow, store, 6)
        assert archive(store, out).records == 32
        with pytest.raises(StoreInUse, match="another process has begun to add to the archive s3a://"):
            slow.commit(files)
    assert (audit(store, out).findings, held(out).total()) == ((), 32)
    assert not Archive(out).shelf.files(STAGING)


def test_what_was_committed_before_a_claim_stays_whoever_settles_it(s3: ObjectStore, store: str) -> None:
    """The other one dies behind its commit, and before it has moved its files; and what it had not committed is removed."""
    out = s3.prefix()
    with ArchiveWriter(out) as dying:
        dying.claim()
        files = staged(dying, store, 6)
        staged(dying, store, 3)
        dying._place = lambda _files: None  # type: ignore[method-assign]
        dying.commit(files)
    assert len(Archive(out).shelf.files(STAGING)) > len(files)
    assert archive(store, out).records == 32 - 6
    assert (audit(store, out).findings, held(out).total()) == ((), 32)
    assert not Archive(out).shelf.files(STAGING)


def test_two_that_begin_at_once_do_not_both_write(s3: ObjectStore, store: str) -> None:
    out = s3.prefix()
    with ArchiveWriter(out) as first, ArchiveWriter(out) as second:
        first.claim()
        second.claim()  # behind it: its number was taken, so it has looked again
        ours, theirs = staged(first, store, 6), staged(second, store, 6)
        with pytest.raises(StoreInUse):
            first.commit(ours)
        second.commit(theirs)
    assert archive(store, out).records == 26
    assert (audit(store, out).findings, held(out).total()) == ((), 32)


@pytest.mark.parametrize("job", ["archive", "merge"])
def test_killed_before_every_step(job: str, s3: ObjectStore, store: str, tmp_path: Path) -> None:
    out = s3.prefix()
    begin = []
    if job == "merge":
        begin = [f"{out}-begin"]
        archive(store, begin[0], records_per_file=6)
    command = [sys.executable, "-m", "tests.pipeline.killed", job, store, out, *begin]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        said, _ = running.communicate(timeout=500)
    assert running.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) > 12
    assert all(line == {"compared": 32, "findings": []} for line in lines)
    for step in range(len(lines)):
        assert (held(f"{out}/archive-{step}").total(), len(held(f"{out}/archive-{step}"))) == (32, 32)
        assert Archive(f"{out}/archive-{step}").unlisted() == []


# --- divided by more than topic and day


@pytest.fixture(params=["directory", "s3a"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "out")
    made: str = request.getfixturevalue("s3").prefix()
    return made


BY = ArchiveLayout.of(["region=value.region", "even=value.n % 2 == 0"])


def test_by_expressions(place: str, store: str, tmp_path: Path) -> None:
    assert archive(store, place, layout=BY, records_per_file=8).records == 32
    existing = Archive(place)
    parts = {file.part for file in existing.files()}
    assert parts == {
        "region=eu/even=true",
        "region=eu/even=false",
        "region=a%2Fb/even=false",
        f"region={NOTHING}/even={NOTHING}",
        f"region={NOTHING}/even=true",
    }
    files = existing.files()
    assert all(file.path.split("/")[2:-1] == file.part.split("/") for file in files)
    assert sum(file.records for file in files) == 32
    found = audit(store, place)
    assert (found.compared, found.archived, found.findings) == (32, 32, ())
    # a later run goes on with what was said first, and nobody may say something else
    filled(tmp_path / "store", more)
    assert archive(store, place).records == 1
    assert Archive(place).files()[-1].part == f"region=us/even={NOTHING}"
    with pytest.raises(
        InvalidRequest, match=r"is divided by region=value\.region, even=.*: archive into another directory"
    ):
        archive(store, place, layout=ArchiveLayout.of(["region=key"]))
    assert merge(place).before > 0
    assert (audit(store, place).findings, held(place).total(), len(held(place))) == ((), 33, 33)
    # one file of a stretch is lost: it is made again, and with it those that share its offsets
    lost = next(file for file in Archive(place).files() if file.part.startswith("region=eu"))
    Archive(place).shelf.remove(lost.path)
    assert "is missing" in audit(store, place).findings[0]
    assert archive(store, place).records > 0
    assert (audit(store, place).findings, held(place).total(), len(held(place))) == ((), 33, 33)


def test_an_archive_that_is_there_is_not_divided_anew(store: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive(store, out)
    with pytest.raises(InvalidRequest, match="is divided by nothing but topic and day"):
        archive(store, out, layout=BY)


def test_of_two_that_say_first_what_it_is_divided_by_one_is_heard(s3: ObjectStore, store: str) -> None:
    out = s3.prefix()
    other = ArchiveLayout.of(["kind=headers.kind"])
    with ArchiveWriter(out) as first, ArchiveWriter(out) as second:
        first.laid_out(BY.by)
        assert first.laid_out(BY.by) == BY.by
        with pytest.raises(InvalidRequest, match=r"is divided by region=value\.region"):
            second.laid_out(other.by)
        assert second.laid_out({}) == BY.by
    archive(store, out)
    assert any(file.part.startswith("region=") for file in Archive(out).files())


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (["region"], "not an expression"),
        (["topic=key"], "with a name of its own"),
        (["a b=key"], "with a name of its own"),
        (["a=key", "a=key"], "with a name of its own"),
        (["a=nobody"], "unknown name 'nobody'"),
    ],
)
def test_expressions_that_are_none(by: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ArchiveLayout.of(by)


async def many_keys(log: Log) -> None:
    await log.create("keys")
    await log.append("keys", [b"v"] * 1_001, 0, [b"%d" % number for number in range(1_001)])


def test_an_expression_with_too_many_values_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "store", many_keys)
    with pytest.raises(InvalidRequest, match="key_is have more than 1000 values"):
        archive(str(tmp_path / "store"), tmp_path / "out", layout=ArchiveLayout.of(["key_is=key"]))
    assert Archive.existing(tmp_path / "out").files() == []


def test_by_size_and_by_time(tmp_path: Path) -> None:
    async def incompressible(log: Log) -> None:
        await log.create("noise")
        for number in range(12):
            await log.append("noise", [bytes((n * n * number + n) % 251 for n in range(5_000)) for _ in range(4)])
            log.clock.ms += HOUR_MS // 2

    filled(tmp_path / "store", incompressible)
    store = str(tmp_path / "store")
    layouts = {
        "hours": ArchiveLayout(roll_time_ms=HOUR_MS),
        "small": ArchiveLayout(roll_size=1),
        "days": ArchiveLayout(),
    }
    counts = {}
    for name, layout in layouts.items():
        archive(store, tmp_path / name, layout=layout)
        files = Archive.existing(tmp_path / name).files()
        counts[name] = len(files)
        assert audit(store, tmp_path / name).findings == ()
        if name == "hours":
            for file in files:
                times = pq.read_table(tmp_path / name / file.path, columns=["timestamp"], partitioning=None)[
                    "timestamp"
                ]
                assert len({one.hour for one in times.to_pylist()}) == 1
    assert counts["days"] <= 2 < counts["hours"] <= 7
    assert counts["small"] >= counts["days"]


def test_a_file_is_full_at_its_size(tmp_path: Path) -> None:
    """Files end where a group of rows has been written that makes them so large."""

    async def large(log: Log) -> None:
        await log.create("large")
        for number in range(24):
            block = bytes((n * 7919 + number) % 256 for n in range(1 << 16)) * 16
            await log.append("large", [block[one:] + block[:one] for one in range(4)])

    filled(tmp_path / "store", large)
    store = str(tmp_path / "store")
    archive(store, tmp_path / "one")
    archive(store, tmp_path / "many", layout=ArchiveLayout(roll_size=1))
    assert len(Archive(tmp_path / "many").files()) > len(Archive(tmp_path / "one").files()) == 1
    assert audit(store, tmp_path / "many").findings == ()


# --- read again


def test_the_log_behind_an_archive_in_a_bucket(s3: ObjectStore, store: str, tmp_path: Path) -> None:
    out = s3.prefix()
    archive(store, out)
    filled(tmp_path / "store", more)
    with LogReader(store) as reader:
        files, ranges = history(out, reader, ReadOptions(store, TopicSelection()))
    assert sum(file.records for file in files) == 32
    assert [str(one) for one in ranges] == ["orders/1 [16, 17)"]


@pytest.mark.spark
@pytest.mark.skipif(not JARS.is_dir(), reason="no jars that read s3a://: `make setup` fetches them by Maven")
def test_spark_reads_a_bucket(s3: ObjectStore, store: str, tmp_path: Path) -> None:
    """In a process of its own, since a session has its jars from the start."""
    out, divided = s3.prefix(), s3.prefix()
    archive(store, out)
    archive(store, divided, layout=BY)
    filled(tmp_path / "store", more)
    command = [sys.executable, "-m", "tests.pipeline.test_lake", store, out, divided]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        said, _ = running.communicate(timeout=400)
    assert running.returncode == 0
    assert json.loads(said.splitlines()[-1]) == {
        "spread": 1,
        "archive": 33,
        "divided": 32,
        "regions": 3,
        "history": 33,
        "history-divided": 33,
        "python": 33,
        "compared": 33,
        "keys": 8,
        "compacted": 8,
        "exported": [33, 33],
        "again": 8,
        "rolled up": [33, 28],  # the last minute is still open to who follows
    }
    for place in ("compacted", "exported"):
        names = shelf_at(f"{out}-{place}").files()
        assert not [one for one in names if one.startswith(STAGING)]
        assert "_SUCCESS" in names


LEFT = "_checkpoint/offsets/.0.0b3e4c1a-5a52-4d3c-9d0e-9d9e0c6a7f10.tmp"


def read_by_spark(store: str, out: str, divided: str) -> None:
    from gateway.pipeline.frames import messages_at
    from gateway.pipeline.session import spark_session

    jars = ",".join(str(one) for one in sorted(JARS.glob("*.jar")))
    spark = spark_session("local[2]", settings={**quick(), "spark.jars": jars})
    found: dict[str, Any] = {"spread": archive(store, out, spread=OnSpark(spark)).records}
    for name, place in (("archive", out), ("divided", divided)):
        messages = messages_at(place)
        found[name] = (
            messages.frame(spark, messages.spans(TopicSelection())).select("partition", "offset").distinct().count()
        )
    found["regions"] = spark.read.parquet(divided).where("region is not null").select("region").distinct().count() + 1
    for name, form, place in (
        ("history", "gateway", out),
        ("history-divided", "gateway", divided),
        ("python", "gateway-python", divided),
    ):
        rows = spark.read.format(form).options(path=store, history=place).load()
        found[name] = rows.select("partition", "offset").distinct().count()
    found["archive"] = messages_at(out).frame(spark, messages_at(out).spans(TopicSelection())).count()
    found["compared"] = audit(store, out, spread=OnSpark(spark)).compared
    messages = messages_at(store)
    found["keys"] = compact(spark, messages_at(out), f"{out}-compacted").keys
    found["compacted"] = spark.read.parquet(f"{out}-compacted").where("key is not null").count()
    done = export(spark, messages, f"{out}-exported", form="jsonl", decoding=Decoding("base64"))
    found["exported"] = [done.messages, spark.read.json(f"{out}-exported").count()]
    found["again"] = compact(spark, messages, f"{out}-exported", overwrite=True).keys
    rollup(spark, messages_at(out), f"{out}-rollup")
    shelf_at(f"{out}-followed").replace(LEFT, b"")  # by one that was killed before its first micro-batch
    follow(spark, messages, f"{out}-followed", interval=None, watermark="0 seconds")
    counted = [spark.read.parquet(f"{out}-{one}").agg({"messages": "sum"}).first()[0] for one in ("rollup", "followed")]
    found["rolled up"] = counted
    spark.stop()
    print(json.dumps(found))


# --- written to


class Killed(BaseException):
    """As if the process had died."""


def put(place: str, text: str, *, overwrite: bool = True) -> None:
    with appearing(place, overwrite=overwrite) as fresh:
        for name in ("topic=a/part-1", "part-2"):
            shelf_at(fresh.where).replace(f"{name}-{text}", text.encode())
        shelf_at(fresh.where).replace("_SUCCESS", b"")
        shelf_at(fresh.where).replace("_temporary/0/part-3", b"left behind")


def seen(place: str) -> set[str]:
    """What readers see, once there is `_SUCCESS`."""
    names = set(shelf_at(place).files())
    assert "_SUCCESS" in names
    return {name for name in names if not name.startswith("_")}


def test_what_is_written_to_a_bucket_appears_whole(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3.prefix()
    put(place, "old", overwrite=False)
    assert seen(place) == {"topic=a/part-1-old", "part-2-old"}
    with pytest.raises(AlreadyExists, match="is not empty: give --overwrite"):
        put(place, "other", overwrite=False)
    steps = ("create", "settle", "remove", "replace")
    for at in range(1, 40):
        left = [at]
        kept = {name: getattr(ObjectShelf, name) for name in steps}

        def dying(self: ObjectShelf, *given: Any, left: list[int] = left, step: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return step(self, *given)

        for name in steps:
            monkeypatch.setattr(ObjectShelf, name, functools.partialmethod(dying, step=kept[name]))
        try:
            put(place, f"new{at}")
        except Killed:
            pass
        else:
            break
        finally:
            for name in steps:
                monkeypatch.setattr(ObjectShelf, name, kept[name])
        written = {name.rpartition("-")[2] for name in shelf_at(place).files() if name.startswith(("topic=", "part-"))}
        assert written
        before = set(shelf_at(place).files("_outputs"))
        with pytest.raises(AlreadyExists):  # it finishes what was committed, and nothing else
            put(place, "other", overwrite=False)
        assert len({name.rpartition("-")[2] for name in seen(place)}) == 1
        assert len(seen(place)) == 2
        assert set(shelf_at(place).files("_outputs")) == before
    else:
        pytest.fail("it never came through")
    assert at > 8
    assert seen(place) == {f"topic=a/part-1-new{at}", f"part-2-new{at}"}
    assert not shelf_at(place).files(STAGING)


def test_of_two_that_write_the_same_place_the_later_one_hears_it(s3: ObjectStore) -> None:
    place = s3.prefix()
    with contextlib.ExitStack() as stack:
        fresh = stack.enter_context(appearing(place))
        shelf_at(fresh.where).replace("part-slow", b"")
        put(place, "fast")
        with pytest.raises(StoreInUse, match="another process has written s3a://"):
            stack.close()
    assert seen(place) == {"topic=a/part-1-fast", "part-2-fast"}
    assert not shelf_at(place).files(STAGING)
    shelf_at(place).replace("_outputs/00000002.json", b"[]")
    with pytest.raises(StoreDamaged, match=r"00000002\.json is no manifest"):
        put(place, "new")


def test_a_rollup_in_a_bucket(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3.prefix()
    row = (1_700_000_040, "r", "t", "p", 10, 100, 3, 1, 2, 3, 4, 0, 0.0)
    nextday = (row[0] + 86_400, *row[1:])
    with rollup_table(place) as table, rollup_table(place) as other:
        assert table.put([row, nextday], [(*row[:4], 5, 1.0, 2.0, 3.0)]) == 2
        marked = ObjectShelf.marked

        def overtaken(self: ObjectShelf, name: str) -> Any:
            found = marked(self, name)
            monkeypatch.setattr(ObjectShelf, "marked", marked)
            other.put([(row[0] + 60, *row[1:])])
            return found

        monkeypatch.setattr(ObjectShelf, "marked", overtaken)
        table.put([(*row[:4], 9, *row[5:]), (row[0] + 120, *row[1:])])  # less than there is replaces nothing
    assert sorted(shelf_at(place).files()) == ["day=2023-11-14/rollup.parquet", "day=2023-11-15/rollup.parquet"]
    (data,) = shelf_at(place).read(["day=2023-11-14/rollup.parquet"])
    rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    assert [(one["minute"].minute, one["messages"], one["delivered"]) for one in rows] == [
        (14, 10, 5),
        (15, 10, None),
        (16, 10, None),
    ]
    shelf_at(place).replace("day=2023-11-14/rollup.parquet", b"no Parquet")
    with rollup_table(place) as table, pytest.raises(StoreDamaged, match=r"rollup\.parquet"):
        table.put([row])


def test_what_spark_is_told_about_the_store() -> None:
    assert s3a_settings({}) == {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    made = s3a_settings({"AWS_ENDPOINT_URL": "https://s3.example", "AWS_DEFAULT_REGION": "eu-west-1"})
    assert made["spark.hadoop.fs.s3a.endpoint"] == "https://s3.example"
    assert made["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"
    assert made["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"


# --- as a command


def test_as_a_command(
    s3: ObjectStore, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.pipeline_parts.JobCluster.spread", lambda _self: Here())
    out = s3.prefix()
    run = functools.partial(_run, capsys)
    by = ["--by", "region=value.region", "--roll-time", "1h", "--roll-size", "64"]
    assert run("archive", "--path", store, "--to", out, *by)["records"] == 32
    assert run("audit", "--path", store, "--archive", out)["compared"] == 32
    assert run("merge", "--archive", out)["before"] > 0
    assert main(["pipeline", "archive", "--path", store, "--to", "hdfs://there/x"]) == 2
    assert "not hdfs://" in capsys.readouterr().err
    assert main(["pipeline", "archive", "--path", store, "--to", out, "--by", "x=("]) == 2
    assert "not an expression" in capsys.readouterr().err


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["pipeline", *arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


if __name__ == "__main__":
    read_by_spark(*sys.argv[1:])
