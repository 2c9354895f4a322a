"""What the library's errors mean: by their numbers, which are those of Kafka's protocol, and negative ones of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.errors import GatewayError, Status, TargetError, TargetLost, TargetRefused


class LibraryError(Protocol):
    """A KafkaError."""

    def code(self) -> int: ...
    def str(self) -> str: ...


UNAUTHENTICATED = frozenset({-169, 33, 34, 58})
"""Nothing will get better by itself: _AUTHENTICATION, the mechanism is not there, in no state for it, SASL failed."""
COORDINATOR_MOVES = frozenset({14, 15, 16, 88})
"""It reads its log, there is none yet, it is another one, and somebody else's transaction is about to end."""
LEADER_MOVES = frozenset({3, 5, 6})
"""Of a topic that is there: not known everywhere yet, no leader, another leader."""
NOBODY_THERE = -187
"""_ALL_BROKERS_DOWN."""
UNKNOWN_OUTCOME = frozenset({-192, -185, -150, 7, 20})
"""_MSG_TIMED_OUT, _TIMED_OUT, _FATAL, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND: it may be stored."""
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
AUTHORISATION = frozenset({30, 31, 53})
"""They are about the gateway's rights and not about one message: who gives them to it lets everything through."""


def target_error(error: LibraryError) -> GatewayError:
    code, text = error.code(), error.str()
    if code in UNAUTHENTICATED:
        return TargetRefused(text, refusal=Status.UNAUTHENTICATED)
    if code in FINAL:
        return TargetRefused(text, refusal=FINAL[code], final=code not in AUTHORISATION)
    if code in UNKNOWN_OUTCOME:
        return TargetLost(text)
    return TargetError(text)
