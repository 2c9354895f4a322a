"""`gateway sub`: read messages as they come."""

from __future__ import annotations

import math

import click

from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import SecondsType, examples, output_option
from gateway.cli.url import PlaceType, UrlTarget
from gateway.requests import Start


class StartType(click.ParamType["Start | int"]):
    """`earliest`, `latest` or an offset."""

    name = "earliest|latest|OFFSET"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Start | int:
        if isinstance(value, Start | int):
            return value
        text = str(value)
        if text in {"earliest", "latest"}:
            return Start(text)
        if not (text.isascii() and text.isdigit()):
            self.fail(f"'{text}' is neither earliest nor latest nor an offset", param, ctx)
        return int(text)


@click.command(
    epilog=examples(
        "gateway sub blipmq://127.0.0.1:5555/orders --api-key dev-key",
        "gateway sub rustlog://127.0.0.1:9192/orders --from earliest --count 10 --timeout 5",
        "gateway sub flymq://127.0.0.1:9092/orders --group billing --output json | jq -r .value",
        "gateway sub felix://127.0.0.1:5000/acme/shop/orders --insecure",
    )
)
@click.argument("place", type=PlaceType(), metavar="URL")
@click.option(
    "--from", "start", type=StartType(), default="latest", show_default=True,
    help="Where to begin, in the protocols that can: at the oldest, from now on, or at this offset.",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(min=1), default=None, help="End after so many messages.")
@click.option("--timeout", type=SecondsType(), default=None, help="End after reading for so long: 5 or 5s.")
@click.option("--group", default="", help="Go on where this group (FlyMQ, RustLog) or reader (Fujin) left off.")
@output_option
@dialling_options
def command(
    place: UrlTarget,
    start: Start | int,
    count: int | None,
    timeout: float | None,
    group: str,
    output: str,
    dialling: Dialling,
) -> int:
    """Read messages as they come, one value a line.

    Begins with what is published from now on unless --from says otherwise. The time of --timeout begins when the other
    side has agreed; ending by it is what was asked for (exit code 0), unless --count asked for more than came (1).
    """
    import trio

    from gateway.cli.printing import Printer
    from gateway.cli.reading import Wish, read

    printer = Printer(place, output, count)

    async def run() -> bool:
        with trio.CancelScope() as scope:

            def ready() -> None:
                scope.deadline = trio.current_time() + (timeout if timeout is not None else math.inf)

            async with connected(place, dialling) as connection:
                await read(connection, place, Wish(start=start, group=group), printer, ready)
        return scope.cancelled_caught

    if run_until_interrupted(run) and (printer.left or not printer.shown):
        wanted = f" of {count}" if count is not None else ""
        click.echo(f"{printer.shown}{wanted} messages came in {timeout:g} s", err=True)
    return 1 if printer.left else 0
