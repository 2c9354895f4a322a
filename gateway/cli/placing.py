"""What the commands have in common that put a reader elsewhere: where to, and what they show of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli.printing import table

if TYPE_CHECKING:
    from gateway.requests import ConsumerMove, GroupMove, ResetTo

Command = TypeVar("Command", bound=Callable[..., Any])


def placing_options(force: str) -> Callable[[Command], Command]:
    """Where on which topic. `force`: what `--force` is for."""
    options = (
        click.option("--topic", required=True, help="The topic, by the name it is stored under."),
        click.option("--partition", type=click.IntRange(min=0), help="Only this partition; all of them without it."),
        click.option(
            "--to",
            required=True,
            metavar="WHERE",
            help="earliest, latest, an offset, or a time (ISO 8601) since which to read.",
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        click.option("--force", is_flag=True, help=force),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def where_to(text: str) -> tuple[ResetTo, int]:
    """What `--to` says: a place, and the offset or the time in milliseconds that goes with it."""
    import datetime as dt

    from gateway.requests import ResetTo

    if text in ("earliest", "latest"):
        return ResetTo(text), 0
    if text.isascii() and text.isdecimal():
        return ResetTo.OFFSET, int(text)
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to is earliest, latest, an offset or a time like 2026-01-31T12:00Z, not {text!r}"
        ) from None
    return ResetTo.TIME, int((when if when.tzinfo is not None else when.astimezone()).timestamp() * 1000)


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def show_moves(moves: Sequence[GroupMove | ConsumerMove], left: Sequence[int | None], said: str, output: str) -> None:
    """Partition by partition. `left`: what each has before it then."""
    if output == "json":
        import msgspec

        click.echo(json.dumps([msgspec.to_builtins(one) for one in moves], indent=2))
        return
    rows: list[tuple[str, ...]] = [("PARTITION", "FROM", "TO", "SKIPPED", "AGAIN", "LAG")]
    for one, behind in zip(moves, left, strict=True):
        shown = (one.partition, one.before, one.after, one.skipped, one.repeated, behind)
        rows.append(tuple(number(each) for each in shown))
    click.echo(table(rows, texts=0))
    click.echo(said)
