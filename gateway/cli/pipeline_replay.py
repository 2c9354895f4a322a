"""`gateway pipeline replay`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from gateway.cli.connection import Dialling, connected, dialling_options
from gateway.cli.options import examples
from gateway.cli.pipeline_parts import (
    TOPICS,
    JobCluster,
    from_options,
    reported,
    run_options,
    show,
    stopped_by_signals,
    with_bar,
)
from gateway.cli.url import UrlTarget, parse
from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError, TargetLost
from gateway.requests import Publish, Published

if TYPE_CHECKING:
    from gateway.pipeline.frames import MessagesToRead
    from gateway.pipeline.replay import Replayed, Selected, Target
    from gateway.transport.client import Connection

PROTOCOL_MESSAGES = 1_000
"""Sent before an answer is waited for."""
TOPIC = "{topic}"


def address_of(template: str, topic: str) -> str:
    """Where messages of a topic go. Without a template to their own name."""
    return template.replace(TOPIC, topic) if template else topic


class ProtocolTarget:
    """A broker that speaks one of the protocols, over a connection of an event loop in another thread."""

    knows_repeats = False
    step_messages = PROTOCOL_MESSAGES

    def __init__(self, place: UrlTarget, dialling: Dialling) -> None:
        self.address = (place.host, place.port)
        self.carries_keys = place.spec.carries_in(dialling.dialect).key
        self.carries_headers = place.spec.carries_in(dialling.dialect).headers
        self._place = place
        self._dialling = dialling
        self._connection: Connection | None = None
        self._token: Any = None
        self._open = threading.Event()
        self._close: Any = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay target", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._open.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        import trio

        with contextlib.suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(self._close.set, trio_token=self._token)
        self._thread.join()

    def send(self, topic: str, columns: Columns, *, replay: str, step: int) -> Mapping[int, GatewayError]:  # noqa: ARG002  # the protocols know no repeats
        """Publish, and wait for the strongest sign the protocol has."""
        import trio

        assert self._connection is not None
        address = self._place.spec.address_of_path(address_of(self._place.address, topic))
        request = functools.partial(self._connection.request, Publish(0, Batch(address, columns)), None)
        try:
            reply = trio.from_thread.run(request, trio_token=self._token)
        except trio.RunFinishedError:
            raise TargetLost("the connection is closed") from None
        assert isinstance(reply, Published)
        return reply.refused

    def _run(self) -> None:
        import trio

        async def serve() -> None:
            self._token = trio.lowlevel.current_trio_token()
            self._close = trio.Event()
            async with connected(self._place, self._dialling) as connection:
                self._connection = connection
                self._open.set()
                await self._close.wait()

        try:
            trio.run(serve)
        except* (GatewayError, OSError) as errors:
            self._failed = errors
        finally:
            self._open.set()


@contextlib.contextmanager
def target_at(url: str, dialling: Dialling) -> Iterator[Target]:
    """A gateway's admin address, or an address of any protocol."""
    if url.startswith(("http://", "https://")):
        from gateway.pipeline.endpoint import Endpoint
        from gateway.pipeline.replay_endpoint import EndpointTarget

        scheme, _, rest = url.partition("://")
        host, _, template = rest.partition("/")
        endpoint = Endpoint.of(
            f"{scheme}://{host}",
            token=dialling.credentials.token,
            ca=dialling.ca,
            fingerprint=dialling.fingerprint,
            insecure=dialling.insecure,
        )
        bulk = EndpointTarget(endpoint, functools.partial(address_of, template))
        try:
            yield bulk
        finally:
            bulk.close()
        return
    with ProtocolTarget(parse(url), dialling) as target:
        yield target


