"""The data source in the JVM: its jar is what its sources say, and it gives what the one in Python gives, of any store, and of one
that is written, merged and check-pointed while it is read.
"""

from __future__ import annotations

import gzip
import importlib.util
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from pyspark.errors import PySparkException

from gateway.bulk import wire
from gateway.envelope import Columns
from gateway.store import loop, visible
from gateway.store.interface import Append, Durability, Unit
from gateway.store.sqlite import open_store
from gateway.store.writer import Writer
from tests.pipeline.places import FORMATS, MODES, Place, place
from tests.pipeline.stored import META, SMALL, Log, filled, log

JAR = Path("gateway/pipeline/gateway-spark.jar")


def test_the_jar_is_made_of_its_sources(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("jar", "deploy/jar.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    if not build.compiler():
        pytest.skip("no javac of Java 17 here (Debian: openjdk-17-jdk-headless)")
    made = tmp_path / "made.jar"
    subprocess.check_call([sys.executable, "deploy/jar.py", "--to", made])
    assert contents(made) == contents(JAR), "`make jar` was not called after the last change"
    assert JAR.stat().st_size < 200_000


def contents(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as opened:
        return {one.filename: opened.read(one) for one in opened.infolist()}


pytestmark = pytest.mark.spark


def load(spark: Any, store: Place, form: str, **options: str) -> Any:
    return spark.read.format(form).options(**store.options, **options).load()


async def of_every_shape(log: Log) -> None:
    """Chunks of one record and of thousands, with and without keys, headers, expiries; long values, empty ones; two partitions."""
    chance = random.Random(7)
    await log.create("shapes", partitions=2)
    await log.create("büro.ü", durability=Durability.NONE)
    for number in range(60):
        count = chance.choice([1, 2, 3, 17, 300])
        size = chance.choice([0, 3, 200, 200, 9000]) if count < 300 else 20
        values = [chance.randbytes(chance.randint(0, size)) for _ in range(count)]
        keys = [chance.choice([None, b"", b"key-%d" % one]) for one in range(count)] if number % 3 else None
        headers = (
            [tuple((f"n{one}", chance.randbytes(one)) for one in range(chance.randint(0, 3))) for _ in range(count)]
            if number % 4 == 1
            else None
        )
        expires = [chance.choice([0, log.clock.ms + 5]) for _ in range(count)] if number % 5 == 2 else None
        await log.append("shapes", values, number % 2, keys, headers, expires)
        log.clock.ms += chance.randint(0, 40)
    await log.append("büro.ü", [b"x" * 3_000_000, b"", "größer".encode()])


@pytest.mark.parametrize("mode", MODES)
def test_both_give_the_same_rows(spark: Any, tmp_path: Path, mode: str) -> None:
    with place(tmp_path / "store", mode, of_every_shape) as store:
        jvm, python = (load(spark, store, form).orderBy("topic", "partition", "offset").collect() for form in FORMATS)
        assert len(jvm) > 1000
        assert jvm == python
        times = sorted({row.timestamp for row in jvm})
        middle = times[len(times) // 2].isoformat(sep=" ")
        for condition in (
            f"timestamp >= timestamp '{middle}'",
            f"timestamp < timestamp '{middle}' and partition = 1",
            f"timestamp = timestamp '{middle}'",
            f"timestamp > timestamp '{middle}' + interval 1 microsecond and topic like 'sha%'",
            "offset between 10 and 20 and partition in (0, 7) and topic = 'shapes'",
            "offset in (3, 900) or topic = 'büro.ü'",
            "key is not null and topic <=> 'shapes'",
            "topic = 'none'",
            "value is not null and length(value) > 100",
        ):
            frames = [load(spark, store, form).where(condition) for form in FORMATS]
            first, second = (one.orderBy("topic", "partition", "offset").collect() for one in frames)
            assert first == second, condition
            told = [
                one.selectExpr("count(*)", "min(offset)", "max(offset)", "max(timestamp)").collect() for one in frames
            ]
            assert told[0] == told[1], condition
        for query in (
            "select count(*), min(offset), max(offset), min(timestamp), max(timestamp) from log",
            "select topic, partition, count(1), max(timestamp) from log group by topic, partition order by 1, 2",
            "select headers.name as names, get(headers, 0).value first from log order by topic, partition, offset",
            "select expires from log where expires is not null order by topic, partition, offset",
        ):
            answers = []
            for form in FORMATS:
                load(spark, store, form).createOrReplaceTempView("log")
                answers.append(spark.sql(query).collect())
            assert answers[0] == answers[1], query


def test_a_range_that_comes_compressed(spark: Any, tmp_path: Path) -> None:
    with place(tmp_path / "store", "endpoint", of_every_shape) as store:
        for form in FORMATS:
            packed, plain = (load(spark, store, form, compression=how) for how in ("gzip", "none"))
            assert packed.where("length(value) >= 0").exceptAll(plain).count() == 0
            assert packed.selectExpr("sum(length(value))").first() == plain.selectExpr("sum(length(value))").first()
        asked = urllib.request.Request(
            f"{store.options['endpoint']}/v1/log?topic=shapes",
            headers={"Accept": wire.CHUNKS, "Accept-Encoding": "deflate, gzip;q=0.5"},
        )
        with urllib.request.urlopen(asked) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(response.read()).endswith(
                wire.NEXT.pack(plain.where("topic = 'shapes' and partition = 0").count())
            )


def test_what_the_log_knows_is_not_read(spark: Any, tmp_path: Path) -> None:
    with place(tmp_path / "store", "path", of_every_shape) as store:
        frame = load(spark, store, "gateway")
        counted = frame.where("topic = 'shapes' and timestamp > '2020-01-01'").groupBy("partition").count()
        assert "LocalTableScan" in plan(counted)
        assert "LocalTableScan" in plan(frame.selectExpr("min(offset)", "count(value)"))
        assert "LocalTableScan" not in plan(frame.where("length(value) > 3").selectExpr("count(*)"))
        assert "struct<headers:array<struct<name:string>>>" in plan(frame.selectExpr("headers.name"))
        assert "struct<key:binary>" in plan(frame.select("key"))
        with_stage = frame.where("topic = 'shapes' and offset < 4")
        assert with_stage.rdd.getNumPartitions() == 2


def plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("mode", MODES)
def test_damage_is_named_and_what_is_good_is_read(spark: Any, tmp_path: Path, mode: str) -> None:
    async def eight(log: Log) -> None:
        await log.create("t")
        for number in range(8):
            await log.append("t", [b"%d" % number] * 3)

    with place(tmp_path, mode, eight) as store:
        with sqlite3.connect(tmp_path / "log.sqlite") as connection:
            (blob,) = connection.execute("SELECT data FROM chunks WHERE id & 255 = 9").fetchone()
            connection.execute("UPDATE chunks SET data = ? WHERE id & 255 = 9", (blob[:70] + b"\xff" + blob[71:],))
            connection.execute("DELETE FROM chunks WHERE id & 255 = 15")
        connection.close()
        for form in FORMATS:

            def read(start: int, end: int, form: str = form) -> list[int]:
                ends = {
                    f"{which}Offsets": f'{{"t": {{"0": {at}}}}}' for which, at in (("starting", start), ("ending", end))
                }
                rows = load(spark, store, form, **ends).where("length(value) > 0").collect()
                return [row.offset for row in rows]

            assert read(0, 9) == list(range(9))
            said = (
                r"damaged chunk: topic=t partition=0 offsets=\[9, 12\).*from offset 12 on can be read, by endingOffsets"
            )
            with pytest.raises(Exception, match=said):
                read(2, 18)
            assert read(12, 15) == [12, 13, 14]
            with pytest.raises(Exception, match=r"offsets=\[15, 18\)"):
                read(13, 24)
            assert read(18, 24) == list(range(18, 24))


def test_a_page_that_is_nonsense_is_damage_between_what_is_good(spark: Any, tmp_path: Path) -> None:
    async def many(log: Log) -> None:
        await log.create("t")
        for number in range(80):
            await log.append("t", [b"%04d" % number * 500])

    filled(tmp_path, many)
    database = tmp_path / "log.sqlite"
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'chunks'").fetchone()
    connection.close()
    data = bytearray(database.read_bytes())
    at = (root - 1) * 16384
    third = int.from_bytes(data[at + 12 + 4 : at + 12 + 6], "big")  # of the leaves below the root
    leaf = int.from_bytes(data[at + third : at + third + 4], "big")
    data[(leaf - 1) * 16384 : leaf * 16384] = b"\x07" * 16384
    database.write_bytes(data)
    store = Place(tmp_path)
    told = []
    for form in FORMATS:
        with pytest.raises(Exception, match=r"damaged chunk: topic=t partition=0 offsets=\[\d+, \d+\)") as raised:
            load(spark, store, form).where("length(value) > 0").collect()
        text = str(raised.value)
        told.append(text[text.index("damaged chunk") :].split(")", maxsplit=1)[0])
    assert told[0] == told[1]


def test_a_log_that_was_left_behind_is_read_by_its_checksums(spark: Any, tmp_path: Path) -> None:
    """As after a power cut: the write-ahead log is there, whole or torn, and its index is not."""

    async def left() -> None:
        async with log(tmp_path / "live") as opened:
            await opened.create("t")
            for number in range(40):
                await opened.append("t", [b"%d" % number * 100] * 3)
            for torn in (0, 1, 20_000, 150_000):
                copy = tmp_path / f"torn-{torn}"
                copy.mkdir()
                for name in ("log.sqlite", "log.sqlite-wal"):
                    shutil.copy(tmp_path / "live" / name, copy)
                with (copy / "log.sqlite-wal").open("r+b") as file:
                    file.truncate((copy / "log.sqlite-wal").stat().st_size - torn)

    trio.run(left)
    counts = []
    for copy in sorted(tmp_path.glob("torn-*"), key=lambda one: int(one.name[5:])):
        jvm = (
            load(spark, Place(copy), "gateway").orderBy("offset").collect()
        )  # first: who opens it with SQLite mends it
        assert jvm == load(spark, Place(copy), "gateway-python").orderBy("offset").collect()
        counts.append(len(jvm))
    assert counts[0] == 120
    assert 0 < counts[-1] < counts[0]


@attrs.define(eq=False)
class Busy:
    """A store that is written all the time, in another thread."""

    path: Path
    written: int = 0
    checkpoints: int = 0
    stop: threading.Event = attrs.field(factory=threading.Event)

    async def write(self) -> None:
        async with open_store(self.path, SMALL) as store:
            opened = Log(store, None)  # type: ignore[arg-type]
            await opened.create("t", durability=Durability.NONE)
            while not self.stop.is_set():
                values = [b"%d" % (self.written + index) for index in range(10)]
                await store.submit(Unit(appends=[Append("t", 0, Columns.of(values), META)])).wait()
                self.written += 10


@contextmanager
def busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    made = Busy(path)
    carry_over = Writer.carry_over

    def counted(self: Any) -> bool:
        made.checkpoints += 1
        return carry_over(self)

    monkeypatch.setattr(Writer, "carry_over", counted)
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(loop, "POST_CHUNKS", 16)  # or there are millions of rows before enough pages have moved
    monkeypatch.setattr(visible, "MERGE_AFTER", 64)
    thread = threading.Thread(target=trio.run, args=(made.write,))
    thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        thread.join()


def test_a_store_that_is_written_meanwhile(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is the one that was written there, and none is missing, while pages move from the log into the database."""
    with busy(tmp_path, monkeypatch) as store:
        reads = 0
        seen = 0
        while reads < 5 or store.checkpoints < 30 or seen < 30_000:
            if not store.written:
                continue
            frame = load(spark, Place(tmp_path), "gateway", maxRecordsPerPartition="20000")
            wrong, count, last = frame.selectExpr(
                "count_if(cast(value as string) != cast(offset as string))", "count(value)", "max(offset)"
            ).first()
            assert (wrong, count) == (0, last + 1)
            assert count >= seen
            seen = count
            reads += 1


def test_a_session_says_in_a_line_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    for options, said in (
        ({}, r"the option path is needed \(the directory of a store\)"),
        (
            {"path": str(tmp_path), "startingOffset": "earliest"},
            "unknown option startingoffset; there are path, endpoint",
        ),
        ({"endpoint": "nowhere:1"}, "a gateway's admin address, like http://127.0.0.1:9600, not 'nowhere:1'"),
    ):
        with pytest.raises(PySparkException, match=said) as raised:
            spark.read.format("gateway").options(**options).load()
        assert "\n" not in str(raised.value).strip()
