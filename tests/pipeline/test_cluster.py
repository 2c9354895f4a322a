"""A driver that is killed, and every job on several executors: whole processes, as they run elsewhere."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from gateway.bulk import wire
from gateway.bulk.appends import Appends
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.frames import messages_at
from gateway.pipeline.manifest import Archive
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.rollup import rollup
from gateway.pipeline.spread import OnSpark
from gateway.store.reader import LogReader
from tests.integration.running import Served
from tests.pipeline.driver import flowing
from tests.pipeline.patient import run_to_the_end
from tests.pipeline.served import gateway
from tests.pipeline.stored import Log, filled
from tests.pipeline.test_replay import CONFIG, by_key, stored

pytestmark = pytest.mark.spark
DEADLINE = 550.0


async def orders(log: Log) -> None:
    await log.create("orders", partitions=2)
    for number in range(25):
        await log.append("orders", [b"%d" % number, b"", b"x"], 0, [b"k", None, b""], [(("h", b"1"),), (), ()])
        await log.append("orders", [b"c"], 1)
        log.clock.ms += 4000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path / "store", orders)
    return tmp_path / "store"


def driver(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.pipeline.driver", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            out, _ = running.communicate(timeout=DEADLINE)
        finally:
            running.kill()
    return running.returncode, out


def test_a_driver_that_is_killed_in_the_middle(spark: Any, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    code, _ = driver("kill", store, out)
    assert code == -signal.SIGKILL
    before = sum(file.end - file.start for file in Archive.existing(out).files())
    assert 0 < before < 100
    assert list((out / "_staging").glob("*.parquet"))  # written, and not yet said to be there
    assert archive(str(store), out, spread=OnSpark(spark), records_per_file=16).records == 100 - before
    found = audit(str(store), out, spread=OnSpark(spark))
    assert (found.compared, found.archived, found.findings) == (100, 100, ())
    rows = pq.read_table(out, partitioning=None)
    places = set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert len(places) == rows.num_rows == 100


def holding(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The gateway stores an append of the second micro-batch, and its answer never comes; set when it has."""
    reached, append = threading.Event(), Appends.append

    async def held(self: Appends, caller: Any, body: wire.AppendRequest) -> Any:
        done = await append(self, caller, body)
        if body.epoch == 1:
            reached.set()
            await trio.Event().wait()
        return done

    monkeypatch.setattr(Appends, "append", held)
    return reached


def test_streaming_queries_whose_driver_is_killed_in_mid_batch(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, pause = tmp_path / "work", threading.Event()
    work.mkdir()
    with gateway(store) as served:
        with monkeypatch.context() as patched:
            reached = holding(patched)
            command = [sys.executable, "-m", "tests.pipeline.driver", "flows", *map(str, (store, work, served.url))]
            with subprocess.Popen(command, start_new_session=True) as running:
                try:
                    while not reached.wait(0.05):
                        assert running.poll() is None
                    while not (work / "rolled").exists():
                        assert running.poll() is None
                        pause.wait(0.05)
                finally:
                    os.killpg(running.pid, signal.SIGKILL)  # its Java too
        assert running.returncode == -signal.SIGKILL
        before = stored(store, "copy")
        assert 40 < sum(map(len, before)) < 100
        assert minutes(work / "rolling")
        assert not list((work / "rolling").glob("day=*/rollup.parquet"))

        def again() -> Any:
            query, roll = flowing(spark, store, work, served.url)
            roll()
            return query

        run_to_the_end(again)
        copied = [(key, (), value) for key, _, value in itertools.chain(*stored(store, "orders"))]
        assert by_key(stored(store, "copy")) == by_key([copied])
        rollup(spark, messages_at(str(store)), tmp_path / "rollup", topics=TopicSelection(("orders",)))
        rows = minutes(tmp_path / "rollup")
        assert minutes(work / "rolling") == rows[:1]
        (file,) = (work / "rolling").glob("day=*/rollup.parquet")
        assert pq.read_table(file, partitioning=None)["messages"].to_pylist() == [rows[0][4]]


Row = tuple[int, int, bytes | None, bytes]


def by_place(table: pa.Table, **only: object) -> list[Row]:
    """(partition, offset, key, value) of rows, by partition and offset."""
    rows = [row for row in table.to_pylist() if all(row[name] == value for name, value in only.items())]
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)


