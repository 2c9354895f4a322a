"""Run by tests: a driver of its own with a Spark of its own.

`driver kill STORE ARCHIVE`: archives and kills itself, with nothing cleaned up, when the second manifest is about to appear.
`driver flows STORE WORK URL`: two streaming queries, one into the gateway at URL, one into a roll-up. The roll-up stops for
good between its table and its Parquet files, with WORK/rolled to say so: the test kills it there.
`driver kafka WORK OPTIONS BATCH`: a stream into directories, which ends with its Java when that micro-batch is written and not yet done.
`driver cluster STORE WORK TARGET`: every job once on a cluster of two executors; prints what each of them said.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pyspark

from gateway.cli.connection import Dialling
from gateway.cli.main import main
from gateway.cli.pipeline_replay import target_at
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.compact import compact
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.export import FORMATS, decoding_for, export
from gateway.pipeline.frames import messages_at
from gateway.pipeline.manifest import Archive
from gateway.pipeline.merge import merge
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.progress import Wanted
from gateway.pipeline.replay import replay
from gateway.pipeline.rollup import follow, rollup
from gateway.pipeline.session import spark_session
from gateway.pipeline.source import Source
from gateway.pipeline.spread import OnSpark
from gateway.settings import Dialect
from gateway.wire.session import Credentials
from tests.pipeline.jars import spark_kafka
from tests.pipeline.quick import quick
from tests.pipeline.stored import Log, filled

BOTH = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.network.timeout": "600s",
}
"""Nothing runs before both executors are there, and none is given up because the machine is slow."""
PLAIN = Dialling(Credentials(), False, "", "", False, "", Dialect.AUTO, 30.0)
PATIENCE = 300.0


def killed(store: Path, out: Path) -> None:
    """Commits once, and is gone in the middle of the second time."""
    spark = spark_session("local[2]", settings=quick())

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and str(args[1]).endswith("00000002.json"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    archive(str(store), out, spread=OnSpark(spark), records_per_file=16)


def flowing(spark: Any, store: Path, work: Path, url: str) -> tuple[Any, Callable[[], Any]]:
    """The two queries: the first is running, the second is for the caller to run."""
    query = (
        spark.readStream.format("gateway")
        .options(endpoint=url, topics="orders", startingOffsets="earliest", maxRecordsPerTrigger="40")
        .load()
        .select("value", "key")
        .writeStream.format("gateway")
        .options(endpoint=url, topic="copy")
        .option("checkpointLocation", str(work / "copying"))
        .trigger(availableNow=True)
        .start()
    )
    live = messages_at(str(store))
    return query, lambda: follow(spark, live, work / "rolling", topics="orders", watermark="1 seconds", interval=None)


def flows(store: Path, work: Path, url: str) -> None:
    """Until it is killed."""

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and str(args[1]).endswith("/rollup.parquet"):
            (work / "rolled").touch()
            threading.Event().wait(PATIENCE)

    sys.addaudithook(hook)
    _, roll = flowing(spark_session("local[2]", settings=quick()), store, work, url)
    roll()


def micro_batches(spark: Any, work: Path, options: dict[str, str], dies_in: int = -1) -> Any:
    """A query that writes each micro-batch into a directory of its own, begun."""

    def write(batch: Any, number: int) -> None:
        batch.drop("headers").write.mode("overwrite").parquet(f"{work}/batch={number}")
        if number == dies_in:
            os.killpg(0, signal.SIGKILL)

    read = spark.readStream.format("gateway").options(**options).load()
    query = read.writeStream.foreachBatch(write).option("checkpointLocation", f"{work}/checkpoint")
    return query.trigger(availableNow=True).start()


def on_two_executors() -> Any:
    """A Spark whose executors are processes of their own, and read what they are told by what pickles."""
    home = Path(sys.argv[3]) / "spark"
    home.mkdir(parents=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":  # executors write into it, and it shall not be where Spark is installed
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    return spark_session("local-cluster[2,1,1024]", settings=quick() | BOTH)


def cluster(store: Path, work: Path, target: str) -> None:
    """Every job. What the test compares lies in `work` and in the gateway at `target` when it ends."""
    spark = on_two_executors()
    said: dict[str, Any] = {}

    def note(name: str, done: Any) -> None:
        said[name] = attrs.asdict(done)

    spread = OnSpark(spark)
    said["executors"] = len(set(spread(_process, range(16))))
    out = work / "archive"
    note("archive", archive(str(store), out, spread=spread, records_per_file=16))
    note("merge", merge(out, spread=spread))
    _audited(said, "audit", str(store), out, spread)
    messages, live = messages_at(str(out)), messages_at(str(store))
    note("rollup", rollup(spark, messages, work / "rollup"))
    note("rolling", follow(spark, live, work / "rolling", watermark="1 seconds", interval=None))
    note("compact", compact(spark, messages, work / "compact"))
    for form in FORMATS:
        decoding = decoding_for("text", messages, TopicSelection())
        note(form, export(spark, messages, work / form, form=form, decoding=decoding))
    with target_at(target, PLAIN) as there:
        note("replay", replay(spark, messages, Wanted(str(out), target), there))
    spark.read.format("gateway").options(path=str(store)).load().write.format("gateway").mode("append").options(
        endpoint=target, topic="written"
    ).save()
    stream = spark.readStream.format("gateway").options(
        endpoint=target, topics="written", startingOffsets="earliest", maxRecordsPerTrigger="60"
    )
    stream.load().writeStream.format("gateway").options(endpoint=target, topic="streamed").option(
        "checkpointLocation", str(work / "streamed")
    ).trigger(availableNow=True).start().awaitTermination()
    served = spark.read.format("gateway").options(endpoint=target).load()
    said["tasks"] = served.rdd.getNumPartitions()
    pq.write_table(served.toArrow(), work / "served.parquet")
    endpoint = Endpoint.of(target)
    note("endpoint", archive(endpoint, work / "endpoint", spread=spread))
    _audited(said, "endpoint audit", endpoint, work / "endpoint", spread)
    said["follow"] = _followed(store, work / "followed")
    _audited(said, "follow audit", str(store), work / "followed", spread)
    spark.stop()
    print(json.dumps(said, default=str), flush=True)


def _audited(said: dict[str, Any], name: str, source: Source, out: Path, spread: OnSpark) -> None:
    found = audit(source, out, spread=spread)
    said[name] = {"compared": found.compared, "archived": found.archived, "findings": found.findings}


def _followed(store: Path, out: Path) -> int:
    """The command itself, on the Spark that runs: it goes on with what is stored while it does, until SIGTERM."""

    async def later(log: Log) -> None:
        await log.append("orders", [b"later"] * 3, 1)

    def meanwhile() -> None:
        before = _until(lambda: _archived(out))
        filled(store, later)
        _until(lambda: _archived(out) > before)
        os.kill(os.getpid(), signal.SIGTERM)

    beside = threading.Thread(target=meanwhile)
    beside.start()
    code = main(
        ["pipeline", "archive", "--path", str(store), "--to", str(out), "--follow", "--interval", "0.1", "--master", ""]
    )
    beside.join()
    return code


def _archived(out: Path) -> int:
    return sum(file.end - file.start for file in Archive(out).files()) if out.exists() else 0


def _until(found: Callable[[], int]) -> int:
    pause = threading.Event()
    for _ in range(int(PATIENCE * 20)):
        if value := found():
            return value
        pause.wait(0.05)
    raise AssertionError("nothing came")


def _process(_task: int) -> int:
    return os.getppid()


if __name__ == "__main__":
    if sys.argv[1] == "kafka":
        there = spark_session("local[2]", settings=quick() | {"spark.jars": spark_kafka()})
        micro_batches(there, Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])).awaitTermination(PATIENCE)
    elif sys.argv[1] == "kill":
        killed(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        {"cluster": cluster, "flows": flows}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
