"""What a driver leaves that is killed in its first micro-batch: every start behind it goes on, and nothing is lost or twice."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.pipeline.checkpoints import checkpoint_at
from gateway.pipeline.frames import messages_at
from gateway.pipeline.rollup import follow
from gateway.pipeline.shelves import Shelf, shelf_at
from tests.pipeline.s3 import ObjectStore, object_store
from tests.pipeline.stored import Log, filled
from tests.pipeline.test_cluster import minutes

UNNAMED = ".0.08ea9763-8952-4859-ab54-e403cac61694.tmp"
LEFT = {f"offsets/{UNNAMED}", f"offsets/.{UNNAMED}.crc"}


async def orders(log: Log) -> None:
    await log.create("orders", partitions=2)
    for number in range(5):
        await log.append("orders", [b"%d" % number] * 3, number % 2)
    log.clock.ms += 120_000
    await log.append("orders", [b"of a later minute"])


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(params=["directory", "s3a"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    if request.param == "directory":
        return shelf_at(tmp_path / "checkpoint")
    store: ObjectStore = request.getfixturevalue("s3")
    return shelf_at(store.prefix())


def killed(whole: Path, left: Path, written: float) -> None:
    """Of a checkpoint that went on to its end, what there was of it so long as the first offsets had no name yet."""
    offsets = left / "offsets"
    offsets.mkdir(parents=True)
    (left / "commits").mkdir()
    for name in ("metadata", ".metadata.crc"):
        shutil.copy(whole / name, left / name)
    shutil.copytree(whole / "sources", left / "sources")
    for name, given in (("0", UNNAMED), (".0.crc", f".{UNNAMED}.crc")):
        data = (whole / "offsets" / name).read_bytes()
        (offsets / given).write_bytes(data[: int(len(data) * written)])


def copied(spark: Any, store: Path, out: Path, checkpoint: str) -> list[tuple[int, int]]:
    """By a stream of Spark's own, with a sink of Spark's own."""
    frame = spark.readStream.format("gateway").option("path", str(store)).option("startingOffsets", "earliest").load()
    query = frame.select("partition", "offset").writeStream.format("parquet").option("path", str(out))
    query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return sorted((row.partition, row.offset) for row in spark.read.parquet(str(out)).collect())


@pytest.mark.spark
@pytest.mark.parametrize("written", [0.0, 0.5, 1.0])
def test_a_roll_up_that_was_killed_in_its_first_micro_batch_comes_up_again(
    spark: Any, tmp_path: Path, written: float
) -> None:
    store, out, again = tmp_path / "store", tmp_path / "out", tmp_path / "again"
    filled(store, orders)
    follow(spark, messages_at(str(store)), out, watermark="1 seconds", interval=None)
    killed(out / "_checkpoint", again / "_checkpoint", written)
    follow(spark, messages_at(str(store)), again, watermark="1 seconds", interval=None)
    assert minutes(again) == minutes(out) != []


@pytest.mark.spark
def test_a_stream_of_ones_own_needs_what_the_page_says(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    store, left = tmp_path / "store", tmp_path / "left"
    filled(store, orders)
    everything = copied(spark, store, tmp_path / "out", str(tmp_path / "checkpoint"))
    assert len(everything) == 16
    killed(tmp_path / "checkpoint", left, 0.5)
    # Spark's own; a Spark that starts here needs nothing of ours any more
    with pytest.raises(StreamingQueryException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        copied(spark, store, tmp_path / "again", str(left))
    assert copied(spark, store, tmp_path / "again", checkpoint_at(left)) == everything


def test_only_what_was_never_named_is_taken_away(shelf: Shelf) -> None:
    def left(*more: str) -> set[str]:
        for name in shelf.files():
            shelf.remove(name)
        for name in ("metadata", *LEFT, *more):
            shelf.replace(name, b"x")
        assert checkpoint_at(shelf.place) == shelf.place
        return set(shelf.files()) & {*LEFT, *more}

    shelf.prepared("offsets", "commits", "state/0/0", "state/0/_metadata")
    assert left() == set()
    assert left(f"{UNNAMED}.of.another.log") == {f"{UNNAMED}.of.another.log"}
    for one in ("offsets/0", "offsets/notes", "commits/0", "state/0/0/1.delta", "state/0/_metadata/metadata"):
        assert left(one) == LEFT | {one}
    for name in shelf.files():
        shelf.remove(name)
    assert checkpoint_at(shelf.place) == shelf.place  # of a stream that has never been


def test_a_place_that_nobody_here_can_look_at_is_said() -> None:
    with pytest.raises(InvalidRequest, match=re.escape("not hdfs://")):
        checkpoint_at("hdfs://somewhere/checkpoint")
