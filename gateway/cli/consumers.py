"""`gateway consumers`: where subscriptions, named readers and forwards are, and how to put one elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option
from gateway.cli.placing import placing_options, show_moves, where_to
from gateway.cli.printing import table

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint

AT_A_TIME = 200


@click.group(
    epilog=examples(
        "gateway consumers list",
        "gateway consumers reset reader billing --topic orders --to earliest --dry-run",
    )
)
def command() -> None:
    """Look at durable consumers of a running gateway, and put one elsewhere.

    They are the subscriptions that outlive their connection, readers with a name, and forwards. The consumer groups of FlyMQ
    and RustLog clients are in `gateway groups`.
    """


@command.command("list", epilog=examples("gateway consumers list", "gateway consumers list --search billing"))
@click.option("--search", default="", help="Only those with this in their name or topic.")
@output_option
@admin_options
def list_(search: str, output: str, endpoint: Endpoint) -> None:
    """List each consumer, partition by partition, those furthest behind first."""
    found = list(_consumers(endpoint, search))
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [("KIND", "NAME", "TOPIC", "PARTITION", "POSITION", "END", "NOT SETTLED")]
    numbers = ("partition", "position", "end", "backlog")
    rows += [(one["kind"], one["name"], one["topic"], *(str(one[name]) for name in numbers)) for one in found]
    click.echo(table(rows, texts=3))


@command.command(
    epilog=examples(
        "gateway consumers reset reader billing --topic orders --to earliest --dry-run",
        "gateway consumers reset reader billing --topic orders --partition 0 --to 2026-01-31T12:00:00Z",
    )
)
@click.argument("kind", type=click.Choice(("subscription", "reader", "forward")))
@click.argument("name")
@placing_options("Also while connections read from it: what they have and did not settle is not theirs any more.")
@output_option
@admin_options
def reset(
    kind: str,
    name: str,
    topic: str,
    partition: int | None,
    to: str,
    dry_run: bool,
    force: bool,
    output: str,
    endpoint: Endpoint,
) -> None:
    """Put a consumer elsewhere on a topic: all partitions in one commit, or none.

    A subscription's name is its number, a forward's what its target is called in the configuration. SKIPPED is what
    it had not settled and will not get, AGAIN what it had and gets once more; both are counted in the audit. Attempts
    begin anew. A forward rests for that moment; from a subscription or a reader nobody may be reading, without --force.
    Of several gateways on one Kafka any will do; partitions of a forward that not all are at that one go one after the other.
    """
    import msgspec

    from gateway.bulk import wire
    from gateway.pipeline.endpoint_http import EndpointCaller
    from gateway.requests import ConsumerReset

    where, value = where_to(to)
    asked = ConsumerReset(
        kind=kind, name=name, topic=topic, to=where, value=value, partition=partition, dry_run=dry_run, force=force
    )
    caller = EndpointCaller(endpoint)
    try:
        body = msgspec.msgpack.encode(asked)
        moves = caller.ask("POST", wire.RESET_CONSUMER, wire.ConsumerMoves, body, wire.MSGPACK).moves
    finally:
        caller.close()
    said = f"{kind} {name} {'would be' if dry_run else 'is'} there on {topic}"
    show_moves(moves, [one.backlog for one in moves], said, output)


def _consumers(endpoint: Endpoint, search: str) -> Iterator[dict[str, Any]]:
    from urllib.parse import urlencode

    import msgspec

    from gateway.pipeline.endpoint_http import EndpointCaller

    class ConsumersPage(msgspec.Struct):
        consumers: list[dict[str, Any]]
        total: int

    caller = EndpointCaller(endpoint)
    try:
        skip = 0
        while True:
            asked = urlencode({"search": search, "skip": skip, "limit": AT_A_TIME})
            page = caller.ask("GET", f"/v1/consumers?{asked}", ConsumersPage)
            yield from page.consumers
            skip += AT_A_TIME
            if skip >= page.total:
                return
    finally:
        caller.close()
