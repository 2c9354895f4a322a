"""Options that several commands share, so that they are spelt and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path

import click


def examples(*lines: str) -> str:
    """Example command lines for a command's `epilog`, kept as they are (click would fill them into a paragraph)."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON for programs.",
)

config_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    default="routes.yaml",
    show_default=True,
    help="The configuration file.",
)
