"""What the commands of `gateway pipeline` share: options, the session, the progress bar, the summary."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.spread import Spread

TOPICS = click.option("--topics", default="**", show_default=True, help="Names and globs, separated by commas.")
MASTER = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs; empty under spark-submit."
)
SPARK_LOGS = click.option("--spark-logs", is_flag=True, help="Let Spark write its warnings to standard error.")


def session(master: str, spark_logs: bool) -> SparkSession:
    """Spark."""
    from gateway.pipeline.session import spark_session

    return spark_session(master, noisy=spark_logs)


def spread(master: str, spark_logs: bool) -> Spread:
    """Tasks on Spark."""
    from gateway.pipeline.spread import OnSpark

    return OnSpark(session(master, spark_logs))


def with_bar(label: str, work: Callable[[Callable[[int, int], None]], Any]) -> Any:
    """Do it under a progress bar, which is on standard error and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        return work(lambda done, total: bar.update(task, completed=done, total=total))


def show(output: str, result: dict[str, object], text: str) -> None:
    """The summary, for people or for programs."""
    click.echo(json.dumps(result) if output == "json" else text)
