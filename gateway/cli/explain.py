"""`gateway explain`: the way a message would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.options import config_option, examples, output_option

if TYPE_CHECKING:
    from gateway.model import Config
    from gateway.protocols.registry import ProtocolSpec
    from gateway.routing.explain import Explanation

EXIT_NOT_ROUTED = 1


@click.command(
    epilog=examples(
        "gateway explain --protocol flymq --address orders.eu",
        "gateway explain --protocol flymq --address orders.eu --key eu-1 --header kind=order",
        """gateway explain --protocol flymq --address orders.eu --data '{"amount": 12}'""",
    )
)
@config_option
@click.option("--protocol", required=True, help="The protocol it is sent with.")
@click.option("--address", required=True, help="Where it is sent to, as a client of that protocol writes it.")
@click.option("--listener", help="The listener (or the upstream with `ingest`) it comes in at, if there are several.")
@click.option("--key", help="The message's key.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of the message. May repeat.")
@click.option("--data", "-d", help="The message: shows what the route's transform makes of it.")
@click.option("--principal", default="", help="Who sends it.")
@output_option
@click.pass_context
def command(
    context: click.Context,
    config: Path,
    protocol: str,
    address: str,
    listener: str | None,
    key: str | None,
    headers: tuple[str, ...],
    data: str | None,
    principal: str,
    output: str,
) -> None:
    """Show the route a message would take, what is done to it, where it goes and what it loses.

    The answer comes from the code that routes. Exit code 0: there is a way; 1: nothing would take the message; 2: could
    not look.
    """
    from gateway.config.load import load
    from gateway.errors import InvalidRequest, NotRouted
    from gateway.protocols.registry import carried, protocols
    from gateway.routing.explain import Question, explain
    from gateway.routing.table import compile_table

    loaded = load(config)
    specs = protocols()
    if protocol not in specs:
        raise click.BadParameter(f"there is no protocol {protocol!r}", context, param_hint="--protocol")
    place = _listener(context, loaded, protocol, listener)
    question = Question(
        protocol=protocol,
        listener=place,
        address=_as_written(loaded, specs[protocol], place, address),
        key=key.encode() if key is not None else None,
        headers=tuple(_header(context, text) for text in headers),
        principal=principal,
        value=data.encode() if data is not None else None,
    )
    carries = carried(specs)
    try:
        answer = explain(compile_table(loaded, specs), loaded, carries, question)
    except (NotRouted, InvalidRequest) as refused:
        if output == "json":
            click.echo(json.dumps({"refused": refused.status.value, "message": refused.message}, indent=2))
        else:
            click.echo(f"refused: {refused.message}")
        context.exit(EXIT_NOT_ROUTED)
    click.echo(_as_json(answer) if output == "json" else _as_text(answer))


def _listener(context: click.Context, config: Config, protocol: str, name: str | None) -> str:
    # The listener that is meant: the named one, or the first that speaks the protocol. What is pulled from an upstream comes
    # in as if at a listener of its name.
    speaking = [listener.name for listener in config.listeners.values() if protocol in listener.protocols]
    speaking += [one.name for one in config.upstreams.values() if one.ingest and one.protocol == protocol]
    if name is None:
        if not speaking:
            raise click.BadParameter(f"no listener speaks {protocol}", context, param_hint="--protocol")
        return speaking[0]
    if name not in speaking:
        known = ", ".join(speaking) or "none"
        raise click.BadParameter(
            f"{name!r} does not speak {protocol} (these do: {known})", context, param_hint="--listener"
        )
    return name


def _as_written(config: Config, spec: ProtocolSpec, place: str, address: str) -> str:
    # the address as the sessions of a listener name it
    if place not in config.listeners:
        return address
    return spec.local_address(config.listeners[place].settings[spec.name], address)


def _header(context: click.Context, text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r}: write it as NAME=VALUE", context, param_hint="--header")
    return name, value.encode()


def _as_text(answer: Explanation) -> str:
    asked = answer.question
    lines = [f"{asked.protocol}: {asked.address} (listener {asked.listener!r})", f"  route {answer.route!r}"]
    for step in answer.steps:
        lines.append(f"  {step.kind:<13} {step.where}")
        lines.extend(f"  {'':<13}   {note}" for note in step.notes)
    if answer.topic and answer.read_topic != answer.topic:
        lines.append(f"  note: a reader of this address reads {answer.read_topic or 'nothing'!r}, not {answer.topic!r}")
    return "\n".join(lines)


def _as_json(answer: Explanation) -> str:
    shown = {
        "protocol": answer.question.protocol,
        "listener": answer.question.listener,
        "address": answer.question.address,
        "route": answer.route,
        "topic": answer.topic,
        "read_topic": answer.read_topic,
        "steps": [{"kind": s.kind, "where": s.where, "notes": list(s.notes)} for s in answer.steps],
    }
    return json.dumps(shown, indent=2)
