"""`gateway audit`: ask where every message is, and whether the sum comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.admin import admin_options
from gateway.cli.options import examples, output_option

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint
    from gateway.recorder import ConsumerCounts
    from gateway.store.reader import LogReader

EXIT_FINDINGS = 1
_NAMES = frozenset({"route", "kind", "name", "topic", "partition", "start", "end", "unaccounted"})
"""Fields of an account that are no count of messages."""

Account = Mapping[str, Any]


@click.command(
    epilog=examples(
        "gateway audit", "gateway audit --admin https://gateway:9600 --ca ca.pem", "gateway audit --path ./data"
    )
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The directory of a store instead of a running gateway: what is written there of forwards and subscriptions.",
)
@output_option
@admin_options
@click.pass_context
def command(context: click.Context, path: Path | None, output: str, endpoint: Endpoint) -> None:
    """Check that no message is lost or counted twice: per route what came in and where it is, per durable consumer what
    the log holds and what became of it. How far consumer groups are behind is beside that: of a running gateway those of
    `metrics.groups`, of a store all.

    Exit code 0: every account is balanced; 1: one is not; 2: could not look.
    """
    doors, consumers, groups = _stored(path) if path is not None else _served(endpoint)
    accounts = (*doors, *consumers)
    wrong = [account for account in accounts if account["unaccounted"]]
    if output == "json":
        click.echo(
            json.dumps({"doors": doors, "consumers": consumers, "groups": groups, "balanced": not wrong}, indent=2)
        )
    else:
        for account in accounts:
            click.echo(_line(account))
        for group in groups:
            click.echo(_behind(group))
        click.echo(f"{len(wrong)} of {len(accounts)} accounts do not add up" if wrong else f"{len(accounts)} balanced")
    if wrong:
        context.exit(EXIT_FINDINGS)


def _line(account: Account) -> str:
    if "route" in account:
        name = f"route {account['route'] or '(none)'}"
    else:
        name = f"{account['kind']} {account['name']} of {account['topic']}/{account['partition']}"
        name += f", offsets {account['start']} to {account['end']}"
    counts = ", ".join(f"{word.replace('_', ' ')} {account[word]}" for word in account if _counts(account, word))
    verdict = f"UNACCOUNTED {account['unaccounted']}" if account["unaccounted"] else "balanced"
    return f"{verdict}: {name}: {counts or 'nothing yet'}"


def _behind(group: Account) -> str:
    name = (
        f"group {group['group']} of {group['topic']}/{group['partition']}, offsets {group['start']} to {group['end']}"
    )
    return f"{name}: committed {group['committed']}, {group['lag']} behind"


def _counts(account: Account, word: str) -> bool:
    return word not in _NAMES and bool(account[word])


def _served(endpoint: Endpoint) -> tuple[Sequence[Account], Sequence[Account], Sequence[Account]]:
    import msgspec

    from gateway.pipeline.endpoint_http import EndpointCaller

    class Report(msgspec.Struct):
        doors: list[dict[str, Any]]
        consumers: list[dict[str, Any]]
        groups: list[dict[str, Any]]

    caller = EndpointCaller(endpoint)
    try:
        report = caller.ask("GET", "/v1/audit", Report)
    finally:
        caller.close()
    return report.doors, report.consumers, report.groups


def _stored(path: Path) -> tuple[Sequence[Account], Sequence[Account], Sequence[Account]]:
    import attrs

    from gateway.cli.groups import stored
    from gateway.store.reader import LogReader

    with LogReader(path) as log:
        counts = [*_forwards(log), *_subscriptions(log)]
    accounts = [{**attrs.asdict(one), "unaccounted": one.unaccounted} for one in counts]
    return (), accounts, [attrs.asdict(one) for one in stored(path)]


def _forwards(log: LogReader) -> Iterator[ConsumerCounts]:
    # what is written of each forward; of a topic that was made again nothing is
    from gateway.bridges.forward_rows import read_cursor, stored_cursors
    from gateway.broker.consume.consumer import counts_of
    from gateway.broker.identity import TABLE
    from gateway.store.ack_window import MAX_SPAN

    topics = log.topics()
    for name, topic, partition, row in stored_cursors(log.rows(TABLE)):
        epoch, window, tally = read_cursor(row, MAX_SPAN)
        found = topics.get(topic)
        if found is not None and found.epoch == epoch and partition < len(found.partitions):
            yield counts_of("forward", name, topic, partition, found.partitions[partition].end, window, tally)


def _subscriptions(log: LogReader) -> Iterator[ConsumerCounts]:
    # a subscription's cursor keeps no account of its past: it must not be beyond the log, that is all
    from gateway.broker.consume.cursors import CURSORS, SUBSCRIPTIONS, read_subscriptions
    from gateway.recorder import ConsumerCounts
    from gateway.store.ack_window import AckWindow

    topics = log.topics()
    rows = read_subscriptions(dict(log.rows(SUBSCRIPTIONS)), dict(log.rows(CURSORS)))
    for number, row, windows in rows:
        found = topics.get(row.topic)
        if found is None or found.epoch != row.epoch:
            continue
        for partition, raw in sorted(windows.items()):
            window, end = AckWindow.from_bytes(raw), found.partitions[partition].end
            settled = window.settled_above
            yield ConsumerCounts(
                kind="reader" if row.name else "subscription",
                name=row.name or str(number),
                start=window.low,
                end=end,
                acknowledged=settled,
                backlog=max(0, end - window.low - settled),
                topic=row.topic,
                partition=partition,
                position=window.low,
            )
