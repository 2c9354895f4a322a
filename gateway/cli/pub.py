"""`gateway pub`: publish messages."""

from __future__ import annotations

import itertools
import json
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import click

from gateway.cli.connection import Dialling, connected, dialling_options, run_until_interrupted
from gateway.cli.options import SecondsType, examples, output_option
from gateway.cli.url import AdminPlace, UrlTarget, WritablePlaceType
from gateway.envelope import Batch, Columns, Headers
from gateway.errors import RequestTimeout
from gateway.requests import Publish, Published
from gateway.settings import Dialect

BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 << 20
"""What goes out before an answer is waited for."""


@click.command(
    epilog=examples(
        "gateway pub blipmq://127.0.0.1:5555/orders --api-key dev-key --data hello",
        "gateway pub flymq://127.0.0.1:9092/orders --key eu-1 --file order.json",
        "seq 1000 | gateway pub rustlog://127.0.0.1:9192/numbers",
        "gateway pub felix://127.0.0.1:5000/acme/shop/orders --insecure --data hello",
        "gateway pub http://127.0.0.1:9600/orders --key eu-1 --header kind=order --file order.json",
    )
)
@click.argument("place", type=WritablePlaceType(), metavar="URL")
@click.option("--data", "-d", multiple=True, help="A message. May be given several times.")
@click.option("--file", "-f", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A file that is one message, byte for byte. May be given several times.")  # fmt: skip
@click.option("--key", "-k", default=None, help="The key of every message.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every message.")
@click.option("--partition", type=click.IntRange(min=0), default=None, help="Publish to this partition.")
@click.option(
    "--count", "-n", type=click.IntRange(min=1), default=1, show_default=True, help="Publish all of it this often."
)
@click.option("--timeout", type=SecondsType(above=True), default=30.0, show_default=True,
              help="Wait so long for each answer, and no longer: 5 or 5s.")  # fmt: skip
@output_option
@dialling_options
def command(
    place: UrlTarget | AdminPlace,
    data: Sequence[str],
    files: Sequence[Path],
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    count: int,
    timeout: float,
    output: str,
    dialling: Dialling,
) -> int:
    """Publish messages, and return once they are taken.

    Without --data and --file every line of standard input is a message. The command ends after the strongest sign the
    protocol has: a reply with the offset, or the PONG that follows everything published. Where none comes within
    --timeout it ends with exit code 2, and nobody knows what was taken of the messages that were under way.

    URL is a protocol's, or the admin address of a gateway (http://127.0.0.1:9600/TOPIC), which takes keys, headers and
    partitions whatever the protocols can carry, and says how many messages a route's transform left out: no protocol's
    answer has a place for that. Of those Fujin 0.5 carries headers and keys; the seed's does with --dialect document, headers
    alone.
    """

    if isinstance(place, UrlTarget):
        dialling = _carrying(place, dialling, key, headers)
        _check_carried(place, dialling, key, headers, partition)
    once = [text.encode() for text in data] + [path.read_bytes() for path in files]
    values = itertools.chain.from_iterable(itertools.repeat(once, count)) if once else _lines(count)
    pairs = tuple(_header(text) for text in headers)
    name = key.encode() if key is not None else None
    if isinstance(place, AdminPlace):
        return _append(place, dialling, values, name, pairs, partition, timeout, output)
    return run_until_interrupted(_publish, place, dialling, values, name, pairs, partition, timeout, output)


def _carrying(place: UrlTarget, dialling: Dialling, key: str | None, headers: Sequence[str]) -> Dialling:
    # with what only some dialects carry, `auto` is the newest of these: another one would drop it
    carrying = place.spec.dialect_carries
    if dialling.dialect is not Dialect.AUTO or not (key or headers) or not carrying:
        return dialling
    return attrs.evolve(dialling, dialect=next(iter(carrying)))


def _check_carried(
    place: UrlTarget, dialling: Dialling, key: str | None, headers: Sequence[str], partition: int | None
) -> None:
    spec, carries = place.spec, place.spec.carries_in(dialling.dialect)
    elsewhere = "the admin address does: http://HOST:9600/TOPIC"
    if key and not carries.key:
        raise click.UsageError(f"{spec.name} carries no keys; {elsewhere}")
    if headers and not carries.headers and dialling.dialect not in spec.headered:
        also = ", and so does --dialect " + " or ".join(one.value for one in spec.headered) if spec.headered else ""
        raise click.UsageError(f"{spec.name} carries no headers; {elsewhere}{also}")
    if partition is not None and not carries.partition:
        raise click.UsageError(f"{spec.name} has no partitions to choose from; {elsewhere}")


def _lines(count: int) -> Iterator[bytes]:
    # the lines of standard input, without their ends; kept only when they are wanted more than once
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
    place: UrlTarget,
    dialling: Dialling,
    values: Iterator[bytes],
    key: bytes | None,
    headers: Headers,
    partition: int | None,
    timeout: float,
    output: str,
) -> int:
    published = refused = 0
    positions: list[tuple[int, int]] = []
    """(partition, offset) of each that was taken, where the protocol says so."""
    async with connected(place, dialling) as connection:
        for batch in _batches(values):
            columns = _columns(batch, key, headers)
            request = Publish(0, Batch(place.address, columns, partition=partition))
            try:
                reply = await connection.request(request, timeout)
            except RequestTimeout as late:
                raise _unanswered(late, place, published, headers) from late
            assert isinstance(reply, Published)
            for index, error in reply.refused.items():
                click.echo(f"gateway: message {published + refused + index + 1}: {error}", err=True)
            taken = [index for index in range(len(batch)) if index not in reply.refused]
            published += len(taken)
            refused += len(reply.refused)
            if place.spec.carries.offset:
                positions += map(reply.position, taken)
    click.echo(_report(place.address, published, positions, output))
    return 1 if refused else 0


