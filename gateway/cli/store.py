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
    """Read every record, and compare the log with the number of its last acknowledged commit.

    Exit code 0: all is there; 1: something is damaged or lost; 2: could not look.
    """
    from gateway.store.salvage import salvage as examine

    found = examine(path)
    _show(found, output, accepted=False)
    if found.damaged or found.lost_commits:
        context.exit(EXIT_FINDINGS)


@command.command(epilog=examples("gateway store salvage --path ./data --accept-loss"))
@path_option
@click.option("--accept-loss", is_flag=True, help="Go on without the commits that are lost. There is no way back.")
@output_option
@click.pass_context
def salvage(context: click.Context, path: Path, accept_loss: bool, output: str) -> None:
    """Make a store that has lost commits servable again, without them.

    A damaged range needs no salvage: reading it is refused, everything else is served. Exit code 0: the store can be
    served; 1: it has lost commits, which only --accept-loss gives up; 2: could not look.
    """
    from gateway.store.salvage import salvage as examine

    found = examine(path, accept_loss=accept_loss)
    _show(found, output, accepted=accept_loss)
    if found.lost_commits and not accept_loss:
        context.exit(EXIT_FINDINGS)


def _show(found: Salvage, output: str, *, accepted: bool) -> None:
    if output == "json":
        damaged = [
            {"topic": one.topic, "partition": one.partition, "first": one.first, "next_offset": one.next_offset}
            for one in found.damaged
        ]
        shown = {"last_commit": found.last_commit, "lost_commits": found.lost_commits, "damaged": damaged}
        click.echo(json.dumps({**shown, "accepted": accepted and found.lost_commits > 0}, indent=2))
        return
    for one in found.damaged:
        click.echo(
            f"damaged: topic {one.topic}, partition {one.partition}, offsets {one.first} to {one.next_offset - 1}"
        )
    if found.lost_commits:
        said = "given up" if accepted else "lost; `gateway store salvage --accept-loss` goes on without them"
        click.echo(f"{_commits(found.lost_commits)} after commit {found.last_commit} {said}")
    elif not found.damaged:
        click.echo(f"good, {_commits(found.last_commit)}")


def _commits(count: int) -> str:
    return f"{count} commit{'s' if count != 1 else ''}"
