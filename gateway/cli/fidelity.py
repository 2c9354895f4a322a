"""`gateway fidelity`: what each translation keeps, maps and loses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import config_option, examples, output_option

if TYPE_CHECKING:
    from gateway.model import Config
    from gateway.protocols.registry import Carries
    from gateway.routing.fidelity import Fidelity

WIDE = 160
"""Columns of the table where the output is no terminal and has no width of its own."""
_MARKS = {"kept": "kept", "mapped": "mapped", "lost": "LOST", "absent": "-"}


@click.command(epilog=examples("gateway fidelity --config routes.yaml", "gateway fidelity --output json"))
@config_option
@output_option
def command(config: Path, output: str) -> None:
    """Show what becomes of every field between each two protocols, and on each bridge and forward of a configuration.

    A bridge is a view of what is stored here; a forward delivers to a broker elsewhere. What is LOST has to be named in
    the target's accept_loss (partition, offset, time and provenance are only reported).
    """
    from gateway.config.load import load
    from gateway.protocols.registry import carried, protocols, served
    from gateway.routing.fidelity import Way, fidelity

    loaded = load(config)
    carries = carried(protocols())
    targets = {Way.BRIDGE: sorted(carried(served())), Way.FORWARD: sorted(carries)}
    pairs = [fidelity(one, two, carries, way) for way in Way for one in sorted(carries) for two in targets[way]]
    if output == "json":
        shown = {"pairs": [_pair(pair) for pair in pairs], "routes": list(_routes(loaded, carries))}
        click.echo(json.dumps(shown, indent=2))
    else:
        _print(pairs, _routes(loaded, carries))


def _pair(pair: Fidelity) -> dict[str, Any]:
    return {
        "source": pair.source,
        "target": pair.target,
        "way": pair.way.value,
        "fields": {f.name: {"fate": f.fate.value, "note": f.note} for f in pair.fields},
        "losses": sorted(pair.losses),
        "promise": pair.promise,
    }


def _routes(config: Config, carries: Mapping[str, Carries]) -> Sequence[dict[str, Any]]:
    from gateway.routing.fidelity import targets_of

    return [
        {
            "route": route.name,
            "target": found.target.word,
            "address": found.target.address,
            "accept_loss": sorted(found.target.accept_loss),
            "pairs": [_pair(pair) for pair in found.pairs],
        }
        for route in config.routes
        for found in targets_of(route, config, carries)
    ]


def _print(pairs: Sequence[Fidelity], routes: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for way, title in (("bridge", "Stored here, read here (bridge)"), ("forward", "Delivered elsewhere (forward)")):
        chosen = [_pair(pair) for pair in pairs if pair.way.value == way]
        _table(console, title, chosen)
        promises: dict[str, list[str]] = {}
        for pair in chosen:
            promises.setdefault(pair["promise"], []).append(f"{pair['source']} to {pair['target']}")
        for promise, of in promises.items():
            console.print(f"{promise}\n  {', '.join(of)}", highlight=False)
        console.print()
    for route in routes:
        accepted = ", ".join(route["accept_loss"]) or "nothing"
        title = f"Route {route['route']}: {route['target']} to {route['address']} (accepts the loss of: {accepted})"
        _table(console, title, route["pairs"])
        for pair in route["pairs"]:
            console.print(f"{pair['source']} to {pair['target']}: {pair['promise']}", highlight=False)
        console.print()


def _table(console: Any, title: str, pairs: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    table.add_column("from")
    table.add_column("to")
    for name in pairs[0]["fields"] if pairs else ():
        table.add_column(name, overflow="fold")
    for pair in pairs:
        marks = [_MARKS[field["fate"]] for field in pair["fields"].values()]
        table.add_row(pair["source"], pair["target"], *marks)
    console.print(table)
