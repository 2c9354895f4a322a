"""What Fujin says: stock texts word for word, and words for every Status (wire 2). Errors are text on this wire, no codes."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import GatewayError, Status

NO_WRITER_TOPIC = "writer topic len arg not provided"
NO_MESSAGE = "write size arg not provided"
TOO_LARGE = "write size arg too large"
BAD_HEADERS = "write headers arg invalid"
INVALID_TX_STATE = "invalid tx state"
INVALID_READER_TYPE = "invalid reader type"
INVALID_AUTO_COMMIT = "connect reader is auto commit arg invalid"
NO_READER_NAME = "reader name size arg not provided"
NO_FETCH_COUNT = "fetch arg not provided"
NO_SUCH_ID = "no such id"
WRITER_NOT_FOUND = "writer not found"
READER_NOT_FOUND = "reader not found"
NOTHING_FETCHED = "no message in time"
PING_TIMED_OUT = "read: deadline exceeded"
PING_REFUSED = "ping stream refused"
PING_WRONG = "not the answer to a ping"
PINGS_FAILED = "ping failed after retries"
GOING_DOWN = "server is shutting down"

WORDS: Mapping[Status, str] = {
    Status.INVALID: "invalid",
    Status.UNSUPPORTED: "not supported",
    Status.UNAUTHENTICATED: "unauthenticated",
    Status.DENIED: "denied",
    Status.NOT_FOUND: "not found",
    Status.EXISTS: "exists",
    Status.OUT_OF_RANGE: "out of range",
    Status.TOO_LARGE: "too large",
    Status.NOT_ROUTED: "not found",
    Status.SCHEMA: "schema violation",
    Status.CONFLICT: "conflict",
    Status.THROTTLED: "throttled",
    Status.READ_ONLY: "read only",
    Status.CORRUPT: "corrupt",
    Status.UNAVAILABLE: "unavailable",
    Status.TIMEOUT: "timeout",
    Status.UNKNOWN_OUTCOME: "outcome unknown",
    Status.SHUTTING_DOWN: GOING_DOWN,
    Status.INTERNAL: "internal error",
}
"""How every Status begins. A name nobody knows has the stock texts instead: see `write_error` and `reader_error`."""

UNKNOWN = (Status.NOT_FOUND, Status.NOT_ROUTED)


def text(error: GatewayError) -> str:
    """How an error is said; never empty (wire 0, rule 7)."""
    return f"{WORDS[error.status]}: {error.message}"


def write_error(error: GatewayError) -> str:
    """What a writer is told."""
    return WRITER_NOT_FOUND if error.status in UNKNOWN else text(error)


def reader_error(error: GatewayError) -> str:
    """What CONNECT READER is answered with."""
    return READER_NOT_FOUND if error.status in UNKNOWN else text(error)


def settle_error(error: GatewayError) -> str:
    """What becomes of one message id in an ACK or a NACK."""
    return NO_SUCH_ID if error.status in UNKNOWN else text(error)


def tx_error(error: GatewayError) -> str:
    """For BEGIN, COMMIT and ROLLBACK."""
    return INVALID_TX_STATE if error.status in UNKNOWN else text(error)
