"""What the bulk side of the admin API and its clients say to each other: paths, bodies, frames, and errors as values. Pure.

A range of the log travels as frames, `u32 length of the payload, u8 kind, payload` (big-endian), so that an error in the
midst of it can be said: chunks in the store's own encoding behind their base offset and count, and at last the offset to
read on from, or a problem. A body that ends without one of these two was cut off.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from gateway import errors as e
from gateway.envelope import Columns, Headers
from gateway.errors import GatewayError, InvalidRequest, Status
from gateway.recorder import GroupPosition
from gateway.requests import ConsumerMove, GroupMove

CHUNKS = "application/vnd.gateway.chunks"
ARROW = "application/vnd.apache.arrow.stream"
MSGPACK = "application/msgpack"
JSON = "application/json"

TOPICS = "/v1/topics"
LOG = "/v1/log"
OFFSET_FOR_TIME = "/v1/offset-for-time"
APPEND = "/v1/append"
PRODUCER = "/v1/producer"
REDRIVE = "/v1/redrive"
REDRIVEN = "/v1/redriven"
GROUPS = "/v1/groups"
RESET_CONSUMER = "/v1/consumers/reset"
RESET_GROUP = "/v1/groups/reset"

LARGEST_APPEND = 24 << 20
"""Bytes of one request's body: the largest message there is, with room for its headers."""
MOST_APPENDED = 25_000
"""Messages in one append: to spread so many by their keys takes 40 ms."""
MOST_HEADERS = 200_000
"""That all messages of an append have together."""
MOST_COMMAS = 1_000_000
"""In JSON: what is to become so many values is no request."""
LONGEST_PRODUCER = 512
LATEST = 1 << 53
"""Milliseconds since the epoch: no time is later."""

FRAME = struct.Struct(">IB")
PLACE = struct.Struct(">QI")
"""Base offset and count, in front of a chunk."""
NEXT = struct.Struct(">Q")
CHUNK_FRAME, END_FRAME, PROBLEM_FRAME = 1, 2, 3

T = TypeVar("T")
Column = Annotated[Sequence[T], msgspec.Meta(max_length=MOST_APPENDED)]


# --- bodies ---


class Partition(msgspec.Struct, frozen=True):
    """[start, end) of one partition."""

    number: int
    start: int
    end: int
    last_time_ms: int
    bytes: int


class TopicSnapshot(msgspec.Struct, frozen=True):
    """A topic as of one moment."""

    name: str
    epoch: int
    partitions: Sequence[Partition]
    durability: str = "fsync"
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    schema: str = ""
    dead_letters: bool = False
    """Whether it holds what could not be delivered."""


class TopicSnapshots(msgspec.Struct, frozen=True):
    topics: Sequence[TopicSnapshot]
    dense_offsets: bool = True
    """Whether a gap between offsets means that something is missing."""
    following: str = ""
    """Ask for those behind this name, if there are more."""
    total: int = 0
    """How many there are, on all pages together."""


class AppendRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages for one address, and what makes a repetition harmless.

    The values as `values`, or as `packed`: count times (u32 big-endian length, value). All or none is stored.
    """

    address: str
    producer: str
    epoch: int = 0
    sequence: int = 0
    packed: bytes = b""
    count: int = 0
    values: Column[bytes] | None = None
    keys: Column[bytes | None] | None = None
    headers: Column[Sequence[tuple[str, bytes]]] | None = None
    expires: Column[int] | None = None
    protocol: str = ""
    """Whose address it is, as a client of this protocol would write it; empty: the name of a topic."""
    listener: str = ""
    partition: int | None = None
    create: bool = True


class Stretch(msgspec.Struct, frozen=True):
    """Where some of the messages of an append are."""

    topic: str
    partition: int
    base_offset: int
    count: int


class Appended(msgspec.Struct, frozen=True):
    """Where an append went. `filtered`: messages that a route's transform left out. `duplicate`: it had been stored
    before, there, and nothing was added.
    """

    stored: int
    timestamp_ms: int
    places: Sequence[Stretch]
    duplicate: bool = False
    filtered: int = 0


class Producer(msgspec.Struct, frozen=True):
    """The last append of a producer. -1: it never appended."""

    epoch: int = -1
    sequence: int = -1
    timestamp_ms: int = 0


class OffsetFound(msgspec.Struct, frozen=True):
    offset: int


class EditedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What a letter is sent again as."""

    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


