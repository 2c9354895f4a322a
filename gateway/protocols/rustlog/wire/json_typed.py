"""The JSON of the newest document: flat objects with a `type`, bytes as base64 (RustLog wire 2.2). Server half only.

The document names DescribePartition, MetricsFetch and Ping without their fields; they follow their neighbours here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.envelope import Columns
from gateway.protocols.rustlog.wire import frames
from gateway.protocols.rustlog.wire.json_records import check_size, fitting, u64
from gateway.protocols.rustlog.wire.mapping import json_error, typed_code

SMALLEST_RECORD = len('{"offset":0,"timestamp":0,"payload":""},')
"""What the shortest record costs in an answer, so that a Fetch never asks for more than can be told."""

MOST_BYTES = frames.MAX_FRAME // 4 * 3
"""Of values in one answer, for the same reason: base64."""


class _Produce(msgspec.Struct):
    topic: str
    partition: frames.U32
    records: list[bytes]


class _Fetch(msgspec.Struct):
    topic: str
    partition: frames.U32
    offset: frames.Natural
    max_bytes: frames.Natural
    group_id: str | None = None


class _CreateTopic(msgspec.Struct):
    topic: str
    partition_count: frames.U32


class _Probe(msgspec.Struct):
    type: str


_PROBE = msgspec.json.Decoder(_Probe)
_REQUESTS = {
    kind.__name__.lstrip("_"): msgspec.json.Decoder[Any](kind)
    for kind in (
        *(_Produce, _Fetch, _CreateTopic),
        *(frames.OffsetCommit, frames.OffsetFetch, frames.ListTopics, frames.MetricsFetch, frames.Ping),
        *(frames.DescribeTopic, frames.DescribePartition),
    )
}
"""By what the type of a request is called: most are written with the names that they have here."""


def decode_request(payload: bytes) -> frames.Operation:
    check_size(payload)
    try:
        kind = _PROBE.decode(payload).type
        if kind not in _REQUESTS:
            raise frames.UnknownOperation(f"unknown request type: {kind}")
        found = _REQUESTS[kind].decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise frames.Undecodable(str(error)) from None
    match found:
        case _Produce():
            return frames.Produce(found.topic, found.partition, Columns.of(found.records))
        case _Fetch():
            group = found.group_id or ""
            return frames.Fetch(group, found.topic, found.partition, u64(found.offset), u64(found.max_bytes))
        case _CreateTopic():
            return frames.CreateTopic(found.topic, found.partition_count)
        case frames.OffsetCommit():
            u64(found.offset)
    operation: frames.Operation = found
    return operation


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
    fitted = fitting(
        answer,
        left,
        lambda run, index, value: {
            "offset": run.base_offset + index,
            "timestamp": run.times[index] * 1000,
            "payload": value,
        },
    )
    return b'{"type":"FetchResponse","records":[%b],"next_offset":%d}' % fitted


def fits_alone(value: bytes) -> bool:
    return len(value) <= (frames.MAX_FRAME - 256) // 4 * 3
