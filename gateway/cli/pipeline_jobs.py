"""`gateway pipeline rollup`, `compact`, `export` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import SecondsType, examples
from gateway.cli.pipeline_parts import (
    DRY_RUN,
    TOPICS,
    JobCluster,
    OutputPlace,
    following,
    from_options,
    reported,
    run_options,
    show,
    show_spans,
    with_bar,
)

if TYPE_CHECKING:
    from gateway.pipeline.frames import MessagesToRead

TO = click.option(
    "--to",
    required=True,
    type=OutputPlace(file_okay=False),
    metavar="DIR|URL",
    help="A directory, or s3a://, gs://, abfs://...",
)
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace what is there, once the new is whole.")


@click.command(
    epilog=examples(
        "gateway pipeline rollup --from ./archive --to ./rollup",
        "gateway pipeline rollup --from ./data --to ./rollup --follow --watermark '5 minutes'",
        "sqlite3 ./rollup/rollup.sqlite 'SELECT datetime(minute, \"unixepoch\"), topic, messages FROM rollup'",
    )
)
@reported
@from_options
@TO
@TOPICS
@click.option("--since", default=None, metavar="TIME", help="Only from this minute on: ISO 8601 or milliseconds.")
@click.option("--follow", is_flag=True, help="Go on with what is stored later, until interrupted.")
@click.option(
    "--watermark", default="2 minutes", show_default=True, help="With --follow: how long a minute is waited for."
)
@click.option("--interval", type=SecondsType(0.1), default=30.0, show_default=True, help="With --follow: 10 or 10s.")
@DRY_RUN
@run_options
def rollup(
    messages: MessagesToRead,
    source: str,
    to: str,
    topics: str,
    since: str | None,
    follow: bool,
    watermark: str,
    interval: float,
    dry_run: bool,
    cluster: JobCluster,
    output: str,
) -> None:
    """Count what is stored by minute, route, topic and protocol.

    Messages, bytes, distinct keys, sizes, dead letters and latencies of delivery go to the table `rollup` in
    rollup.sqlite, which Grafana can read, and to Parquet for each day. A second run replaces what has changed.
    """
    from gateway.pipeline import rollup as job
    from gateway.pipeline.options import TopicSelection, milliseconds

    wanted = TopicSelection.parse(topics)
    if follow and since is not None:
        raise click.UsageError("--follow begins at the beginning and goes on where it ended: no --since")
    if dry_run:
        show_spans(output, messages, wanted, to)
        return
    if follow:
        with following() as stop:
            done = with_bar(
                "rolling up",
                lambda progress: job.follow(
                    cluster.session,
                    messages,
                    to,
                    topics=topics,
                    watermark=watermark,
                    interval=interval,
                    stop=stop,
                    progress=progress,
                ),
            )
    else:
        begin = milliseconds(since) if since is not None else None
        done = with_bar(
            "rolling up", lambda _progress: job.rollup(cluster.session, messages, to, topics=wanted, from_ms=begin)
        )
    late = f", {done.late} late groups are not among them" if done.late else ""
    show(output, {"rows": done.rows, "late": done.late}, f"{done.rows} rows of {source} in {to}{late}")


@click.command(
    epilog=examples(
        "gateway pipeline compact --from ./archive --to ./latest --topics 'orders.*'",
        "gateway pipeline compact --from ./data --to ./latest --keep-tombstones --overwrite",
    )
)
@reported
@from_options
@TO
@TOPICS
@click.option("--keep-tombstones", is_flag=True, help="Keep keys whose last value is empty.")
@OVERWRITE
@DRY_RUN
@run_options
def compact(
    messages: MessagesToRead,
    source: str,
    to: str,
    topics: str,
    keep_tombstones: bool,
    overwrite: bool,
    dry_run: bool,
    cluster: JobCluster,
    output: str,
) -> None:
    """Write the last value of each key as Parquet, laid out as topic=NAME/.

    A last value that is empty is a tombstone: its key is left out. So is one that has expired. Messages without a key are
    not looked at.
    """
    from gateway.pipeline.compact import compact as job
    from gateway.pipeline.options import TopicSelection

    wanted = TopicSelection.parse(topics)
    if dry_run:
        show_spans(output, messages, wanted, to)
        return
    done = with_bar(
        "compacting",
        lambda _progress: job(
            cluster.session, messages, to, topics=wanted, keep_tombstones=keep_tombstones, overwrite=overwrite
        ),
    )
    show(
        output,
        {"messages": done.messages, "keys": done.keys, "topics": done.topics},
        f"{done.keys} keys of {done.messages} messages of {source} in {to}",
    )


@click.command(
    epilog=examples(
        "gateway pipeline export --from ./archive --to ./csv --format csv --decode text",
        "gateway pipeline export --from ./data --to ./lines --format jsonl --decode json --skip-undecodable",
        "gateway pipeline export --from ./data --to ./table --format parquet --decode avro --schema order",
    )
)
@reported
@from_options
@TO
@TOPICS
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="Of files.",
)
@click.option(
    "--decode",
    type=click.Choice(["base64", "text", "json", "avro"]),
    default="base64",
    show_default=True,
    help="What the values are.",
)
@click.option("--schema", default="", metavar="NAME", help="Avro: this schema instead of the topic's own.")
@click.option("--schema-version", type=click.IntRange(min=1), default=None, help="Avro: only this version.")
@click.option("--schemas", default="", metavar="DIR", help="Avro: the store whose registry has the schema.")
@click.option("--where", default="", metavar="SQL", help="A condition in Spark's SQL on the columns of a message.")
@click.option("--skip-undecodable", is_flag=True, help="Leave out and count what cannot be decoded; exit code 1.")
@OVERWRITE
@DRY_RUN
@run_options
def export(
    messages: MessagesToRead,
    source: str,
    to: str,
    topics: str,
    form: str,
    decode: str,
    schema: str,
    schema_version: int | None,
    schemas: str,
    where: str,
    skip_undecodable: bool,
    overwrite: bool,
    dry_run: bool,
    cluster: JobCluster,
    output: str,
) -> int:
    """Write messages as CSV, JSON lines or Parquet, with their payloads decoded.

    With Avro each value is read by the newest version of the schema under which it is whole. Exit code 1: some could not
    be decoded and were left out.
    """
    from gateway.pipeline.export import decoding_for
    from gateway.pipeline.export import export as job
    from gateway.pipeline.options import TopicSelection

    wanted = TopicSelection.parse(topics)
    decoding = decoding_for(decode, messages, wanted, store=schemas, schema=schema, version=schema_version)
    if dry_run:
        show_spans(output, messages, wanted, to)
        return 0
    done = with_bar(
        "exporting",
        lambda _progress: job(
            cluster.session,
            messages,
            to,
            form=form,
            decoding=decoding,
            topics=wanted,
            where=where,
            skip_undecodable=skip_undecodable,
            overwrite=overwrite,
        ),
    )
    if done.undecodable:
        click.echo(f"gateway: {done.undecodable} messages left out, the first: {done.first_problem}", err=True)
    show(
        output,
        {"messages": done.messages, "undecodable": done.undecodable, "files": done.files},
        f"{done.messages} messages of {source} in {done.files} files in {to}",
    )
    return 1 if done.undecodable else 0


@click.command(
    epilog=examples(
        "gateway pipeline report --from ./archive --to report.html",
        "gateway pipeline report --from ./data --audit ./archive --to report.html --topics 'orders.*'",
    )
)
@reported
@from_options
@click.option(
    "--to", required=True, type=OutputPlace(dir_okay=False), metavar="FILE|URL", help="The page, an HTML file."
)
@TOPICS
@click.option(
    "--audit",
    "other",
    default="",
    metavar="DIR|URL",
    help="Compare with this: the archive of a log that --from is, or the log of an archive.",
)
@DRY_RUN
@run_options
def report(
    messages: MessagesToRead,
    source: str,
    to: str,
    topics: str,
    other: str,
    dry_run: bool,
    cluster: JobCluster,
    output: str,
) -> int:
    """Write a page about what is stored: traffic, sizes, latencies, losses, dead letters, keys, an audit's verdict.

    It needs nothing else to be looked at: one HTML file, without scripts. Exit code 1: the audit had findings.
    """
    from gateway.pipeline.options import TopicSelection
    from gateway.pipeline.report import audit_between
    from gateway.pipeline.report import report as job
    from gateway.pipeline.report_page import page
    from gateway.pipeline.shelves import is_remote, shelf_at

    wanted = TopicSelection.parse(topics)
    if dry_run:
        show_spans(output, messages, wanted, to)
        return 0
    audited = audit_between(messages, other, topics=wanted, spread=cluster.spread()) if other else None
    found = with_bar(
        "counting", lambda _progress: job(cluster.session, messages, source, topics=wanted, audited=audited)
    )
    place, _, name = to.rpartition("/")
    if is_remote(to):
        shelf_at(place).replace(name, page(found).encode())
    else:
        Path(to).write_text(page(found))
    findings = len(audited.findings) if audited is not None else 0
    show(
        output,
        {"messages": found.messages, "bytes": found.value_bytes, "letters": found.letters, "findings": findings},
        f"a page about {found.messages} messages of {source} is in {to}",
    )
    return 1 if findings else 0
