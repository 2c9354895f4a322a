"""Commands that a running gateway answers, or a file where none runs: by the same code of the admin API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gateway.cli.admin import admin_options

if TYPE_CHECKING:
    from gateway.model import Config
    from gateway.pipeline.endpoint import Endpoint
    from gateway.pipeline.endpoint_http import EndpointCaller

T = TypeVar("T")
FILE = Path("routes.yaml")


class Asking:
    """Who is asked: the file that was named, else the gateway that runs, else the usual file."""

    def __init__(self, config: Path | None, endpoint: Endpoint, *, named: bool) -> None:
        self._config = config
        self._endpoint = endpoint
        self._named = named
        """Somebody said which gateway: no file answers for it."""

    def answer(self, ask: Callable[[EndpointCaller], T], work_out: Callable[[Config], T]) -> T:
        """`ask` the API, or `work_out` what it would say from a configuration. Says on standard error who answered."""
        from gateway.config.load import load

        if self._config is not None:
            return work_out(load(self._config))
        import attrs

        from gateway.pipeline.endpoint_http import EndpointCaller, EndpointUnreachable

        patience = self._endpoint.patience if self._named else 0.0
        caller = EndpointCaller(attrs.evolve(self._endpoint, patience=patience))
        try:
            found = ask(caller)
        except EndpointUnreachable as error:
            if self._named:
                raise
            if not FILE.exists():
                raise click.ClickException(
                    f"{error.message}; and there is no {FILE} here: name one with --config"
                ) from error
            return work_out(load(FILE))
        finally:
            caller.close()
        click.echo(f"answered by the gateway at {self._endpoint.url} (--config FILE: by a file)", err=True)
        return found


def either_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config` and those of a running gateway; the command gets them as one `asking`."""

    @functools.wraps(command)
    def with_asking(config: Path | None, endpoint: Endpoint, **given: Any) -> Any:
        source = click.get_current_context().get_parameter_source("admin")
        named = source is not None and source is not ParameterSource.DEFAULT
        return command(asking=Asking(config, endpoint, named=named), **given)

    option = click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path),
        help=f"Answer by this file. Without it a running gateway is asked; where none runs, {FILE} answers.",
    )
    return option(admin_options(with_asking))
