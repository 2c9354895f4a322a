"""A log on Kafka in the pipeline: read, archived, compared, with gaps in its offsets and what others wrote."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.cli.pipeline_replay import target_at
from gateway.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.frames import messages_at
from gateway.pipeline.manifest import Archive
from gateway.pipeline.merge import merge
from gateway.pipeline.options import ReadOptions
from gateway.pipeline.progress import Wanted
from gateway.pipeline.replay import replay
from gateway.pipeline.source import open_log
from gateway.store.interface import Put, Unit
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from tests.integration.running import started
from tests.kafka.foreign import produce_all
from tests.kafka.node import Kafka
from tests.pipeline.test_replay import PLAIN
from tests.store.kit import append, create, publish


@contextlib.asynccontextmanager
async def store(kafka: Kafka, prefix: str) -> AsyncIterator[object]:
    async with open_kafka_store(KafkaOptions([kafka.brokers], prefix=prefix, timeout=30.0)) as opened:
        yield opened


def options(kafka: Kafka, prefix: str, **others: str) -> ReadOptions:
    return ReadOptions.parse({"kafka": kafka.brokers, "kafkaPrefix": prefix, **others})


def values(kafka: Kafka, prefix: str, topic: str) -> list[list[bytes]]:
    with open_log(options(kafka, prefix).source) as log:
        return [
            [value for run in log.read_chunks(topic, one.number) for value in run.columns.values()]
            for one in log.topic(topic).partitions
        ]


async def write(kafka: Kafka, prefix: str) -> None:
    """Two partitions; in each a transaction, whose end takes an offset, and in one a record behind it."""
    async with store(kafka, prefix) as opened:
        await create(opened, "orders", partitions=2)
        await publish(opened, "orders", b"a", b"b", partition=0)
        both = [append("orders", b"c", b"d", partition=0), append("orders", b"e", partition=1)]
        await opened.submit(Unit(appends=both)).wait()
        await trio.to_thread.run_sync(decided, kafka, prefix)
        await publish(opened, "orders", b"f", partition=0)


def decided(kafka: Kafka, prefix: str) -> None:
    """Until the end of the transaction has its offsets: Kafka writes it behind its answer."""
    with open_log(options(kafka, prefix).source) as log:
        log.topics()


async def test_what_is_there_is_read_with_its_offsets(kafka: Kafka, topics: str) -> None:
    await write(kafka, topics)
    assert await trio.to_thread.run_sync(values, kafka, topics, "orders") == [[b"a", b"b", b"c", b"d", b"f"], [b"e"]]
    with open_log(options(kafka, topics).source) as log:
        assert list(log.topics()) == ["orders"]
        runs = list(log.read_chunks("orders", 0))
        offsets = [run.base_offset + index for run in runs for index in range(run.count)]
        assert offsets in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 5]), "the commit took the one before or behind the last"
        assert log.bounds("orders", 0) == (0, 6)
        assert [run.columns.values() for run in log.read_chunks("orders", 0, 1, 3)] == [[b"b", b"c"]]
        assert runs[0].meta_of(0)[0].route == "route"
        assert log.offset_for_time("orders", 0, 0) == 0
        assert log.offset_for_time("orders", 0, 1 << 42) == 6
        with pytest.raises(UnknownTopic):
            log.topic("nothing")
        with pytest.raises(UnknownTopic):
            list(log.read_chunks("orders", 0, epoch=7))
        assert not list(log.read_chunks("orders", 0, 6))


async def test_it_is_archived_and_the_archive_is_what_it_is(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    await write(kafka, topics)
    source = options(kafka, topics).source
    assert (await trio.to_thread.run_sync(archive, source, tmp_path)).records == 6
    found = await trio.to_thread.run_sync(audit, source, tmp_path)
    assert (found.compared, found.archived, found.findings) == (6, 6, ())
    assert (await trio.to_thread.run_sync(archive, source, tmp_path)).records == 0
    await trio.to_thread.run_sync(produce_all, kafka, f"{topics}orders", [b"from elsewhere"])
    assert (await trio.to_thread.run_sync(archive, source, tmp_path)).records == 1
    found = await trio.to_thread.run_sync(audit, source, tmp_path)
    assert (found.compared, found.archived, found.findings) == (7, 7, ())
    assert found.routes["orders", 0, "kafka"] + found.routes["orders", 1, "kafka"] == 1


async def test_its_small_files_become_one(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Between two of them there may be an offset without a record: the end of a transaction."""
    source = options(kafka, topics).source
    await write(kafka, topics)
    for _ in range(3):
        await trio.to_thread.run_sync(produce_all, kafka, f"{topics}orders", [b"from elsewhere"], b"key")
        async with store(kafka, topics) as opened:
            for number in (0, 1):  # each a transaction
                unit = Unit([append("orders", b"%d" % number, partition=number)], [Put("rows", b"%d" % number, b"")])
                await opened.submit(unit).wait()
        await trio.to_thread.run_sync(archive, source, tmp_path)
    before = await trio.to_thread.run_sync(audit, source, tmp_path)
    files = Archive.existing(tmp_path).files()
    assert sum(file.records for file in files) == before.archived == 15
    assert any(file.records < file.end - file.start for file in files)
    assert len(files) > 2
    done = await trio.to_thread.run_sync(merge, tmp_path)
    assert (done.before, done.after, done.records) == (len(files), 2, 15)
    assert sum(file.records for file in Archive.existing(tmp_path).files()) == 15
    found = await trio.to_thread.run_sync(audit, source, tmp_path)
    assert (found.compared, found.archived, found.findings) == (15, 15, ())
    assert (await trio.to_thread.run_sync(archive, source, tmp_path)).records == 0


