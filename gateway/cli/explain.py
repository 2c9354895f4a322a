"""`gateway explain`: the way a message would take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gateway.cli.either import Asking, either_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.admin.ways import WayTaken
    from gateway.model import Config
    from gateway.pipeline.endpoint_http import EndpointCaller

EXIT_NOT_ROUTED = 1


@click.command(
    epilog=examples(
        "gateway explain --protocol flymq --address orders.eu",
        "gateway explain --protocol flymq --address orders.eu --key eu-1 --header kind=order --config routes.yaml",
        """gateway explain --protocol flymq --address orders.eu --data '{"amount": 12}' --admin http://127.0.0.1:9600""",
    )
)
@click.option("--protocol", required=True, help="The protocol it is sent with.")
@click.option("--address", required=True, help="Where it is sent to, as a client of that protocol writes it.")
@click.option(
    "--listener", default="", help="The listener (or the upstream with `ingest`) it comes in at, if there are several."
)
@click.option("--key", help="The message's key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of the message. May repeat.")
@click.option("--data", "-d", help="The message: shows what the route's transform makes of it.")
@click.option("--principal", default="", help="Who sends it.")
@output_option
@either_options
@click.pass_context
def command(
    context: click.Context,
    asking: Asking,
    protocol: str,
    address: str,
    listener: str,
    key: str | None,
    headers: tuple[str, ...],
    data: str | None,
    principal: str,
    output: str,
) -> None:
    """Show the route a message would take, what is done to it, where it goes and what it loses.

    The answer comes from the code that routes: of the gateway that runs, or of a file. Exit code 0: there is a way; 1: nothing
    would take the message; 2: could not look.
    """
    import msgspec

    from gateway.admin.content import HeaderSent
    from gateway.admin.ways import WayAsked, WayTaken, way_of
    from gateway.bulk import wire
    from gateway.errors import InvalidRequest, NotFound, NotRouted
    from gateway.routing.table import compile_table

    asked = WayAsked(
        protocol=protocol,
        address=address,
        listener=listener,
        principal=principal,
        key=key.encode() if key is not None else None,
        headers=[HeaderSent(*_header(context, text)) for text in headers],
        value=data.encode() if data is not None else None,
    )

    def ask(caller: EndpointCaller) -> WayTaken:
        return caller.ask("POST", "/v1/explain", WayTaken, msgspec.json.encode(asked), wire.JSON)

    def work_out(config: Config) -> WayTaken:
        return way_of(config, compile_table(config), asked)

    try:
        found = asking.answer(ask, work_out)
    except NotFound as error:
        raise click.UsageError(error.message, context) from error
    except (NotRouted, InvalidRequest) as refused:
        if output == "json":
            click.echo(json.dumps({"refused": refused.status.value, "message": refused.message}, indent=2))
        else:
            click.echo(f"refused: {refused.message}")
        context.exit(EXIT_NOT_ROUTED)
    if output == "json":
        shown = msgspec.to_builtins(found)
        click.echo(json.dumps({name: value for name, value in shown.items() if value is not None}, indent=2))
    else:
        click.echo(_as_text(found))


def _header(context: click.Context, text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r}: write it as NAME=VALUE", context, param_hint="--header")
    return name, value.encode()


def _as_text(found: WayTaken) -> str:
    lines = [f"{found.protocol}: {found.address} (listener {found.listener!r})", f"  route {found.route!r}"]
    for step in found.steps:
        lines.append(f"  {step.kind:<13} {step.where}")
        lines.extend(f"  {'':<13}   {note}" for note in step.notes)
    if found.topic and found.read_topic != found.topic:
        lines.append(f"  note: a reader of this address reads {found.read_topic or 'nothing'!r}, not {found.topic!r}")
    return "\n".join(lines)
