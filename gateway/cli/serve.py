"""`gateway serve`: run the gateway."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gateway.cli.options import config_option, examples
from gateway.observe.logging import LEVELS


@click.command(
    epilog=examples(
        "gateway serve --config routes.yaml",
        "BLIPMQ_KEY=secret gateway serve -c gateway.yaml --log-format json",
    )
)
@config_option
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to log.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="Logs on standard error: for people, as JSON lines, or whichever fits where they go.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that share the ports; more than one with a log on Kafka.",
)
@click.option("--part", default="", hidden=True)
def command(config: Path, log_level: str, log_format: str, workers: int, part: str) -> None:
    """Serve every listener of a configuration file.

    Prints a line for each listener with its real port and the routes that are live, then `ready`. SIGTERM or SIGINT
    drains: nothing new is accepted, what is under way is answered; a second signal ends at once. SIGHUP reads FILE
    again: new routes count from the next request on, and a file with problems changes nothing.
    """
    import functools

    import trio

    from gateway.config.load import load
    from gateway.observe.logging import configure

    loaded = load(config)
    if workers > 1:
        from gateway.supervisor import check_workers, supervise

        check_workers(loaded, workers)
        configure(as_json=None if log_format == "auto" else log_format == "json", level=log_level)
        arguments = ["--config", str(config), "--log-level", log_level, "--log-format", log_format]
        sys.exit(trio.run(supervise, loaded, workers, arguments, _announce))
    configure(as_json=None if log_format == "auto" else log_format == "json", level=log_level)
    from gateway.app import serve  # after the configuration has turned out good: its mistakes show at once

    whole = None
    if part:
        from gateway.supervisor import WorkerPart

        whole = WorkerPart.from_text(part)
    trio.run(functools.partial(serve, loaded, announce=_announce, part=whole))


def _announce(line: str) -> None:
    # a line on standard output at once, for whoever waits for `ready`
    print(line, flush=True)
