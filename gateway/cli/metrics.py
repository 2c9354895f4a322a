"""`gateway metrics`: what is exported."""

from __future__ import annotations

import json

import click

from gateway.cli.options import output_option


@click.command
@output_option
def command(output: str) -> None:
    """List every metric the gateway exports.

    The table is made from the code, so it is what /metrics on the admin address really has.
    """
    from gateway.observe.metrics import FAMILIES, table

    if output == "json":
        rows = [
            {
                "name": f.exported,
                "type": f.kind.value,
                "labels": list(f.labels),
                "help": f.help,
                "buckets": list(f.buckets),
            }
            for f in FAMILIES
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        click.echo(table())
