"""What a RustLog server session makes of the two JSON dialects, and how dialects mix on one connection."""

from __future__ import annotations

import base64
import json

import pytest

from gateway import requests
from gateway.errors import (
    Denied,
    GatewayError,
    OffsetOutOfRange,
    StoreReadOnly,
    Throttled,
    TooLarge,
    UnknownPartition,
    UnknownTopic,
)
from gateway.protocols.rustlog.server.exposition import exposition
from gateway.protocols.rustlog.wire.frames import MAX_FRAME
from gateway.requests import Request
from gateway.wire.session import Close
from tests.protocols.rustlog import vectors as v
from tests.protocols.rustlog.values import fetched, framed, published, run, serving, topics
from tests.protocols.script import Script

EXAMPLES = {
    "produce": (v.J_PRODUCE, requests.Publish, published(0), v.J_PRODUCED),
    "fetch": (v.J_FETCH, requests.Fetch, fetched([b"hi", b""]), v.J_FETCHED),
    "commit": (v.J_COMMIT, requests.CommitOffset, requests.DONE, v.J_COMMITTED),
    "offset": (v.J_OFFSET_FETCH, requests.ReadOffset, requests.GroupOffset(2, True), v.J_OFFSET_2),
    "no offset": (v.J_OFFSET_FETCH, requests.ReadOffset, requests.GroupOffset(None, False), v.J_OFFSET_NONE),
    "nope": (
        framed(b'{"Fetch":{"topic":"nope","partition":0,"offset":0,"max_bytes":1}}'),
        requests.Fetch,
        UnknownTopic(),
        v.J_NOPE,
    ),
    "document nope": (
        framed(b'{"Fetch":{"topic":"nonexistent","partition":0,"offset":0,"max_bytes":1048576,"group_id":null}}'),
        requests.Fetch,
        UnknownTopic(),
        framed(v.D_NONEXISTENT),
    ),
    "document partition": (
        framed(b'{"Produce":{"topic":"orders","partition":99,"records":[[1]]}}'),
        requests.Publish,
        UnknownPartition(),
        framed(v.D_NOT_FOUND),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("each_byte", [False, True])
def test_byte_example(name, each_byte):
    """RustLog wire 2.1 and the document's examples."""
    data, kind, outcome, said = EXAMPLES[name]
    script = serving()
    (script.feed_each_byte if each_byte else script.feed)(data)
    script.answer(kind, outcome).sends(said).quiet()


def test_document_examples():
    script = serving().feed(framed(v.D_PRODUCE))
    batch = script.expect(requests.Publish, create=False).batch
    assert (batch.address, batch.partition, batch.columns.values()) == ("orders", 0, [b"bytes", b"more"])
    script = serving().feed(framed(b'{"Produce":{"topic":"o","partition":0,"records":[[1],[2],[3]]}}'))
    script.answer(requests.Publish, published(1000)).sends(framed(v.D_PRODUCED))
    script.feed(framed(v.D_FETCH_GROUP)).answer(
        requests.ReadOffset, requests.GroupOffset(None, False), group="order-processor"
    )
    script.answer(requests.Fetch, fetched([b"bytes", b"more"], 1000), offset=1000).sends(framed(v.D_FETCHED))
    script.feed(framed(v.D_COMMIT)).expect(requests.CommitOffset, offset=1500, must_exist=True)
    script.feed(framed(v.D_OFFSET_FETCH)).expect(requests.ReadOffset, group="order-processor", address="orders")


def ask(script: Script, payload: object) -> Script:
    return script.feed(framed(json.dumps(payload).encode()))


def said(script: Script) -> object:
    data = script.sent()
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return json.loads(data[4:])


def seed_fetch(**fields: object) -> object:
    return {"Fetch": {"topic": "demo", "partition": 0, "offset": 0, "max_bytes": 1024, **fields}}


def test_larger_of_committed_and_requested_offset_counts():
    """Document, Consumer group behavior."""
    for committed, asked, start in [(2, 0, 2), (2, 7, 7), (None, 7, 7)]:
        script = ask(serving(), seed_fetch(offset=asked, group_id="g"))
        script.answer(requests.ReadOffset, requests.GroupOffset(committed, committed is not None))
        script.expect(requests.Fetch, offset=start)


def test_beyond_the_end_is_told_the_end():
    """Document, Edge cases."""
    script = ask(serving(), seed_fetch(offset=500)).answer(requests.Fetch, fetched([], 500, end=5))
    assert said(script) == {"Fetch": {"records": [], "next_offset": 5}}


def test_max_bytes_counts_payloads_and_zero_reads_one():
    script = ask(serving(), seed_fetch(max_bytes=0))
    script.expect(requests.Fetch, max_bytes=1, record_overhead=0, allow_gaps=True)


def test_records_across_a_gap_carry_their_offsets():
    reply = requests.Fetched([run([b"a"], 3), run([b"b"], 9)], 10, 0, 10)
    script = ask(serving(), seed_fetch()).answer(requests.Fetch, reply)
    records = [{"offset": 3, "payload": [97]}, {"offset": 9, "payload": [98]}]
    assert said(script) == {"Fetch": {"records": records, "next_offset": 10}}


def test_no_records_is_no_offsets():
    script = ask(serving(), {"Produce": {"topic": "demo", "partition": 0, "records": []}})
    script.answer(requests.DescribeTopics, topics(demo=[4]))
    assert said(script) == {"Produce": {"offsets": []}}


@pytest.mark.parametrize("error", [UnknownTopic(), UnknownPartition()])
def test_commit_on_what_is_not_there_fails_without_an_error(error):
    script = serving().feed(v.J_COMMIT).answer(requests.CommitOffset, error)
    assert said(script) == {"OffsetCommit": {"success": False}}
    typed = {"type": "OffsetCommit", "group": "g", "topic": "demo", "partition": 0, "offset": 2}
    ask(script, typed).answer(requests.CommitOffset, error)
    assert said(script) == {"type": "OffsetCommitResponse", "success": False}


def test_consecutive_json_produces_are_one_batch():
    script = serving().feed(v.J_PRODUCE * 3)
    publish = script.expect(requests.Publish)
    assert publish.batch.columns.values() == [b"hi", b""] * 3
    script.complete(publish, published(0))
    data = script.sent()
    assert [json.loads(part) for part in data.split(b"\x00\x00\x00\x1d")[1:]] == [
        {"Produce": {"offsets": [base, base + 1]}} for base in (0, 2, 4)
    ]


UNREADABLE = [
    b"{",
    b'{"Produce"}',
    b'{"Produce":{"topic":"t","partition":0,"records":[[256]]}}',
    b'{"Produce":{"topic":"t","partition":0,"records":[[-1]]}}',
    b'{"Produce":{"topic":"t","partition":0,"records":["aGk="]}}',
    b'{"Produce":{"topic":"t","partition":4294967296,"records":[]}}',
    b'{"Produce":{"partition":0,"records":[]}}',
    b'{"Fetch":{"topic":"t","partition":0,"offset":18446744073709551616,"max_bytes":1}}',
    b'{"Fetch":{"topic":"t","partition":0,"offset":1.5,"max_bytes":1}}',
    b'{"OffsetFetch":{"topic":"t","partition":0,"group_id":null}}',
    b'{"Ping":{}}',
    b"{}",
    b'{"Produce":{"topic":"t","partition":0,"records":[]},"Fetch":{}}',
    b'{"Produce":null}',
    b'{"Fetch":{"topic":"\xff","partition":0,"offset":0,"max_bytes":1}}',
    b'{"a":' * 100_000,
    b'{"Produce":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b' \n{"x":1}',
]


@pytest.mark.parametrize("payload", UNREADABLE, ids=[p[:40] for p in UNREADABLE])
def test_unreadable_json_is_an_error_and_the_connection_stays(payload):
    """RustLog wire 2.1: an Error, not the end."""
    script = serving().feed(framed(payload))
    answer = said(script)
    assert list(answer) == ["Error"]
    assert answer["Error"]["message"].startswith("failed to parse request")
    script.feed(v.PING).sends(v.PONG).quiet()


ERRORS = [
    (OffsetOutOfRange(first=7, next_offset=9), 416, "offset out of range: the first offset is 7, the next one 9"),
    (UnknownTopic(), 404, "partition not found: topic=demo, partition=0"),
    (TooLarge("read on at 3"), 413, "read on at 3"),
    (StoreReadOnly("full"), 507, "full"),
    (Throttled("slow down"), 503, "slow down"),
    (Denied("unauthorized"), 400, "unauthorized"),
]


def test_one_long_record_is_said_to_be_too_long():
    """And not to be a million records, which it is not: how many numbers there are is all that is counted."""
    numbers = b",".join([b"1"] * 1_100_000)
    script = serving()
    script.feed(framed(b'{"Produce":{"topic":"demo","partition":0,"records":[[' + numbers + b"]]}}"))
    text = b"failed to parse request: too many values: 1100001 (max: 1048576)"
    script.sends(framed(b'{"Error":{"message":"' + text + b'"}}')).quiet()


@pytest.mark.parametrize(("error", "code", "text"), ERRORS)
def test_errors(error: GatewayError, code: int, text: str):
    script = ask(serving(), seed_fetch()).answer(Request, error)
    assert said(script) == {"Error": {"message": text}}
    typed = {"type": "Fetch", "group_id": None, "topic": "demo", "partition": 0, "offset": 0, "max_bytes": 1}
    ask(script, typed).answer(Request, error)
    assert said(script) == {"type": "Error", "code": code, "message": text, "details": None}


def test_seed_answer_is_trimmed_to_a_frame():
    values = [bytes([200]) * 1_000_000] * 5  # four bytes for each byte: two of them fit
    script = ask(serving(), seed_fetch(max_bytes=1 << 40))
    script.answer(requests.Fetch, fetched(values))
    data = script.sent()
    assert len(data) <= 4 + MAX_FRAME
    answer = json.loads(data[4:])["Fetch"]
    assert [record["offset"] for record in answer["records"]] == [0, 1]
    assert answer["next_offset"] == 2


def test_record_that_no_answer_can_hold_is_named():
    script = ask(serving(), seed_fetch()).answer(requests.Fetch, fetched([bytes([200]) * 4_000_000], 6))
    text = "the record at offset 6 is too large for this dialect: read on at 7"
    assert said(script) == {"Error": {"message": text}}


# --- the "type" JSON ---

TYPED = [
    (
        {"type": "Produce", "topic": "logs", "partition": 0, "records": ["SGVsbG8gV29ybGQ="]},
        published(5),
        {"type": "ProduceResponse", "base_offset": 5, "record_count": 1},
    ),
    (
        {"type": "OffsetCommit", "group": "g", "topic": "logs", "partition": 0, "offset": 3},
        requests.DONE,
        {"type": "OffsetCommitResponse", "success": True},
    ),
    (
        {"type": "OffsetFetch", "group": "g", "topic": "logs", "partition": 0},
        requests.GroupOffset(None, False),
        {"type": "OffsetFetchResponse", "offset": None},
    ),
    (
        {"type": "CreateTopic", "topic": "logs", "partition_count": 3},
        requests.TopicCreated(True, 3),
        {"type": "CreateTopicResponse", "success": True, "partitions_created": 3},
    ),
    (
        {"type": "ListTopics"},
        topics(a=[1], b=[2, 3]),
        {
            "type": "ListTopicsResponse",
            "topics": [{"name": "a", "partition_count": 1}, {"name": "b", "partition_count": 2}],
        },
    ),
    (
        {"type": "DescribeTopic", "topic": "a"},
        topics(a=[8]),
        {
            "type": "DescribeTopicResponse",
            "topic": "a",
            "partitions": [{"partition": 0, "high_watermark": 8, "log_start_offset": 0, "segment_count": 1}],
        },
    ),
    (
        {"type": "DescribePartition", "topic": "a", "partition": 0},
        topics(a=[8]),
        {
            "type": "DescribePartitionResponse",
            "topic": "a",
            "partition": 0,
            "high_watermark": 8,
            "log_start_offset": 0,
            "segment_count": 1,
        },
    ),
    (
        {"type": "MetricsFetch"},
        requests.Totals(received=7),
        {"type": "MetricsFetchResponse", "metrics": exposition(requests.Totals(received=7))},
    ),
]


@pytest.mark.parametrize(("asked", "outcome", "answer"), TYPED, ids=[t[0]["type"] for t in TYPED])
def test_typed_operation(asked, outcome, answer):
    """RustLog wire 2.2."""
    script = ask(serving(), asked).answer(Request, outcome)
    assert said(script) == answer
    script.quiet()


def test_typed_ping():
    assert said(ask(serving(), {"type": "Ping"})) == {"type": "PingResponse"}


def test_typed_example_of_the_text():
    assert len(v.T_PRODUCE) == 78
    script = serving().feed(framed(v.T_PRODUCE))
    assert script.expect(requests.Publish).batch.columns.values() == [b"Hello World"]


def test_typed_fetch_tells_times_in_microseconds():
    asked = {"type": "Fetch", "group_id": None, "topic": "demo", "partition": 0, "offset": 0, "max_bytes": 99}
    script = ask(serving(), asked).answer(requests.Fetch, requests.Fetched([run([b"hi"], 4, time=17)], 5, 0, 5))
    record = {"offset": 4, "timestamp": 17_000, "payload": base64.b64encode(b"hi").decode()}
    assert said(script) == {"type": "FetchResponse", "records": [record], "next_offset": 5}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"type":"Nonsense"}', 405),
        (b'{"type":5}', 400),
        (b'{"type":"Fetch"}', 400),
        (b'{"type":"Produce","topic":"t","partition":0,"records":["!"]}', 400),
        (b'{"type":"CreateTopic","topic":"t","partition_count":0}', 400),
    ],
)
def test_typed_refusals(payload, code):
    answer = said(serving().feed(framed(payload)))
    assert (answer["type"], answer["code"]) == ("Error", code)


