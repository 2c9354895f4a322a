"""The JSON of the newest document: flat objects with a `type`, bytes as base64 (RustLog wire 2.2). Server half only.

The document names DescribePartition, MetricsFetch and Ping without their fields; they follow their neighbours here.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.envelope import Columns
from gateway.protocols.rustlog.frames import (
    MAX_FRAME,
    U64_MAX,
    Answer,
    Committed,
    Created,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    GroupPosition,
    ListTopics,
    Metrics,
    MetricsFetch,
    OffsetCommit,
    OffsetFetch,
    Operation,
    PartitionDescription,
    PartitionState,
    Ping,
    Pong,
    Produce,
    Produced,
    Records,
    Refusal,
    TopicDescription,
    TopicList,
    Undecodable,
    UnknownOperation,
    frame,
)
from gateway.protocols.rustlog.mapping import json_error, typed_code

Natural = Annotated[int, msgspec.Meta(ge=0)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]

SMALLEST_RECORD = len('{"offset":0,"timestamp":0,"payload":""},')
"""What the shortest record costs in an answer, so that a Fetch never asks for more than can be told."""

MOST_BYTES = MAX_FRAME // 4 * 3
"""Of values in one answer, for the same reason: base64."""


class _Tagged(msgspec.Struct, tag_field="type"):
    pass


class _Produce(_Tagged, tag="Produce"):
    topic: str
    partition: U32
    records: list[bytes]


class _Fetch(_Tagged, tag="Fetch"):
    topic: str
    partition: U32
    offset: Natural
    max_bytes: Natural
    group_id: str | None = None


class _OffsetCommit(_Tagged, tag="OffsetCommit"):
    group: str
    topic: str
    partition: U32
    offset: Natural


class _OffsetFetch(_Tagged, tag="OffsetFetch"):
    group: str
    topic: str
    partition: U32


class _CreateTopic(_Tagged, tag="CreateTopic"):
    topic: str
    partition_count: U32


class _ListTopics(_Tagged, tag="ListTopics"):
    pass


class _DescribeTopic(_Tagged, tag="DescribeTopic"):
    topic: str


class _DescribePartition(_Tagged, tag="DescribePartition"):
    topic: str
    partition: U32


class _MetricsFetch(_Tagged, tag="MetricsFetch"):
    pass


class _Ping(_Tagged, tag="Ping"):
    pass


_Request = (
    _Produce
    | _Fetch
    | _OffsetCommit
    | _OffsetFetch
    | _CreateTopic
    | _ListTopics
    | _DescribeTopic
    | _DescribePartition
    | _MetricsFetch
    | _Ping
)


class _Probe(msgspec.Struct):
    type: str


class _ProduceResponse(_Tagged, tag="ProduceResponse"):
    base_offset: int
    record_count: int


class _Record(msgspec.Struct):
    offset: int
    timestamp: int
    payload: bytes


class _OffsetCommitResponse(_Tagged, tag="OffsetCommitResponse"):
    success: bool


class _OffsetFetchResponse(_Tagged, tag="OffsetFetchResponse"):
    offset: int | None


class _CreateTopicResponse(_Tagged, tag="CreateTopicResponse"):
    success: bool
    partitions_created: int


class _Topic(msgspec.Struct):
    name: str
    partition_count: int


class _ListTopicsResponse(_Tagged, tag="ListTopicsResponse"):
    topics: list[_Topic]


class _Partition(msgspec.Struct):
    partition: int
    high_watermark: int
    log_start_offset: int
    segment_count: int


class _DescribeTopicResponse(_Tagged, tag="DescribeTopicResponse"):
    topic: str
    partitions: list[_Partition]


class _DescribePartitionResponse(_Tagged, tag="DescribePartitionResponse"):
    topic: str
    partition: int
    high_watermark: int
    log_start_offset: int
    segment_count: int


class _MetricsFetchResponse(_Tagged, tag="MetricsFetchResponse"):
    metrics: str


class _PingResponse(_Tagged, tag="PingResponse"):
    pass


class _Error(_Tagged, tag="Error"):
    code: int
    message: str
    details: None = None


_REQUEST = msgspec.json.Decoder(_Request)
_PROBE = msgspec.json.Decoder(_Probe)
_TYPES = frozenset(
    {"Produce", "Fetch", "OffsetCommit", "OffsetFetch", "CreateTopic", "ListTopics"}
    | {"DescribeTopic", "DescribePartition", "MetricsFetch", "Ping"}
)


def decode_request(payload: bytes) -> Operation:
    """A request's payload."""
    try:
        kind = _PROBE.decode(payload).type
        if kind not in _TYPES:
            raise UnknownOperation(f"unknown request type: {kind}")
        return _operation(_REQUEST.decode(payload))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Undecodable(str(error)) from None


