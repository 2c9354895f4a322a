"""Options that several commands share, so that they are spelt and explained the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

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
