"""`gateway store`: look at a store that nobody serves, and go on with one that has lost something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from gateway.cli.options import examples, output_option
from gateway.cli.pipeline_parts import reported, show, with_bar

if TYPE_CHECKING:
    from gateway.store.salvage import Salvage

EXIT_FINDINGS = 1

path_option = click.option(
    "--path",
    type=click.Path(path_type=Path),
    required=True,
    help="The directory of the store: `storage.path` of the configuration.",
)


@click.group(
    epilog=examples(
        "gateway store check --path ./data",
        "gateway store salvage --path ./data --accept-loss",
        "gateway store copy --from ./data --to kafka://10.0.0.1:9092/gw.",
    ),
)
def command() -> None:
    """Check a store that no gateway serves at the moment, accept what it has lost, or copy it to Kafka and back."""


@command.command(
    epilog=examples("gateway store check --path ./data", "gateway store check --path ./data --output json")
)
@path_option
@output_option
@click.pass_context
def check(context: click.Context, path: Path, output: str) -> None:
    """Read every page and every record, and compare the log with the number of its last acknowledged commit.

    All that is damaged is named, whatever it is. Exit code 0: all is there; 1: something is damaged or lost; 2: could not look.
    """
    from gateway.store.salvage import salvage as examine

    found = examine(path)
    _show(found, output, accepted=False)
    if found.damaged or found.lost_commits or found.notes:
        context.exit(EXIT_FINDINGS)


@command.command(epilog=examples("gateway store salvage --path ./data --accept-loss"))
@path_option
@click.option("--accept-loss", is_flag=True, help="Go on without what is lost. There is no way back.")
@output_option
@click.pass_context
def salvage(context: click.Context, path: Path, accept_loss: bool, output: str) -> None:
    """Make a store that has lost commits, or whose database is damaged, servable again, without what is lost.

    Of a damaged database all that can be read is written into a new one, which needs as much room again; the old one is kept
    beside it. A damaged range of records alone needs no salvage: reading it is refused, everything else is served. Exit
    code 0: the store can be served; 1: only --accept-loss goes on; 2: could not look.
    """
    from gateway.store.salvage import salvage as examine

    found = examine(path, accept_loss=accept_loss)
    _show(found, output, accepted=accept_loss)
    if (found.lost_commits or found.notes) and not accept_loss:
        context.exit(EXIT_FINDINGS)


@command.command(
    name="copy",
    epilog=examples(
        "gateway store copy --from ./data --to kafka://10.0.0.1:9092/gw. --dry-run",
        "gateway store copy --from ./data --to kafka://10.0.0.1:9092/gw. --report copy.json",
        "gateway store copy --from kafka://10.0.0.1:9092/gw. --to ./back",
        "gateway store copy --from ./data --to kafka://10.0.0.1:9092/gw. --audit",
    ),
)
@click.option(
    "--from", "source", required=True, metavar="PLACE", help="The store: a directory, or kafka://HOST:PORT,.../PREFIX."
)
@click.option(
    "--to", "target", required=True, metavar="PLACE", help="Where to; there must be nothing, or this very copy."
)
@click.option(
    "--replication",
    type=click.IntRange(1, 100),
    help="Brokers that are to have each of Kafka's topics; 3, or as many as there are, if nothing is said.",
)
@click.option(
    "--min-insync", type=click.IntRange(1, 100), help="Of which so many acknowledge; all but one, if nothing is said."
)
@click.option(
    "--kafka-settings", metavar="JSON", envvar="GATEWAY_KAFKA_SETTINGS", help="librdkafka's settings: TLS, a login."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--audit", "only_audit", is_flag=True, help="Copy nothing: compare both, record by record.")
@output_option
@reported
@click.pass_context
def copy_store(
    context: click.Context,
    source: str,
    target: str,
    replication: int | None,
    min_insync: int | None,
    kafka_settings: str | None,
    output: str,
    *,
    dry_run: bool,
    only_audit: bool,
) -> None:
    """Copy a store that nobody serves to the other kind, with all its state, and prove it record by record.

    Interrupted, it goes on where it was when it is called again. Exit code 0: all is there; 1: the audit found differences;
    2: could not do it.
    """
    import trio

    from gateway.moving.copying import copy, plan
    from gateway.moving.places import place_at
    from gateway.moving.proof import prove

    settings = _settings(kafka_settings)
    here, there = (
        place_at(one, settings=settings, replication=replication, min_insync=min_insync) for one in (source, target)
    )
    if dry_run:
        wanted = attrs.asdict(plan(here, there))
        text = ", ".join(f"{value} {name}" for name, value in wanted.items() if not isinstance(value, bool))
        show(output, wanted, f"{'would go on with' if wanted['resumes'] else 'would copy'} {text}")
        return
    result: dict[str, object] = {"from": here.shown, "to": there.shown}
    if not only_audit:
        done = with_bar("copied", lambda progress: trio.run(copy, here, there, progress))
        result |= {"copied": attrs.asdict(done)}
    proof = with_bar("compared", lambda progress: prove(here, there, progress))
    result |= {
        "good": proof.good,
        "records": proof.records,
        "different": proof.different,
        "differences": proof.differences,
    }
    result |= {
        "rows": dict(proof.rows),
        "left": proof.left,
        "settings_left": proof.settings_left,
        "partitions": [attrs.asdict(one) for one in proof.partitions],
    }
    lines = [f"differs: {one}" for one in proof.differences]
    lines += [
        f"left behind: {count} rows of {table} that belong to nothing" for table, count in sorted(proof.left.items())
    ]
    lines += [
        f"left behind: {key} = {value} of {topic}, which only Kafka knows"
        for topic, settings in sorted(proof.settings_left.items())
        for key, value in settings.items()
    ]
    lines.append(
        f"{proof.records} records in {len(proof.partitions)} partitions and {sum(proof.rows.values())} rows are the same in both"
        if proof.good
        else f"{proof.different} differences"
    )
    show(output, result, "\n".join(lines))
    if not proof.good:
        context.exit(EXIT_FINDINGS)


def _settings(text: str | None) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise click.UsageError(f"--kafka-settings is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise click.UsageError("--kafka-settings is an object of texts, as librdkafka's settings are")
    return found


def _show(found: Salvage, output: str, *, accepted: bool) -> None:
    if output == "json":
        damaged = [
            {"topic": one.topic, "partition": one.partition, "first": one.first, "next_offset": one.next_offset}
            for one in found.damaged
        ]
        shown = {"last_commit": found.last_commit, "lost_commits": found.lost_commits, "damaged": damaged}
        shown["journalled"] = found.journalled
        shown |= {"database": list(found.notes), "kept": str(found.rebuilt) if found.rebuilt is not None else None}
        click.echo(json.dumps({**shown, "accepted": accepted and bool(found.lost_commits or found.notes)}, indent=2))
        return
    for note in found.notes:
        click.echo(f"damaged: {note}")
    for one in found.damaged:
        end = "and all behind it" if one.next_offset is None else f"to {one.next_offset - 1}"
        click.echo(f"damaged: topic {one.topic}, partition {one.partition}, offsets {one.first} {end}")
    if found.rebuilt is not None:
        click.echo(f"what could be read is in a new database; the damaged one is {found.rebuilt}")
    elif found.notes:
        click.echo("`gateway store salvage --accept-loss` writes all that can be read into a new database")
    if found.lost_commits:
        said = "given up" if accepted else "lost; `gateway store salvage --accept-loss` goes on without them"
        click.echo(f"{_commits(found.lost_commits)} after commit {found.last_commit} {said}")
    elif not (found.damaged or found.notes):
        behind = f", the last {found.journalled} in the journal: the next start brings them into the database"
        click.echo(f"good, {_commits(found.last_commit)}{behind if found.journalled else ''}")


def _commits(count: int) -> str:
    return f"{count} commit{'s' if count != 1 else ''}"
