"""What the commands of `gateway pipeline` share: options, the session, the progress bar, the summary."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from gateway.cli.options import output_option
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.frames import MessagesToRead
    from gateway.pipeline.options import TopicSelection
    from gateway.pipeline.source import Source
    from gateway.pipeline.spread import Spread

PATH = click.option("--path", metavar="DIR", help="The directory of a store, live or stopped (`storage.path`).")
TOPICS = click.option("--topics", default="**", show_default=True, help="Names and globs, separated by commas.")
ENDPOINT = (
    click.option("--endpoint", metavar="URL", help="Instead of --path: the admin address of a running gateway."),
    click.option("--token", envvar="GATEWAY_TOKEN", help="Of the admin address. Also $GATEWAY_TOKEN."),
    click.option("--ca", metavar="FILE", help="Trust this CA (PEM) of an https endpoint."),
    click.option("--fingerprint", metavar="HEX", help="Trust the certificate with this SHA-256 fingerprint."),
)
KAFKA = (
    click.option("--kafka", metavar="HOST:PORT,...", help="Instead of --path: the brokers of a log on Kafka."),
    click.option(
        "--kafka-prefix", "kafkaPrefix", metavar="TEXT", help="How its topics begin there (`storage.kafka.prefix`)."
    ),
    click.option("--kafka-settings", "kafkaSettings", metavar="JSON", help="librdkafka's settings: TLS, a login."),
)


class OutputPlace(click.Path):
    """A file or directory of this machine, or a place in an object store, as a text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from gateway.pipeline.shelves import is_remote, shelf_at

        if not is_remote(str(value)):
            return super().convert(value, param, ctx)
        try:
            shelf_at(value)
        except GatewayError as error:
            self.fail(error.message, param, ctx)
        return str(value)


