"""Errors in FlyMQ's words, and back.

FlyMQ's ERROR carries nothing but a text, and clients and their users match on its words (FlyMQ wire 8): they are kept
here, in one dict each way.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from gateway.errors import (
    GatewayError,
    OffsetOutOfRange,
    SchemaViolation,
    Status,
    TargetRefused,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)

WORDS: Mapping[Status, str] = {
    Status.INVALID: "{message}",
    Status.UNSUPPORTED: "{message}",
    Status.UNAUTHENTICATED: "{message}",
    Status.DENIED: "{message}",
    Status.NOT_FOUND: "{message}",
    Status.EXISTS: "{message}",
    Status.OUT_OF_RANGE: "{message}",
    Status.TOO_LARGE: "{message}",
    Status.NOT_ROUTED: "topic not found: {topic}",
    Status.SCHEMA: "{message}",
    Status.CONFLICT: "{message}",
    Status.THROTTLED: "throttled: {message}",
    Status.READ_ONLY: "storage is read-only: {message}",
    Status.CORRUPT: "corrupt data: {message}",
    Status.UNAVAILABLE: "unavailable: {message}",
    Status.TIMEOUT: "timeout: {message}",
    Status.UNKNOWN_OUTCOME: "outcome unknown: {message}",
    Status.SHUTTING_DOWN: "shutting down: {message}",
    Status.INTERNAL: "internal error",
}
"""What each Status is called. The default messages of the refusals are FlyMQ's own words already."""

NAMED: Mapping[type[GatewayError], str] = {
    UnknownTopic: "topic not found: {topic}",
    UnknownPartition: "partition {partition} {missing}",
    UnknownGroup: "consumer group not found: {topic}:{group}",
    OffsetOutOfRange: "offset out of range: first={first} next={next}",
}
"""Refusals whose words name what was asked for (FlyMQ wire 2.2)."""


@attrs.frozen
class Subject:
    """What a request was about, for the words of its refusal."""

    topic: str = ""
    group: str = ""
    partition: int = 0
    missing: str = "not found"
    """What is said of a partition that is not there: reading and writing call it `out of range`."""


def words(error: GatewayError, subject: Subject) -> str:
    if isinstance(error, SchemaViolation) and error.problems:
        return f"schema validation failed: [{' '.join(error.problems)}]"
    template = NAMED.get(type(error)) or WORDS[error.status]
    return template.format(
        message=error.message,
        topic=subject.topic,
        group=subject.group,
        partition=subject.partition,
        missing=subject.missing,
        first=getattr(error, "first", 0),
        next=getattr(error, "next_offset", 0),
    )


REFUSALS: Mapping[str, tuple[Status, bool]] = {
    "EOF": (Status.OUT_OF_RANGE, False),
    "topic not found": (Status.NOT_FOUND, True),
    "partition ": (Status.NOT_FOUND, True),
    "consumer group not found": (Status.NOT_FOUND, True),
    "message not found": (Status.NOT_FOUND, True),
    "schema not found": (Status.NOT_FOUND, True),
    "no schema found": (Status.NOT_FOUND, True),
    "transaction not found": (Status.CONFLICT, True),
    "authentication required": (Status.UNAUTHENTICATED, False),
    "invalid username or password": (Status.UNAUTHENTICATED, True),
    "user account is disabled": (Status.DENIED, True),
    "unauthorized": (Status.DENIED, True),
    "unknown opcode": (Status.UNSUPPORTED, True),
    "unsupported": (Status.UNSUPPORTED, True),
    "buffer too small": (Status.INVALID, True),
    "invalid": (Status.INVALID, True),
    "schema validation failed": (Status.SCHEMA, True),
    "offset out of range": (Status.OUT_OF_RANGE, True),
    "message too large": (Status.TOO_LARGE, True),
    "key too large": (Status.TOO_LARGE, True),
    "not leader": (Status.UNAVAILABLE, False),
    "unavailable": (Status.UNAVAILABLE, False),
    "throttled": (Status.THROTTLED, False),
    "storage is read-only": (Status.READ_ONLY, False),
    "corrupt data": (Status.CORRUPT, False),
    "timeout": (Status.TIMEOUT, False),
    "outcome unknown": (Status.UNKNOWN_OUTCOME, False),
    "shutting down": (Status.SHUTTING_DOWN, False),
    "internal error": (Status.INTERNAL, False),
}
"""How an upstream's text begins -> what it means, and whether asking again is pointless. The text is all there is."""


def refusal(text: str) -> TargetRefused:
    """An upstream's ERROR as an error of ours. Unknown words are tried again."""
    for beginning, (status, final) in REFUSALS.items():
        if text.startswith(beginning):
            return TargetRefused(text, refusal=status, final=final)
    return TargetRefused(text, refusal=Status.INTERNAL, final=False)
