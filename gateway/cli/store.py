"""`gateway store`: look at a store that nobody serves, and go on with one that has lost something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import examples, output_option

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
    epilog=examples("gateway store check --path ./data", "gateway store salvage --path ./data --accept-loss"),
)
def command() -> None:
    """Check a store that no gateway serves at the moment, or accept what it has lost."""


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


def _show(found: Salvage, output: str, *, accepted: bool) -> None:
    if output == "json":
        damaged = [
            {"topic": one.topic, "partition": one.partition, "first": one.first, "next_offset": one.next_offset}
            for one in found.damaged
        ]
        shown = {"last_commit": found.last_commit, "lost_commits": found.lost_commits, "damaged": damaged}
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
        click.echo(f"good, {_commits(found.last_commit)}")


def _commits(count: int) -> str:
    return f"{count} commit{'s' if count != 1 else ''}"
