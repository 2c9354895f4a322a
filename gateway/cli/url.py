"""A place to publish to or read from, written as a URL whose scheme is the protocol: `blipmq://127.0.0.1:5555/orders`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

import attrs
import click

import gateway.protocols
from gateway.protocols.registry import ProtocolSpec, Transport, protocols

_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


@attrs.frozen
class UrlTarget:
    """What a URL names. The address is empty when the URL has no path."""

    spec: ProtocolSpec
    host: str
    port: int
    address: str = ""
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    transport: Transport | None = None
    tls: bool = False
    """The scheme says that it is encrypted."""

    def __str__(self) -> str:
        if self.transport is Transport.UNIX:
            return f"{self.spec.name}+unix://{quote(self.host, safe='')}/{self.address}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        suffix = next((word for word, said in _SUFFIXES.items() if said == (self.transport, self.tls)), "")
        return f"{self.spec.name}{suffix}://{host}:{self.port}/{self.address}"


_SUFFIXES: Mapping[str, tuple[Transport, bool]] = {
    "+tcp": (Transport.TCP, False),
    "+tls": (Transport.TCP, True),
    "+ws": (Transport.WEBSOCKET, False),
    "+wss": (Transport.WEBSOCKET, True),
    "+unix": (Transport.UNIX, False),
}
"""What a scheme may say behind the protocol's name."""


@attrs.frozen
class AdminPlace:
    """A topic at the admin address of a gateway: `http://127.0.0.1:9600/orders`."""

    url: str
    address: str


def parse_admin(text: str) -> AdminPlace | None:
    """None unless the scheme says so. Raises click.BadParameter with what is wrong."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https"):
        return None
    host, _, path = rest.partition("/")
    if not host or not path or "?" in path or "#" in path:
        raise click.BadParameter(f"'{text}': write {scheme}://127.0.0.1:9600/orders, in a name ? as %3F and # as %23")
    return AdminPlace(f"{scheme}://{host}", unquote(path))


def parse(text: str) -> UrlTarget:
    """Raises click.BadParameter with what is wrong and how it should look."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise click.BadParameter(f"'{text}' is not a URL: write {_example(next(iter(protocols())))}")
    name, plus, suffix = scheme.partition("+")
    transport, tls = _SUFFIXES.get(plus + suffix, (None, False))
    spec = _spec(name) if transport is not None or not plus else None
    if spec is None:
        known = protocols()
        close = difflib.get_close_matches(scheme, known, n=1)
        hint = f"did you mean {close[0]}://?" if close else f"there are {', '.join(sorted(known))}."
        raise click.BadParameter(f"'{scheme}' is not a protocol: {hint}")
    try:
        parts = urlsplit(text)
        usual = spec.port_over(transport)
        if usual is None:
            over = ", ".join(one.value for one in (spec.transport, *spec.other_transports))
            raise click.BadParameter(f"'{text}': {name} does not run over that: {over}")
        port = parts.port if parts.port is not None else usual
    except ValueError as error:
        raise click.BadParameter(f"'{text}': {error}") from error
    if not parts.hostname:
        raise click.BadParameter(f"'{text}' names no host: write {_example(scheme)}")
    if parts.query or parts.fragment:
        raise click.BadParameter(f"'{text}': in a name write ? as %3F and # as %23")
    path = _unescape(parts.path.removeprefix("/"))
    return UrlTarget(
        spec,
        unquote(parts.netloc) if transport is Transport.UNIX else parts.hostname,
        0 if transport is Transport.UNIX else port,
        spec.address_of_path(path) if path else "",
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        transport,
        tls,
    )


def _spec(scheme: str) -> ProtocolSpec | None:
    # the protocol of a scheme, loaded without the others: a command needs only its own
    if scheme in {module.name for module in pkgutil.iter_modules(gateway.protocols.__path__)}:
        spec: ProtocolSpec | None = getattr(importlib.import_module(f"gateway.protocols.{scheme}"), "SPEC", None)
        if spec is not None and spec.name == scheme:
            return spec
    return protocols().get(scheme)


def _unescape(path: str) -> str:
    # names may hold any character; %2F and %25 stay, because inside a part of a name that is how they are written
    return _ESCAPES.sub(lambda match: re.sub(r"[/%]", lambda c: f"%{ord(c[0]):02X}", unquote(match[0])), path)


def _example(scheme: str) -> str:
    spec = protocols()[scheme]
    return f"{scheme}://127.0.0.1:{spec.default_port}/orders"


class WritablePlaceType(click.ParamType[UrlTarget | AdminPlace]):
    """The type of an argument that is the URL of a place to publish to: a protocol's, or a gateway's admin address."""

    name = "url"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> UrlTarget | AdminPlace:
        return parse_admin(str(value)) or PlaceType().convert(value, param, ctx)


class PlaceType(click.ParamType[UrlTarget]):
    """The type of an argument that is such a URL."""

    name = "url"

    def __init__(self, *, address_needed: bool = True) -> None:
        self._address_needed = address_needed

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> UrlTarget:
        """Parse it; refuse one without a path where there has to be one."""
        if isinstance(value, UrlTarget):
            return value
        place = parse(str(value))
        if self._address_needed and not place.address:
            self.fail(f"'{value}' does not say what: write {_example(place.spec.name)}", param, ctx)
        return place
