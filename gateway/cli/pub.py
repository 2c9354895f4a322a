"""`gateway pub`: publish messages."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from gateway.cli.connection import Dialling, connected, dialling_options
from gateway.cli.options import examples, output_option
from gateway.cli.url import Place, PlaceType
from gateway.envelope import Batch, Columns, Headers
from gateway.requests import Publish, Published

BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 << 20
"""What goes out before an answer is waited for."""


@click.command(
    epilog=examples(
        "gateway pub blipmq://127.0.0.1:5555/orders --api-key dev-key --data hello",
        "gateway pub flymq://127.0.0.1:9092/orders --key eu-1 --header kind=order --file order.json",
        "seq 1000 | gateway pub rustlog://127.0.0.1:9192/numbers",
        "gateway pub felix://127.0.0.1:5000/acme/shop/orders --insecure --data hello",
    )
)
@click.argument("place", type=PlaceType(), metavar="URL")
@click.option("--data", "-d", multiple=True, help="A message. May be given several times.")
@click.option("--file", "-f", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A file that is one message, byte for byte. May be given several times.")  # fmt: skip
@click.option("--key", "-k", default=None, help="The key of every message.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every message.")
@click.option("--partition", type=click.IntRange(min=0), default=None, help="Publish to this partition.")
@click.option(
    "--count", "-n", type=click.IntRange(min=1), default=1, show_default=True, help="Publish all of it this often."
)
@output_option
@dialling_options
def command(
    place: Place,
    data: Sequence[str],
    files: Sequence[Path],
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    count: int,
    output: str,
    dialling: Dialling,
) -> int:
    """Publish messages, and return once they are taken.

    Without --data and --file every line of standard input is a message. The command ends after the strongest sign the
    protocol has: a reply with the offset, or the PONG that follows everything published.
    """
    import trio

    carries = place.spec.carries
    for given, name, can in ((key, "--key", carries.key), (headers, "--header", carries.headers)):
        if given and not can:
            raise click.UsageError(f"{place.spec.name} cannot carry what {name} gives")
    if partition is not None and not carries.partition:
        raise click.UsageError(f"{place.spec.name} has no partitions to choose from")
    once = [text.encode() for text in data] + [path.read_bytes() for path in files]
    values = itertools.chain.from_iterable(itertools.repeat(once, count)) if once else _lines(count)
    pairs = tuple(_header(text) for text in headers)
    return trio.run(
        _publish, place, dialling, values, key.encode() if key is not None else None, pairs, partition, output
    )


def _lines(count: int) -> Iterator[bytes]:
    """The lines of standard input, without their ends; kept only when they are wanted more than once."""
    if count == 1:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
    else:
        kept = [line.rstrip(b"\r\n") for line in sys.stdin.buffer]
        for _ in range(count):
            yield from kept


def _header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"a header is NAME=VALUE, not '{text}'")
    return name, value.encode()


def _batches(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += len(value)
        if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _publish(
    place: Place,
    dialling: Dialling,
    values: Iterator[bytes],
    key: bytes | None,
    headers: Headers,
    partition: int | None,
    output: str,
) -> int:
    published = refused = 0
    positions: list[tuple[int, int]] = []
    """(partition, offset) of each that was taken, where the protocol says so."""
    async with connected(place, dialling) as connection:
        for batch in _batches(values):
            columns = Columns.of(
                batch, [key] * len(batch) if key is not None else None, [headers] * len(batch) if headers else None
            )
            reply = await connection.request(Publish(0, Batch(place.address, columns, partition=partition)), None)
            assert isinstance(reply, Published)
            for index, error in reply.refused.items():
                click.echo(f"gateway: message {published + refused + index + 1}: {error}", err=True)
            taken = [index for index in range(len(batch)) if index not in reply.refused]
            published += len(taken)
            refused += len(reply.refused)
            if place.spec.carries.offset:
                positions += map(reply.position, taken)
    click.echo(_report(place, published, positions, output))
    return 1 if refused else 0


def _report(place: Place, published: int, positions: Sequence[tuple[int, int]], output: str) -> str:
    partitions = {partition for partition, _ in positions}
    known = len(partitions) == 1
    first, last = (positions[0][1], positions[-1][1]) if known else (None, None)
    if output == "json":
        return json.dumps(
            {
                "address": place.address,
                "published": published,
                "partition": partitions.pop() if known else None,
                "first_offset": first,
                "last_offset": last,
            }
        )
    where = (
        f", partition {partitions.pop()}, offset {first}" + (f" to {last}" if last != first else "") if known else ""
    )
    return f"published {published} message{'' if published == 1 else 's'} to {place.address}{where}"
