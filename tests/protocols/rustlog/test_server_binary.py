"""What a RustLog server session makes of the binary dialect: every byte example, every error row, every rule."""

from __future__ import annotations

import struct

import pytest

from gateway import requests
from gateway.envelope import Columns
from gateway.errors import (
    CommitFailed,
    CorruptChunk,
    Denied,
    GatewayError,
    InvalidRequest,
    NotRouted,
    OffsetOutOfRange,
    SchemaViolation,
    StoreReadOnly,
    Throttled,
    TooLarge,
    UnknownPartition,
    UnknownTopic,
)
from gateway.protocols.rustlog.settings import FreshGroup
from gateway.protocols.rustlog.wire.frames import MAX_FRAME, MAX_VALUE
from gateway.requests import Outcome, Request
from gateway.settings import Limits, Size
from gateway.wire.session import Close
from tests.protocols.rustlog import vectors as v
from tests.protocols.rustlog.values import fetch, fetched, framed, produce, published, refusal, run, serving, topics
from tests.protocols.script import hexed

FIVE = [b"hello", b"from", b"rustlog", b"", b"k"]

EXAMPLES = {
    # bytes in, (request, its outcome) or None, bytes out
    "ping": (v.PING, None, None, v.PONG),
    "create": (v.CREATE_DEMO, requests.CreateTopic, requests.TopicCreated(True, 1), v.CREATED),
    "create again": (v.CREATE_DEMO, requests.CreateTopic, requests.TopicCreated(False, 1), v.CREATE_DEMO_AGAIN),
    "create none": (v.CREATE_Z_0, None, None, v.INVALID_COUNT),
    "list none": (v.LIST, requests.DescribeTopics, requests.Topics([]), v.LISTED_NONE),
    "list four": (
        v.LIST,
        requests.DescribeTopics,
        topics(**{"": [0], "demo": [0], "orders": [0, 0, 0], "tr": [0]}),
        v.LISTED_FOUR,
    ),
    "produce": (v.PRODUCE_THREE, requests.Publish, published(0), v.PRODUCED_THREE),
    "produce nothing": (v.PRODUCE_NOTHING, requests.DescribeTopics, topics(demo=[3]), v.PRODUCED_NOTHING),
    "produce empty": (v.PRODUCE_EMPTY, requests.Publish, published(3), v.PRODUCED_EMPTY),
    "produce nope": (v.PRODUCE_NOPE, requests.Publish, UnknownTopic(), v.NOPE),
    "fetch": (v.FETCH_0_1024, requests.Fetch, fetched(FIVE), v.FETCHED_FIVE),
    "fetch one": (v.FETCH_0_1, requests.Fetch, fetched(FIVE[:1], end=5), v.FETCHED_ONE),
    "fetch max 0": (v.FETCH_0_0, requests.Fetch, fetched(FIVE[:1], end=5), v.FETCHED_NONE_0),
    "fetch beyond": (v.FETCH_500, requests.Fetch, fetched([], 500, end=5), v.FETCHED_NONE_500),
    "commit": (v.COMMIT_2, requests.CommitOffset, requests.DONE, v.COMMITTED),
    "offset none": (v.OFFSET_FETCH, requests.ReadOffset, requests.GroupOffset(None, False), v.OFFSET_NONE),
    "offset 2": (v.OFFSET_FETCH, requests.ReadOffset, requests.GroupOffset(2, True), v.OFFSET_2),
    "describe": (v.DESCRIBE_DEMO, requests.DescribeTopics, topics(demo=[0]), v.DESCRIBED_DEMO),
    "describe nope": (v.DESCRIBE_NOPE, requests.DescribeTopics, UnknownTopic(), v.DESCRIBED_NOPE),
    "describe partition": (v.DESCRIBE_PARTITION, requests.DescribeTopics, topics(demo=[0]), v.DESCRIBED_PARTITION),
    "unknown type": (v.UNKNOWN_TYPE, None, None, v.UNKNOWN_TYPE_SAID),
    "truncated": (v.TRUNCATED, None, None, v.TRUNCATED_SAID),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_byte_example(name):
    """RustLog wire 1.5."""
    data, kind, outcome, said = EXAMPLES[name]
    script = serving().feed(data)
    if kind is not None:
        script.answer(kind, outcome)
    script.sends(said).quiet()


@pytest.mark.parametrize("name", EXAMPLES)
def test_byte_example_split_at_every_byte(name):
    data, kind, outcome, said = EXAMPLES[name]
    script = serving().feed_each_byte(data)
    if kind is not None:
        script.answer(kind, outcome)
    script.sends(said).quiet()


def test_fresh_group_as_the_original_has_it():
    """RustLog wire 1.5, Fetch group g, no commit."""
    script = serving(FreshGroup.EMPTY).feed(v.FETCH_GROUP)
    script.answer(requests.ReadOffset, requests.GroupOffset(None, False), address="demo", group="g", partition=0)
    script.sends(v.FETCHED_FRESH_GROUP).quiet()


@pytest.mark.parametrize(("data", "said"), [(v.ZERO, v.ZERO_SAID), (v.OVERSIZE, v.OVERSIZE_SAID)])
def test_frame_error_answers_what_came_before_then_closes(data, said):
    script = serving().feed(v.PRODUCE_THREE + data + v.PING)
    publish = script.expect(requests.Publish)
    assert not script.sent()
    script.complete(publish, published(0)).sends(v.PRODUCED_THREE + said)
    script.output(Close)
    script.feed(v.PING).quiet()


def test_requests_carry_every_field():
    script = serving()
    script.feed(v.PRODUCE_THREE)
    batch = script.expect(requests.Publish, create=False).batch
    assert (batch.address, batch.partition, batch.columns.values()) == ("demo", 0, [b"hello", b"from", b"rustlog"])
    script.feed(v.FETCH_500).expect(
        requests.Fetch,
        address="demo",
        partition=0,
        offset=500,
        max_bytes=1024,
        record_overhead=12,
        value_limit=MAX_VALUE,
        allow_gaps=False,
        hold_until=None,
    )
    commit = {"address": "demo", "group": "g", "partition": 0, "offset": 2, "must_exist": False}
    script.feed(v.COMMIT_2).expect(requests.CommitOffset, **commit)
    script.feed(v.OFFSET_FETCH).expect(requests.ReadOffset, address="demo", group="g", partition=0)
    script.feed(v.LIST).answer(requests.DescribeTopics, topics(), address="", after="")
    script.feed(v.DESCRIBE_DEMO).expect(requests.DescribeTopics, address="demo")
    script.feed(v.CREATE_DEMO).expect(requests.CreateTopic, address="demo", partitions=1)


def test_a_list_is_asked_for_page_by_page_and_told_in_one_piece():
    script = serving().feed(v.LIST + v.DESCRIBE_DEMO)
    script.answer(requests.DescribeTopics, requests.Topics(topics(b=[1]).topics, "b"), after="")
    script.answer(requests.DescribeTopics, topics(a=[0, 0]), after="b")  # known by another name than it is stored under
    listed = b"\6" + (2).to_bytes(4) + b"\0\1a" + (2).to_bytes(4) + b"\0\1b" + (1).to_bytes(4)
    script.sends(len(listed).to_bytes(4) + listed)
    script.expect(requests.DescribeTopics, address="demo")  # what came behind it waited


def test_after_a_thousand_operations_others_have_the_loop():
    script = serving().feed(framed(b"\xff") * 1_500)
    script.sends(framed(b"\xff") * 1_000)
    script.answer(requests.Pause, requests.DONE).sends(framed(b"\xff") * 500).quiet()


def test_more_records_than_a_request_may_have_are_refused_before_they_are_told_apart():
    most = b"\0\0\0\0" * 100_000
    head = b"\1\0\4demo\0\0\0\0"
    script = serving()
    script.feed(framed(head + (100_000).to_bytes(4) + most)).expect(requests.Publish)
    script = serving().feed(framed(head + (100_001).to_bytes(4) + most + b"\0\0\0\0"))
    text = b"Decode error: too many records: 100001 (max: 100000)"
    script.sends(framed(b"\xfe\0\2" + len(text).to_bytes(2) + text)).quiet()


# --- batches ---


def test_consecutive_produces_are_one_batch_with_an_answer_each():
    data = produce("demo", 0, b"a") + produce("demo", 0, b"bb", b"c", b"") + produce("demo", 0, b"d")
    script = serving().feed(data)
    publish = script.expect(requests.Publish)
    assert publish.batch.columns.values() == [b"a", b"bb", b"c", b"", b"d"]
    assert script.session.in_flight == 1
    script.complete(publish, published(7))
    answers = [(7, 1), (8, 3), (11, 1)]
    script.sends(b"".join(framed(b"\x01" + b.to_bytes(8, "big") + n.to_bytes(4, "big")) for b, n in answers)).quiet()


def test_another_topic_partition_or_operation_begins_another_batch():
    data = [
        produce("a", 0, b"1"),
        produce("a", 1, b"2"),
        produce("b", 1, b"3"),
        v.PING,
        produce("b", 1, b"4"),
    ]
    script = serving().feed(b"".join(data))
    batches = [script.expect(requests.Publish).batch for _ in range(4)]
    assert [(b.address, b.partition, b.columns.values()) for b in batches] == [
        ("a", 0, [b"1"]),
        ("a", 1, [b"2"]),
        ("b", 1, [b"3"]),
        ("b", 1, [b"4"]),
    ]
    script.quiet()


def test_answers_keep_the_order_of_requests():
    script = serving().feed(produce("a", 0, b"1") + v.PING + produce("b", 0, b"2") + v.FETCH_0_1)
    first, second, third = (
        script.expect(requests.Publish),
        script.expect(requests.Publish),
        script.expect(requests.Fetch),
    )
    script.complete(third, fetched(FIVE[:1])).complete(second, published(5, "b")).quiet()
    script.complete(first, published(0, "a"))
    answer = hexed("00 00 00 0d 01 00 00 00 00 00 00 00 05 00 00 00 01")
    script.sends(v.PRODUCED_THREE[:-1] + b"\x01" + v.PONG + answer + v.FETCHED_ONE).quiet()


@pytest.mark.parametrize(("at_once", "said"), [(v.PING, v.PONG), (v.CREATE_Z_0, v.INVALID_COUNT)])
def test_what_is_answered_at_once_is_not_overtaken_by_the_short_way(at_once: bytes, said: bytes):
    """Both come in one read, and nobody asks what there is to put out before the one request that they led to has ended."""
    session = serving().session
    (request,) = session.receive(0, at_once + v.FETCH_0_1, 0.0)
    given = session.answered(request.id, fetched(FIVE[:1]), 0.0)
    sent = [given] if isinstance(given, bytes) else [output.data for output in session.outputs()]
    assert b"".join(sent) == said + v.FETCHED_ONE
    assert not session.outputs()


TWO_RUNS = requests.Fetched([run(FIVE[:2]), run(FIVE[2:], 2)], 5, 0, 5)


@pytest.mark.parametrize("outcome", [fetched(FIVE), TWO_RUNS, fetched([]), UnknownTopic(), fetched([b"x" * 3000] * 3)])
@pytest.mark.parametrize(
    "frame",
    [
        fetch("demo", 0, 1024),
        fetch("demo", 0, 0),
        fetch("demo", 1 << 63, 1024),
        fetch("demo", 0, (1 << 32) - 1, partition=7),
        framed(fetch("demo", 0, 9)[4:] + b"and more"),
    ],
)
def test_a_fetch_that_comes_alone_is_what_one_in_pieces_is(frame: bytes, outcome: Outcome):
    """The short way asks the same, holds back as much, and says the same, however it ends."""
    for limits in (Limits(), Limits(output=Size(16_000))):
        found: list[object] = []
        for pieces in ((frame,), (frame[:5], frame[5:])):
            session = serving(limits=limits).session
            for _ in range(3):
                (request,) = [one for piece in pieces for one in session.receive(0, piece, 0.0)]
                found.append((request, session.in_flight, session.kept, session.rests_until()))
                given = session.answered(request.id, outcome, 0.0)
                found.append(
                    given if isinstance(given, bytes) else b"".join(output.data for output in session.outputs())
                )
                found.append((session.in_flight, session.outputs(), session.rests_until()))
                session.room(0, 0.0)
        assert found[: len(found) // 2] == found[len(found) // 2 :]


def test_what_comes_behind_a_fetch_that_came_alone_is_answered_behind_it():
    script = serving().feed(v.FETCH_0_1)
    asked = script.expect(requests.Fetch)
    script.feed(v.PING).feed(v.FETCH_0_0)
    script.answer(requests.Fetch, fetched(FIVE[:1], end=5)).sends(b"")
    script.complete(asked, fetched(FIVE[:1], end=5)).sends(v.FETCHED_ONE + v.PONG + v.FETCHED_NONE_0).quiet()


def test_refused_batch_answers_every_request_of_it():
    script = serving().feed(v.PRODUCE_NOPE * 3)
    script.answer(requests.Publish, UnknownTopic()).sends(v.NOPE * 3).quiet()


def test_member_that_is_refused_is_answered_alone():
    script = serving().feed(produce("demo", 0, b"a") + produce("demo", 0, b"b") + produce("demo", 0, b"c"))
    outcome = requests.Published("demo", 1, scattered=[(0, 4), (0, 0), (0, 5)], refused={1: SchemaViolation("no")})
    script.answer(requests.Publish, outcome)
    good = [framed(b"\x01" + base.to_bytes(8, "big") + b"\x00\x00\x00\x01") for base in (4, 5)]
    script.sends(good[0] + refusal(2, "no") + good[1])


def test_bytes_behind_the_last_field_are_ignored():
    """RustLog wire 1.1."""
    script = serving()
    for frame in (produce("demo", 0, b"a"), produce("demo", 0, b"a", b"bc"), fetch("demo", 3, 9), v.LIST, v.PING):
        script.feed(framed(frame[4:] + b"\x00\x00\x00\x09trailing"))
    assert script.expect(requests.Publish).batch.columns.values() == [b"a"]
    assert script.expect(requests.Publish).batch.columns.values() == [b"a", b"bc"]
    script.expect(requests.Fetch, offset=3, max_bytes=9)
    script.expect(requests.DescribeTopics)


def test_trailing_bytes_do_not_spill_into_the_next_request_of_a_batch():
    plain, spilling = produce("demo", 0, b"a"), framed(produce("demo", 0, b"b")[4:] + b"\x00\x00\x00\x01x")
    script = serving().feed(plain + spilling + plain)
    batches = [request.batch.columns for request in script.asked if isinstance(request, requests.Publish)]
    assert Columns.concat(batches).values() == [b"a", b"b", b"a"]


# --- undecodable requests: RustLog wire 1.3, <what> ---

WHAT = {
    "01": "missing topic length",
    "01 00": "missing topic length",
    "01 00 02 61": "truncated topic",
    "01 00 01 61": "missing partition",
    "01 00 01 61 00 00 00": "missing partition",
    "01 00 01 61 00 00 00 00": "missing record count",
    "01 00 01 61 00 00 00 00 00 00 00 01": "truncated record length",
    "01 00 01 61 00 00 00 00 ff ff ff ff": "truncated record length",
    "01 00 01 61 00 00 00 00 00 00 00 01 00 00 00 02 61": "truncated record",
    "01 00 01 61 00 00 00 00 00 00 00 02 00 00 00 01 61 00": "truncated record length",
    "01 00 01 ff 00 00 00 00 00 00 00 00": "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0",
    "01 00 02 61 c3": "invalid utf8 topic: incomplete utf-8 byte sequence from index 1",
    "01 00 03 e2 82 41": "invalid utf8 topic: invalid utf-8 sequence of 2 bytes from index 0",
    "01 00 04 f0 9f 98 41": "invalid utf8 topic: invalid utf-8 sequence of 3 bytes from index 0",
    "01 00 03 ed a0 80": "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0",
    "02": "missing group_id length",
    "02 00 01": "truncated group_id",
    "02 00 01 80": "invalid utf8 group_id: invalid utf-8 sequence of 1 bytes from index 0",
    "02 00 00": "missing topic length",
    "02 00 00 00 01": "truncated topic",
    "02 00 00 00 00": "missing partition",
    "02 00 00 00 00 00 00 00 00": "missing offset",
    "02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00": "missing max_bytes",
    "02 00 00 00 01 ff" + " 00" * 16: "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0",
    "02 00 01 ff 00 01 ff" + " 00" * 16: "invalid utf8 group_id: invalid utf-8 sequence of 1 bytes from index 0",
    "03": "missing group length",
    "03 00 01": "truncated group",
    "03 00 01 c3": "invalid utf8 group: incomplete utf-8 byte sequence from index 0",
    "03 00 00": "missing topic length",
    "03 00 00 00 00": "missing partition",
    "03 00 00 00 00 00 00 00 00": "missing offset",
    "04": "missing group length",
    "04 00 00 00 00": "missing partition",
    "05": "missing topic length",
    "05 00 00": "missing partition count",
    "07": "missing topic length",
    "08 00 00": "missing partition",
}


@pytest.mark.parametrize("payload", WHAT)
def test_undecodable(payload):
    script = serving().feed(framed(hexed(payload)) + v.PING)
    script.sends(refusal(2, f"Decode error: decode error: {WHAT[payload]}") + v.PONG).quiet()


@pytest.mark.parametrize("kind", [0x00, 0x0A, 0x20, 0x0D, 0x7B - 1, 0xFE, 0x80])
def test_unknown_type(kind):
    serving().feed(framed(bytes([kind]))).sends(refusal(2, f"Decode error: unknown request type: {kind}")).quiet()


# --- errors of operations: RustLog wire 1.3 ---

NO_PARTITION = "Topic or partition does not exist: topic=demo, partition=0"
ERRORS = [
    (v.PRODUCE_EMPTY, UnknownPartition(), 10, NO_PARTITION),
    (v.PRODUCE_EMPTY, NotRouted(), 10, NO_PARTITION),
    (v.PRODUCE_EMPTY, CommitFailed("disk full"), 500, "Failed to write record: disk full"),
    (v.PRODUCE_EMPTY, StoreReadOnly("full"), 500, "Failed to write record: full"),
    (v.PRODUCE_EMPTY, Throttled("slow down"), 500, "Failed to write record: slow down"),
    (v.PRODUCE_EMPTY, Denied("unauthorized"), 500, "Failed to write record: unauthorized"),
    (v.PRODUCE_EMPTY, TooLarge("too large"), 2, "too large"),
    (v.PRODUCE_NOTHING, UnknownTopic(), 10, NO_PARTITION),
    (v.FETCH_0_1024, UnknownTopic(), 10, NO_PARTITION),
    (v.FETCH_0_1024, UnknownPartition(), 10, NO_PARTITION),
    (
        v.FETCH_0_1024,
        OffsetOutOfRange(first=7, next_offset=9),
        4,
        "Fetch failed: offset out of range: the first offset is 7, the next one 9",
    ),
    (v.FETCH_0_1024, TooLarge("read on at 3"), 4, "Fetch failed: read on at 3"),
    (
        v.FETCH_0_1024,
        CorruptChunk("demo", 0, 2, 4),
        4,
        "Fetch failed: storage error: failed to read: damaged chunk: topic=demo partition=0 offsets=[2, 4)",
    ),
    (v.COMMIT_2, StoreReadOnly("full"), 5, "Offset commit failed: full"),
    (v.CREATE_DEMO, StoreReadOnly("full"), 500, "Internal server error during topic creation"),
    (v.CREATE_DEMO, InvalidRequest("bad name"), 2, "bad name"),
    (v.LIST, StoreReadOnly("full"), 500, "Failed to list topics"),
    (v.DESCRIBE_DEMO, UnknownTopic(), 13, "DescribeTopic failed: Topic 'demo' not found"),
    (v.DESCRIBE_PARTITION, UnknownTopic(), 14, "DescribePartition failed: Partition 0 not found in topic 'demo'"),
    (v.OFFSET_FETCH, StoreReadOnly("full"), 500, "full"),
]


@pytest.mark.parametrize(("data", "error", "code", "text"), ERRORS, ids=[f"{e[2]}-{i}" for i, e in enumerate(ERRORS)])
def test_error_keeps_the_connection(data: bytes, error: GatewayError, code: int, text: str):
    script = serving().feed(data)
    script.answer(Request, error).sends(refusal(code, text))
    script.feed(v.PING).sends(v.PONG).quiet()


def test_partition_that_a_topic_lacks():
    absent = v.DESCRIBE_PARTITION[:-1] + b"\x07"
    script = serving().feed(absent).answer(requests.DescribeTopics, topics(demo=[1, 2]))
    script.sends(refusal(14, "DescribePartition failed: Partition 7 not found in topic 'demo'"))
    script.feed(produce("demo", 7)).answer(requests.DescribeTopics, topics(demo=[1, 2]))
    script.sends(refusal(10, "Topic or partition does not exist: topic=demo, partition=7")).quiet()


def test_text_of_an_error_fits_its_length():
    topic = "ü" * 32_760  # 65 520 bytes: with the words around it more than a u16 can say
    script = serving().feed(produce(topic, 0, b"x")).answer(requests.Publish, UnknownTopic())
    said = script.sent()
    assert int.from_bytes(said[7:9], "big") == len(said) - 9 <= 0xFFFF
    assert said[9:].decode().startswith("Topic or partition does not exist: topic=üü")


def test_record_that_could_not_be_returned_is_refused():
    """RustLog wire 8: with a topic of one byte, a full frame holds one byte more than an answer can."""
    script = serving().feed(produce("t", 0, bytes(MAX_VALUE + 1)))
    script.sends(refusal(2, f"record too large: {MAX_VALUE + 1} bytes (max: {MAX_VALUE})")).quiet()
    script.feed(produce("t", 0, bytes(MAX_VALUE)))
    assert script.expect(requests.Publish).batch.columns.value_bytes == MAX_VALUE


# --- reading ---


def test_high_watermarks_are_real():
    script = serving().feed(v.DESCRIBE_DEMO).answer(requests.DescribeTopics, topics(demo=[9, 4]))
    script.sends(
        framed(
            hexed("07 00 04 64 65 6d 6f 00 00 00 02 00 00 00 02 00000000 0000000000000009 00000001 0000000000000004")
        )
    )
    script.feed(v.DESCRIBE_PARTITION).answer(requests.DescribeTopics, topics(demo=[9, 4]))
    script.sends(v.DESCRIBED_PARTITION[:-1] + b"\x09").quiet()


NAMES = """
    messages_produced_total messages_fetched_total bytes_in_total bytes_out_total active_connections
    throttled_consumers_total slow_consumers_total segments_deleted_total bytes_reclaimed_total compaction_runs_total
    compaction_skipped_segments_total retention_noop_runs_total checkpoint_corruption_total
    compaction_segments_rewritten_total compaction_records_dropped_total compaction_bytes_rewritten_total
    fetch_latency_ns_p50 fetch_latency_ns_p95 fetch_latency_ns_p99
    produce_latency_ns_p50 produce_latency_ns_p95 produce_latency_ns_p99
    consumer_lag{topic="",partition="",group=""}
"""
"""Wire 7: these and no others."""


def test_metrics_have_the_originals_names_and_real_values():
    totals = requests.Totals(
        received=3,
        received_bytes=30,
        delivered=2,
        connections=4,
        upkeep={"trimmed": requests.Upkeep(1, 5, 700), "nothing_merged": requests.Upkeep(6)},
        publishes=(0.0005, 0.001, 0.25),
        lag=11,
    )
    script = serving().feed(framed(b"\x09")).answer(requests.ReadTotals, totals)
    sent = script.sent()
    assert sent[4:5] == b"\x09"
    assert int.from_bytes(sent[5:9], "big") == len(sent) - 9
    text = sent[9:].decode()
    values = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert list(values) == NAMES.split()
    assert text.count("# HELP ") == text.count("# TYPE ") == len(values)
    assert text.startswith(
        "# HELP messages_produced_total Messages received.\n# TYPE messages_produced_total counter\n"
    )
    wanted = {
        "messages_produced_total": 3,
        "bytes_in_total": 30,
        "messages_fetched_total": 2,
        "active_connections": 4,
        "segments_deleted_total": 5,
        "bytes_reclaimed_total": 700,
        "compaction_skipped_segments_total": 6,
        "produce_latency_ns_p50": 500_000,
        "produce_latency_ns_p99": 250_000_000,
        'consumer_lag{topic="",partition="",group=""}': 11,
    }
    assert {name: int(value) for name, value in values.items() if value != "0"} == {
        **wanted,
        "produce_latency_ns_p95": 1_000_000,
    }
    script.quiet()


def test_offset_beyond_every_log_comes_back_as_it_was():
    last = (1 << 64) - 1
    script = serving().feed(fetch("demo", last, 100))
    asked = script.expect(requests.Fetch)
    assert asked.offset < 1 << 63
    script.complete(asked, requests.Fetched((), asked.offset, 0, 5))
    script.sends(framed(b"\x02\x00\x00\x00\x00" + last.to_bytes(8, "big")))


def test_answer_passes_expired_records():
    """Nothing is left between the offset asked for and the log's end: the answer says where to read on."""
    script = serving().feed(fetch("demo", 3, 100)).answer(requests.Fetch, requests.Fetched((), 8, 0, 8))
    script.sends(framed(b"\x02\x00\x00\x00\x00" + (8).to_bytes(8, "big")))


def test_group_reads_at_its_offset_whatever_was_asked():
    """RustLog wire 1.4, Fetch with group."""
    script = serving().feed(fetch("demo", 900, 100, "g") + v.PING)
    script.answer(requests.ReadOffset, requests.GroupOffset(2, True))
    script.answer(requests.Fetch, fetched([b"x"], 2), offset=2)
    script.sends(framed(hexed("02 00000001 00000001 78 0000000000000003")) + v.PONG).quiet()


def test_fresh_group_reads_where_it_was_asked():
    script = serving().feed(fetch("demo", 4, 100, "g"))
    script.answer(requests.ReadOffset, requests.GroupOffset(None, False))
    script.answer(requests.Fetch, fetched([b"x"], 4), offset=4)
    script.sends(framed(hexed("02 00000001 00000001 78 0000000000000005"))).quiet()


@pytest.mark.parametrize("first", [requests.GroupOffset(None, False), UnknownTopic()])
def test_fresh_group_on_a_topic_that_is_not_there(first):
    """RustLog wire 3: stock tests demand empty with next 0."""
    script = serving().feed(fetch("nope", 4, 100, "g")).answer(requests.ReadOffset, first)
    script.answer(requests.Fetch, UnknownTopic()).sends(v.FETCHED_FRESH_GROUP).quiet()


def test_group_with_an_offset_on_a_topic_that_is_not_there():
    script = serving().feed(fetch("nope", 4, 100, "g")).answer(requests.ReadOffset, requests.GroupOffset(0, True))
    script.answer(requests.Fetch, UnknownTopic()).sends(v.NOPE).quiet()


def test_nothing_behind_a_group_fetch_runs_before_its_second_step():
    script = serving().feed(fetch("demo", 0, 100, "g") + v.PRODUCE_EMPTY)
    find = script.expect(requests.ReadOffset)
    script.quiet()
    assert script.session.held, "a held connection is not read"
    assert script.session.in_flight == 1, "and has reached no limit by that"
    script.feed(v.COMMIT_2).quiet()
    script.complete(find, requests.GroupOffset(1, True))
    script.expect(requests.Fetch)
    script.expect(requests.Publish)
    script.expect(requests.CommitOffset)
    assert script.session.in_flight == 3
    assert not script.session.held


def test_reads_are_asked_for_within_the_bound_on_output_and_go_on_when_the_peer_has_taken_the_answers():
    """However many Fetches fit into a read: what they bring must not all be there at once."""
    script = serving(limits=Limits(output=Size(10_000), in_flight=50)).feed(fetch("demo", 0, 5000) * 100)
    asked = [script.expect(requests.Fetch) for _ in range(2)]
    script.quiet()
    assert script.session.in_flight == 50
    assert not script.session.held
    value = b"x" * 5000
    answer = framed(b"\2" + struct.pack(">II", 1, 5000) + value + struct.pack(">Q", 1))
    script.complete(asked[1], fetched([value])).quiet()  # it waits for the first, and its room with it
    script.complete(asked[0], fetched([value])).sends(answer * 2).quiet()
    script.room()
    assert [script.expect(requests.Fetch) for _ in range(2)]
    script.quiet()


def test_answers_that_need_no_broker_stop_at_the_bound_as_well():
    script = serving(limits=Limits(output=Size(1000))).feed(v.PING * 500).sends(v.PING * 200).quiet()
    script.room()
    script.sends(v.PING * 200).quiet()
    script.room()
    script.sends(v.PING * 100).quiet()


def test_held_connection_collects_what_comes_in():
    script = serving().feed(v.CREATE_DEMO)
    create = script.expect(requests.CreateTopic)
    script.feed(v.PING).feed(v.PING[:2]).quiet()
    script.complete(create, requests.TopicCreated(True, 1)).sends(v.CREATED + v.PONG)
    script.feed(v.PING[2:]).sends(v.PONG).quiet()


def test_nothing_behind_a_create_runs_before_it():
    script = serving().feed(v.CREATE_DEMO + v.PRODUCE_EMPTY)
    create = script.expect(requests.CreateTopic)
    script.quiet()
    script.complete(create, requests.TopicCreated(True, 1)).sends(v.CREATED)
    script.answer(requests.Publish, published(3)).sends(v.PRODUCED_EMPTY).quiet()


def test_answer_is_trimmed_to_a_frame():
    """RustLog wire 8."""
    values = [bytes(3_000_000)] * 4
    script = serving().feed(fetch("demo", 0, 0xFFFF_FFFF)).answer(requests.Fetch, fetched(values))
    said = script.sent()
    assert len(said) <= 4 + MAX_FRAME
    assert said[5:9] == (3).to_bytes(4, "big")
    assert said[-8:] == (3).to_bytes(8, "big")


def test_a_long_answer_leaves_as_it_lies_in_memory():
    found = fetched([bytes(300_000)])
    session = serving().session
    (asked,) = session.receive(0, fetch("demo", 0, 1 << 20), 0.0)
    session.answered(asked.id, found, 0.0)
    sent = [output.data for output in session.outputs()]
    assert sent[1] is found.runs[0].columns.packed
    assert b"".join(sent) == framed(b"\x02\x00\x00\x00\x01" + sent[1] + (1).to_bytes(8, "big"))


def test_answer_joins_runs_without_touching_records():
    runs = [fetched([b"a", b"b"]).runs[0], fetched([b"c"], 2).runs[0]]
    script = serving().feed(v.FETCH_0_1024).answer(requests.Fetch, requests.Fetched(runs, 3, 0, 3))
    packed = Columns.of([b"a", b"b", b"c"]).packed
    script.sends(framed(b"\x02\x00\x00\x00\x03" + packed + (3).to_bytes(8, "big")))


# --- the connection ---


def test_eof_answers_what_was_asked_and_forgets_half_a_frame():
    script = serving().feed(v.PRODUCE_EMPTY + v.PING[:3])
    publish = script.expect(requests.Publish)
    script.eof().quiet()
    script.complete(publish, published(3)).sends(v.PRODUCED_EMPTY)
    script.output(Close)
    script.quiet()


def test_eof_while_held_serves_what_was_sent():
    script = serving().feed(v.CREATE_DEMO + v.PRODUCE_EMPTY)
    create = script.expect(requests.CreateTopic)
    script.eof().complete(create, requests.TopicCreated(True, 1)).sends(v.CREATED)
    script.answer(requests.Publish, published(3)).sends(v.PRODUCED_EMPTY)
    script.output(Close)


def test_eof_of_an_idle_connection_closes_it():
    serving().eof().output(Close)


def test_drain_answers_what_is_under_way_only():
    script = serving().feed(v.CREATE_DEMO + v.PRODUCE_EMPTY)
    create = script.expect(requests.CreateTopic)
    script.drain().feed(v.PING).quiet()
    script.complete(create, requests.TopicCreated(True, 1)).sends(v.CREATED)
    script.output(Close)
    script.quiet()


def test_lost_connection_drops_what_comes_back():
    script = serving().feed(v.PRODUCE_EMPTY)
    publish = script.expect(requests.Publish)
    script.lost().complete(publish, published(3)).quiet()
