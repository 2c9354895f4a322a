"""`gateway check`: is a configuration good, and if not, everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gateway.cli.options import examples, output_option

EXIT_PROBLEMS = 1
EXIT_CANNOT_LOOK = 2


@click.command(epilog=examples("gateway check routes.yaml", "gateway check routes.yaml --output json"))
@click.argument("file", type=click.Path(path_type=Path))
@output_option
@click.pass_context
def command(context: click.Context, file: Path, output: str) -> None:
    """Check a configuration without starting anything.

    Every problem is one line: FILE:LINE: path: message. Exit code 0: good; 1: problems; 2: the file could not be read.
    """
    from gateway.config.load import load
    from gateway.errors import ConfigError, ConfigProblem

    problems: list[ConfigProblem] = []
    try:
        config = load(file)
    except ConfigError as error:
        problems = [problem for problem in error.exceptions if isinstance(problem, ConfigProblem)]
    except OSError as error:
        click.echo(f"gateway: cannot read {file}: {error.strerror or error}", err=True)
        context.exit(EXIT_CANNOT_LOOK)
    if output == "json":
        listed = [{"file": p.file, "line": p.line, "path": p.path, "message": p.message} for p in problems]
        click.echo(json.dumps({"good": not problems, "problems": listed}, indent=2))
    elif problems:
        for problem in problems:
            click.echo(str(problem))
    else:
        routes = f"{len(config.routes)} route{'s' if len(config.routes) != 1 else ''}"
        listeners = f"{len(config.listeners)} listener{'s' if len(config.listeners) != 1 else ''}"
        click.echo(f"{file}: good ({listeners}, {routes})")
    if problems:
        context.exit(EXIT_PROBLEMS)