@click.command(
    epilog=examples(
        "gateway pipeline replay --from ./archive --to http://127.0.0.1:9600 --topics 'orders.*' --speed 10x",
        "gateway pipeline replay --from ./archive --to flymq://127.0.0.1:9092/again.{topic} --accept-loss headers",
        "gateway pipeline replay --from ./data --to http://127.0.0.1:9601 --since 2026-01-31T12:00 "
        "--until 2026-01-31T12:01",
        "gateway pipeline replay --from ./archive --to http://127.0.0.1:9600 --dry-run "
        "--where \"get_json_object(cast(value as string), '$.amount') > 100\"",
    )
)
@reported
@from_options
@click.option(
    "--to",
    "url",
    required=True,
    metavar="URL",
    help="A gateway's admin address (nothing is lost, nothing comes twice), or an address of any protocol. "
    "{topic} in its path is the topic; without a path messages go to their topic's name.",
)
@TOPICS
@click.option("--since", default=None, metavar="TIME", help="Stored at or after: ISO 8601 or milliseconds.")
@click.option("--until", default=None, metavar="TIME", help="Stored before.")
@click.option("--where", default="", metavar="SQL", help="A condition in Spark's SQL on the columns of a message.")
@click.option("--speed", default="max", show_default=True, help="1x: as far apart as they were; 10x; max.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=None, help="Messages per second, at most.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@click.option(
    "--accept-loss", default="", metavar="FIELDS", help="What may be lost: key, headers, all (separated by commas)."
)
@click.option("--allow-same-source", is_flag=True, help="Replay into the very gateway that the messages came from.")
@click.option("--skip-refused", is_flag=True, help="Go on behind messages that the target refuses; exit code 1.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Where the progress is kept until the end. [default: beside the source]",
)
@run_options
@dialling_options
def replay(
    messages: MessagesToRead,
    source: str,
    url: str,
    topics: str,
    since: str | None,
    until: str | None,
    where: str,
    speed: str,
    rate: float | None,
    dry_run: bool,
    accept_loss: str,
    allow_same_source: bool,
    skip_refused: bool,
    state: Path | None,
    cluster: JobCluster,
    output: str,
    dialling: Dialling,
) -> int:
    """Send stored messages again, in order, to a gateway or a broker.

    The same command, run again after it was stopped or killed, goes on where it ended: into a gateway's admin address
    nothing is sent twice, over a protocol at most the last step is. Exit code 1: messages were refused and skipped, or it
    was stopped before its end.
    """
    from gateway.pipeline import replay as job
    from gateway.pipeline.frames import is_served
    from gateway.pipeline.options import milliseconds
    from gateway.pipeline.progress import Wanted

    wanted = Wanted(
        source if is_served(source) else str(Path(source).absolute()),
        url,
        topics,
        milliseconds(since) if since is not None else None,
        milliseconds(until) if until is not None else None,
        where,
    )
    pace = job.speed_of(speed)
    if dry_run:
        _show_selected(output, job.dry_run(cluster.session, messages, wanted, state=state), url)
        return 0
    with target_at(url, dialling) as target, stopped_by_signals() as stop:
        done = with_bar(
            "replaying",
            lambda progress: job.replay(
                cluster.session,
                messages,
                wanted,
                target,
                state=state,
                speed=pace,
                rate=rate,
                accept_loss=[one.strip() for one in accept_loss.split(",") if one.strip()],
                allow_same_source=allow_same_source,
                skip_refused=skip_refused,
                stop=stop,
                progress=progress,
            ),
        )
    _show_replayed(output, done, url)
    return 0 if done.finished and not done.refused else 1


def _show_selected(output: str, found: Selected, url: str) -> None:
    lines = [f"{topic}: {count} messages" for topic, count in found.topics.items()]
    lines.append(f"would send {found.messages} messages ({found.bytes} bytes) to {url}")
    result = {
        "topics": dict(found.topics),
        "messages": found.messages,
        "bytes": found.bytes,
        "keys": found.keys,
        "headers": found.headers,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
    }
    show(output, result, "\n".join(lines))


def _show_replayed(output: str, done: Replayed, url: str) -> None:
    for line in done.refusals:
        click.echo(f"gateway: refused: {line}", err=True)
    said = f"replayed {done.sent} messages to {url}" + (" (went on from an earlier run)" if done.resumed else "")
    if not done.finished:
        said += "; stopped, run it again to go on"
    result: dict[str, object] = {
        "sent": done.sent,
        "bytes": done.bytes,
        "refused": done.refused,
        "finished": done.finished,
        "resumed": done.resumed,
    }
    show(output, result, said)
