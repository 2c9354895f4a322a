"""Reading beside a process that serves the store, and without trio."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from gateway.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from gateway.store.committer import Mode
from gateway.store.interface import DropTopic, Put, TopicConfig, Unit
from gateway.store.reader import LogReader
from tests.store.kit import NO_CACHE, START_MS, Clock, append, create, publish, unit, until


async def test_a_live_store_and_a_stopped_one_read_the_same(opener, tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store"
    async with opener(options=NO_CACHE) as store:
        await create(store, "t", partitions=2, retention_bytes=10**9)
        await create(store, "gone")
        for number in range(50):
            await store.submit(unit(append("t", b"%d" % number, b"x", partition=1, keys=[b"k", None]))).wait()
            clock.ms += 10
        await store.submit(Unit(puts=[Put("s", b"a", b"1"), Put("s", b"b", b"2")], deletes=[DropTopic("gone")])).wait()
        with LogReader(path) as live:
            check(live)
            placement = await publish(store, "t", b"later", partition=1)
            bounds = await trio.to_thread.run_sync(
                live.bounds, "t", 1
            )  # it waits for the store, as from another process
            assert bounds == (0, placement.base_offset + 1)
            assert len(list(live.read_chunks("t", 1, placement.base_offset))) == 1
            size = live.partition("t", 1).bytes
            assert size == store.topics["t"].partitions[1].bytes
        epoch = store.topics["t"].epoch
    with LogReader(path) as stopped:
        check(stopped)
        assert stopped.topic("t").epoch == epoch


def check(reader: LogReader) -> None:
    assert list(reader.topics()) == ["t"]
    assert reader.topic("t").config == TopicConfig(2, retention_bytes=10**9)
    assert reader.bounds("t", 0) == (0, 0)
    runs = list(reader.read_chunks("t", 1, 31, 60))
    assert runs[0].base_offset == 31
    assert runs[-1].next_offset == 60
    for before, after in itertools.pairwise(runs):
        assert before.next_offset == after.base_offset
    values = [value for run in reader.read_chunks("t", 1, 0, 100) for value in run.columns.values()]
    assert values == [value for number in range(50) for value in (b"%d" % number, b"x")]
    keys = [key for run in runs for key in run.columns.keys or [None] * run.count]
    assert keys == [None, *[b"k", None] * 14]
    assert reader.offset_for_time("t", 1, START_MS + 95) == 20
    assert reader.offset_for_time("t", 1, START_MS + 10_000) == reader.bounds("t", 1)[1]
    assert reader.get("s", b"a") == b"1"
    assert reader.scan("s") == [(b"a", b"1"), (b"b", b"2")]
    with pytest.raises(UnknownTopic):
        reader.bounds("gone", 0)
    with pytest.raises(UnknownPartition):
        reader.bounds("t", 2)


async def test_one_of_many_topics_is_found_without_the_others(opener, tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(200)]
    async with opener() as store:
        await create(store, *names)
        await store.submit(unit(*[append(name, b"x") for name in names])).wait()
    steps = [0]

    def step() -> None:
        steps[0] += 1

    def cost(work: Callable[[], object]) -> int:
        steps[0] = 0
        work()
        return steps[0]

    with LogReader(tmp_path / "store") as reader:
        reader._connection.set_progress_handler(step, 1)
        of_all = cost(reader.topics)
        assert reader.topic("t7") == reader.topics()["t7"]
        for work in (
            lambda: reader.topic("t7"),
            lambda: reader.bounds("t7", 0),
            lambda: list(reader.read_chunks("t7", 0)),
            lambda: reader.offset_for_time("t7", 0, 0),
        ):
            assert cost(work) < of_all / 4
        with pytest.raises(UnknownTopic):
            reader.topic("none")


async def test_what_retention_has_removed_is_said(opener, tmp_path: Path, clock: Clock) -> None:
    async with opener() as store:
        await create(store, "t", retention_seconds=10.0)
        await publish(store, "t", b"a")
        with LogReader(tmp_path / "store") as reader:
            chunks = reader.read_chunks("t", 0, 0)
            clock.ms += 20_000
            await publish(store, "t", b"b")
            store.maintain() if store.committer.mode is not Mode.THREAD else store.sweep()
            await until(lambda: store.topics["t"].partitions[0].start == 1)
            with pytest.raises(OffsetOutOfRange) as caught:
                list(chunks)
            assert caught.value.first == 1
            assert [run.base_offset for run in reader.read_chunks("t", 0)] == [1]


def test_reading_needs_no_trio() -> None:
    """A Spark executor imports this."""
    code = (
        "import sys, gateway.store.reader, gateway.store.chunk, gateway.store.salvage; "
        "sys.exit('trio is there' if 'trio' in sys.modules else 0)"
    )
    done = subprocess.Popen([sys.executable, "-c", code])
    assert done.wait(30) == 0
