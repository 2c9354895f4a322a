"""Frames, and what they carry whatever they are written in: operations of clients, answers of servers.

A frame is a big-endian u32 length and that many bytes (RustLog document, Frame Structure). The bytes are binary or one
of two kinds of JSON; which, is seen frame by frame (RustLog wire 3).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Annotated

import attrs
import msgspec

from gateway.envelope import MOST_MESSAGES, Columns, Run
from gateway.errors import FrameTooLarge, GatewayError, WireError

LENGTH = struct.Struct(">I")
HEADER = LENGTH.size

MAX_FRAME = 10_485_760
"""Payload bytes of a frame (RustLog wire 1.1)."""

MAX_PACKED = MAX_FRAME - 13
"""Records with their lengths in one Fetch answer: type, count and next_offset take 13 bytes (RustLog wire 8)."""

MAX_VALUE = MAX_PACKED - 4
"""The largest record that can be returned, so the largest that is accepted (RustLog wire 8)."""

U64_MAX = (1 << 64) - 1


class Encoding(enum.Enum):
    """What a payload is written in (RustLog wire, the table of dialects)."""

    BINARY = "binary"
    SEED_JSON = "json with the variant as key"
    TYPED_JSON = "json with a type field"

    # there is one of each: the enumeration's own hash, of the name, is a call for every look
    __hash__ = object.__hash__


class ZeroLength(WireError):
    """invalid protocol: zero-length frame"""

    def __init__(self) -> None:
        super().__init__("invalid protocol: zero-length frame")


class Oversize(FrameTooLarge):
    """A frame's length is beyond the limit."""

    def __init__(self, length: int) -> None:
        super().__init__(f"frame too large: {length} bytes (max: {MAX_FRAME})")
        self.length = length


class Undecodable(WireError):
    """A payload that is no request. The text is what follows `Decode error: ` (RustLog wire 1.3)."""


class UnknownOperation(Undecodable):
    """A request type nobody knows."""


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def check_length(length: int) -> None:
    """Refuse a frame by its length alone."""
    if length == 0:
        raise ZeroLength
    if length > MAX_FRAME:
        raise Oversize(length)


def check_count(records: int) -> None:
    if records > MOST_MESSAGES:
        raise Undecodable(f"too many records: {records} (max: {MOST_MESSAGES})")


# --- operations ---

Natural = Annotated[int, msgspec.Meta(ge=0)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]


class Operation(msgspec.Struct, frozen=True):
    """Root of what a client can ask."""


class Produce(Operation, frozen=True):
    topic: str
    partition: U32
    columns: Columns


class Fetch(Operation, frozen=True):
    """Read from a partition; an empty group means none."""

    group: str
    topic: str
    partition: U32
    offset: Natural
    max_bytes: Natural


class OffsetCommit(Operation, frozen=True):
    group: str
    topic: str
    partition: U32
    offset: Natural


class OffsetFetch(Operation, frozen=True):
    group: str
    topic: str
    partition: U32


class CreateTopic(Operation, frozen=True):
    topic: str
    partitions: int


class ListTopics(Operation, frozen=True):
    """Name all topics."""


class DescribeTopic(Operation, frozen=True):
    topic: str


class DescribePartition(Operation, frozen=True):
    topic: str
    partition: U32


class MetricsFetch(Operation, frozen=True):
    """Ask for the metrics."""


class Ping(Operation, frozen=True):
    """Ask for a sign of life."""


# --- answers ---


@attrs.frozen
class Answer:
    """Root of what a server can say."""


@attrs.frozen
class Produced(Answer):
    """Where the records went: `count` of them from `base` on."""

    base: int
    count: int


@attrs.frozen(eq=False)
class Records(Answer):
    """What was read. A binary client numbers the records backwards from `next_offset`."""

    runs: Sequence[Run]
    next_offset: int


@attrs.frozen(eq=False)
class Pulled(Answer):
    """The same as a client reads it. Without `offsets` the records are the last ones before `next_offset`."""

    columns: Columns
    next_offset: int
    offsets: Sequence[int] | None = None


@attrs.frozen
class Committed(Answer):
    """Whether the position was kept."""

    success: bool


@attrs.frozen
class GroupPosition(Answer):
    """A group's position, if it has one."""

    offset: int | None


@attrs.frozen
class Created(Answer):
    success: bool
    partitions: int = 0


@attrs.frozen
class TopicList(Answer):
    """(name, partitions), sorted by the bytes of the name."""

    topics: Sequence[tuple[str, int]]


@attrs.frozen
class PartitionState:
    """One partition: its id, log end and log start."""

    id: int
    high_watermark: int
    log_start: int = 0


@attrs.frozen
class TopicDescription(Answer):
    """A topic's partitions, ascending."""

    topic: str
    partitions: Sequence[PartitionState]


@attrs.frozen
class PartitionDescription(Answer):
    topic: str
    state: PartitionState


@attrs.frozen
class Metrics(Answer):
    """The metrics in Prometheus' text format."""

    text: str


@attrs.frozen
class Pong(Answer):
    """A sign of life."""


@attrs.frozen
class Refusal(Answer):
    """Why an operation was not done. `operation` is None when no request could be made out."""

    error: GatewayError
    operation: Operation | None = None


@attrs.frozen
class ErrorAnswer(Answer):
    """A refusal as a client reads it: a code (0 in the seed's JSON, which has none) and a text."""

    code: int
    text: str
