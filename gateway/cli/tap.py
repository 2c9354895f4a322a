"""`gateway tap`: messages as they come in, live."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint

LONGEST = 160


@click.command(
    epilog=examples(
        "gateway tap",
        "gateway tap --route orders --sample 100",
        "gateway tap --protocol flymq --expression 'value.amount > 10' --stage after",
        "gateway tap --principal 'shop-*' --redact --output json",
    )
)
@click.option("--route", default="", help="Only messages of this route (a glob).")
@click.option("--protocol", default="", help="Only messages that came by this protocol.")
@click.option("--principal", default="", help="Only messages of this sender (a glob).")
@click.option("--expression", "-e", default="", help="Only messages for which this is true (CEL: value, key, headers).")
@click.option("--sample", type=click.IntRange(min=1), default=1, show_default=True, help="One message of so many.")
@click.option(
    "--stage",
    type=click.Choice(("both", "before", "after")),
    default="both",
    show_default=True,
    help="As it came, as its route's transform made it, or both.",
)
@click.option("--redact", is_flag=True, help="Show sizes instead of keys, headers and values.")
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after so many messages.")
@output_option
@admin_options
def command(
    route: str,
    protocol: str,
    principal: str,
    expression: str,
    sample: int,
    stage: str,
    redact: bool,
    count: int | None,
    output: str,
    endpoint: Endpoint,
) -> None:
    """Show messages as they come into a running gateway, before and after their route's transform.

    The gateway is not slowed: what there is no time for is left out, and how much that was is said on standard error.
    """
    from urllib.parse import urlencode

    from gateway.pipeline.endpoint_http import EndpointCaller

    asked = {
        "route": route,
        "protocol": protocol,
        "principal": principal,
        "expression": expression,
        "sample": sample,
        "stage": stage,
        "redact": str(redact).lower(),
    }
    caller = EndpointCaller(endpoint)
    shown = dropped = 0
    try:
        for number, (name, data) in enumerate(caller.events(f"/v1/tap?{urlencode(asked)}")):
            event = json.loads(data)
            if not number:  # it begins with a report
                click.echo("gateway: looking on; an interrupt ends it", err=True)
            if name == "report":
                if event["report"]["dropped"] > dropped:
                    dropped = event["report"]["dropped"]
                    click.echo(f"{dropped} of {event['report']['seen']} messages left out so far", err=True)
                continue
            click.echo(data.decode() if output == "json" else "\n".join(lines(event["message"])))
            shown += 1
            if shown == count:
                break
    finally:
        caller.close()


def lines(one: Mapping[str, Any]) -> Iterator[str]:
    # a listener is often called as its protocol is
    who = " ".join(
        dict.fromkeys(_plain(one[part]) for part in ("protocol", "listener", "principal", "client") if one[part])
    )
    fate = "" if one["fate"] == "stored" else f"  {one['fate'].upper()}"
    yield f"{_plain(one['address'])}  route {_plain(one['route'])}  from {who}{fate}"
    if one["problem"]:
        yield f"  ! {_plain(one['problem'])}"
    untouched = one["fate"] == "stored" and not one["changed"]
    for stage in ("before", "after"):
        side = one[stage]
        if side is None or (stage == "after" and one["before"] is not None and not one["changed"]):
            continue
        key = f"key {_shown(side['key'])}  " if side["key"] is not None else ""
        headers = "".join(f"{_plain(header['name'])}={_shown(header['value'])}  " for header in side["headers"])
        yield f"  {'' if untouched else stage:<7}{key}{headers}{_shown(side['value'])}"


def _shown(content: Mapping[str, Any]) -> str:
    text = content.get("text")
    if text is None:
        return f"({content['size']} bytes)"
    return _plain(text[:LONGEST]) + (f"... ({content['size']} bytes)" if len(text) > LONGEST else "")


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
