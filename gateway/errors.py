"""The exception tree. Every error the gateway raises is here, and each one carries a `Status`.

Sessions turn a Status into their protocol's words in one dict (`mapping.py`); nothing ever looks at the text of an error
to find out what it is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import ClassVar


class Status(enum.Enum):
    """What went wrong, in terms every protocol can map. The value is the `reason` label in metrics."""

    INVALID = "invalid"  # the request is malformed or contradicts itself
    UNSUPPORTED = "unsupported"  # well formed, but this gateway or topic cannot do it
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
    NOT_FOUND = "not_found"  # topic, partition, group, schema, account, message
    EXISTS = "exists"
    OUT_OF_RANGE = "out_of_range"  # an offset outside what the log holds
    TOO_LARGE = "too_large"
    NOT_ROUTED = "not_routed"  # no route matches
    SCHEMA = "schema"  # the payload does not fit the topic's schema
    CONFLICT = "conflict"  # state forbids it: a finished transaction, a held cursor
    THROTTLED = "throttled"  # a limit or budget is exhausted; trying later may work
    READ_ONLY = "read_only"  # the store refuses writes: disk full, failed commit not yet healed
    CORRUPT = "corrupt"  # stored data fails its checksum
    UNAVAILABLE = "unavailable"  # a target or upstream cannot be reached
    TIMEOUT = "timeout"
    UNKNOWN_OUTCOME = "unknown_outcome"  # it may or may not have happened
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"


class GatewayError(Exception):
    """Root of the tree."""

    status: ClassVar[Status] = Status.INTERNAL

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__ or self.status.value)

    @property
    def message(self) -> str:
        """The text for people, without the type's name."""
        return str(self.args[0])


# --- the peer broke the protocol: its error frame, and a close where the document says so ------------------------


class WireError(GatewayError):
    """The peer sent bytes the protocol does not allow."""

    status = Status.INVALID


class FrameTooLarge(WireError):
    """A frame is longer than the protocol allows."""

    status = Status.TOO_LARGE


class Truncated(WireError):
    """A payload ended before its last field."""


# --- the request is refused: an error reply, the connection stays -------------------------------------------------


class RequestError(GatewayError):
    """The request was understood and refused."""

    status = Status.INVALID


class InvalidRequest(RequestError):
    """A field has a value that cannot be served."""


class Unsupported(RequestError):
    """This operation is not available here."""

    status = Status.UNSUPPORTED


class Unauthenticated(RequestError):
    """authentication required"""

    status = Status.UNAUTHENTICATED


class Denied(RequestError):
    """unauthorized"""

    status = Status.DENIED


class NotFound(RequestError):
    """The thing that was named does not exist."""

    status = Status.NOT_FOUND


class UnknownTopic(NotFound):
    """topic not found"""


class UnknownPartition(NotFound):
    """partition not found"""


class UnknownGroup(NotFound):
    """consumer group not found"""


class UnknownSubscription(NotFound):
    """unknown subscription or delivery tag"""


class AlreadyExists(RequestError):
    """The name is taken."""

    status = Status.EXISTS


class OffsetOutOfRange(RequestError):
    """The offset lies before the first retained record or cannot be served; `first` and `next` bound what can."""

    status = Status.OUT_OF_RANGE

    def __init__(self, message: str = "", *, first: int = 0, next_offset: int = 0) -> None:
        super().__init__(message or f"offset out of range: the log holds [{first}, {next_offset})")
        self.first = first
        self.next_offset = next_offset


class TooLarge(RequestError):
    """A message or a request is larger than its reader, its protocol or this gateway can carry."""

    status = Status.TOO_LARGE


class NotRouted(RequestError):
    """No route matches."""

    status = Status.NOT_ROUTED


class SchemaViolation(RequestError):
    """The payload does not fit the schema; `problems` lists why."""

    status = Status.SCHEMA

    def __init__(self, message: str = "", *, problems: Sequence[str] = ()) -> None:
        super().__init__(message or "schema validation failed: " + "; ".join(problems))
        self.problems = tuple(problems)


