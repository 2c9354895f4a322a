"""Run by a test: processes that replay, each killed with SIGKILL at another moment, until one is let go on to the end.

`replaying JOB` where JOB is JSON: the Java of a Spark that runs, what to replay, and when to die. Each process is a driver of
its own on that Java, as a notebook's kernel is. Prints how each of them ended, and what the last one said.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from gateway.cli.connection import Dialling
from gateway.cli.pipeline_replay import target_at
from gateway.errors import GatewayError
from gateway.pipeline.datasource import register
from gateway.pipeline.frames import messages_at
from gateway.pipeline.progress import Progress, ProgressFile, Wanted
from gateway.pipeline.replay import replay
from gateway.settings import Dialect
from gateway.wire.session import Credentials
from tests.pipeline.killed import child

PLAIN = Dialling(Credentials(), False, "", "", False, "", Dialect.AUTO, 30.0)


def attached(port: int, secret: str) -> SparkSession:
    """A session on a Java that another process has started."""
    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    gateway = launch_gateway()
    java: Any = gateway.jvm
    context = java.org.apache.spark.api.java.JavaSparkContext(java.org.apache.spark.SparkContext.getOrCreate())
    mine = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jvm=java, _jconf=context.getConf()))
    # a session of its own: what is registered in it ends with this process
    sessions = java.org.apache.spark.sql.classic.SparkSession
    shared = sessions.getDefaultSession().get()
    session = SparkSession(mine, jsparkSession=shared.newSession())
    sessions.setDefaultSession(shared)
    register(session)
    return session


def die() -> None:
    """Without a chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


@attrs.define(eq=False)
class Dying:
    """A target whose process dies at one of the points between its steps, or a while after that in whatever it then does."""

    target: Any
    left: int
    after: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def point(self) -> None:
        """It may be here."""
        self.left -= 1
        if self.left == -1:
            if self.after:
                threading.Timer(self.after, die).start()
            else:
                die()

    def send(self, topic: str, columns: Any, *, replay: str, step: int) -> Mapping[int, GatewayError]:
        """Before it, behind it."""
        self.point()
        done: Mapping[int, GatewayError] = self.target.send(topic, columns, replay=replay, step=step)
        self.point()
        return done


def run(job: Mapping[str, Any], left: int | None, after: float) -> None:
    """One process; without a point to die at it goes on to the end and says what it did."""
    spark = attached(job["port"], job["secret"])
    wanted = Wanted(**job["wanted"])
    with target_at(wanted.target, PLAIN) as target:
        target.step_messages = job["messages"]
        there: Any = target
        if left is not None:
            there = Dying(target, left, after)
            save: Callable[[ProgressFile, Progress], None] = ProgressFile.save

            def dying_save(self: ProgressFile, progress: Progress) -> None:
                there.point()
                save(self, progress)

            ProgressFile.save = dying_save  # type: ignore[method-assign]  # it is this process's own
        done = replay(spark, messages_at(wanted.source), wanted, there, accept_loss=job["accept_loss"])
    if left is None:
        print(json.dumps(attrs.asdict(done)), flush=True)


def main(job: Mapping[str, Any]) -> None:
    """Kill by kill, and then to the end."""
    importlib.import_module("pandas")  # once, not in each process
    deaths: Sequence[tuple[int, float]] = job["deaths"]
    print(json.dumps([child(lambda at=at: run(job, *at)) for at in deaths]), flush=True)  # type: ignore[misc]
    assert child(lambda: run(job, None, 0.0)) == 0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
