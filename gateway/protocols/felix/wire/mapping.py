"""Statuses to Felix's words, and Felix's three names to addresses and back."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import GatewayError, OutOfTurn, Status, TargetOutOfTurn, TargetRefused
from gateway.protocols.felix.settings import FelixSettings
from gateway.protocols.felix.wire.binary import Names

DEFAULT_SCOPE = "t1/default"
DEFAULT_CACHE = "default"

TEXTS: Mapping[Status, str] = {
    # {0} is what was asked for (`stream not found: tenant=...`), {1} the error's own text (Felix wire 1.2, 2.5, 2.7)
    Status.INVALID: "{1}",
    Status.UNSUPPORTED: "{1}",
    Status.UNAUTHENTICATED: "auth required",
    Status.DENIED: "forbidden",
    Status.NOT_FOUND: "{0}",
    Status.EXISTS: "{1}",
    Status.OUT_OF_RANGE: "{1}",
    Status.TOO_LARGE: "{1}",
    Status.NOT_ROUTED: "{0}",
    Status.SCHEMA: "{1}",
    Status.CONFLICT: "{1}",
    Status.THROTTLED: "server overloaded",
    Status.READ_ONLY: "publish queue closed: {1}",
    Status.CORRUPT: "{1}",
    Status.UNAVAILABLE: "{1}",
    Status.TIMEOUT: "publish enqueue timed out",
    Status.UNKNOWN_OUTCOME: "publish commit timeout: {1}",
    Status.SHUTTING_DOWN: "broker shutting down",
    Status.INTERNAL: "internal error",
}

UNAUTHORIZED = "unauthorized"
"""The document's word for a refusal that stock brokers call `forbidden`."""

NOT_LOGGED_IN = ("auth required", "auth failed")
"""What a server says to who is not, or not with these words, let in (Felix wire 2.5)."""

OUT_OF_TURN = "out of turn"
"""How one gateway says to another that what was to come before is not there."""

FINAL_REFUSALS = ("stream not found", "forbidden", "tenant mismatch")


def text_of(error: GatewayError, subject: str, *, document: bool) -> str:
    if isinstance(error, OutOfTurn):
        return f"{OUT_OF_TURN}: {error.message}"
    if document and error.status is Status.DENIED:
        return UNAUTHORIZED
    return TEXTS[error.status].format(subject, error.message)


def stream_not_found(names: Names) -> str:
    """Felix wire 2.5."""
    return f"stream not found: tenant={names.tenant} namespace={names.namespace} stream={names.stream}"


def cache_not_found(tenant: str, namespace: str, cache: str) -> str:
    """Felix wire 2.7."""
    return f"cache scope not found: {tenant}/{namespace}/{cache}"


def refused(text: str) -> TargetRefused:
    """A server's refusal as a client session reports it. Felix has no codes: an unknown scope or a denial is final."""
    if text.startswith(NOT_LOGGED_IN):
        return TargetRefused(text, refusal=Status.UNAUTHENTICATED, final=True)
    if text.startswith(OUT_OF_TURN):
        return TargetOutOfTurn(text, refusal=Status.CONFLICT)
    for start, status in ((FINAL_REFUSALS[0], Status.NOT_FOUND), *((f, Status.DENIED) for f in FINAL_REFUSALS[1:])):
        if text.startswith(start):
            return TargetRefused(text, refusal=status, final=True)
    return TargetRefused(text, refusal=Status.UNAVAILABLE)


# --- names and addresses ---


def escape(part: str) -> str:
    """A part of an address, in which a slash would begin another one."""
    return part.replace("%", "%25").replace("/", "%2F") if "%" in part or "/" in part else part


def unescape(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%") if "%" in part else part


def address_of(names: Names, scope: str) -> str:
    """The stream's name alone in the default scope, tenant/namespace/stream elsewhere."""
    place = f"{escape(names.tenant)}/{escape(names.namespace)}"
    stream = escape(names.stream)
    return stream if place == scope else f"{place}/{stream}"


def names_of(address: str, scope: str) -> Names:
    """The other way round. What is not of three parts is a stream of the default scope."""
    parts = address.split("/")
    if len(parts) == 3:
        return Names(*map(unescape, parts))
    tenant, _, namespace = scope.partition("/")
    return Names(unescape(tenant), unescape(namespace), unescape(address))


def cache_name(tenant: str, namespace: str, cache: str) -> str:
    return f"{escape(tenant)}/{escape(namespace)}/{escape(cache)}"


def address_of_path(path: str) -> str:
    """`acme/shop/orders` stays, `t1/default/orders` is `orders`, the address it has in the default scope."""
    return path.removeprefix(f"{DEFAULT_SCOPE}/")


def local_address(settings: FelixSettings, address: str) -> str:
    """What a listener's sessions call an address: in its default scope a stream's name is enough."""
    return address.removeprefix(f"{settings.scope}/")
