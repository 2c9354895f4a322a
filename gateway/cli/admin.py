"""The options of the commands that talk to a running gateway's admin address."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gateway.pipeline.endpoint import Endpoint

PATIENCE = 2.0
"""Seconds until an address that does not answer is given up: somebody waits at the terminal."""

OPTIONS = (
    click.option(
        "--admin",
        metavar="URL",
        envvar="GATEWAY_ADMIN",
        default="http://127.0.0.1:9600",
        show_default=True,
        help="The admin address of the gateway. Also $GATEWAY_ADMIN.",
    ),
    click.option(
        "--token", envvar="GATEWAY_ADMIN_TOKEN", default="", help="Its `admin.token`. Also $GATEWAY_ADMIN_TOKEN."
    ),
    click.option("--token-file", default="", metavar="FILE", help="A file with the token."),
    click.option("--ca", default="", metavar="FILE", help="Trust this CA (PEM) instead of the system's roots."),
    click.option(
        "--fingerprint", default="", metavar="HEX", help="Trust the certificate with this SHA-256 fingerprint."
    ),
    click.option("--insecure", is_flag=True, help="Do not verify the certificate."),
)


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one `endpoint`."""

    @functools.wraps(command)
    def with_endpoint(**given: Any) -> Any:
        names = ("admin", "token", "token_file", "ca", "fingerprint", "insecure")
        return command(endpoint=_endpoint(*(given.pop(name) for name in names)), **given)

    for option in reversed(OPTIONS):
        with_endpoint = option(with_endpoint)
    return with_endpoint


def _endpoint(url: str, token: str, token_file: str, ca: str, fingerprint: str, insecure: bool) -> Endpoint:
    import attrs

    from gateway.pipeline.endpoint import Endpoint

    found = Endpoint.of(url, token=token, token_file=token_file, ca=ca, fingerprint=fingerprint, insecure=insecure)
    return attrs.evolve(found, patience=PATIENCE)
