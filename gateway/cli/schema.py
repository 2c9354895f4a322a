"""`gateway schema`: the JSON Schema of the configuration file, for editors."""

from __future__ import annotations

import json

import click

from gateway.cli.options import examples


@click.command(epilog=examples("gateway schema > routes.schema.json"))
def command() -> None:
    """Print the JSON Schema of routes.yaml.

    It is made from the grammar that reads the file, so it knows every key, those of each protocol included. An editor
    can complete and check keys with it; everything between keys is what `gateway check` is for.
    """
    from gateway.config.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