class Conflict(RequestError):
    """The state of the thing forbids this."""

    status = Status.CONFLICT


class OutOfTurn(Conflict):
    """What this was to come after is not there. Who sent both sends both again."""


class Throttled(RequestError):
    """A limit was reached."""

    status = Status.THROTTLED


class ShuttingDown(RequestError):
    """The gateway is draining."""

    status = Status.SHUTTING_DOWN


class RequestTimeout(RequestError):
    """Nothing to answer with came in time."""

    status = Status.TIMEOUT


class OwnerAway(RequestError):
    """The gateway that has this subscription cannot be reached: try again."""

    status = Status.UNAVAILABLE


class AskedElsewhere(RequestError):
    """It is another gateway's. Whoever asked looks once more whose it is; no client hears of it."""

    status = Status.CONFLICT


# --- a target elsewhere ---


LONGEST_TARGET_TEXT = 512
"""Characters that are kept of what an upstream says: it is shown to people, and thousands of messages may wait with theirs."""


class TargetError(GatewayError):
    """An upstream broker refused or could not be reached."""

    status = Status.UNAVAILABLE

    def __init__(self, message: str = "") -> None:
        super().__init__(message[:LONGEST_TARGET_TEXT])


class TargetRefused(TargetError):
    """The upstream answered with a refusal; `final` ones are not tried again."""

    def __init__(self, message: str = "", *, refusal: Status = Status.INVALID, final: bool = False) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.final = final


class TargetOutOfTurn(TargetRefused):
    """The upstream did not take what was sent before this, and so has not looked at this."""


class TargetLost(TargetError):
    """The connection to the upstream ended while a request was under way."""

    status = Status.UNKNOWN_OUTCOME


# --- the store ---


class StoreError(GatewayError):
    """The store could not do it."""


class StoreReadOnly(StoreError):
    """The store refuses writes until a probe write succeeds again (disk full, failed commit)."""

    status = Status.READ_ONLY


class CommitFailed(StoreError):
    """The commit that carried this request failed: nothing of it is stored."""

    status = Status.READ_ONLY


class TurnMissed(CommitFailed):
    """Other gateways that write to the same log did not end in time what they had begun: nothing of this is stored."""


class OutcomeUnknown(StoreError):
    """The commit was interrupted: it may or may not be stored."""

    status = Status.UNKNOWN_OUTCOME


class ConditionFailed(StoreError):
    """A unit's condition did not hold; nothing of the unit was applied."""

    status = Status.CONFLICT


class LogUnavailable(StoreError):
    """Where the log is, nobody delivers what was stored: it may be asked for again."""

    status = Status.UNAVAILABLE


class CorruptChunk(StoreError):
    """A stored chunk fails its checksum; the range it covers cannot be served."""

    status = Status.CORRUPT

    def __init__(self, topic: str, partition: int, first: int, next_offset: int) -> None:
        super().__init__(f"damaged chunk: topic={topic} partition={partition} offsets=[{first}, {next_offset})")
        self.topic = topic
        self.partition = partition
        self.first = first
        self.next_offset = next_offset


class StoreDamaged(StoreError):
    """The store as a whole must not be served: it lost commits or cannot be opened."""

    status = Status.CORRUPT


class RowLost(StoreDamaged):
    """What would have to be known is among what a damaged page has taken along: nobody can say that there was nothing."""


class StoreInUse(StoreError):
    """Another process serves this store."""

    status = Status.CONFLICT


class NotAStore(StoreError):
    """There is no store at this path."""

    status = Status.NOT_FOUND


# --- configuration ---


class ConfigProblem(GatewayError):
    """One problem in a configuration file, with where it is."""

    status = Status.INVALID

    def __init__(self, message: str, *, file: str = "", line: int = 0, path: str = "") -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.path = path

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.path, self.message) if part)


class ConfigError(ExceptionGroup[ConfigProblem]):
    """Every problem of a configuration at once."""

    def derive(self, excs: Sequence[ConfigProblem]) -> ConfigError:  # type: ignore[override]
        """Keep the type when the group is split."""
        return ConfigError(self.message, excs)
