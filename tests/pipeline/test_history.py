"""One table over an archive and its log: each record once, whatever retention removed and however often a topic was made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.pipeline.archive import archive
from gateway.store.interface import DropTopic, Unit
from tests.pipeline.places import FORMATS, MODES, Place, place
from tests.pipeline.stored import Log

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
LONG = "long" * 80


async def first_life(log: Log) -> None:
    await log.create("t", partitions=2)
    await log.create("made again")
    await log.create(LONG)
    await log.create("trimmed", retention_seconds=3600.0)
    for number in range(6):
        await log.append("t", [b"%d" % number] * 3, number % 2, [b"k", None, b""], [(("h", b"1"), ("i", b"2")), (), ()])
        log.clock.ms += DAY_MS // 2
    await log.append("made again", [b"old"] * 4)
    await log.append(LONG, [b"x"])
    await log.append("trimmed", [b"a", b"b"])


async def second_life(log: Log) -> None:
    log.clock.ms += 10 * DAY_MS  # it begins anew each time
    await log.store.submit(Unit(deletes=[DropTopic("made again")])).wait()
    await log.create("made again")
    await log.append("made again", [b"new"] * 2)
    await log.append("t", [b"later"], 1, expires=[log.clock.ms + 1])
    log.clock.ms += 2 * 3_600_000
    await log.append("trimmed", [b"c"])
    log.store.maintain()


async def lost(log: Log) -> None:
    log.clock.ms += 20 * DAY_MS
    await log.append("trimmed", [b"never archived"])
    log.clock.ms += 2 * 3_600_000
    await log.append("trimmed", [b"kept"])
    log.store.maintain()


def load(spark: Any, store: Place, out: Path, form: str, **options: str) -> Any:
    return spark.read.format(form).options(**store.options, history=str(out), **options).load()


def places(frame: Any) -> list[tuple[str, int, int, bytes]]:
    rows = frame.select("topic", "partition", "offset", "value", "epoch").collect()
    lives = {topic: sorted({row.epoch for row in rows if row.topic == topic}) for topic in {row.topic for row in rows}}
    return sorted(
        (row.topic, lives[row.topic].index(row.epoch), row.partition, row.offset, bytes(row.value)) for row in rows
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_archive_and_its_log(spark: Any, tmp_path: Path, mode: str) -> None:
    out = tmp_path / "archive"
    with place(tmp_path / "store", mode, first_life) as store:
        archive(str(store.path), out)
        store.fill(second_life)
        expected = [
            ("t", 0, number % 2, number // 2 * 3 + index, b"%d" % number) for number in range(6) for index in range(3)
        ]
        expected += [("made again", 0, 0, offset, b"old") for offset in range(4)]
        expected += [("made again", 1, 0, offset, b"new") for offset in range(2)]
        expected += [("t", 0, 1, 9, b"later"), (LONG, 0, 0, 0, b"x")]
        expected += [("trimmed", 0, 0, offset, value) for offset, value in enumerate((b"a", b"b", b"c"))]
        for form in FORMATS:
            frame = load(spark, store, out, form)
            assert places(frame) == sorted(expected)
            assert frame.count() == len(expected)
            assert frame.columns[-1] == "epoch"
            assert frame.selectExpr("max(epoch)").first()[0] > 0
            assert frame.where("topic = 'made again'").groupBy("epoch").count().count() == 2
            some = frame.where("timestamp < '2023-11-16' and partition = 1 and topic = 't'")
            assert some.count() == 3
            assert (some.rdd.getNumPartitions() == 1) == (form == FORMATS[0])
            assert frame.where("topic = 't' and offset = 9 and expires is not null").count() == 1
            names = (
                frame.where("size(headers) > 0").selectExpr("headers.value v", "headers[1].name n", "key").distinct()
            )
            assert [(*map(bytes, row.v), row.n, bytes(row.key)) for row in names.collect()] == [(b"1", b"2", "i", b"k")]
            assert load(spark, store, out, form, assign='{"t": [1]}', includeHeaders="false").count() == 10
        both = [
            load(spark, store, out, form).orderBy("topic", "epoch", "partition", "offset").collect() for form in FORMATS
        ]
        assert both[0] == both[1]
        archive(str(store.path), out)
        for form in FORMATS:
            assert places(load(spark, store, out, form)) == sorted(expected)


def test_what_neither_has(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    with place(tmp_path / "store", "path", first_life) as store:
        archive(str(store.path), out)
        store.fill(second_life)
        archive(str(store.path), out)
        store.fill(lost)
        for form in FORMATS:
            with pytest.raises(Exception, match=r"trimmed/0 \[3, 4\): removed before it was archived"):
                load(spark, store, out, form).where("length(value) > 0").collect()
            tolerant = load(spark, store, out, form, failOnDataLoss="false", topics="trimmed")
            assert [one[3] for one in places(tolerant)] == [0, 1, 2, 4]
        archive(str(store.path), out, accept_gaps=True)
        for form in FORMATS:
            assert [one[3] for one in places(load(spark, store, out, form, topics="trimmed"))] == [0, 1, 2, 4]
            with pytest.raises(Exception, match="there is no topic none in"):
                load(spark, store, out, form, topics="none").collect()
            stream = spark.readStream.format(form).options(**store.options, history=str(out)).load()
            with pytest.raises(Exception, match="history is for a batch"):
                stream.writeStream.format("noop").option(
                    "checkpointLocation", str(tmp_path / form)
                ).start().awaitTermination()
