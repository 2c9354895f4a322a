"""`gateway groups`: where consumer groups are, how far behind, and how to put one elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option
from gateway.cli.placing import placing_options, show_moves, where_to
from gateway.cli.printing import table

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint
    from gateway.recorder import GroupPosition
    from gateway.requests import GroupMove, GroupReset

EXIT_FINDINGS = 1

path_option = click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The directory of a store that no gateway serves now, instead of a running gateway.",
)


@click.group(
    epilog=examples(
        "gateway groups list",
        "gateway groups show billing --topic orders.eu",
        "gateway groups reset billing --topic orders.eu --to earliest --dry-run",
    )
)
def command() -> None:
    """Look at the consumer groups of FlyMQ and RustLog clients, and put one elsewhere.

    LAG is what a group has not committed: the messages between its offset and the end of the log. With the log on Kafka
    it is at most so many, as Kafka's own tools say it: some offsets there have no message.
    """


@command.command("list", epilog=examples("gateway groups list", "gateway groups list --path ./data --output json"))
@path_option
@output_option
@admin_options
def list_(path: Path | None, output: str, endpoint: Endpoint) -> None:
    """List every group on every topic, with how far it is behind."""
    found = _ordered(_positions(path, endpoint))
    rows = [("GROUP", "TOPIC", "PARTITIONS", "LAG")]
    shown = []
    for (group, topic), members in groupby(found, key=lambda one: (one.group, one.topic)):
        partitions = list(members)
        lag = sum(one.lag for one in partitions)
        rows.append((group, topic, str(len(partitions)), str(lag)))
        shown.append({"group": group, "topic": topic, "partitions": len(partitions), "lag": lag})
    click.echo(json.dumps(shown, indent=2) if output == "json" else table(rows, texts=2))


@command.command(epilog=examples("gateway groups show billing", "gateway groups show billing --topic orders.eu"))
@click.argument("group")
@click.option("--topic", default="", help="Only on this topic.")
@path_option
@output_option
@admin_options
@click.pass_context
def show(context: click.Context, group: str, topic: str, path: Path | None, output: str, endpoint: Endpoint) -> None:
    """Show where a group is, partition by partition.

    Exit code 0: there it is; 1: it has committed nothing; 2: could not look.
    """
    import attrs

    found = _ordered(_positions(path, endpoint, group, topic))
    if output == "json":
        click.echo(json.dumps([attrs.asdict(one) for one in found], indent=2))
    elif found:
        rows = [("TOPIC", "PARTITION", "COMMITTED", "START", "END", "LAG")]
        rows += [
            (one.topic, str(one.partition), str(one.committed), str(one.start), str(one.end), str(one.lag))
            for one in found
        ]
        click.echo(table(rows))
    if not found:
        click.echo(f"{group} has committed nothing" + (f" on {topic}" if topic else ""), err=True)
        context.exit(EXIT_FINDINGS)


@command.command(
    epilog=examples(
        "gateway groups reset billing --topic orders.eu --to earliest --dry-run",
        "gateway groups reset billing --topic orders.eu --partition 0 --to 1200",
        "gateway groups reset billing --topic orders.eu --to 2026-01-31T12:00:00Z",
    )
)
@click.argument("group")
@placing_options("Also while connections read as this group, which may commit over it.")
@path_option
@output_option
@admin_options
def reset(
    group: str,
    topic: str,
    partition: int | None,
    to: str,
    dry_run: bool,
    force: bool,
    path: Path | None,
    output: str,
    endpoint: Endpoint,
) -> None:
    """Put a group elsewhere on a topic: all partitions in one commit, or none.

    What a group reads next is what was committed last, so its readers should be stopped meanwhile; a group that
    connections subscribe as is left alone without --force.
    """
    from gateway.requests import GroupReset

    where, value = where_to(to)
    asked = GroupReset(
        group=group, topic=topic, to=where, value=value, partition=partition, dry_run=dry_run, force=force
    )
    moves = _reset_stored(path, asked) if path is not None else _reset_served(endpoint, asked)
    show_moves(moves, [one.lag for one in moves], f"{group} {'would be' if dry_run else 'is'} there on {topic}", output)


def _ordered(positions: Iterable[GroupPosition]) -> Sequence[GroupPosition]:
    return sorted(positions, key=lambda one: (one.group, one.topic, one.partition))


# --- from a running gateway, and from a store ---


def _positions(path: Path | None, endpoint: Endpoint, group: str = "", topic: str = "") -> Iterable[GroupPosition]:
    return _served(endpoint, group, topic) if path is None else stored(path, group, topic)


def _served(endpoint: Endpoint, group: str, topic: str) -> Iterator[GroupPosition]:
    from urllib.parse import urlencode

    from gateway.bulk import wire
    from gateway.pipeline.endpoint_http import EndpointCaller

    caller = EndpointCaller(endpoint)
    try:
        following = ""
        while True:
            asked = urlencode({"group": group, "topic": topic, "from": following})
            page = caller.ask("GET", f"{wire.GROUPS}?{asked}", wire.GroupPositions)
            yield from page.positions
            following = page.following
            if not following:
                return
    finally:
        caller.close()


def stored(path: Path, group: str = "", topic: str = "") -> Sequence[GroupPosition]:
    """What is written in a store, served or not."""
    from gateway.broker.consume.group_offsets import TABLE, positions
    from gateway.store.reader import LogReader

    with LogReader(path) as log:
        return positions(log.rows(TABLE), log.topics(), group=group, topic=topic)


def _reset_served(endpoint: Endpoint, asked: GroupReset) -> Sequence[GroupMove]:
    import msgspec

    from gateway.bulk import wire
    from gateway.pipeline.endpoint_http import EndpointCaller

    caller = EndpointCaller(endpoint)
    try:
        body = msgspec.msgpack.encode(asked)
        return caller.ask("POST", wire.RESET_GROUP, wire.GroupMoves, body, wire.MSGPACK).moves
    finally:
        caller.close()


def _reset_stored(path: Path, asked: GroupReset) -> Sequence[GroupMove]:
    # in a store that nobody serves: refused while somebody does
    import trio

    from gateway.broker.consume.group_offsets import moves_of, unit_of
    from gateway.store.committer import Mode
    from gateway.store.database import StoreFiles
    from gateway.store.sqlite import open_store

    if not StoreFiles(path).database.exists():
        raise click.UsageError(f"there is no store at {path}")

    async def run() -> Sequence[GroupMove]:
        async with open_store(path, mode=Mode.INLINE) as store:
            moves = await moves_of(store, asked)
            if not asked.dry_run:
                await store.submit(unit_of(asked, moves)).wait()
            return moves

    return trio.run(run)
