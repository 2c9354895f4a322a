"""The JSON of the document: one object whose only key names the request, bytes as arrays of numbers (RustLog wire 2.1)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from gateway.envelope import Columns
from gateway.errors import WireError
from gateway.protocols.rustlog.wire import json_records
from gateway.protocols.rustlog.wire.frames import (
    MAX_FRAME,
    U32,
    U64_MAX,
    Answer,
    Committed,
    ErrorAnswer,
    Fetch,
    GroupPosition,
    Natural,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Produce,
    Produced,
    Pulled,
    Records,
    Refusal,
    Undecodable,
    UnknownOperation,
    frame,
)
from gateway.protocols.rustlog.wire.json_records import u64
from gateway.protocols.rustlog.wire.mapping import json_error

Octet = Annotated[int, msgspec.Meta(ge=0, le=255)]

SMALLEST_RECORD = len('{"offset":0,"payload":[]},')
"""What the shortest record costs in an answer, so that a Fetch never asks for more than can be told."""

MOST_BYTES = MAX_FRAME // 2
"""Of one value in an answer, for the same reason: the shortest byte is a digit and a comma."""

MOST_NUMBERS = 1 << 20
"""Bytes of values in one request, each a number: twenty nanoseconds each, and more where others use the processor's caches."""

MOST_READ = 2 << 20
"""Bytes of values in one answer, for the same reason, but for a single longer one."""


class _Produce(msgspec.Struct):
    topic: str
    partition: U32
    records: list[list[Octet]]


class _Fetch(msgspec.Struct):
    topic: str
    partition: U32
    offset: Natural
    max_bytes: Natural
    group_id: str | None = None


class _OffsetCommit(msgspec.Struct):
    topic: str
    partition: U32
    group_id: str
    offset: Natural


class _OffsetFetch(msgspec.Struct):
    topic: str
    partition: U32
    group_id: str


class _Request(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    Produce: _Produce | msgspec.UnsetType = msgspec.UNSET
    Fetch: _Fetch | msgspec.UnsetType = msgspec.UNSET
    OffsetCommit: _OffsetCommit | msgspec.UnsetType = msgspec.UNSET
    OffsetFetch: _OffsetFetch | msgspec.UnsetType = msgspec.UNSET


class _Produced(msgspec.Struct):
    offsets: list[Natural]


class _Record(msgspec.Struct):
    offset: Natural
    payload: list[Octet]


class _Records(msgspec.Struct):
    records: list[_Record]
    next_offset: Natural


class _Committed(msgspec.Struct):
    success: bool


class _Position(msgspec.Struct):
    offset: Natural | None


class _Error(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct, omit_defaults=True):
    Produce: _Produced | msgspec.UnsetType = msgspec.UNSET
    Fetch: _Records | msgspec.UnsetType = msgspec.UNSET
    OffsetCommit: _Committed | msgspec.UnsetType = msgspec.UNSET
    OffsetFetch: _Position | msgspec.UnsetType = msgspec.UNSET
    Error: _Error | msgspec.UnsetType = msgspec.UNSET


_REQUEST = msgspec.json.Decoder(_Request)
_ANSWER = msgspec.json.Decoder(_Answer)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_request(payload: bytes) -> Operation:
    json_records.check_size(payload, MOST_NUMBERS)
    try:
        given = _REQUEST.decode(payload)
        variants = [name for name in _Request.__struct_fields__ if getattr(given, name) is not msgspec.UNSET]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _undecodable(payload, str(error)) from None
    if len(variants) != 1:
        raise _undecodable(payload, "")
    found: Any = getattr(given, variants[0])
    match found:
        case _Produce(topic=topic, partition=partition, records=records):
            return Produce(topic, partition, Columns.of(list(map(bytes, records))))
        case _Fetch():
            group = found.group_id or ""
            return Fetch(group, found.topic, found.partition, u64(found.offset), u64(found.max_bytes))
        case _OffsetCommit():
            return OffsetCommit(found.group_id, found.topic, found.partition, u64(found.offset))
        case _:
            return OffsetFetch(found.group_id, found.topic, found.partition)


def _undecodable(payload: bytes, problem: str) -> Undecodable:
    # why a payload is no request: its only key first
    try:
        keys = _KEYS.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Undecodable(str(error))
    if len(keys) != 1:
        return Undecodable("expected one object with exactly one key")
    name = next(iter(keys))
    if name not in _Request.__struct_fields__:
        return UnknownOperation(f"unknown variant `{name}`, expected one of {', '.join(_Request.__struct_fields__)}")
    return Undecodable(problem)


def encode_answer(answer: Answer) -> bytes:
    match answer:
        case Produced():
            said = _Answer(Produce=_Produced(list(range(answer.base, answer.base + answer.count))))
        case Records():
            return frame(_encode_records(answer))
        case Committed():
            said = _Answer(OffsetCommit=_Committed(answer.success))
        case GroupPosition():
            said = _Answer(OffsetFetch=_Position(answer.offset))
        case Refusal():
            said = _Answer(Error=_Error(json_error(answer)))
        case _:
            raise TypeError(answer)
    return frame(msgspec.json.encode(said))


def _encode_records(answer: Records) -> bytes:
    # the records of an answer, cut where a frame is full (RustLog wire 8)
    left = MAX_FRAME - len('{"Fetch":{"records":[],"next_offset":}}') - len(str(U64_MAX))
    fitting = json_records.fitting(
        answer, left, lambda run, index, value: _Record(run.base_offset + index, list(value))
    )
    return b'{"Fetch":{"records":[%b],"next_offset":%d}}' % fitting


def fits_alone(value: bytes) -> bool:
    """Whether an answer can hold this record: as numbers, a byte takes two to four."""
    return len(value) * 4 + 128 <= MAX_FRAME or len(msgspec.json.encode(list(value))) + 128 <= MAX_FRAME


# --- the client's half ---


def encode_request(operation: Operation) -> bytes:
    match operation:
        case Produce(topic, partition, columns):
            said = _Request(Produce=_Produce(topic, partition, list(map(list, columns.values()))))
        case Fetch(group, topic, partition, offset, max_bytes):
            said = _Request(Fetch=_Fetch(topic, partition, offset, max_bytes, group or None))
        case OffsetCommit(group, topic, partition, offset):
            said = _Request(OffsetCommit=_OffsetCommit(topic, partition, group, offset))
        case OffsetFetch(group, topic, partition):
            said = _Request(OffsetFetch=_OffsetFetch(topic, partition, group))
        case _:
            raise TypeError(operation)
    return frame(msgspec.json.encode(said))


def decode_answer(operation: Operation, payload: bytes) -> Answer:
    """The answer to an operation, or ErrorAnswer; WireError when it is neither."""
    try:
        said = _ANSWER.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"unreadable answer: {error}") from None
    if said.Error is not msgspec.UNSET:
        return ErrorAnswer(0, said.Error.message)
    match operation, said:
        case Produce(), _Answer(Produce=_Produced(offsets=offsets)):
            return Produced(offsets[0] if offsets else 0, len(offsets))
        case Fetch(), _Answer(Fetch=_Records(records=records, next_offset=next_offset)):
            columns = Columns.of([bytes(record.payload) for record in records])
            return Pulled(columns, next_offset, [record.offset for record in records])
        case OffsetCommit(), _Answer(OffsetCommit=_Committed(success=success)):
            return Committed(success)
        case OffsetFetch(), _Answer(OffsetFetch=_Position(offset=offset)):
            return GroupPosition(offset)
    raise WireError(f"the answer does not belong to {type(operation).__name__}")
