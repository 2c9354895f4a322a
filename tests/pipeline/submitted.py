"""Submitted by tests to a cluster, with the wheel of the gateway and nothing else of this repository.

`submitted.py jobs URL CA WORK`: every job once; prints what each of them said, and which processes executors were.
`submitted.py working URL CA WORK LATER`: an archive and a roll-up that go on, and a stream back into the gateway, until it is
killed; with LATER the same to their end. `WORK/began` is there when Spark is.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from gateway.cli.main import main
from gateway.pipeline.archive import archive
from gateway.pipeline.checkpoints import checkpoint_at
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.frames import messages_at
from gateway.pipeline.rollup import follow
from gateway.pipeline.session import spark_session
from gateway.pipeline.spread import OnSpark


def run(said: dict[str, Any], work: Path, *words: str) -> None:
    """As on the command line; the report says what came of it."""
    report = work / f"{len(said)}.json"
    code = main(["pipeline", *words, "--master", "", "--report", str(report), "--output", "json"])
    name = words[0] if words[0] not in said else f"{words[0]} again"
    said[name] = {**json.loads(report.read_text())["result"], "code": code}


def jobs(url: str, ca: str, work: Path) -> None:
    spark = spark_session("")
    executors = set(OnSpark(spark)(_executor, range(16)))
    said: dict[str, Any] = {"executors": len(executors), "from": sorted({place for _process, place in executors})}
    here, there = (
        ("--endpoint", url, "--ca", ca),
        ("--from", url, "--from-ca", ca, "--from-token", os.environ["GATEWAY_TOKEN"]),
    )
    out = str(work / "archive")
    run(said, work, "archive", *here, "--to", out, "--topics", "orders", "--roll-time", "1m")
    run(said, work, "merge", "--archive", out)
    run(said, work, "audit", *here, "--archive", out, "--topics", "orders")
    run(said, work, "rollup", *there, "--to", str(work / "rollup"), "--topics", "orders")
    run(said, work, "compact", *there, "--to", str(work / "compact"), "--topics", "orders")
    run(said, work, "export", *there, "--to", str(work / "export"), "--decode", "text", "--topics", "orders")
    run(said, work, "report", *there, "--to", str(work / "report.html"), "--audit", out, "--topics", "orders")
    run(said, work, "replay", "--from", out, "--to", f"{url}/replayed", "--ca", ca, "--allow-same-source")
    followed = follow(
        lambda: spark, at(url, ca), work / "rolling", topics="orders", watermark="1 seconds", interval=None
    )
    said["rolling"] = {"rows": followed.rows, "late": followed.late}
    frame = spark.read.format("gateway").options(endpoint=url, ca=ca, topics="orders").load()
    said["tasks"] = frame.rdd.getNumPartitions()
    frame.write.format("gateway").mode("append").options(endpoint=url, ca=ca, topic="written").save()
    copying(spark, url, ca, work, "orders").awaitTermination()
    spark.stop()
    print(json.dumps(said), flush=True)


def at(url: str, ca: str) -> Any:
    return messages_at(url, ca=ca, token=os.environ["GATEWAY_TOKEN"])


def copying(spark: Any, url: str, ca: str, work: Path, topic: str, *, ends: bool = True) -> Any:
    """A stream from the gateway into the gateway."""
    trust = {"endpoint": url, "ca": ca}
    read = spark.readStream.format("gateway").options(**trust, topics=topic, startingOffsets="earliest")
    write = read.option("maxRecordsPerTrigger", "1000").load().writeStream.format("gateway")
    trigger: Any = {"availableNow": True} if ends else {"processingTime": "200 milliseconds"}
    write = write.options(**trust, topic="copied").option("checkpointLocation", checkpoint_at(work / "copying"))
    return write.trigger(**trigger).start()


def working(url: str, ca: str, work: Path, *, ends: bool) -> None:
    spark = spark_session("")
    source, spread = Endpoint.of(url, ca=ca), OnSpark(spark)
    (work / "began").touch()
    from gateway.pipeline.options import TopicSelection

    only = TopicSelection(("orders",))
    query = copying(spark, url, ca, work, "orders", ends=ends)
    interval = None if ends else 0.5
    watermark = "1 seconds"

    failed: list[BaseException] = []

    def rolled() -> None:
        try:
            follow(
                lambda: spark, at(url, ca), work / "rolling", topics="orders", watermark=watermark, interval=interval
            )
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            failed.append(error)

    beside = threading.Thread(target=rolled, daemon=True)
    beside.start()
    going = True
    while going and not failed and (ends or query.isActive):
        archive(source, work / "archive", topics=only, spread=spread, records_per_file=400)
        going = not ends
    if not failed:
        query.awaitTermination()
        beside.join()
    if failed:
        raise failed[0]


def _executor(_task: int) -> tuple[int, str]:
    """Which it is, and where it has the gateway from."""
    import gateway

    return os.getppid(), str(Path(gateway.__file__).parents[1])


if __name__ == "__main__":
    what, url, ca, work, *later = sys.argv[1:]
    if what == "jobs":
        jobs(url, ca, Path(work))
    else:
        working(url, ca, Path(work), ends=bool(later))
        if later:  # a second time: what the first one had left open is closed
            working(url, ca, Path(work), ends=True)
