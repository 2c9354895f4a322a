"""`gateway pipeline`: jobs over what is stored, on Spark."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.pipeline.spread import Spread

PATH = click.option(
    "--path", required=True, metavar="DIR", help="The directory of a store, live or stopped (`storage.path`)."
)
TOPICS = click.option("--topics", default="**", show_default=True, help="Names and globs, separated by commas.")
MASTER = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs; empty under spark-submit."
)
SPARK_LOGS = click.option("--spark-logs", is_flag=True, help="Let Spark write its warnings to standard error.")


@click.group(
    epilog=examples(
        "gateway pipeline archive --path ./data --to ./archive",
        "gateway pipeline audit --path ./data --archive ./archive",
    )
)
def command() -> None:
    """Archive what is stored as Parquet, and prove that nothing is missing."""


def _spread(master: str, spark_logs: bool) -> Spread:
    from gateway.pipeline.session import spark_session
    from gateway.pipeline.spread import OnSpark

    return OnSpark(spark_session(master, noisy=spark_logs))


@command.command(
    epilog=examples(
        "gateway pipeline archive --path ./data --to ./archive",
        "gateway pipeline archive --path ./data --to ./archive --topics 'orders.*' --follow",
    )
)
@PATH
@click.option("--to", required=True, type=click.Path(path_type=Path, file_okay=False), help="The archive's directory.")
@TOPICS
@click.option("--follow", is_flag=True, help="Go on with what is stored later, until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="With --follow, in seconds."
)
@click.option("--accept-gaps", is_flag=True, help="Go on behind what retention removed before it was archived.")
@MASTER
@SPARK_LOGS
@output_option
def archive(
    path: str,
    to: Path,
    topics: str,
    follow: bool,
    interval: float,
    accept_gaps: bool,
    master: str,
    spark_logs: bool,
    output: str,
) -> None:
    """Write what is stored to Parquet, exactly once.

    Files are laid out as topic=NAME/day=YYYY-MM-DD/. A second run adds only what is new; after a crash the next run
    continues where the last one really ended.
    """
    from gateway.pipeline.archive import archive as run
    from gateway.pipeline.options import Topics

    spread = _spread(master, spark_logs)
    wanted = Topics.parse(topics)
    stop = _until_signalled() if follow else None
    while True:
        done = _with_bar(
            "archiving",
            lambda progress: run(path, to, topics=wanted, spread=spread, accept_gaps=accept_gaps, progress=progress),
        )
        if done.records or not follow:
            _show(
                output,
                {"records": done.records, "files": done.files, "bytes": done.bytes, "gaps": done.gaps},
                f"archived {done.records} records in {done.files} files ({done.bytes} bytes) to {to}",
            )
        for gap in done.gaps:
            click.echo(f"gateway: gap: {gap} was removed before it was archived", err=True)
        if stop is None or stop.wait(interval):
            return


def _until_signalled() -> threading.Event:
    """Set by SIGINT or SIGTERM: a pass that is under way is finished first."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop


@command.command(
    epilog=examples(
        "gateway pipeline audit --path ./data --archive ./archive",
        "gateway pipeline audit --path ./data --archive ./archive --topics orders.eu --output json",
    )
)
@PATH
@click.option(
    "--archive", "directory", required=True, type=click.Path(path_type=Path, file_okay=False), help="The archive."
)
@TOPICS
@MASTER
@SPARK_LOGS
@output_option
def audit(path: str, directory: Path, topics: str, master: str, spark_logs: bool, output: str) -> int:
    """Prove that stored equals archived, record by record.

    Every gap, duplicate, difference and damaged file is named. Exit code 0: clean; 1: findings; 2: could not look.
    """
    from gateway.pipeline.audit import audit as run
    from gateway.pipeline.options import Topics

    found = run(path, directory, topics=Topics.parse(topics), spread=_spread(master, spark_logs))
    counts = [
        {"topic": topic, "partition": partition, "route": route, "records": count}
        for (topic, partition, route), count in sorted(found.routes.items())
    ]
    lines = [f"{one['topic']}/{one['partition']} by route {one['route']}: {one['records']} records" for one in counts]
    lines += [f"{found.compared} of {found.archived} archived records compared with the store", *found.findings]
    lines.append("clean" if not found.findings else f"{len(found.findings)} findings")
    _show(
        output,
        {"compared": found.compared, "archived": found.archived, "routes": counts, "findings": found.findings},
        "\n".join(lines),
    )
    return 1 if found.findings else 0


def _with_bar(label: str, work: Callable[[Callable[[int, int], None]], Any]) -> Any:
    """Do it under a progress bar, which is on standard error and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        return work(lambda done, total: bar.update(task, completed=done, total=total))


def _show(output: str, result: dict[str, object], text: str) -> None:
    import json

    click.echo(json.dumps(result) if output == "json" else text)
