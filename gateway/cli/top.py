"""`gateway top`: what flows where, live."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint

WIDE = 80
HOME, CLEAR = "\x1b[H", "\x1b[J"
UNITS = ("", "k", "M", "G", "T")

Pulse = Mapping[str, Any]


@click.command(epilog=examples("gateway top", "gateway top --count 1", "gateway top --output json"))
@click.option("--count", "-n", type=click.IntRange(min=1), help="End after so many.")
@output_option
@admin_options
def command(count: int | None, output: str, endpoint: Endpoint) -> None:
    """Show what flows where in a running gateway, once a second: routes, connections, upstreams, and whether every message
    is accounted for.
    """
    from gateway.pipeline.endpoint_http import EndpointCaller

    caller = EndpointCaller(endpoint)
    live = sys.stdout.isatty() and output == "text"
    try:
        for number, (_name, data) in enumerate(caller.events("/v1/events"), 1):
            if output == "json":
                click.echo(data.decode())
            else:
                screen = "\n".join(line[:WIDE] for line in lines(json.loads(data)))
                click.echo(
                    HOME + screen.replace("\n", "\x1b[K\n") + "\x1b[K\n" + CLEAR if live else screen, nl=not live
                )
            if number == count:
                break
    finally:
        caller.close()


def lines(pulse: Pulse) -> Iterator[str]:
    state = "ready" if pulse["ready"] else f"NOT READY ({pulse['phase']})"
    audit = "every message accounted for" if not pulse["unaccounted"] else f"{pulse['unaccounted']} UNACCOUNTED"
    yield f"{state}   in {_rate(pulse['received'])}   out {_rate(pulse['delivered'])}   {audit}"
    for problem in (*pulse["problems"], *pulse["wrong"]):
        yield f"  ! {_plain(problem)}"
    for waiting in pulse["waiting"]:
        yield f"  . {_plain(waiting)}"
    yield ""
    yield f"{'ROUTE':<24}{'IN/S':>9}{'STORED/S':>10}{'OUT/S':>9}{'BYTES/S':>10}{'REFUSED/S':>10}{'DEAD/S':>8}"
    for route, (came, stored, left, size) in sorted(_routes(pulse["flows"]).items()):
        refused, dead = (pulse[what].get(route, 0.0) for what in ("refused", "dead_lettered"))
        yield (
            f"{_plain(route)[:23]:<24}{_short(came):>9}{_short(stored):>10}{_short(left):>9}{_short(size):>10}"
            f"{_short(refused):>10}{_short(dead):>8}"
        )
    yield ""
    yield f"{'LISTENER':<24}{'CONNECTIONS':>12}{'HELD BACK/S':>13}"
    for listener, connections in pulse["connections"].items():
        yield f"{_plain(listener)[:23]:<24}{connections:>12}{_short(pulse['held_back'].get(listener, 0.0)):>13}"
    if pulse["upstreams"]:
        yield ""
        yield f"{'UPSTREAM':<24}{'STATE':<10}{'CIRCUIT':<9}{'BACKLOG':>9}{'UNDER WAY':>11}"
    for one in pulse["upstreams"]:
        state = "up" if one["connected"] else "DOWN"
        yield f"{_plain(one['name'])[:23]:<24}{state:<10}{one['circuit']:<9}{one['backlog']:>9}{one['in_flight']:>11}"


def _routes(flows: Sequence[Mapping[str, Any]]) -> Mapping[str, list[float]]:
    # by route: in, stored, out, bytes in
    found: dict[str, list[float]] = {}
    for flow in flows:
        source, _, target = flow["edge"].partition(">")
        kind, _, name = source.partition(":")
        route = target.partition(":")[2] if kind == "listener" else name
        row = found.setdefault(route, [0.0, 0.0, 0.0, 0.0])
        row[("listener", "route", "topics").index(kind)] += flow.get("messages", 0.0)
        if kind == "listener":
            row[3] += flow.get("size", 0.0)
    return found


def _rate(flow: Mapping[str, float]) -> str:
    return f"{_short(flow.get('messages', 0.0))}/s ({_short(flow.get('size', 0.0))}B/s)"


def _short(value: float) -> str:
    for unit in UNITS:
        if value < 999.95 or unit == UNITS[-1]:
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
        value /= 1000
    return ""


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