class Redrive(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that are to be published again."""

    topic: str
    """The dead-letter topic."""
    epoch: int
    partition: int
    offsets: Column[int]
    to: str = ""
    """An address to publish to, by the routes; empty: the topic each came from."""
    protocol: str = ""
    listener: str = ""
    max_replays: int = 16
    dry_run: bool = False
    edited: EditedLetter | None = None
    """Instead of the letter as it is; of one letter at a time."""


class Redriven(msgspec.Struct, frozen=True):
    """What became of one letter: `done`, `before` (an earlier redrive did it), `refused`, `gone`; or `would`."""

    offset: int
    outcome: str
    target: str = ""
    message: str = ""


class RedriveResult(msgspec.Struct, frozen=True):
    """What became of each letter, in the order they were named."""

    letters: Sequence[Redriven]


class GroupPositions(msgspec.Struct, frozen=True):
    """Where some groups are. `following`: ask for those from this row on, if there is one."""

    positions: Sequence[GroupPosition]
    following: str = ""


class GroupMoves(msgspec.Struct, frozen=True):
    """What a reset has done, or would do."""

    moves: Sequence[GroupMove]


class ConsumerMoves(msgspec.Struct, frozen=True):
    """The same, of a durable consumer."""

    moves: Sequence[ConsumerMove]


class Offsets(msgspec.Struct, frozen=True):
    """Some offsets, ascending."""

    offsets: Sequence[int]


class Refusal(msgspec.Struct, frozen=True):
    """One message of an append that cannot be taken."""

    index: int
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as a value."""

    type: str
    status: str
    message: str
    topic: str = ""
    partition: int = 0
    first: int = 0
    next_offset: int = 0
    refused: Sequence[Refusal] = ()


# --- messages ---


class _Headers(msgspec.Struct):
    headers: Column[msgspec.Raw] | None = None


_HEADERS = msgspec.msgpack.Decoder(_Headers)
_LENGTHS = {0xDC: 3, 0xDD: 5}
_TOO_LONG = re.compile(r"^Expected `array` of length <= (\d+) - at `\$\.?([^`]*)`$")
"""All that msgspec tells of it is a text."""


def check_size(body: bytes, media: str) -> None:
    """Refuse a body of which decoding would make far more than it is: a thousand bytes of memory for four that were sent. Raises
    TooLarge, or what msgspec says.
    """
    if media == JSON:
        if body.count(b",") > MOST_COMMAS:
            raise e.TooLarge(f"a body in JSON has at most {MOST_COMMAS} values")
        return
    if b"headers" not in body:
        return
    pairs = 0
    for row in _HEADERS.decode(body).headers or ():
        head = bytes(memoryview(row)[:5])
        end = _LENGTHS.get(head[0])  # else it is a short array, or none
        pairs += int.from_bytes(head[1:end], "big") if end else head[0] & 0x0F
    if pairs > MOST_HEADERS:
        raise e.TooLarge(f"the messages of an append have at most {MOST_HEADERS} headers together, not {pairs}")


def undecodable(problem: Exception) -> GatewayError:
    """Why a body could not be decoded: a column of more than may be in one is too much, anything else makes no sense."""
    long = _TOO_LONG.search(str(problem))
    if long is None:
        return InvalidRequest(f"the body cannot be read: {problem}")
    return e.TooLarge(f"a request has at most {long[1]} values in a column: {long[2]} has more")


def columns_of(body: AppendRequest) -> Columns:
    """The messages of an append. Raises InvalidRequest or Truncated for a body that contradicts itself."""
    count = body.count if body.values is None else len(body.values)
    if count > MOST_APPENDED:  # before they are looked at: of millions each would be
        raise e.TooLarge(f"an append has at most {MOST_APPENDED} messages, not {count}")
    columns = Columns.of(body.values) if body.values is not None else Columns.from_packed(body.packed, count)
    for name in ("keys", "headers", "expires"):
        column = getattr(body, name)
        if column is not None and len(column) != columns.count:
            raise InvalidRequest(f"there are {columns.count} values and {len(column)} {name}")
    if body.expires is not None and not all(0 <= one < LATEST for one in body.expires):
        raise InvalidRequest("expires: milliseconds since the epoch, 0 for never")
    headers: list[Headers] | None = None
    if body.headers is not None:
        headers = [tuple((name, value) for name, value in row) for row in body.headers]
    return Columns(columns.packed, columns.ends, body.keys, headers, body.expires)


# --- errors ---

HTTP: Mapping[Status, int] = {
    Status.INVALID: 400,
    Status.UNSUPPORTED: 501,
    Status.UNAUTHENTICATED: 401,
    Status.DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.EXISTS: 409,
    Status.OUT_OF_RANGE: 416,
    Status.TOO_LARGE: 413,
    Status.NOT_ROUTED: 404,
    Status.SCHEMA: 422,
    Status.CONFLICT: 409,
    Status.THROTTLED: 429,
    Status.READ_ONLY: 503,
    Status.CORRUPT: 500,
    Status.UNAVAILABLE: 502,
    Status.TIMEOUT: 504,
    Status.UNKNOWN_OUTCOME: 500,
    Status.SHUTTING_DOWN: 503,
    Status.INTERNAL: 500,
}
"""What each Status is in HTTP."""

_TYPES: Mapping[str, Callable[[Problem], GatewayError]] = {
    "CorruptChunk": lambda p: e.CorruptChunk(p.topic, p.partition, p.first, p.next_offset),
    "OffsetOutOfRange": lambda p: e.OffsetOutOfRange(p.message, first=p.first, next_offset=p.next_offset),
    **{
        kind.__name__: lambda p, kind=kind: kind(p.message)  # type: ignore[misc]  # bound now
        for kind in (
            e.CommitFailed,
            e.Conflict,
            e.Denied,
            e.FrameTooLarge,
            e.InvalidRequest,
            e.LogUnavailable,
            e.NotFound,
            e.NotRouted,
            e.OutcomeUnknown,
            e.SchemaViolation,
            e.ShuttingDown,
            e.StoreReadOnly,
            e.Throttled,
            e.TooLarge,
            e.Truncated,
            e.Unauthenticated,
            e.UnknownGroup,
            e.UnknownPartition,
            e.UnknownTopic,
            e.Unsupported,
        )
    },
}


def problem_of(error: GatewayError, refused: Sequence[Refusal] = ()) -> Problem:
    return Problem(
        type=type(error).__name__,
        status=error.status.value,
        message=error.message,
        topic=getattr(error, "topic", ""),
        partition=getattr(error, "partition", 0),
        first=getattr(error, "first", 0),
        next_offset=getattr(error, "next_offset", 0),
        refused=refused,
    )


def error_of(problem: Problem) -> GatewayError:
    """The error that was sent; of a type that is not known here, a TargetRefused with its status."""
    make = _TYPES.get(problem.type)
    if make is not None:
        return make(problem)
    known = {status.value: status for status in Status}
    return e.TargetRefused(problem.message, refusal=known.get(problem.status, Status.INTERNAL))


def frame(kind: int, payload: bytes) -> bytes:
    return FRAME.pack(len(payload), kind) + payload
