"""The options of every command that connects somewhere, and the connection they describe."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from gateway.cli.options import SecondsType
from gateway.cli.url import UrlTarget
from gateway.protocols.registry import Transport
from gateway.settings import Dialect
from gateway.wire.session import ClientContext, Credentials

if TYPE_CHECKING:
    from gateway.transport.client import Connection

Result = TypeVar("Result")


@attrs.frozen
class Dialling:
    credentials: Credentials = attrs.field(repr=False)
    tls: bool
    ca: str
    fingerprint: str
    insecure: bool
    server_name: str
    dialect: Dialect
    connect_timeout: float


OPTIONS = (
    click.option(
        "--api-key", envvar="GATEWAY_API_KEY", default="", help="API key (BlipMQ, Fujin 0.5). Also $GATEWAY_API_KEY."
    ),
    click.option("--user", envvar="GATEWAY_USER", default="", help="User name (FlyMQ). Also $GATEWAY_USER."),
    click.option("--password", envvar="GATEWAY_PASSWORD", default="", help="Password. Also $GATEWAY_PASSWORD."),
    click.option(
        "--token", envvar="GATEWAY_TOKEN", default="", help="Bearer token (Felix, admin address). Also $GATEWAY_TOKEN."
    ),
    click.option("--tenant", envvar="GATEWAY_TENANT", default="", help="Tenant (Felix). Also $GATEWAY_TENANT."),
    click.option("--connector", default="", help="The connector to bind (Fujin 0.5 and v1)."),
    click.option(
        "--tls", is_flag=True, help="Use TLS on a TCP protocol, verified by the system's roots. QUIC always does."
    ),
    click.option("--ca", default="", metavar="FILE", help="Trust this CA (PEM) instead of the system's roots."),
    click.option(
        "--fingerprint", default="", metavar="HEX", help="Trust the certificate with this SHA-256 fingerprint."
    ),
    click.option("--insecure", is_flag=True, help="Do not verify the certificate."),
    click.option("--server-name", default="", help="Verify this name instead of the URL's host."),
    click.option(
        "--dialect",
        type=click.Choice([dialect.value for dialect in Dialect]),
        default=Dialect.AUTO.value,
        show_default=True,
        help="Speak the document's or the stock brokers' version of the protocol; Fujin's later ones are 0.5 and v1.",
    ),
    click.option(
        "--connect-timeout",
        type=SecondsType(),
        default=10.0,
        show_default=True,
        help="How long connecting may take: 10 or 10s.",
    ),
)


def dialling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one `dialling`."""

    @functools.wraps(command)
    def with_dialling(**given: Any) -> Any:
        credentials = Credentials(
            api_key=given.pop("api_key"),
            username=given.pop("user"),
            password=given.pop("password"),
            token=given.pop("token"),
            tenant=given.pop("tenant"),
            connector=given.pop("connector"),
        )
        trust = {name: given.pop(name) for name in ("tls", "ca", "fingerprint", "insecure", "server_name")}
        dialect = Dialect(given.pop("dialect"))
        dialling = Dialling(credentials, dialect=dialect, connect_timeout=given.pop("connect_timeout"), **trust)
        return command(dialling=dialling, **given)

    for option in reversed(OPTIONS):
        with_dialling = option(with_dialling)
    return with_dialling


def run_until_interrupted(work: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
    """`trio.run`, which an interrupt ends where the command waits: in the middle of what a connection does, it would leave one
    behind that never ends.
    """
    import trio

    return trio.run(work, *arguments, restrict_keyboard_interrupt_to_checkpoints=True)


@contextlib.asynccontextmanager
async def connected(place: UrlTarget, dialling: Dialling) -> AsyncIterator[Connection]:
    from gateway.transport.client import connect
    from gateway.transport.tls import ClientTls

    credentials = dialling.credentials
    if place.username:
        credentials = attrs.evolve(credentials, username=place.username, password=place.password)
    trusts = dialling.tls or dialling.ca or dialling.fingerprint or dialling.insecure or dialling.server_name
    tls = None
    if trusts or place.tls or (place.transport or place.spec.transport) is Transport.QUIC:
        tls = ClientTls(
            ca=dialling.ca,
            fingerprint=dialling.fingerprint,
            insecure=dialling.insecure,
            server_name=dialling.server_name,
        )
    async with connect(
        place.spec,
        place.host,
        place.port,
        tls=tls,
        timeout=dialling.connect_timeout,
        context=ClientContext(credentials=credentials, dialect=dialling.dialect, transport=place.transport),
    ) as connection:
        yield connection
