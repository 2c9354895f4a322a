"""What its errors are called: the numbers of Kafka's protocol, and negative ones of the library's own. Pure, and without it."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

NO_TEXT = UnicodeDecodeError, SystemError
"""What `headers_of` raises where a name is no text: the second is the first, behind a result with holes. Whoever asks the same
record again is given that result, and touching a hole ends the process.
"""
headers_of: Callable[[Any], Any] = methodcaller("headers")
"""The headers of a record. The library may return them and raise at once: the interpreter does not look for that where it calls a
method often itself, and does where it is called from here.
"""
UNAUTHENTICATED = frozenset({-169, 33, 34, 58})
"""Nothing will get better by itself: _AUTHENTICATION, the mechanism is not there, in no state for it, SASL failed."""
COORDINATOR_MOVES = frozenset({14, 15, 16, 88})
"""It reads its log, there is none yet, it is another one, and somebody else's transaction is about to end."""
MEMBERS_MOVE = frozenset({22, 25, 27, -142, -172})
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, _ASSIGNMENT_LOST, _STATE: who asks is not, or not yet, a member
of the group as it is now.
"""
LEADER_MOVES = frozenset({3, 5, 6})
"""Of a topic that is there: not known everywhere yet, no leader, another leader."""
SOON_KNOWN = frozenset({5, 6, 9, 74, 75, 78, -195})
"""Another broker will know, or this one a moment later: where the leader is, how far it is, _TRANSPORT."""
NOBODY_THERE = -187
"""_ALL_BROKERS_DOWN."""
TRANSPORT = -195
NO_TOPIC = frozenset({3, -188})
"""UNKNOWN_TOPIC_OR_PART, _UNKNOWN_TOPIC."""
NOT_THERE = NO_TOPIC | {-190}
"""And _UNKNOWN_PARTITION."""
TOO_LARGE = frozenset({4, 10, 18})
"""INVALID_MSG_SIZE, MSG_SIZE_TOO_LARGE, RECORD_LIST_TOO_LARGE."""
NO_SUCH_OFFSET = frozenset({1, -140})
"""OFFSET_OUT_OF_RANGE, _AUTO_OFFSET_RESET."""
PARTITION_END = -191
"""No error: the news that everything before was read."""
OVER = frozenset({-150, -152, -148})
"""_FATAL, _PURGE_QUEUE, _GAPLESS_GUARANTEE: of this producer nothing more can be known."""
FENCED = frozenset({-144, 47, 90})
"""_FENCED, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED: somebody has begun under the same transactional id since."""
UNKNOWN_OUTCOME = frozenset({-192, -185, -150, 7, 20})
"""_MSG_TIMED_OUT, _TIMED_OUT, _FATAL, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND: it may be stored."""
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TRANSACTION_DENIED = 29, 30, 31, 53