CATALOG = click.option(
    "--catalog",
    default="",
    metavar="URL|NAME",
    help="Of an Iceberg table: SQLAlchemy's URL of a database, a REST catalogue's, or a name in pyiceberg's configuration.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --path, --endpoint and --kafka; the command gets them as one `given`, the options of the data source."""

    @functools.wraps(command)
    def with_source(**options: Any) -> Any:
        names = ("path", "endpoint", "token", "ca", "fingerprint", "kafka", "kafkaPrefix", "kafkaSettings")
        given = {name: value for name in names if (value := options.pop(name))}
        if "endpoint" not in given:
            given.pop("token", None)  # from the environment
        return command(given=given, **options)

    for option in reversed((PATH, *ENDPOINT, *KAFKA)):
        with_source = option(with_source)
    return with_source


def source_of(given: Mapping[str, str]) -> Source:
    """The store or the endpoint. Raises InvalidRequest unless it is one of them."""
    from gateway.pipeline.options import ReadOptions

    return ReadOptions.parse(given).source


FROM = (
    click.option(
        "--from",
        "source",
        required=True,
        metavar="DIR|URL",
        help="An archive, a table, a store, a gateway's admin address, or kafka://HOST:PORT,.../PREFIX.",
    ),
    click.option("--from-token", default="", envvar="GATEWAY_FROM_TOKEN", help="Of that address."),
    click.option("--from-ca", default="", metavar="FILE", help="Trust this CA (PEM) there."),
    click.option(
        "--from-kafka-settings",
        default="",
        metavar="JSON",
        envvar="GATEWAY_FROM_KAFKA_SETTINGS",
        help="librdkafka's settings of that Kafka: TLS, a login.",
    ),
    CATALOG,
)


def from_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --from; the command gets the place as `source` and the messages there as `messages`."""

    @functools.wraps(command)
    def with_from(**options: Any) -> Any:
        from gateway.pipeline.frames import is_endpoint, is_served, messages_at

        place = options["source"]
        of_endpoint = {"token": options.pop("from_token"), "ca": options.pop("from_ca")}
        of_kafka = {"kafkaSettings": options.pop("from_kafka_settings")}
        trust = of_endpoint if is_endpoint(place) else of_kafka if is_served(place) else {}
        given = {name: value for name, value in trust.items() if value}
        return command(messages=messages_at(place, options.pop("catalog"), **given), **options)

    for option in reversed(FROM):
        with_from = option(with_from)
    return with_from


@attrs.frozen
class JobCluster:
    """Where a job runs: nothing is started before it is asked for."""

    master: str
    noisy: bool
    jars: str = ""

    def session(self) -> SparkSession:
        from gateway.pipeline.session import spark_session

        return spark_session(self.master, noisy=self.noisy, settings={"spark.jars": self.jars})

    def spread(self) -> Spread:
        from gateway.pipeline.spread import OnSpark

        return OnSpark(self.session)


_REPORT = click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what came of it as JSON: the result or the error, the exit code, when it began and how long it took.",
)
RUN = (
    click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; empty under spark-submit."),
    click.option("--spark-logs", is_flag=True, help="Let Spark write its warnings to standard error."),
    click.option(
        "--jars",
        default="",
        envvar="GATEWAY_SPARK_JARS",
        metavar="FILE|DIR,...",
        help="What Spark loads beside its own, to read s3a:// for example. Also $GATEWAY_SPARK_JARS.",
    ),
    output_option,
)


def reported(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --report; outside of all that may fail."""

    @functools.wraps(command)
    def with_report(report: Path | None, **options: Any) -> Any:
        if report is None:
            return command(**options)
        with reporting(report, command.__name__) as said:
            code = command(**options)
            said["exit_code"] = code or 0
            return code

    return _REPORT(with_report)


def jars_of(text: str) -> str:
    """As Spark wants them: a directory stands for the jars in it. Raises click.BadParameter."""
    found: list[Path] = []
    for one in map(Path, filter(None, text.split(","))):
        inside = sorted(one.glob("*.jar")) if one.is_dir() else [one]
        if not inside or not all(jar.is_file() for jar in inside):
            raise click.BadParameter(f"there is no jar at {one}", param_hint="--jars")
        found += inside
    return ",".join(map(str, found))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every job takes: --master, --spark-logs and --jars, which the command gets as one `cluster`, and --output."""

    @functools.wraps(command)
    def with_cluster(**options: Any) -> Any:
        cluster = JobCluster(options.pop("master"), options.pop("spark_logs"), jars_of(options.pop("jars")))
        return command(cluster=cluster, **options)

    for option in reversed(RUN):
        with_cluster = option(with_cluster)
    return with_cluster


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Set by SIGINT and SIGTERM: what is under way is finished first."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda _number, _frame: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def following() -> Iterator[threading.Event]:
    """The same for a job that has no end of its own, and says so."""
    with stopped_by_signals() as stop:
        click.echo("gateway: following what comes; an interrupt ends it behind what is under way", err=True)
        yield stop


def with_bar(label: str, work: Callable[[Callable[[int, int], None]], Any]) -> Any:
    """Do it under a progress bar, which is on standard error; where that is no terminal, with lines."""
    from rich.console import Console
    from rich.progress import Progress

    if not sys.stderr.isatty():
        return work(Lines(label))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        return work(lambda done, total: bar.update(task, completed=done, total=total))


LINE_SECONDS = 10.0


class Lines:
    """Progress where nobody looks at a terminal: a line for a log now and then, none of what is short."""

    def __init__(self, label: str, now: Callable[[], float] = time.monotonic) -> None:
        self._label, self._now = label, now
        self._said = now()

    def __call__(self, done: int, total: int) -> None:
        now = self._now()
        if now - self._said >= LINE_SECONDS and done < total:
            self._said = now
            click.echo(f"gateway: {self._label}: {done} of {total}", err=True)


_results: list[dict[str, object]] = []
"""What the job that runs has shown."""


@contextlib.contextmanager
def reporting(path: Path, job: str) -> Iterator[dict[str, object]]:
    """Write a report when the job has ended, however it ended."""
    began = dt.datetime.now(dt.UTC)
    said: dict[str, object] = {"job": job, "arguments": sys.argv[1:], "began": began.isoformat(timespec="milliseconds")}
    _results.clear()
    try:
        yield said
    except (GatewayError, OSError, click.ClickException) as error:
        message = error.message if isinstance(error, GatewayError | click.ClickException) else str(error)
        said.update(exit_code=2, error={"type": type(error).__name__, "message": message})
        raise
    finally:
        said["seconds"] = round((dt.datetime.now(dt.UTC) - began).total_seconds(), 3)
        said["result"] = _results[-1] if _results else None
        path.write_text(json.dumps(said, indent=1) + "\n")


def show(output: str, result: dict[str, object], text: str) -> None:
    _results.append(result)
    click.echo(json.dumps(result) if output == "json" else text)


def show_spans(output: str, messages: MessagesToRead, topics: TopicSelection, to: str) -> None:
    """What a job would read, for a rehearsal."""
    spans = messages.spans(topics)
    ranges = [f"{one.topic}/{one.partition} [{one.start}, {one.end})" for one in spans if one.start < one.end]
    show(output, {"ranges": ranges, "to": str(to)}, "\n".join([*ranges, f"would be read, and the result be in {to}"]))
