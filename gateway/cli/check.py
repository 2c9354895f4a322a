"""`gateway check`: is a configuration good, and if not, everything that is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.config.document import Notebook
    from gateway.errors import ConfigProblem
    from gateway.model import Config

EXIT_PROBLEMS = 1
EXIT_CANNOT_LOOK = 2


@click.command(
    epilog=examples(
        "gateway check routes.yaml", "gateway check routes.yaml --live", "gateway check routes.yaml --output json"
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--live",
    is_flag=True,
    help="Also try what only a start would show: whether the ports are free, whether the upstreams answer and let us in.",
)
@output_option
@click.pass_context
def command(context: click.Context, file: Path, live: bool, output: str) -> None:
    """Check a configuration without starting anything.

    Certificates, keys and secrets are loaded, and directories are written to. Every problem is one line: FILE:LINE: path:
    message. Exit code 0: good, though there may be warnings; 1: problems; 2: the file could not be read.
    """
    from gateway.config.load import examine_file

    def probe(config: Config, notes: Notebook) -> None:
        import trio

        from gateway.cli import probes

        probes.probe(config, notes)
        if live:
            trio.run(probes.probe_live, config, notes)

    try:
        found = examine_file(file, probe=probe)
    except OSError as error:
        click.echo(f"gateway: cannot read {file}: {error.strerror or error}", err=True)
        context.exit(EXIT_CANNOT_LOOK)
    if output == "json":
        shown = {"good": not found.problems, "problems": _listed(found.problems), "warnings": _listed(found.warnings)}
        click.echo(json.dumps(shown, indent=2))
    else:
        for problem in found.problems:
            click.echo(str(problem))
        for warning in found.warnings:
            click.echo(f"{warning} (a warning)")
        if found.config is not None and not found.problems:
            listeners, routes = len(found.config.listeners), len(found.config.routes)
            counted = f"{listeners} listener{'s' * (listeners != 1)}, {routes} route{'s' * (routes != 1)}"
            click.echo(f"{file}: good ({counted})")
    if found.problems:
        context.exit(EXIT_PROBLEMS)


def _listed(problems: Sequence[ConfigProblem]) -> Sequence[dict[str, object]]:
    return [{"file": p.file, "line": p.line, "path": p.path, "message": p.message} for p in problems]