def test_topic_that_exists():
    script = ask(serving(), {"type": "CreateTopic", "topic": "a", "partition_count": 1})
    script.answer(requests.CreateTopic, requests.TopicCreated(False, 1))
    assert said(script) == {"type": "Error", "code": 400, "message": "Topic 'a' already exists", "details": None}


# --- dialects on one connection ---


def test_each_frame_is_answered_in_kind():
    """RustLog wire 3."""
    script = serving().feed(v.J_OFFSET_FETCH + v.PING + framed(b'{"type":"Ping"}') + v.OFFSET_FETCH)
    script.answer(requests.ReadOffset, requests.GroupOffset(2, True))
    script.answer(requests.ReadOffset, requests.GroupOffset(2, True))
    script.sends(v.J_OFFSET_2 + v.PONG + framed(b'{"type":"PingResponse"}') + v.OFFSET_2).quiet()


def test_white_space_before_the_object():
    for white in (b" ", b"\n", b"\r\n", b"\t"):
        script = serving().feed(framed(white + v.J_OFFSET_FETCH[4:]))
        script.answer(requests.ReadOffset, requests.GroupOffset(2, True)).sends(v.J_OFFSET_2)


@pytest.mark.parametrize("rest", [b"", b"anything", b"{not json"])
def test_tab_is_the_metrics_unless_json_follows(rest):
    serving().feed(framed(b"\t" + rest)).expect(requests.ReadTotals)


@pytest.mark.parametrize(
    ("before", "frame"),
    [
        (v.J_NOPE[:0], v.OVERSIZE_SAID),
        (v.PING, v.OVERSIZE_SAID),
        (
            framed(b'{"Ping":1}'),
            framed(b'{"Error":{"message":"max frame size exceeded: 10485761 bytes (max: 10485760)"}}'),
        ),
        (
            framed(b'{"type":"Ping"}'),
            framed(
                b'{"type":"Error","code":413,"message":'
                b'"max frame size exceeded: 10485761 bytes (max: 10485760)","details":null}'
            ),
        ),
    ],
)
def test_oversize_frame_is_refused_in_the_dialect_before_it(before, frame):
    script = serving().feed(before)
    script.sent()
    script.feed(v.OVERSIZE).sends(frame)
    script.output(Close)


def test_broken_json_is_refused_in_the_dialect_before_it():
    script = serving().feed(framed(b'{"type":"Ping"}') + framed(b'{"type"'))
    assert b'"type":"Error","code":400' in script.sent()
