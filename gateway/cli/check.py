"""`gateway check`: is a configuration good, and if not, everything that is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.admin.ways import Checked, ProblemShown
    from gateway.config.document import Notebook
    from gateway.model import Config
    from gateway.pipeline.endpoint import Endpoint

EXIT_PROBLEMS = 1
EXIT_CANNOT_LOOK = 2


@click.command(
    epilog=examples(
        "gateway check routes.yaml",
        "gateway check routes.yaml --live",
        "gateway check routes.yaml --output json",
        "gateway check routes.yaml --admin http://127.0.0.1:9600",
        "gateway check --admin http://127.0.0.1:9600",
    )
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--live",
    is_flag=True,
    help="Also try what only a start would show: whether the ports are free, whether the upstreams answer and let us in.",
)
@output_option
@admin_options
@click.pass_context
def command(context: click.Context, file: Path | None, live: bool, output: str, endpoint: Endpoint) -> None:
    """Check a configuration without starting anything.

    Certificates, keys and secrets are loaded, and directories are written to. Every problem is one line: FILE:LINE: path:
    message. With --admin the gateway that runs there is asked, which also says what FILE would change; without FILE it
    looks at its own. Exit code 0: good, though there may be warnings; 1: problems; 2: the file could not be read.
    """
    # what is exported for other commands does not make this one ask: a check of a file is one without anything that runs
    asked = file is None or context.get_parameter_source("admin") is ParameterSource.COMMANDLINE
    if asked and live:
        raise click.UsageError("--live tries to start what runs already: leave it out, or --admin")
    try:
        found = _of_gateway(file, endpoint) if asked else _of_file(file or Path(), live=live)
    except OSError as error:
        click.echo(f"gateway: cannot read {file}: {error.strerror or error}", err=True)
        context.exit(EXIT_CANNOT_LOOK)
    if output == "json":
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        _print(found, asked=asked)
    if not found.good:
        context.exit(EXIT_PROBLEMS)


def _of_file(file: Path, *, live: bool) -> Checked:
    from gateway.admin.ways import checked
    from gateway.config.load import examine_file

    def probe(config: Config, notes: Notebook) -> None:
        import trio

        from gateway.cli import probes

        probes.probe(config, notes)
        if live:
            trio.run(probes.probe_live, config, notes)

    return checked(str(file), examine_file(file, probe=probe))


def _of_gateway(file: Path | None, endpoint: Endpoint) -> Checked:
    import msgspec

    from gateway.admin.ways import Checked
    from gateway.bulk import wire
    from gateway.pipeline.endpoint_http import EndpointCaller

    text = file.read_bytes().decode("utf-8-sig", "replace") if file is not None else None
    caller = EndpointCaller(endpoint)
    try:
        body = msgspec.json.encode({"text": text})
        return caller.ask("POST", "/v1/configuration/check", Checked, body, wire.JSON)
    finally:
        caller.close()


def _print(found: Checked, *, asked: bool) -> None:
    for problem in found.problems:
        click.echo(_line(problem))
    for warning in found.warnings:
        click.echo(f"{_line(warning)} (a warning)")
    if not found.good:
        return
    counted = (
        f"{found.listeners} listener{'s' * (found.listeners != 1)}, {found.routes} route{'s' * (found.routes != 1)}"
    )
    click.echo(f"{found.file}: good ({counted})")
    for change in found.plan:
        click.echo(f"  {change}")
    if asked and not found.plan:
        click.echo("  it is what the gateway does")


def _line(one: ProblemShown) -> str:
    from gateway.errors import ConfigProblem

    return str(ConfigProblem(one.message, file=one.file, line=one.line, path=one.path))
