"""`gateway fidelity`: what each translation keeps, maps and loses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.either import Asking, either_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.admin.ways import FidelityReport, PairFidelity

WIDE = 160
"""Columns of the table where the output is no terminal and has no width of its own."""
_MARKS = {"kept": "kept", "mapped": "mapped", "lost": "LOST", "absent": "-"}


@click.command(
    epilog=examples("gateway fidelity", "gateway fidelity --config routes.yaml", "gateway fidelity --output json")
)
@output_option
@either_options
def command(asking: Asking, output: str) -> None:
    """Show what becomes of every field between each two protocols, and on each bridge and forward of the routes: of the gateway
    that runs, or of a file.

    A bridge is a view of what is stored here; a forward delivers to a broker elsewhere. What is LOST has to be named in
    the target's accept_loss (partition, offset, time and provenance are only reported).
    """
    import msgspec

    from gateway.admin.ways import FidelityReport, fidelity_report

    found = asking.answer(lambda caller: caller.ask("GET", "/v1/fidelity", FidelityReport), fidelity_report)
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        _print(found)


def _print(found: FidelityReport) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for way, title in (("bridge", "Stored here, read here (bridge)"), ("forward", "Delivered elsewhere (forward)")):
        chosen = [pair for pair in found.pairs if pair.way == way]
        _table(console, title, chosen)
        promises: dict[str, list[str]] = {}
        for pair in chosen:
            promises.setdefault(pair.promise, []).append(f"{pair.source} to {pair.target}")
        for promise, of in promises.items():
            console.print(f"{promise}\n  {', '.join(of)}", highlight=False)
        console.print()
    for route in found.routes:
        accepted = ", ".join(route.accept_loss) or "nothing"
        title = f"Route {route.route}: {route.target} to {route.address} (accepts the loss of: {accepted})"
        _table(console, title, route.pairs)
        for pair in route.pairs:
            console.print(f"{pair.source} to {pair.target}: {pair.promise}", highlight=False)
        console.print()


def _table(console: Any, title: str, pairs: Sequence[PairFidelity]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    table.add_column("from")
    table.add_column("to")
    for name in pairs[0].fields if pairs else ():
        table.add_column(name, overflow="fold")
    for pair in pairs:
        marks = [_MARKS[field.fate] for field in pair.fields.values()]
        table.add_row(pair.source, pair.target, *marks)
    console.print(table)
