"""`gateway tail`: the last messages, and what follows."""

from __future__ import annotations

import click

from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import examples, output_option
from gateway.cli.url import PlaceType, UrlTarget


@click.command(
    epilog=examples(
        "gateway tail rustlog://127.0.0.1:9192/orders",
        "gateway tail flymq://127.0.0.1:9092/orders -n 100 --no-follow",
    )
)
@click.argument("place", type=PlaceType(), metavar="URL")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=10, show_default=True, help="How many to show first."
)
@click.option("--follow/--no-follow", "-f/-F", default=True, show_default=True, help="Go on with what comes.")
@output_option
@dialling_options
def command(place: UrlTarget, lines: int, follow: bool, output: str, dialling: Dialling) -> None:
    """Show the last messages and follow.

    Of an address with several partitions, the last by the time they were stored. A protocol that only pushes is read
    from the oldest on until nothing more comes; one that cannot begin in the past is followed from where it stands.
    """

    from gateway.cli.printing import Printer
    from gateway.cli.reading import Wish, read

    async def run() -> None:
        async with connected(place, dialling) as connection:
            await read(connection, place, Wish(last=lines, follow=follow), Printer(place, output, None))

    run_until_interrupted(run)
