"""Run by tests: a driver of its own with a Spark of its own.

`driver kill STORE ARCHIVE`: archives and kills itself, with nothing cleaned up, when the second manifest is about to appear.
`driver cluster STORE WORK TARGET`: every job once on a cluster of two executors; prints what each of them said.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import attrs
import pyspark

from gateway.cli.connection import Dialling
from gateway.cli.pipeline_replay import target_at
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.compact import compact
from gateway.pipeline.export import decoding_for, export
from gateway.pipeline.frames import messages_at
from gateway.pipeline.merge import merge
from gateway.pipeline.options import Topics
from gateway.pipeline.progress import Wanted
from gateway.pipeline.replay import replay
from gateway.pipeline.rollup import rollup
from gateway.pipeline.session import spark_session
from gateway.pipeline.spread import OnSpark
from gateway.settings import Dialect
from gateway.wire.session import Credentials
from tests.pipeline.quick import QUICK

BOTH = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.network.timeout": "600s",
    "spark.sql.shuffle.partitions": "1",
}
"""Nothing runs before both executors are there, and none is given up because the machine is slow."""
PLAIN = Dialling(Credentials(), False, "", "", False, "", Dialect.AUTO, 30.0)


def killed(store: Path, out: Path) -> None:
    """Commits once, and is gone in the middle of the second time."""
    spark = spark_session("local[2]", settings=QUICK)

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and str(args[1]).endswith("00000002.json"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    archive(str(store), out, spread=OnSpark(spark), records_per_file=16)


def cluster(store: Path, work: Path, target: str) -> None:
    """Two executors, which are processes of their own and read what they are told by what pickles."""
    home = work / "spark"
    home.mkdir(parents=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":  # executors write into it, and it shall not be where Spark is installed
            (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    spark = spark_session("local-cluster[2,1,1024]", settings={**QUICK, **BOTH})
    said: dict[str, Any] = {}

    def note(name: str, done: Any) -> None:
        said[name] = attrs.asdict(done)

    spread = OnSpark(spark)
    said["executors"] = len(set(spread(_process, range(16))))
    out = work / "archive"
    note("archive", archive(str(store), out, spread=spread, records_per_file=16))
    note("merge", merge(out, spread=spread))
    found = audit(str(store), out, spread=spread)
    said["audit"] = {"compared": found.compared, "findings": found.findings}
    messages = messages_at(str(out))
    note("rollup", rollup(spark, messages, work / "rollup"))
    note("compact", compact(spark, messages, work / "compact"))
    note(
        "export",
        export(spark, messages, work / "lines", form="jsonl", decoding=decoding_for("text", messages, Topics())),
    )
    with target_at(target, PLAIN) as there:
        note("replay", replay(spark, messages, Wanted(str(out), target), there))
    spark.stop()
    print(json.dumps(said, default=str), flush=True)


def _process(_task: int) -> int:
    return os.getppid()


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        killed(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        cluster(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
