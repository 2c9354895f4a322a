"""A standalone cluster of two workers, the gateway behind TLS and a token: every job, and a driver that is killed again and again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gateway.envelope import Columns
from gateway.pipeline.audit import audit
from gateway.pipeline.endpoint import Endpoint, EndpointWriter
from gateway.pipeline.frames import messages_at
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.rollup import rollup
from tests.pipeline.standalone import TOKEN, StandaloneCluster, behind_tls, standalone
from tests.pipeline.stored import Log, filled
from tests.pipeline.test_cluster import counted_by_minute, minutes
from tests.pipeline.test_replay import stored

# one of them needs the Spark that is shared: so they are in one worker, and have one cluster
pytestmark = pytest.mark.usefixtures("spark")
PROGRAM = Path("tests/pipeline/submitted.py").absolute()
KILLS = int(os.environ.get("GATEWAY_KILLS", "2"))
"""Twenty take ten minutes."""
SEED = int(os.environ.get("GATEWAY_SEED", "1"))
WITHIN_S = 8.0
"""How long a driver works at most before it is killed."""
DEADLINE = 1_500.0
BATCH, MOST, PAUSE_S = 25, 600, 0.5
"""Messages of an append, the most appends, and the time between two: what was sent has to be read to its end, too."""


async def orders(log: Log) -> None:
    await log.create("orders", partitions=2)
    for number in range(25):
        await log.append("orders", [b"%d" % number, b"", b"x"], 0, [b"k", None, b""], [(("h", b"1"),), (), ()])
        await log.append("orders", [b"c"], 1)
        log.clock.ms += 4000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def ended(cluster: StandaloneCluster, running: subprocess.Popen[str]) -> str:
    with running:
        try:
            out, _ = running.communicate(timeout=DEADLINE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, out[-4000:] + cluster.said.read_text()[-2000:]
    return out


def test_every_job_by_endpoint_with_wheel_and_jar(cluster: StandaloneCluster, tmp_path: Path) -> None:
    store, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    filled(store, orders)
    counted, before = counted_by_minute(store), stored(store, "orders")
    with behind_tls(store, tmp_path) as (served, roots):
        out = ended(cluster, cluster.submit(PROGRAM, "jobs", served.url, roots, work, GATEWAY_TOKEN=TOKEN))
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert said["executors"] == 2
    assert {Path(place).name for place in said["from"]} == {cluster.package.name}, "and not from this checkout"
    jobs = {name: one for name, one in said.items() if isinstance(one, dict) and "code" in one}
    assert {name: one["code"] or 0 for name, one in jobs.items()} == dict.fromkeys(
        ("archive", "merge", "audit", "rollup", "compact", "export", "report", "replay"), 0
    )
    assert said["archive"]["records"] == said["audit"]["compared"] == said["replay"]["sent"] == 100
    assert said["merge"]["before"] > said["merge"]["after"] > 0
    assert (said["audit"]["findings"], said["report"]["findings"]) == ([], 0)
    assert (said["report"]["messages"], said["export"]["messages"], said["compact"]["keys"]) == (100, 100, 2)
    rows = minutes(work / "rollup")
    assert [row[:6] for row in rows] == counted
    assert minutes(work / "rolling") == rows[: said["rolling"]["rows"]]
    assert said["rolling"]["rows"] >= 1
    everything = Counter(message for partition in before for message in partition)
    for topic in ("replayed", "written", "copied"):
        assert Counter(message for partition in stored(store, topic) for message in partition) == everything
    assert "Clean: 100 of 100" in (work / "report.html").read_text()


def test_a_driver_that_is_killed_at_any_moment(cluster: StandaloneCluster, spark: Any, tmp_path: Path) -> None:
    """Archive, streaming roll-up and a stream into the gateway, in one driver, while messages come: nothing is missing, nothing
    is twice.
    """
    store, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    chance = random.Random(SEED)
    filled(store, orders)
    with behind_tls(store, tmp_path) as (served, roots):
        stop = threading.Event()
        sending = threading.Thread(target=send, args=(Endpoint.of(served.url, ca=str(roots), token=TOKEN), stop))
        sending.start()
        try:
            for _ in range(KILLS):
                killed(cluster, chance.random() * WITHIN_S, served.url, roots, work)
        finally:
            stop.set()
            sending.join()
        ended(cluster, cluster.submit(PROGRAM, "working", served.url, roots, work, "to the end", GATEWAY_TOKEN=TOKEN))
        only = TopicSelection(("orders",))
        endpoint = Endpoint.of(served.url, ca=str(roots), token=TOKEN)
        found = audit(endpoint, work / "archive", topics=only)
        whole = messages_at(served.url, ca=str(roots), token=TOKEN)
        rollup(spark, whole, tmp_path / "rollup", topics=only)
    before = stored(store, "orders")
    count = sum(map(len, before))
    assert count > 100
    assert (found.compared, found.archived, found.findings) == (count, count, ())
    rows = pq.read_table(work / "archive", partitioning=None)
    places = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    assert len(set(places)) == rows.num_rows == count
    assert Counter(m for part in stored(store, "copied") for m in part) == Counter(m for part in before for m in part)
    rolling, once = minutes(work / "rolling"), minutes(tmp_path / "rollup")
    # all but the last minute, which the watermark has not passed; distinct keys are an estimate where there is no end
    assert len(once) - 1 <= len(rolling) <= len(once)
    assert [(*row[:6], *row[7:]) for row in rolling] == [(*row[:6], *row[7:]) for row in once[: len(rolling)]]


def killed(cluster: StandaloneCluster, after: float, url: str, roots: Path, work: Path) -> None:
    """One driver, with its Java, at some moment after it began to work."""
    (work / "began").unlink(missing_ok=True)
    running = cluster.submit(PROGRAM, "working", url, roots, work, GATEWAY_TOKEN=TOKEN)
    pause = threading.Event()
    with running:
        try:
            while not (work / "began").exists():
                assert running.poll() is None, "it ended before it began"
                pause.wait(0.05)
            pause.wait(after)
            assert running.poll() is None, "it ended by itself"
        finally:
            os.killpg(running.pid, signal.SIGKILL)


def send(endpoint: Endpoint, stop: threading.Event) -> None:
    """A batch now and then, until there is enough, and one behind the last kill: what was due when a driver died is written with
    what comes next.
    """
    sequence = 0
    with EndpointWriter(endpoint) as out:
        stopped = False
        while not stopped:
            stopped = stop.wait(PAUSE_S)
            if sequence >= MOST and not stopped:
                continue
            columns = Columns.of(
                [b"%d" % (sequence * BATCH + one) for one in range(BATCH)], [b"k%d" % (one % 7) for one in range(BATCH)]
            )
            out.append("orders", columns, producer="sender", epoch=0, sequence=sequence)
            sequence += 1
