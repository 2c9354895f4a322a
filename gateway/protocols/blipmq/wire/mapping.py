"""What BlipMQ says: its refusals word for word, and a code for every Status (BlipMQ document, Error Codes; wire 1.2, 1.3).

No codes exist on the wire but 400, 401, 404, 426 and 500.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gateway.errors import GatewayError, Status, TargetRefused


@attrs.frozen
class NackText:
    """A NACK's code and text."""

    code: int
    text: str


CLIENT_ERROR = 400
UNAUTHORIZED = 401
UNKNOWN = 404
VERSION_MISMATCH = 426
SERVER_ERROR = 500

HELLO_INVALID = NackText(CLIENT_ERROR, "invalid HELLO payload")
HELLO_AGAIN = NackText(CLIENT_ERROR, "HELLO already performed")
HELLO_VERSION = NackText(VERSION_MISMATCH, "unsupported protocol version")
HELLO_MISSING = NackText(CLIENT_ERROR, "HELLO not performed")
AUTH_INVALID = NackText(CLIENT_ERROR, "invalid AUTH payload")
AUTH_AGAIN = NackText(CLIENT_ERROR, "already authenticated")
AUTH_WRONG = NackText(UNAUTHORIZED, "invalid API key")
UNAUTHENTICATED = NackText(UNAUTHORIZED, "unauthenticated")
PUBLISH_INVALID = NackText(CLIENT_ERROR, "invalid PUBLISH payload")
SUBSCRIBE_INVALID = NackText(CLIENT_ERROR, "invalid SUBSCRIBE payload")
ACK_INVALID = NackText(CLIENT_ERROR, "invalid ACK payload")
POLL_INVALID = NackText(CLIENT_ERROR, "invalid POLL payload")
EMPTY_TOPIC = NackText(CLIENT_ERROR, "empty topic")
INVALID_QOS = NackText(CLIENT_ERROR, "invalid QoS value")
ZERO_SUBSCRIPTION = NackText(CLIENT_ERROR, "subscription_id must be non-zero")
UNKNOWN_TAG = NackText(UNKNOWN, "unknown subscription or delivery tag")

CODES: Mapping[Status, int] = {
    Status.INVALID: CLIENT_ERROR,
    Status.UNSUPPORTED: CLIENT_ERROR,
    Status.UNAUTHENTICATED: UNAUTHORIZED,
    Status.DENIED: UNAUTHORIZED,
    Status.NOT_FOUND: UNKNOWN,
    Status.EXISTS: CLIENT_ERROR,
    Status.OUT_OF_RANGE: CLIENT_ERROR,
    Status.TOO_LARGE: CLIENT_ERROR,
    Status.NOT_ROUTED: UNKNOWN,
    Status.SCHEMA: CLIENT_ERROR,
    Status.CONFLICT: CLIENT_ERROR,
    Status.THROTTLED: SERVER_ERROR,
    Status.READ_ONLY: SERVER_ERROR,
    Status.CORRUPT: SERVER_ERROR,
    Status.UNAVAILABLE: SERVER_ERROR,
    Status.TIMEOUT: SERVER_ERROR,
    Status.UNKNOWN_OUTCOME: SERVER_ERROR,
    Status.SHUTTING_DOWN: SERVER_ERROR,
    Status.INTERNAL: SERVER_ERROR,
}
"""The NACK code of every Status."""

STATUSES: Mapping[int, Status] = {
    CLIENT_ERROR: Status.INVALID,
    UNAUTHORIZED: Status.DENIED,
    UNKNOWN: Status.NOT_FOUND,
    VERSION_MISMATCH: Status.UNSUPPORTED,
    SERVER_ERROR: Status.UNAVAILABLE,
}
"""What a NACK of an upstream means here."""

FINAL = (CLIENT_ERROR, UNAUTHORIZED, VERSION_MISMATCH)
"""Codes of an upstream that trying again will not change."""

LONGEST_TEXT = 1024
"""Bytes of a NACK's text: enough for every sentence, and a bound on what a name inside one can blow it up to."""


def refusal(error: GatewayError) -> NackText:
    return NackText(CODES[error.status], _shortened(error.message))


def publish_refusal(error: GatewayError) -> NackText:
    """How an error is said to a publisher: what is not its fault carries the document's words (wire 1.3)."""
    plain = refusal(error)
    if plain.code != SERVER_ERROR:
        return plain
    return NackText(plain.code, _shortened(f"durable publish failed: {error.message}"))


def upstream_error(code: int, text: str) -> TargetRefused:
    return TargetRefused(f"{code} {text}", refusal=STATUSES.get(code, Status.INTERNAL), final=code in FINAL)


def _shortened(text: str) -> str:
    raw = text.encode(errors="replace")
    return text if len(raw) <= LONGEST_TEXT else raw[:LONGEST_TEXT].decode(errors="ignore")
