"""The JSON of the newest document: flat objects with a `type`, bytes as base64 (RustLog wire 2.2). Server half only.

The document names DescribePartition, MetricsFetch and Ping without their fields; they follow their neighbours here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from gateway.envelope import Columns
from gateway.protocols.rustlog.wire import frames, json_records
from gateway.protocols.rustlog.wire.mapping import json_error, typed_code

Natural = Annotated[int, msgspec.Meta(ge=0)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]

SMALLEST_RECORD = len('{"offset":0,"timestamp":0,"payload":""},')
"""What the shortest record costs in an answer, so that a Fetch never asks for more than can be told."""

MOST_BYTES = frames.MAX_FRAME // 4 * 3
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


_REQUEST = msgspec.json.Decoder(_Request)
_PROBE = msgspec.json.Decoder(_Probe)
_TYPES = frozenset(
    {"Produce", "Fetch", "OffsetCommit", "OffsetFetch", "CreateTopic", "ListTopics"}
    | {"DescribeTopic", "DescribePartition", "MetricsFetch", "Ping"}
)


def decode_request(payload: bytes) -> frames.Operation:
    json_records.check_size(payload)
    try:
        kind = _PROBE.decode(payload).type
        if kind not in _TYPES:
            raise frames.UnknownOperation(f"unknown request type: {kind}")
        return _operation(_REQUEST.decode(payload))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise frames.Undecodable(str(error)) from None


def _operation(found: _Request) -> frames.Operation:
    match found:
        case _Produce():
            return frames.Produce(found.topic, found.partition, Columns.of(found.records))
        case _Fetch():
            return frames.Fetch(
                found.group_id or "", found.topic, found.partition, _u64(found.offset), _u64(found.max_bytes)
            )
        case _OffsetCommit():
            return frames.OffsetCommit(found.group, found.topic, found.partition, _u64(found.offset))
        case _OffsetFetch():
            return frames.OffsetFetch(found.group, found.topic, found.partition)
        case _CreateTopic():
            return frames.CreateTopic(found.topic, found.partition_count)
        case _ListTopics():
            return frames.ListTopics()
        case _DescribeTopic():
            return frames.DescribeTopic(found.topic)
        case _DescribePartition():
            return frames.DescribePartition(found.topic, found.partition)
        case _MetricsFetch():
            return frames.MetricsFetch()
        case _Ping():
            return frames.Ping()


def _u64(value: int) -> int:
    if value > frames.U64_MAX:
        raise frames.Undecodable(f"{value} is too large for u64")
    return value


def encode_answer(answer: frames.Answer) -> bytes:
    if isinstance(answer, frames.Records):
        return frames.frame(_encode_records(answer))
    kind, said = _said(answer)
    return frames.frame(msgspec.json.encode({"type": kind, **said}))


def _said(answer: frames.Answer) -> tuple[str, Mapping[str, object]]:
    # the type of an answer and its fields, in the order of the document
    match answer:
        case frames.Produced():
            return "ProduceResponse", {"base_offset": answer.base, "record_count": answer.count}
        case frames.Committed():
            return "OffsetCommitResponse", {"success": answer.success}
        case frames.GroupPosition():
            return "OffsetFetchResponse", {"offset": answer.offset}
        case frames.Created():
            return "CreateTopicResponse", {"success": answer.success, "partitions_created": answer.partitions}
        case frames.TopicList():
            return "ListTopicsResponse", {"topics": _fitting(answer)}
        case frames.TopicDescription():
            return "DescribeTopicResponse", {
                "topic": answer.topic,
                "partitions": list(map(_partition, answer.partitions)),
            }
        case frames.PartitionDescription(topic, state):
            return "DescribePartitionResponse", {"topic": topic, **_partition(state)}
        case frames.Metrics():
            return "MetricsFetchResponse", {"metrics": answer.text}
        case frames.Pong():
            return "PingResponse", {}
        case frames.Refusal():
            return "Error", {"code": typed_code(answer), "message": json_error(answer), "details": None}
    raise TypeError(answer)


def _partition(state: frames.PartitionState) -> Mapping[str, object]:
    return {
        "partition": state.id,
        "high_watermark": state.high_watermark,
        "log_start_offset": state.log_start,
        "segment_count": 1,
    }


def _fitting(answer: frames.TopicList) -> Sequence[msgspec.Raw]:
    topics: list[msgspec.Raw] = []
    left = frames.MAX_FRAME - 64
    for name, partitions in answer.topics:
        topic = msgspec.json.encode({"name": name, "partition_count": partitions})
        left -= len(topic) + 1
        if left < 0:
            break
        topics.append(msgspec.Raw(topic))
    return topics


def _encode_records(answer: frames.Records) -> bytes:
    # the records of an answer, cut where a frame is full (RustLog wire 8); times in microseconds
    left = frames.MAX_FRAME - len('{"type":"FetchResponse","records":[],"next_offset":}') - len(str(frames.U64_MAX))
    fitting = json_records.fitting(
        answer,
        left,
        lambda run, index, value: {
            "offset": run.base_offset + index,
            "timestamp": run.times[index] * 1000,
            "payload": value,
        },
    )
    return b'{"type":"FetchResponse","records":[%b],"next_offset":%d}' % fitting


def fits_alone(value: bytes) -> bool:
    return len(value) <= (frames.MAX_FRAME - 256) // 4 * 3