def counted_by_minute(path: Path) -> list[tuple[Any, ...]]:
    """Minute, route, topic, protocol, messages, bytes: counted without Spark."""
    sizes: dict[int, list[int]] = {}
    with LogReader(path) as reader:
        for partition in reader.topic("orders").partitions:
            for run in reader.read_chunks("orders", partition.number):
                for at, value in zip(run.times, run.columns.values(), strict=True):
                    sizes.setdefault(at // 60_000 * 60, []).append(len(value))
    return [(minute, "orders", "orders", "flymq", len(of), sum(of)) for minute, of in sorted(sizes.items())]


def exported(work: Path) -> dict[str, list[tuple[int, int, str]]]:
    """(partition, offset, value) of what was exported in each form."""
    lines = [json.loads(line) for part in (work / "jsonl").glob("part-*") for line in part.read_text().splitlines()]
    cells = [row for part in (work / "csv").glob("part-*") for row in csv.DictReader(io.StringIO(part.read_text()))]
    found = {"jsonl": lines, "csv": cells, "parquet": pq.read_table(work / "parquet").to_pylist()}
    return {
        form: sorted((int(row["partition"]), int(row["offset"]), row["value"]) for row in rows)
        for form, rows in found.items()
    }


def minutes(path: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path / "rollup.sqlite")) as table:
        return table.execute("SELECT * FROM rollup ORDER BY minute").fetchall()


def test_every_job_on_a_cluster(store: Path, tmp_path: Path) -> None:
    work, before, counted = tmp_path / "work", stored(store, "orders"), counted_by_minute(store)
    second = Served(tmp_path, CONFIG.format(tmp_path))
    second.start()
    try:
        code, out = driver("cluster", store, work, f"http://127.0.0.1:{second.ports['admin']}")
    finally:
        second.end(15)
    assert code == 0
    said = json.loads(out.splitlines()[-1])  # behind what the command said itself
    assert said["executors"] == 2
    # archive, merge, audit
    assert said["archive"]["records"] == 100
    assert said["merge"]["before"] > said["merge"]["after"] > 0
    assert said["audit"] == {"compared": 100, "archived": 100, "findings": []}
    expected = [
        (number, offset, key, value)
        for number, messages in enumerate(before)
        for offset, (key, _, value) in enumerate(messages)
    ]
    assert by_place(pq.read_table(work / "archive", partitioning=None)) == sorted(expected)
    # archive, going on
    assert said["follow"] == 0
    assert said["follow audit"] == {"compared": 103, "archived": 103, "findings": []}
    # rollup, once and continuously
    rows = minutes(work / "rollup")
    assert [row[:6] for row in rows] == counted
    assert minutes(work / "rolling") == rows[: said["rolling"]["rows"]]
    assert said["rolling"]["rows"] >= 1
    # compact: the last of `k`; that of the empty key is `x`
    assert said["compact"]["keys"] == 2
    assert by_place(pq.read_table(work / "compact", partitioning=None)) == [(0, 72, b"k", b"24"), (0, 74, b"", b"x")]
    # export in each form
    texts = [(number, offset, value.decode()) for number, offset, _, value in sorted(expected)]
    assert exported(work) == {"csv": texts, "jsonl": texts, "parquet": texts}
    # replay, sink and streaming sink, as the store of the second gateway has them
    assert said["replay"]["sent"] == 100
    for topic in ("orders", "written", "streamed"):
        assert Counter(itertools.chain(*stored(second.data, topic))) == Counter(itertools.chain(*before))
    # a running gateway as the source: read, archived, audited
    assert said["tasks"] > 1
    assert pq.read_metadata(work / "served.parquet").num_rows == 300
    assert said["endpoint"]["records"] == said["endpoint audit"]["compared"] == 300
    assert said["endpoint audit"]["findings"] == []