def _unanswered(error: RequestTimeout, place: UrlTarget, published: int, headers: Headers) -> RequestTimeout:
    # who does not expect headers takes them for the beginning of a message, and waits for the rest of it
    hint = "; does the listener speak this dialect?" if headers and place.spec.headered else ""
    return RequestTimeout(f"{error.message} from {place.host}:{place.port}, after {published} messages{hint}")


def _append(
    place: AdminPlace,
    dialling: Dialling,
    values: Iterator[bytes],
    key: bytes | None,
    headers: Headers,
    partition: int | None,
    timeout: float,
    output: str,
) -> int:
    # over the bulk API, where each batch is stored whole or not at all
    from gateway.pipeline.endpoint import Endpoint, EndpointWriter

    endpoint = Endpoint.of(
        place.url,
        token=dialling.credentials.token or os.environ.get("GATEWAY_ADMIN_TOKEN", ""),
        ca=dialling.ca,
        fingerprint=dialling.fingerprint,
        insecure=dialling.insecure,
    )
    published = filtered = 0
    positions: list[tuple[int, int]] = []
    producer = f"gateway-pub-{uuid.uuid4().hex}"  # a request that is repeated must not be stored twice
    endpoint = attrs.evolve(endpoint, timeout=timeout, patience=min(timeout, dialling.connect_timeout))
    with EndpointWriter(endpoint) as out:
        for sequence, batch in enumerate(_batches(values)):
            done = out.append(
                place.address,
                _columns(batch, key, headers),
                producer=producer,
                epoch=0,
                sequence=sequence,
                partition=partition,
            )
            published += len(batch) - done.filtered
            filtered += done.filtered
            for part in done.places:
                if part.topic == done.places[0].topic:  # further ones hold copies
                    positions += ((part.partition, part.base_offset + index) for index in range(part.count))
    click.echo(_report(place.address, published, positions, output, filtered))
    return 0


def _columns(batch: list[bytes], key: bytes | None, headers: Headers) -> Columns:
    return Columns.of(
        batch, [key] * len(batch) if key is not None else None, [headers] * len(batch) if headers else None
    )


def _report(
    address: str, published: int, positions: Sequence[tuple[int, int]], output: str, filtered: int | None = None
) -> str:
    # `filtered`: None where nobody says
    partitions = {partition for partition, _ in positions}
    # what was not stored has no offset of its own, and is told the first there is
    known = len(partitions) == 1 and len(set(positions)) == len(positions)
    first, last = (positions[0][1], positions[-1][1]) if known else (None, None)
    if output == "json":
        return json.dumps(
            {
                "address": address,
                "published": published,
                "filtered": filtered,
                "partition": partitions.pop() if known else None,
                "first_offset": first,
                "last_offset": last,
            }
        )
    where = (
        f", partition {partitions.pop()}, offset {first}" + (f" to {last}" if last != first else "") if known else ""
    )
    left_out = f", {filtered} filtered" if filtered else ""
    return f"published {published} message{'' if published == 1 else 's'} to {address}{left_out}{where}"
