"""Run by a test: `retried URL WORK` writes a topic into another by a Spark that tries tasks twice; each dies the first time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.pipeline.session import spark_session


def main(url: str, work: str) -> None:
    """The first attempt of each task has handed over all of its rows but the last when it dies."""

    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        last = None
        for batch in batches:
            if last is not None:
                yield last
            last = batch
        if last is not None:
            yield last.slice(0, len(last) - 1)
            if context.attemptNumber() == 0:
                Path(work, f"died-{context.partitionId()}").touch()
                raise OSError("this attempt dies")
            yield last.slice(len(last) - 1)

    spark = spark_session("local[2,2]")
    source = spark.read.format("gateway").options(endpoint=url, topics="in").load()
    frame = source.select("value", "key").mapInArrow(die_once, "value binary, key binary")
    frame.write.format("gateway").mode("append").options(endpoint=url, topic="out").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
