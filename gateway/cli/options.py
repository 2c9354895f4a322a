"""Options that several commands share, so that they are spelt and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.errors import ConfigProblem
from gateway.notation import duration


class SecondsType(click.ParamType[float]):
    """A time as the configuration writes it, `500ms` or `2m`, or as a number of seconds."""

    name = "seconds"

    def __init__(self, least: float = 0.0, *, above: bool = False) -> None:
        """`above`: `least` itself is too little."""
        self._least = least
        self._above = above

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Whatever was written, in seconds."""
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = duration(str(value))
            except ConfigProblem:
                self.fail(f"{value!r} is neither a number of seconds nor a time like 500ms, 5s or 2m", param, ctx)
        if not (seconds > self._least if self._above else seconds >= self._least):
            self.fail(f"{value!r} is not {'more than' if self._above else 'at least'} {self._least:g} s", param, ctx)
        return seconds


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
