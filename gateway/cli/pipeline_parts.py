"""What the commands of `gateway pipeline` share: options, the session, the progress bar, the summary."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from gateway.cli.options import output_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --path and --endpoint; the command gets them as one `given`, the options of the data source."""

    @functools.wraps(command)
    def with_source(**options: Any) -> Any:
        names = ("path", "endpoint", "token", "ca", "fingerprint")
        given = {name: value for name in names if (value := options.pop(name))}
        if "endpoint" not in given:
            given.pop("token", None)  # from the environment
        return command(given=given, **options)

    for option in reversed((PATH, *ENDPOINT)):
        with_source = option(with_source)
    return with_source


def source_of(given: Mapping[str, str]) -> Source:
    """The store or the endpoint. Raises InvalidRequest unless it is one of them."""
    from gateway.pipeline.options import ReadOptions

    return ReadOptions.parse(given).source


FROM = (
    click.option(
        "--from", "source", required=True, metavar="DIR|URL", help="An archive, a store, or a gateway's admin address."
    ),
    click.option("--from-token", default="", envvar="GATEWAY_FROM_TOKEN", help="Of that address."),
    click.option("--from-ca", default="", metavar="FILE", help="Trust this CA (PEM) there."),
)


def from_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --from; the command gets the place as `source` and the messages there as `messages`."""

    @functools.wraps(command)
    def with_from(**options: Any) -> Any:
        from gateway.pipeline.frames import is_endpoint, messages_at

        place = options["source"]
        trust = {"token": options.pop("from_token"), "ca": options.pop("from_ca")}
        given = {name: value for name, value in trust.items() if value and is_endpoint(place)}
        return command(messages=messages_at(place, **given), **options)

    for option in reversed(FROM):
        with_from = option(with_from)
    return with_from


@attrs.frozen
class JobCluster:
    """Where a job runs: nothing is started before it is asked for."""

    master: str
    noisy: bool

    def session(self) -> SparkSession:
        from gateway.pipeline.session import spark_session

        return spark_session(self.master, noisy=self.noisy)

    def spread(self) -> Spread:
        from gateway.pipeline.spread import OnSpark

        return OnSpark(self.session())


RUN = (
    click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; empty under spark-submit."),
    click.option("--spark-logs", is_flag=True, help="Let Spark write its warnings to standard error."),
    output_option,
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every job takes: --master and --spark-logs, which the command gets as one `cluster`, and --output."""

    @functools.wraps(command)
    def with_cluster(**options: Any) -> Any:
        return command(cluster=JobCluster(options.pop("master"), options.pop("spark_logs")), **options)

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
    """Do it under a progress bar, which is on standard error and only on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)
        return work(lambda done, total: bar.update(task, completed=done, total=total))


def show(output: str, result: dict[str, object], text: str) -> None:
    """The summary, for people or for programs."""
    click.echo(json.dumps(result) if output == "json" else text)
