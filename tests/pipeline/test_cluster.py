"""A driver that is killed, and every job on several executors: whole processes, as they run elsewhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.manifest import Archive
from gateway.pipeline.spread import OnSpark
from gateway.store.reader import LogReader
from tests.integration.running import Served
from tests.pipeline.stored import Log, filled
from tests.pipeline.test_replay import CONFIG

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


def test_every_job_on_a_cluster(store: Path, tmp_path: Path) -> None:
    second = Served(tmp_path, CONFIG.format(tmp_path))
    second.start()
    try:
        code, out = driver("cluster", store, tmp_path / "work", f"http://127.0.0.1:{second.ports['admin']}")
    finally:
        second.end(15)
    assert code == 0
    said = json.loads(out)
    assert said["executors"] >= 2
    assert said["archive"]["records"] == said["audit"]["compared"] == said["replay"]["sent"] == 100
    assert said["merge"]["before"] > said["merge"]["after"] > 0
    assert said["audit"]["findings"] == []
    assert said["rollup"]["rows"] == 2
    assert said["compact"]["keys"] == 2  # `k`, and the one that is empty
    assert said["export"]["messages"] == 100
    with LogReader(second.data) as reader:
        assert sum(one.end for one in reader.topic("orders").partitions) == 100
