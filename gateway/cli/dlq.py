"""`gateway dlq`: look at what could not be delivered, send it again, or drop it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.cli.letters import Summary
    from gateway.pipeline.endpoint import Endpoint

EXIT_FINDINGS = 1

topic_argument = click.argument("topic")
reason_option = click.option("--reason", multiple=True, help="Only letters with this reason; may be repeated.")
id_option = click.option(
    "--id", "ids", multiple=True, metavar="PARTITION:OFFSET", help="Only this letter; may be repeated."
)


@click.group(
    epilog=examples(
        "gateway dlq list",
        "gateway dlq show orders.eu --reason max_deliveries",
        "gateway dlq redrive orders.eu --dry-run",
        "gateway dlq redrive orders.eu --rate 100",
        "gateway dlq purge orders.eu --yes",
    )
)
def command() -> None:
    """Look at dead letters of a running gateway, send them again, or drop them.

    TOPIC is the topic whose messages could not be delivered, or the one that holds its letters (orders.eu.dlq).
    """


@command.command("list", epilog=examples("gateway dlq list", "gateway dlq list --output json"))
@output_option
@admin_options
def list_(output: str, endpoint: Endpoint) -> None:
    """List the topics that hold dead letters, with how many, why, and where they came from."""
    from gateway.cli.letters import summary
    from gateway.pipeline.endpoint import EndpointLog

    with EndpointLog(endpoint) as log:
        described = sorted((one for one in log.described() if one.dead_letters), key=lambda one: one.name)
        found = [summary(log, topic) for topic in described]
    if output == "json":
        click.echo(json.dumps([_as_json(one) for one in found], indent=2))
    elif not found:
        click.echo("no dead letters")
    for one in found if output == "text" else ():
        sent = f", {one.redriven} redriven" if one.redriven else ""
        click.echo(f"{one.topic}: {_letters(one.letters)}{sent}")
        for reason, count in one.reasons.most_common():
            click.echo(f"  {count:>8}  {reason}")
        if one.origins:
            click.echo(f"  from {', '.join(sorted(one.origins))}")


@command.command(epilog=examples("gateway dlq show orders.eu", "gateway dlq show orders.eu --id 0:17 --output json"))
@topic_argument
@reason_option
@id_option
@click.option("-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@output_option
@admin_options
def show(
    topic: str, reason: tuple[str, ...], ids: tuple[str, ...], count: int, output: str, endpoint: Endpoint
) -> None:
    """Show dead letters, oldest first: why, after how many attempts, with which errors, and from where."""
    from itertools import islice

    from gateway.cli.letters import Choice, find, letters
    from gateway.pipeline.endpoint import EndpointLog

    with EndpointLog(endpoint) as log:
        for letter in islice(letters(log, find(log, topic), Choice.of(reason, ids)), count):
            click.echo(json.dumps(letter.as_json()) if output == "json" else letter.as_text())


@command.command(
    epilog=examples(
        "gateway dlq redrive orders.eu --dry-run",
        "gateway dlq redrive orders.eu --rate 100 --max-replays 3",
        "gateway dlq redrive orders.eu --reason size --to orders.big",
    )
)
@topic_argument
@reason_option
@id_option
@click.option(
    "--to", default="", metavar="ADDRESS", help="Publish there, by the routes, instead of where each came from."
)
@click.option("--protocol", default="", help="With --to: it is an address as clients of this protocol write it.")
@click.option("--listener", default="", help="With --to: it is an address at this listener.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
@click.option(
    "--max-replays",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Leave what was sent again, and died again, so often.",
)
@click.option("--limit", type=click.IntRange(min=1), help="End after so many letters.")
@output_option
@admin_options
@click.pass_context
def redrive(
    context: click.Context,
    topic: str,
    reason: tuple[str, ...],
    ids: tuple[str, ...],
    to: str,
    protocol: str,
    listener: str,
    dry_run: bool,
    rate: float | None,
    max_replays: int,
    limit: int | None,
    output: str,
    endpoint: Endpoint,
) -> None:
    """Publish dead letters again, each at most once, to the topic it came from or to another address.

    Which were sent again is remembered with the messages: a redrive that was interrupted goes on where it ended, and a
    second one finds nothing to do. The letters stay until they are purged. Exit code 0: all done; 1: some are left, with
    the reason; 2: could not do it.
    """
    from gateway.bulk.wire import Redrive
    from gateway.cli import letters as at
    from gateway.pipeline.endpoint import EndpointLog, EndpointWriter

    if (protocol or listener) and not to:
        raise click.UsageError("--protocol and --listener say whose address --to is")
    counts: Counter[str] = Counter()
    with EndpointLog(endpoint) as log, EndpointWriter(endpoint) as out:
        found = at.find(log, topic)
        asked = Redrive(
            topic=found.name,
            epoch=found.epoch,
            partition=0,
            offsets=(),
            to=to,
            protocol=protocol,
            listener=listener,
            max_replays=max_replays,
            dry_run=dry_run,
        )
        missing = dict.fromkeys(ids)
        for name, result in at.redrive(log, out, found, at.Choice.of(reason, ids), asked, rate, limit):
            missing.pop(name, None)
            counts[result.outcome] += 1
            shown = {"id": name, "outcome": result.outcome, "target": result.target, "message": result.message}
            if output == "json":
                click.echo(json.dumps(shown))
            elif result.outcome in ("refused", "gone"):
                click.echo(f"{name} stays: {result.message}")
            elif result.outcome == "would":
                click.echo(f"{name} would go to {result.target}")
    if output == "text":
        done = (
            f"{_letters(counts['would'])} would be sent again" if dry_run else f"{_letters(counts['done'])} sent again"
        )
        before = f", {counts['before']} were before" if counts["before"] else ""
        left = counts["refused"] + counts["gone"]
        click.echo(f"{found.name}: {done}{before}" + (f", {left} left" if left else ""))
        for name in missing if limit is None else ():
            text = json.dumps({"id": name, "outcome": "missing", "target": "", "message": "is not there"})
            click.echo(text if output == "json" else f"{name} is not there")
    if counts["refused"] or counts["gone"] or (missing and limit is None):
        context.exit(EXIT_FINDINGS)


@command.command(epilog=examples("gateway dlq purge orders.eu", "gateway dlq purge orders.eu --yes"))
@topic_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def purge(topic: str, yes: bool, endpoint: Endpoint) -> None:
    """Drop all dead letters of a topic, those that were sent again and those that were not.

    Refused if letters have come since they were counted, and while a `forward` still has to deliver some of them: then
    nothing is dropped.
    """
    from gateway.cli.letters import count_letters, find
    from gateway.pipeline.endpoint import EndpointLog, EndpointWriter

    with EndpointLog(endpoint) as log, EndpointWriter(endpoint) as out:
        found = find(log, topic)
        count = count_letters(log, found)
        if not yes:
            click.confirm(f"Drop {_letters(count)} in {found.name}?", abort=True, err=True)
        out.delete_topic(found)
    click.echo(f"{found.name}: {_letters(count)} dropped")


def _letters(count: int) -> str:
    return f"{count} letter{'s' if count != 1 else ''}"


def _as_json(found: Summary) -> dict[str, object]:
    return {
        "topic": found.topic,
        "letters": found.letters,
        "redriven": found.redriven,
        "reasons": dict(found.reasons),
        "origins": dict(found.origins),
        "oldest_ms": found.oldest_ms,
    }
