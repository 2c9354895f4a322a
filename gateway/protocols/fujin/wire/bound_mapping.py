"""What the dialects that bind say of every error: status, whether it has happened all the same, reason (wire 6.2).

The outcome byte is what these dialects have and no other: who is told `unknown` must look before it sends again.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import GatewayError, Status, TargetError, TargetLost, TargetRefused
from gateway.protocols.fujin.wire.bound_frames import Applied, Code, Failure

Said = tuple[Code, Applied, str]

SAID: Mapping[Status, Said] = {
    Status.INVALID: (Code.INVALID_ARGUMENT, Applied.NO, "INVALID_ARGUMENT"),
    Status.UNSUPPORTED: (Code.UNIMPLEMENTED, Applied.NO, "OPERATION_UNSUPPORTED"),
    Status.UNAUTHENTICATED: (Code.UNAUTHENTICATED, Applied.NO, "UNAUTHENTICATED"),
    Status.DENIED: (Code.PERMISSION_DENIED, Applied.NO, "PERMISSION_DENIED"),
    Status.NOT_FOUND: (Code.NOT_FOUND, Applied.NO, "ROUTE_NOT_FOUND"),
    Status.EXISTS: (Code.ALREADY_EXISTS, Applied.YES, "ALREADY_EXISTS"),
    Status.OUT_OF_RANGE: (Code.OUT_OF_RANGE, Applied.NO, "OUT_OF_RANGE"),
    Status.TOO_LARGE: (Code.RESOURCE_EXHAUSTED, Applied.NO, "TOO_LARGE"),
    Status.NOT_ROUTED: (Code.NOT_FOUND, Applied.NO, "ROUTE_NOT_FOUND"),
    Status.SCHEMA: (Code.INVALID_ARGUMENT, Applied.NO, "SCHEMA_VIOLATION"),
    Status.CONFLICT: (Code.ABORTED, Applied.NO, "CONFLICT"),
    Status.THROTTLED: (Code.RESOURCE_EXHAUSTED, Applied.NO, "THROTTLED"),
    Status.READ_ONLY: (Code.UNAVAILABLE, Applied.NO, "UNAVAILABLE"),
    Status.CORRUPT: (Code.DATA_LOSS, Applied.NO, "DATA_LOSS"),
    Status.UNAVAILABLE: (Code.UNAVAILABLE, Applied.NO, "UNAVAILABLE"),
    Status.TIMEOUT: (Code.DEADLINE_EXCEEDED, Applied.UNKNOWN, "DEADLINE_EXCEEDED"),
    Status.UNKNOWN_OUTCOME: (Code.UNKNOWN, Applied.UNKNOWN, "UNKNOWN"),
    Status.SHUTTING_DOWN: (Code.UNAVAILABLE, Applied.NO, "UNAVAILABLE"),
    Status.INTERNAL: (Code.INTERNAL, Applied.UNKNOWN, "INTERNAL"),
}
"""How every Status is said."""

IN_TRANSACTION: Mapping[Status, Said] = {
    Status.CONFLICT: (Code.ABORTED, Applied.NO, "TRANSACTION_ABORTED"),
    Status.NOT_FOUND: (Code.ABORTED, Applied.NO, "TRANSACTION_ABORTED"),
    Status.UNKNOWN_OUTCOME: (Code.UNKNOWN, Applied.UNKNOWN, "COMMIT_OUTCOME_UNKNOWN"),
}
"""Differently inside a transaction and at its end: one that the broker does not know any more was given up."""

SETTLING: Mapping[Status, Said] = {
    Status.NOT_FOUND: (Code.INVALID_ARGUMENT, Applied.NO, "INVALID_MESSAGE_ID"),
}
"""Differently for one message id."""


def failure(error: GatewayError, differently: Mapping[Status, Said] | None = None) -> Failure:
    """What an error is on this wire; never with an empty message."""
    said = (differently or {}).get(error.status) or SAID[error.status]
    return Failure(*said, error.message or error.status.value)


def unknown_route(route: str) -> Failure:
    return Failure(Code.NOT_FOUND, Applied.NO, "ROUTE_NOT_FOUND", f"route not found: {route[:512]}")


NOT_BOUND = Failure(Code.FAILED_PRECONDITION, Applied.NO, "NOT_BOUND", "BIND comes first")
TRANSACTION_ACTIVE = Failure(
    Code.FAILED_PRECONDITION, Applied.NO, "TRANSACTION_ACTIVE", "a transaction is open on this session already"
)
NO_TRANSACTION = Failure(
    Code.FAILED_PRECONDITION, Applied.NO, "NO_TRANSACTION", "no transaction is open on this session"
)
NO_SUBSCRIPTION = Failure(Code.NOT_FOUND, Applied.NO, "SUBSCRIPTION_NOT_FOUND", "no such subscription on this session")
NO_BATCH = Failure(Code.INVALID_ARGUMENT, Applied.NO, "INVALID_BATCH_SIZE", "a FETCH is for at least one message")
BUSY = Failure(Code.ABORTED, Applied.NO, "FETCH_BUSY", "a FETCH is under way on this reader already")
BAD_IDS = Failure(
    Code.INVALID_ARGUMENT,
    Applied.NO,
    "INVALID_MESSAGE_ID",
    "an id that this reader has not given out, or that is settled, or that is there twice",
)
NO_IDS_LEFT = Failure(
    Code.RESOURCE_EXHAUSTED,
    Applied.NO,
    "SUBSCRIPTION_IDS_EXHAUSTED",
    "all 256 subscription ids of this session are in use",
)
CANCELED = Failure(Code.CANCELED, Applied.NO, "CANCELED", "its reader was closed")
NO_CONNECTOR = Failure(Code.NOT_FOUND, Applied.NO, "CONNECTOR_NOT_FOUND", "no such connector on this listener")
NO_KEY = Failure(Code.UNAUTHENTICATED, Applied.NO, "UNAUTHENTICATED", "api_key is expected in the meta of BIND")
NO_OVERRIDES = Failure(
    Code.UNIMPLEMENTED, Applied.NO, "OPERATION_UNSUPPORTED", "nothing here can be overridden by a client"
)


# --- the other way: what a server's failure is to the rest of the house ---

REFUSALS: Mapping[int, Status] = {
    Code.INVALID_ARGUMENT: Status.INVALID,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.ALREADY_EXISTS: Status.EXISTS,
    Code.PERMISSION_DENIED: Status.DENIED,
    Code.RESOURCE_EXHAUSTED: Status.THROTTLED,
    Code.FAILED_PRECONDITION: Status.CONFLICT,
    Code.ABORTED: Status.CONFLICT,
    Code.OUT_OF_RANGE: Status.OUT_OF_RANGE,
    Code.UNIMPLEMENTED: Status.UNSUPPORTED,
    Code.DATA_LOSS: Status.CORRUPT,
    Code.DEADLINE_EXCEEDED: Status.TIMEOUT,
    Code.UNAUTHENTICATED: Status.UNAUTHENTICATED,
}


def refused(failure: Failure) -> TargetError:
    """An outcome that is unknown is as if the connection had been lost: what was asked may have happened."""
    text = f"{failure.reason}: {failure.message}"
    if failure.applied in (Applied.UNKNOWN, Applied.UNSPECIFIED):
        return TargetLost(text)
    return TargetRefused(text, refusal=REFUSALS.get(failure.code, Status.UNAVAILABLE))