def _operation(found: _Request) -> Operation:
    match found:
        case _Produce():
            return Produce(found.topic, found.partition, Columns.of(found.records))
        case _Fetch():
            return Fetch(found.group_id or "", found.topic, found.partition, _u64(found.offset), _u64(found.max_bytes))
        case _OffsetCommit():
            return OffsetCommit(found.group, found.topic, found.partition, _u64(found.offset))
        case _OffsetFetch():
            return OffsetFetch(found.group, found.topic, found.partition)
        case _CreateTopic():
            return CreateTopic(found.topic, found.partition_count)
        case _ListTopics():
            return ListTopics()
        case _DescribeTopic():
            return DescribeTopic(found.topic)
        case _DescribePartition():
            return DescribePartition(found.topic, found.partition)
        case _MetricsFetch():
            return MetricsFetch()
        case _Ping():
            return Ping()


def _u64(value: int) -> int:
    if value > U64_MAX:
        raise Undecodable(f"{value} is too large for u64")
    return value


def encode_answer(answer: Answer) -> bytes:
    """A whole frame."""
    if isinstance(answer, Records):
        return frame(_encode_records(answer))
    return frame(msgspec.json.encode(_said(answer)))


def _said(answer: Answer) -> _Tagged:
    match answer:
        case Produced():
            return _ProduceResponse(answer.base, answer.count)
        case Committed():
            return _OffsetCommitResponse(answer.success)
        case GroupPosition():
            return _OffsetFetchResponse(answer.offset)
        case Created():
            return _CreateTopicResponse(answer.success, answer.partitions)
        case TopicList():
            return _ListTopicsResponse(_fitting(answer))
        case TopicDescription():
            return _DescribeTopicResponse(answer.topic, [_partition(state) for state in answer.partitions])
        case PartitionDescription(topic, state):
            return _DescribePartitionResponse(topic, state.id, state.high_watermark, state.log_start, 1)
        case Metrics():
            return _MetricsFetchResponse(answer.text)
        case Pong():
            return _PingResponse()
        case Refusal():
            return _Error(typed_code(answer), json_error(answer))
    raise TypeError(answer)


def _partition(state: PartitionState) -> _Partition:
    return _Partition(state.id, state.high_watermark, state.log_start, 1)


def _fitting(answer: TopicList) -> list[_Topic]:
    topics: list[_Topic] = []
    left = MAX_FRAME - 64
    for name, partitions in answer.topics:
        topic = _Topic(name, partitions)
        left -= len(msgspec.json.encode(topic)) + 1
        if left < 0:
            break
        topics.append(topic)
    return topics


def _encode_records(answer: Records) -> bytes:
    """The records of an answer, cut where a frame is full (RustLog wire 8); times in microseconds."""
    pieces: list[bytes] = []
    next_offset = answer.next_offset
    left = MAX_FRAME - len('{"type":"FetchResponse","records":[],"next_offset":}') - len(str(U64_MAX))
    for run in answer.runs:
        for index, value in enumerate(run.columns.values()):
            offset = run.base_offset + index
            piece = msgspec.json.encode(_Record(offset, run.times[index] * 1000, value))
            left -= len(piece) + 1
            if left < 0:
                return _joined(pieces, offset)
            pieces.append(piece)
    return _joined(pieces, next_offset)


def _joined(pieces: list[bytes], next_offset: int) -> bytes:
    return b'{"type":"FetchResponse","records":[%b],"next_offset":%d}' % (b",".join(pieces), next_offset)


def fits_alone(value: bytes) -> bool:
    """Whether an answer can hold this record."""
    return len(value) <= (MAX_FRAME - 256) // 4 * 3
