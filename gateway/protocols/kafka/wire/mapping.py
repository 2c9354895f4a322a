"""What the library's errors mean: by their numbers, which are those of Kafka's protocol, and negative ones of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.errors import GatewayError, Status, TargetError, TargetLost, TargetRefused
from gateway.librdkafka.codes import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TRANSACTION_DENIED,
    UNAUTHENTICATED,
    UNKNOWN_OUTCOME,
)


class LibraryError(Protocol):
    """A KafkaError."""

    def code(self) -> int: ...
    def str(self) -> str: ...


FINAL: Mapping[int, Status] = {
    3: Status.NOT_FOUND,  # UNKNOWN_TOPIC_OR_PART
    -188: Status.NOT_FOUND,  # _UNKNOWN_TOPIC
    -190: Status.NOT_FOUND,  # _UNKNOWN_PARTITION
    17: Status.INVALID,  # TOPIC_EXCEPTION: no name of a topic
    10: Status.TOO_LARGE,  # MSG_SIZE_TOO_LARGE
    18: Status.TOO_LARGE,  # RECORD_LIST_TOO_LARGE
    29: Status.DENIED,  # TOPIC_AUTHORIZATION_FAILED
    30: Status.DENIED,  # GROUP_AUTHORIZATION_FAILED
    31: Status.DENIED,  # CLUSTER_AUTHORIZATION_FAILED
    53: Status.DENIED,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    32: Status.INVALID,  # INVALID_TIMESTAMP
    36: Status.EXISTS,  # TOPIC_ALREADY_EXISTS
    44: Status.INVALID,  # POLICY_VIOLATION
    87: Status.INVALID,  # INVALID_RECORD
}
FINAL_REFUSALS = (
    "topic or partition not found",
    "not a name of a topic",
    "message too large",
    "authorization failed",
    "invalid record",
    "invalid timestamp",
    "policy violation",
)
AUTHORISATION = frozenset({GROUP_DENIED, CLUSTER_DENIED, TRANSACTION_DENIED})
"""They are about the gateway's rights and not about one message: who gives them to it lets everything through."""


def target_error(error: LibraryError) -> GatewayError:
    code, text = error.code(), error.str()
    if code in UNAUTHENTICATED:
        return TargetRefused(text, refusal=Status.UNAUTHENTICATED)
    if code in FINAL:
        return TargetRefused(text, refusal=FINAL[code], final=code not in AUTHORISATION)
    if code in UNKNOWN_OUTCOME:
        return TargetLost(f"Kafka has not confirmed it: {text}")
    return TargetError(text)
