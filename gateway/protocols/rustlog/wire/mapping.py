"""Statuses to RustLog's codes and texts, in each of its dialects, and back."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import GatewayError, OffsetOutOfRange, Status, TargetRefused
from gateway.protocols.rustlog.wire.frames import (
    MAX_FRAME,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    OffsetCommit,
    Operation,
    Oversize,
    Produce,
    Refusal,
    Undecodable,
    UnknownOperation,
    ZeroLength,
)

FRAME_ERROR = 1
DECODE_ERROR = 2
READ_FAILED = 4
COMMIT_FAILED = 5
NOT_FOUND = 10
EXISTS = 11
BAD_PARTITION_COUNT = 12
TOPIC_NOT_FOUND = 13
PARTITION_NOT_FOUND = 14
INTERNAL = 500

CODES: Mapping[Status, tuple[int, int]] = {
    # Status: (binary code, RustLog wire 1.3; code of the "type" JSON, RustLog wire 2.2)
    Status.INVALID: (DECODE_ERROR, 400),
    Status.UNSUPPORTED: (DECODE_ERROR, 405),
    Status.UNAUTHENTICATED: (INTERNAL, 400),
    Status.DENIED: (INTERNAL, 400),
    Status.NOT_FOUND: (NOT_FOUND, 404),
    Status.EXISTS: (EXISTS, 400),
    Status.OUT_OF_RANGE: (READ_FAILED, 416),
    Status.TOO_LARGE: (DECODE_ERROR, 413),
    Status.NOT_ROUTED: (NOT_FOUND, 404),
    Status.SCHEMA: (DECODE_ERROR, 400),
    Status.CONFLICT: (INTERNAL, 500),
    Status.THROTTLED: (INTERNAL, 503),
    Status.READ_ONLY: (INTERNAL, 507),
    Status.CORRUPT: (INTERNAL, 500),
    Status.UNAVAILABLE: (INTERNAL, 503),
    Status.TIMEOUT: (INTERNAL, 503),
    Status.UNKNOWN_OUTCOME: (INTERNAL, 500),
    Status.SHUTTING_DOWN: (INTERNAL, 503),
    Status.INTERNAL: (INTERNAL, 500),
}

FAILED: Mapping[type[Operation], tuple[int, str]] = {
    # what an operation says when it fails for reasons of the server's own (RustLog wire 1.3)
    Produce: (INTERNAL, "Failed to write record: {}"),
    Fetch: (READ_FAILED, "Fetch failed: storage error: failed to read: {}"),
    OffsetCommit: (COMMIT_FAILED, "Offset commit failed: {}"),
    CreateTopic: (INTERNAL, "Internal server error during topic creation"),
    ListTopics: (INTERNAL, "Failed to list topics"),
}

REFUSALS: Mapping[int, tuple[Status, bool]] = {
    # binary code: what it means to a client, and whether trying again is pointless
    FRAME_ERROR: (Status.INVALID, True),
    DECODE_ERROR: (Status.INVALID, True),
    3: (Status.NOT_FOUND, False),
    READ_FAILED: (Status.INTERNAL, False),
    COMMIT_FAILED: (Status.INTERNAL, False),
    NOT_FOUND: (Status.NOT_FOUND, False),
    EXISTS: (Status.EXISTS, True),
    BAD_PARTITION_COUNT: (Status.INVALID, True),
    TOPIC_NOT_FOUND: (Status.NOT_FOUND, False),
    PARTITION_NOT_FOUND: (Status.NOT_FOUND, False),
    INTERNAL: (Status.INTERNAL, False),
}

FINAL_REFUSALS = tuple(str(code) for code, (_, final) in sorted(REFUSALS.items()) if final)


def binary_error(refusal: Refusal) -> tuple[int, str]:
    """Code and text as the binary dialect gives them."""
    error, operation = refusal.error, refusal.operation
    if isinstance(error, ZeroLength | Oversize):
        return FRAME_ERROR, f"Frame error: {error.message}"
    if isinstance(error, Undecodable):
        return DECODE_ERROR, f"Decode error: {error.message}"
    missing = error.status in {Status.NOT_FOUND, Status.NOT_ROUTED}
    match operation:
        case Produce() | Fetch() if missing:
            return (
                NOT_FOUND,
                f"Topic or partition does not exist: topic={operation.topic}, partition={operation.partition}",
            )
        case DescribeTopic() if missing:
            return TOPIC_NOT_FOUND, f"DescribeTopic failed: Topic '{operation.topic}' not found"
        case DescribePartition() if missing:
            where = f"Partition {operation.partition} not found in topic '{operation.topic}'"
            return PARTITION_NOT_FOUND, f"DescribePartition failed: {where}"
        case CreateTopic() if error.status is Status.EXISTS:
            return EXISTS, f"Topic '{operation.topic}' already exists"
        case CreateTopic() if operation.partitions == 0:
            return BAD_PARTITION_COUNT, "Invalid partition count: 0"
        case Fetch() if error.status in {Status.OUT_OF_RANGE, Status.TOO_LARGE}:
            return READ_FAILED, f"Fetch failed: {_range_text(error)}"
        case None:
            return CODES[error.status][0], error.message
        case _:
            code = CODES[error.status][0]
            if code != INTERNAL:
                return code, error.message
            code, text = FAILED.get(type(operation), (INTERNAL, "{}"))
            return code, text.format(error.message)


def json_error(refusal: Refusal) -> str:
    """The text both JSON dialects give (RustLog document, Error Response)."""
    error, operation = refusal.error, refusal.operation
    if isinstance(error, Oversize):
        return f"max frame size exceeded: {error.length} bytes (max: {MAX_FRAME})"
    if isinstance(error, UnknownOperation | Undecodable):
        return f"failed to parse request: {error.message}"
    if error.status in {Status.NOT_FOUND, Status.NOT_ROUTED}:
        match operation:
            case Produce() | Fetch() | OffsetCommit() | DescribePartition():
                return f"partition not found: topic={operation.topic}, partition={operation.partition}"
            case DescribeTopic():
                return f"topic not found: topic={operation.topic}"
    if isinstance(operation, CreateTopic) and error.status is Status.EXISTS:
        return f"Topic '{operation.topic}' already exists"
    return _range_text(error)


def typed_code(refusal: Refusal) -> int:
    """The code of the "type" JSON (RustLog wire 2.2)."""
    if isinstance(refusal.error, UnknownOperation):
        return CODES[Status.UNSUPPORTED][1]
    return CODES[refusal.error.status][1]


def refused(code: int, text: str) -> TargetRefused:
    """A server's error as a client session reports it. The seed's JSON has no codes: 0."""
    status, final = REFUSALS.get(code, (Status.INTERNAL, False))
    return TargetRefused(text, refusal=status, final=final)


def _range_text(error: GatewayError) -> str:
    if isinstance(error, OffsetOutOfRange):
        return f"offset out of range: the first offset is {error.first}, the next one {error.next_offset}"
    return error.message
