"""`gateway pipeline`: jobs over what is stored, on Spark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from gateway.cli.options import SecondsType, examples
from gateway.cli.pipeline_jobs import compact, export, report, rollup
from gateway.cli.pipeline_parts import (
    CATALOG,
    DRY_RUN,
    TOPICS,
    JobCluster,
    following,
    reported,
    run_options,
    show,
    source_of,
    source_options,
    with_bar,
)
from gateway.cli.pipeline_replay import replay

if TYPE_CHECKING:
    from gateway.pipeline.archive import Archived
    from gateway.pipeline.layout import ArchiveLayout
    from gateway.pipeline.options import TopicSelection
    from gateway.pipeline.source import Source


@click.group(
    epilog=examples(
        "gateway pipeline archive --path ./data --to ./archive",
        "gateway pipeline audit --path ./data --archive ./archive",
    )
)
def command() -> None:
    """Jobs over what is stored: archive it, prove that nothing is missing, count it, play it back."""


FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Plain files, or a table.",
)
FOLLOWER = 10
"""How nice an archive is that goes on: where the processors are busy, the gateway beside it comes first."""


@command.command(
    epilog=examples(
        "gateway pipeline archive --path ./data --to ./archive",
        "gateway pipeline archive --path ./data --to ./archive --topics 'orders.*' --follow",
        "gateway pipeline archive --endpoint https://gateway:9600 --ca ca.pem --to ./archive",
        "gateway pipeline archive --path ./data --to s3a://lake/archive --by \"region=headers['region']\" --roll-time 1h",
        "gateway pipeline archive --path ./data --to ./table --format iceberg",
        "gateway pipeline archive --path ./data --to ./table --format delta --topics orders --typed order",
    )
)
@reported
@source_options
@click.option("--to", required=True, metavar="DIR|URL", help="The archive: a directory, or s3a://, gs://, abfs://...")
@TOPICS
@click.option("--follow", is_flag=True, help="Go on with what is stored later, until interrupted.")
@click.option("--interval", type=SecondsType(0.1), default=10.0, show_default=True, help="With --follow: 10 or 10s.")
@click.option(
    "--accept-gaps", is_flag=True, help="Go on behind what retention removed, or what is damaged; it stays accepted."
)
@DRY_RUN
@FORMAT
@click.option(
    "--by", multiple=True, metavar="NAME=CEL", help="Divide further, by what an expression makes of each message."
)
@click.option(
    "--roll-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="About how many MiB a file has at most.",
)
@click.option(
    "--roll-time", metavar="DURATION", help="The span of time that a file does not leave: 1h. A day without it."
)
@CATALOG
@click.option(
    "--typed",
    default="",
    metavar="SCHEMA",
    help="In a table: the values as columns as well, by this registered schema.",
)
@click.option("--schemas", default="", metavar="DIR", help="The store whose registry has it, if that is not --path.")
@run_options
def archive(
    given: Mapping[str, str],
    to: str,
    topics: str,
    follow: bool,
    interval: float,
    accept_gaps: bool,
    dry_run: bool,
    form: str,
    by: tuple[str, ...],
    roll_size: int,
    roll_time: str | None,
    catalog: str,
    typed: str,
    schemas: str,
    cluster: JobCluster,
    output: str,
) -> None:
    """Write what is stored to Parquet, exactly once.

    Files are laid out as topic=NAME/day=YYYY-MM-DD/. A second run adds only what is new; after a crash the next run
    continues where the last one really ended. A Delta or Iceberg table is written by this process alone, without Spark.
    """
    from gateway.notation import duration
    from gateway.pipeline.layout import ArchiveLayout
    from gateway.pipeline.options import TopicSelection

    roll_ms = round(duration(roll_time) * 1000) if roll_time is not None else None
    layout = ArchiveLayout.of(by, roll_size=roll_size << 20, roll_time_ms=roll_ms)

    if dry_run:
        _show_planned(source_of(given), to, TopicSelection.parse(topics), form, catalog, output)
        return
    if follow:
        os.nice(FOLLOWER)  # before Spark starts: its processes inherit it
    if typed and form == "parquet":
        raise click.UsageError("--typed is about tables: --format delta or iceberg")
    if typed and not (schemas or given.get("path")):
        raise click.UsageError("--typed needs the registry of a store: --schemas DIR")
    registered = (schemas or given.get("path", ""), typed)
    meant = TopicSelection.parse(topics)
    once = _archiving(source_of(given), to, meant, form, accept_gaps, layout, catalog, registered, cluster)
    with following() if follow else contextlib.nullcontext() as stop:
        while True:
            done = with_bar("archiving", once)
            if done.records or not follow:
                show(
                    output,
                    {"records": done.records, "files": done.files, "bytes": done.bytes, "gaps": done.gaps},
                    f"archived {done.records} records{_in_files(done)} to {to}",
                )
            for gap in done.gaps:
                click.echo(f"gateway: gap: {gap} is not archived and will not be", err=True)
            if stop is None or stop.wait(interval):
                return


def _in_files(done: Archived) -> str:
    # how many files a table has is its own matter
    return f" in {done.files} files ({done.bytes} bytes)" if done.files or not done.records else ""


def _show_planned(source: Source, to: str, topics: TopicSelection, form: str, catalog: str, output: str) -> None:
    from gateway.pipeline.archive import planned
    from gateway.pipeline.tables import planned_for_table

    if form == "parquet":
        found = planned(source, to, topics=topics)
    else:
        found = planned_for_table(source, to, form, topics=topics, catalog=catalog)
    lines = [*found.ranges, f"{found.records} records would be archived to {to}"]
    lines += [f"gap: {gap} was removed before it was archived" for gap in found.gaps]
    show(output, {"records": found.records, "ranges": found.ranges, "gaps": found.gaps}, "\n".join(lines))


def _archiving(
    source: Source,
    to: str,
    topics: TopicSelection,
    form: str,
    accept_gaps: bool,
    layout: ArchiveLayout,
    catalog: str,
    registered: tuple[str, str],
    cluster: JobCluster,
) -> Callable[[Callable[[int, int], None]], Archived]:
    # one pass; it is given whom to tell about its progress
    if form == "parquet":
        from gateway.pipeline.archive import archive as run

        tasks = cluster.spread()
        return lambda progress: run(
            source, to, topics=topics, spread=tasks, accept_gaps=accept_gaps, layout=layout, progress=progress
        )
    from gateway.pipeline.schemas import schema_of
    from gateway.pipeline.tables import archive_to_table

    registry, typed = registered
    return lambda progress: archive_to_table(
        source,
        to,
        form,
        topics=topics,
        accept_gaps=accept_gaps,
        layout=layout,
        catalog=catalog,
        typed=schema_of(registry, schema=typed) if typed else None,  # each time: there may be another version
        progress=progress,
    )


@command.command(
    epilog=examples(
        "gateway pipeline audit --path ./data --archive ./archive",
        "gateway pipeline audit --path ./data --archive ./archive --topics orders.eu --output json",
    )
)
@reported
@source_options
@click.option("--archive", "directory", required=True, metavar="DIR|URL", help="The archive, or a table.")
@TOPICS
@CATALOG
@run_options
def audit(given: Mapping[str, str], directory: str, topics: str, catalog: str, cluster: JobCluster, output: str) -> int:
    """Prove that stored equals archived, record by record.

    Every gap, duplicate, difference and damaged file is named; gaps that were accepted are listed as such. Exit code 0: clean; 1:
    findings; 2: could not look.
    """
    from gateway.pipeline.audit import audit as run
    from gateway.pipeline.options import TopicSelection

    found = run(
        source_of(given), directory, topics=TopicSelection.parse(topics), spread=cluster.spread(), catalog=catalog
    )
    counts = [
        {"topic": topic, "partition": partition, "route": route, "records": count}
        for (topic, partition, route), count in sorted(found.routes.items())
    ]
    lines = [f"{one['topic']}/{one['partition']} by route {one['route']}: {one['records']} records" for one in counts]
    lines += [f"{found.compared} of {found.archived} archived records compared with the store", *found.findings]
    lines += [f"accepted: {gap}" for gap in found.accepted]
    lines.append("clean" if not found.findings else f"{len(found.findings)} findings")
    show(
        output,
        {
            "compared": found.compared,
            "archived": found.archived,
            "routes": counts,
            "findings": found.findings,
            "accepted": found.accepted,
        },
        "\n".join(lines),
    )
    return 1 if found.findings else 0


@command.command(
    epilog=examples(
        "gateway pipeline merge --archive ./archive",
        "gateway pipeline merge --archive ./table --format iceberg",
    )
)
@reported
@click.option("--archive", "directory", required=True, metavar="DIR|URL", help="The archive.")
@click.option(
    "--small", type=click.IntRange(min=1), default=32, show_default=True, help="Files below so many MiB are merged."
)
@click.option(
    "--large", type=click.IntRange(min=1), default=128, show_default=True, help="Merged ones grow up to so many MiB."
)
@DRY_RUN
@FORMAT
@CATALOG
@run_options
def merge(
    directory: str,
    small: int,
    large: int,
    dry_run: bool,
    form: str,
    catalog: str,
    cluster: JobCluster,
    output: str,
) -> None:
    """Merge the small files of an archive, as --follow leaves them, or of a table (OPTIMIZE).

    The manifests say at every moment which files count. Whoever reads the directory without them may see records twice
    for a moment, never too few. A table's older versions keep their files until its own tools remove them.
    """
    from gateway.pipeline.merge import merge as run
    from gateway.pipeline.merge import mergeable

    if form != "parquet":
        from gateway.pipeline.tables import optimize

        if dry_run:
            raise click.UsageError("--dry-run is about the format parquet")
        merged = optimize(directory, form, catalog=catalog, small=large << 20)
        show(
            output,
            {"before": merged.before, "after": merged.after, "records": merged.records},
            f"{merged.before} small files of the table are {merged.after} now",
        )
        return

    if dry_run:
        would = mergeable(directory, small=small << 20, large=large << 20)
        show(
            output,
            {"before": would.before, "after": would.after, "records": would.records},
            f"{would.before} small files would be {would.after}, with {would.records} records",
        )
        return
    tasks = cluster.spread()
    done = with_bar(
        "merging",
        lambda progress: run(directory, small=small << 20, large=large << 20, spread=tasks, progress=progress),
    )
    show(
        output,
        {"before": done.before, "after": done.after, "records": done.records},
        f"{done.before} small files are {done.after} now, with {done.records} records",
    )


for job in (replay, rollup, compact, export, report):
    command.add_command(job)
