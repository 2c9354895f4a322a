"""`gateway topics`: what there is."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import examples, output_option
from gateway.cli.printing import table
from gateway.cli.url import PlaceType, UrlTarget
from gateway.errors import NotFound, Unsupported
from gateway.requests import CreateTopic, DeleteTopic, DescribeTopics, TopicInfo, Topics


@click.command(
    epilog=examples(
        "gateway topics rustlog://127.0.0.1:9192",
        "gateway topics flymq://127.0.0.1:9092/orders --output json",
        "gateway topics flymq://127.0.0.1:9092/orders --create --partitions 4",
    )
)
@click.argument("place", type=PlaceType(address_needed=False), metavar="URL")
@click.option("--create", is_flag=True, help="Create the topic first; one that exists is kept as it is.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="For --create.")
@click.option("--delete", is_flag=True, help="Delete the topic and everything in it.")
@output_option
@dialling_options
def command(place: UrlTarget, create: bool, partitions: int, delete: bool, output: str, dialling: Dialling) -> None:
    """List topics with their partitions and offsets.

    Of one topic with a path in the URL, of all that this listener can name without one. MESSAGES is how
    many offsets lie between START and END: at most so many messages, where the log is on Kafka.
    """

    from gateway.cli.reading import describe

    if (create or delete) and not place.address:
        raise click.UsageError("the URL has to name the topic")
    if create and delete:
        raise click.UsageError("--create and --delete exclude each other")

    async def run() -> Sequence[TopicInfo]:
        async with connected(place, dialling) as connection:
            if create:
                await connection.request(CreateTopic(0, place.address, partitions))
            if delete:
                await connection.request(DeleteTopic(0, place.address))
                return ()
            if place.address:
                found = await describe(connection, place.address)
                if found is None:
                    raise NotFound(f"there is no '{place.address}'")
                return [TopicInfo(place.address, found)]
            try:
                reply = await connection.request(DescribeTopics(0))
            except Unsupported as error:
                raise Unsupported(
                    f"{place.spec.name} has no way to list topics; ask a listener of another protocol"
                ) from error
            assert isinstance(reply, Topics)
            # a list may leave the offsets out; what describes one topic has them
            return [TopicInfo(one.address, await describe(connection, one.address) or ()) for one in reply.topics]

    topics = run_until_interrupted(run)
    if output == "json":
        click.echo(json.dumps([_as_json(topic) for topic in topics], indent=2))
    elif not delete:
        click.echo(_table(topics))


def _as_json(topic: TopicInfo) -> dict[str, object]:
    partitions = [{"partition": each.id, "start": each.start, "end": each.end} for each in topic.partitions]
    return {"address": topic.address, "partitions": partitions}


def _table(topics: Sequence[TopicInfo]) -> str:
    rows = [("ADDRESS", "PARTITION", "START", "END", "MESSAGES")]
    rows += [
        (topic.address, str(each.id), str(each.start), str(each.end), str(each.end - each.start))
        for topic in topics
        for each in topic.partitions
    ]
    return table(rows)
