"""What two gateways say to each other: frames of msgpack behind their length. Values in, bytes out, and back.

One of them asks and the other answers; it answers each question by its number, in any order. A client is named before it asks.
All that comes is of a member's certificate, and is believed no sooner than it has been parsed: a length is looked at before there
is room for it, columns have to be as long as they say.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from gateway import errors
from gateway.broker.consume.shared import AboutOne
from gateway.envelope import BatchMeta, Columns, Headers, Run
from gateway.errors import FrameTooLarge, GatewayError, InvalidRequest, Status, WireError
from gateway.requests import (
    DONE,
    ConsumerMoved,
    Delivered,
    Done,
    Outcome,
    Settled,
    Subscribed,
    Taken,
)

LARGEST_QUESTION = 4 << 20
"""Bytes of a frame of the gateway that asks. The largest settles a hundred thousand messages."""
LARGEST_ANSWER = 256 << 20
"""Bytes of a frame of the gateway that answers: one message at least, and what its client asked for."""
LONGEST_TEXT = 1 << 10
_LENGTH = struct.Struct(">I")


class LinkFrame(msgspec.Struct, frozen=True, array_like=True):
    """Root of all frames."""


class ClientCame(LinkFrame, frozen=True, array_like=True, tag="came"):
    """A client of the gateway that asks, by its number there."""

    client: int
    listener: str
    protocol: str
    name: str


class ClientLeft(LinkFrame, frozen=True, array_like=True, tag="left"):
    client: int


class LinkQuestion(LinkFrame, frozen=True, array_like=True, tag="ask"):
    """The request's id is the question's number; 0 wants no answer. `hold_until` is a time from now on."""

    client: int
    subscription: int
    topic: str
    """Of a Subscribe: what the address is called in the log."""
    request: AboutOne


class EnoughTaken(LinkFrame, frozen=True, array_like=True, tag="enough"):
    """A Take is to be answered with what it has."""

    client: int
    question: int


class LinkBeat(LinkFrame, frozen=True, array_like=True, tag="beat"):
    """Somebody is there. It is sent back."""


class LinkRefusal(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    status: Status
    text: str


class LinkRun(msgspec.Struct, frozen=True, array_like=True):
    """A run, as its columns."""

    first_tag: int
    attempt: int
    topic: str
    partition: int
    base_offset: int
    packed: bytes
    times: list[int]
    batches: list[tuple[int, int, BatchMeta]]
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    expires: list[int] | None = None


class LinkMessages(LinkFrame, frozen=True, array_like=True, tag="messages"):
    question: int
    handed: list[LinkRun]
    ended: bool
    address: str
    acknowledge: bool


class LinkAnswer(LinkFrame, frozen=True, array_like=True, tag="answer"):
    """None of the others: it is done."""

    question: int
    subscribed: Subscribed | None = None
    settled: list[LinkRefusal | None] | None = None
    refused: LinkRefusal | None = None
    moved: ConsumerMoved | None = None


Asks: TypeAlias = ClientCame | ClientLeft | LinkQuestion | EnoughTaken | LinkBeat
Answers: TypeAlias = LinkMessages | LinkAnswer | LinkBeat
Spoken = TypeVar("Spoken")
_ENCODER = msgspec.msgpack.Encoder()


def encode(frame: LinkFrame, largest: int) -> bytes:
    body = _ENCODER.encode(frame)
    if len(body) > largest:
        raise FrameTooLarge(
            f"a frame of {len(body)} bytes: {largest} are the most that goes from one gateway to another"
        )
    return _LENGTH.pack(len(body)) + body


class LinkFrames:
    """What comes, cut into frames of one direction. No more is kept than has come."""

    def __init__(self, kind: type[Spoken] | object, largest: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        self._largest = largest
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[object]:
        """The frames that are whole now. Raises WireError where there is one that cannot be."""
        self._kept += data
        at = 0
        while len(self._kept) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._kept, at)
            if size > self._largest:
                raise FrameTooLarge(f"a frame of {size} bytes: {self._largest} are the most")
            end = at + _LENGTH.size + size
            if len(self._kept) < end:
                break
            try:
                frame = self._decoder.decode(memoryview(self._kept)[at + _LENGTH.size : end])
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise WireError(f"a frame that is none: {error}") from error
            at = end
            yield frame
        del self._kept[:at]


def answer(number: int, outcome: Outcome) -> LinkMessages | LinkAnswer:
    """Raises InvalidRequest for what is no answer to what can be asked."""
    match outcome:
        case GatewayError():
            return LinkAnswer(number, refused=_refusal(outcome))
        case Subscribed():
            return LinkAnswer(number, subscribed=outcome)
        case Settled():
            return LinkAnswer(number, settled=[_refusal(one) if one is not None else None for one in outcome.results])
        case Taken():
            handed = [_handed(one) for one in outcome.deliveries]
            return LinkMessages(number, handed, outcome.ended, outcome.address, outcome.acknowledge)
        case ConsumerMoved():
            return LinkAnswer(number, moved=outcome)
        case Done():
            return LinkAnswer(number)
    raise InvalidRequest(f"{type(outcome).__name__} answers nothing that one gateway asks another")


def outcome_of(frame: LinkMessages | LinkAnswer) -> Outcome:
    """Raises WireError where columns do not fit."""
    if isinstance(frame, LinkMessages):
        return Taken([_delivered(one) for one in frame.handed], frame.ended, frame.address, frame.acknowledge)
    if frame.refused is not None:
        return _error(frame.refused)
    if frame.settled is not None:
        return Settled([_error(one) if one is not None else None for one in frame.settled])
    return frame.subscribed or frame.moved or DONE


def _handed(delivered: Delivered) -> LinkRun:
    run = delivered.run
    columns = run.columns
    return LinkRun(
        delivered.first_tag,
        delivered.attempt,
        run.topic,
        run.partition,
        run.base_offset,
        columns.packed,
        list(run.times),
        list(run.batches),
        list(columns.keys) if columns.keys is not None else None,
        list(columns.headers) if columns.headers is not None else None,
        list(columns.expires) if columns.expires is not None else None,
    )


def _delivered(handed: LinkRun) -> Delivered:
    count = len(handed.times)
    starts = [first for first, _inner, _meta in handed.batches]
    beside = (handed.keys, handed.headers, handed.expires)
    if not count or any(column is not None and len(column) != count for column in beside):
        raise WireError("columns of different lengths")
    if starts[:1] != [0] or starts[-1] >= count or not _ascending(starts) or handed.base_offset < 0:
        raise WireError("batches that are not where the messages are")
    columns = Columns.from_packed(handed.packed, count)
    columns.keys, columns.headers, columns.expires = beside
    run = Run(handed.topic, handed.partition, handed.base_offset, columns, handed.times, handed.batches)
    return Delivered(run, handed.first_tag, handed.attempt)


def _ascending(numbers: Sequence[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(numbers))


def _refusal(error: GatewayError) -> LinkRefusal:
    return LinkRefusal(type(error).__name__, error.status, error.message[:LONGEST_TEXT])


_PLAIN: dict[str, type[GatewayError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, GatewayError) and kind.__init__ is GatewayError.__init__
}
"""Errors that are made of a text alone."""
_OF_STATUS: dict[Status, type[GatewayError]] = {}
for _kind in _PLAIN.values():
    _OF_STATUS.setdefault(_kind.status, _kind)


def _error(refusal: LinkRefusal) -> GatewayError:
    kind = _PLAIN.get(refusal.kind)
    if kind is None or kind.status is not refusal.status:
        kind = _OF_STATUS.get(refusal.status, GatewayError)
    return kind(refusal.text[:LONGEST_TEXT])