async def test_what_kafka_has_removed_is_said(kafka: Kafka, topics: str) -> None:
    await write(kafka, topics)
    from confluent_kafka import TopicPartition

    (gone,) = kafka.admin.delete_records([TopicPartition(f"{topics}orders", 0, 2)]).values()
    await trio.to_thread.run_sync(gone.result)
    with open_log(options(kafka, topics).source) as log:
        assert log.bounds("orders", 0) == (2, 6)
        with pytest.raises(OffsetOutOfRange):
            list(log.read_chunks("orders", 0, 0))


@pytest.mark.parametrize(
    "others", [{"path": "/x"}, {"endpoint": "http://h"}, {"kafkaSettings": "[]"}, {"kafkaSettings": "{"}]
)
def test_options_that_mean_nothing_together(others: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        ReadOptions.parse({"kafka": "h:1", **others})


async def test_spark_reads_it_by_the_same_columns(kafka: Kafka, topics: str, spark: Any) -> None:
    await write(kafka, topics)

    def read() -> list[tuple[Any, ...]]:
        frame = spark.read.format("gateway").options(kafka=kafka.brokers, kafkaPrefix=topics, topics="orders").load()
        rows = frame.select("topic", "partition", "offset", "value", "route").collect()
        return sorted((row.topic, row.partition, row.offset, bytes(row.value), row.route) for row in rows)

    found = await trio.to_thread.run_sync(read)
    assert [one[:2] + one[3:] for one in found] == [
        *(("orders", 0, value, "route") for value in (b"a", b"b", b"c", b"d", b"f")),
        ("orders", 1, b"e", "route"),
    ]
    assert [one[2] for one in found][:4] == [0, 1, 2, 3]


SERVED = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", kafka: {{brokers: ["{brokers}"], prefix: "{prefix}", replication: 1}}}}
routes: [{{name: all, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}]
"""


async def test_it_and_its_archive_are_replayed_into_another_log_on_kafka(
    kafka: Kafka, topics: str, tmp_path: Path, spark: Any
) -> None:
    """Between the records of all of them there are offsets without one."""
    await write(kafka, topics)
    archived = tmp_path / "archive"
    await trio.to_thread.run_sync(archive, options(kafka, topics).source, archived)
    config = SERVED.format(data=tmp_path / "data", brokers=kafka.brokers, prefix=f"{topics}2.")

    sources = {"again": str(archived), "direct": f"kafka://{kafka.brokers}/{topics}"}

    def run() -> list[tuple[int, bool]]:
        ended = []
        with started(tmp_path, config) as served:
            for name, source in sources.items():
                wants = Wanted(source, f"http://127.0.0.1:{served.ports['admin']}/{name}.{{topic}}", "orders")
                with target_at(wants.target, PLAIN) as target:
                    done = replay(spark, messages_at(wants.source), wants, target, state=tmp_path / "state")
                ended.append((done.sent, done.finished))
        return ended

    assert await trio.to_thread.run_sync(run) == [(6, True)] * 2
    for name in sources:
        found = await trio.to_thread.run_sync(values, kafka, f"{topics}2.", f"{name}.orders")
        assert sorted(value for partition in found for value in partition) == [b"a", b"b", b"c", b"d", b"e", b"f"]
