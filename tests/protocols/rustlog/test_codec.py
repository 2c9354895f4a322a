"""The RustLog codecs turn back what they made, whatever it is, and never fail in any other way than theirs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Columns
from gateway.errors import Status, WireError
from gateway.protocols.registry import Sniff
from gateway.protocols.rustlog import SPEC
from gateway.protocols.rustlog.states import TABLE, Event, State
from gateway.protocols.rustlog.wire import binary, frames, json_seed, mapping
from gateway.protocols.rustlog.wire.codec import CODECS, encoding_of
from gateway.protocols.rustlog.wire.frames import Encoding, Undecodable
from gateway.requests import Publish, Published
from gateway.wire.session import Close
from tests.protocols.rustlog import vectors as v
from tests.protocols.rustlog.values import run, serving

names = st.text(max_size=20).filter(lambda t: t.isprintable())
u32 = st.integers(0, 0xFFFF_FFFF)
u64 = st.integers(0, frames.U64_MAX)
values = st.lists(st.binary(max_size=40), min_size=1, max_size=20)

common = st.one_of(
    st.builds(frames.Fetch, names, names, u32, u64, u32),
    st.builds(frames.OffsetCommit, names, names, u32, u64),
    st.builds(frames.OffsetFetch, names, names, u32),
)
operations = st.one_of(
    common,
    st.builds(frames.CreateTopic, names, u32),
    st.just(frames.ListTopics()),
    st.builds(frames.DescribeTopic, names),
    st.builds(frames.DescribePartition, names, u32),
    st.just(frames.MetricsFetch()),
    st.just(frames.Ping()),
)


@given(operations)
def test_binary_request_round_trip(operation):
    assert binary.decode_request(binary.encode_request(operation)[4:]) == operation


@given(names, u32, values)
def test_produce_round_trip_in_both_dialects(topic, partition, records):
    produce = frames.Produce(topic, partition, Columns.of(records))
    for codec, encoding in ((binary, Encoding.BINARY), (json_seed, Encoding.SEED_JSON)):
        payload = codec.encode_request(produce)[4:]
        assert encoding_of(payload) is encoding
        again = codec.decode_request(payload)
        assert (again.topic, again.partition, again.columns.values()) == (topic, partition, records)


@given(common)
def test_seed_request_round_trip(operation):
    payload = json_seed.encode_request(operation)[4:]
    assert encoding_of(payload) is Encoding.SEED_JSON
    assert json_seed.decode_request(payload) == operation


ANSWERS = [
    (frames.Produce("t", 0, Columns.of([b"a"])), frames.Produced(7, 3)),
    (frames.OffsetCommit("g", "t", 0, 1), frames.Committed(True)),
    (frames.OffsetFetch("g", "t", 0), frames.GroupPosition(None)),
    (frames.OffsetFetch("g", "t", 0), frames.GroupPosition(frames.U64_MAX)),
]
BINARY_ANSWERS = [
    (frames.CreateTopic("t", 1), frames.Created(True)),
    (frames.ListTopics(), frames.TopicList([("a", 1), ("bü", 2)])),
    (
        frames.DescribeTopic("t"),
        frames.TopicDescription("t", [frames.PartitionState(0, 9), frames.PartitionState(1, 0)]),
    ),
    (frames.DescribePartition("t", 1), frames.PartitionDescription("t", frames.PartitionState(1, 9))),
    (frames.MetricsFetch(), frames.Metrics("a 1\n")),
    (frames.Ping(), frames.Pong()),
]


@pytest.mark.parametrize(("operation", "answer"), ANSWERS + BINARY_ANSWERS)
def test_binary_answer_round_trip(operation, answer):
    assert binary.decode_answer(operation, binary.encode_answer(answer)[4:]) == answer


@pytest.mark.parametrize(("operation", "answer"), ANSWERS)
def test_seed_answer_round_trip(operation, answer):
    assert json_seed.decode_answer(operation, json_seed.encode_answer(answer)[4:]) == answer


@given(values, st.integers(0, 1 << 40))
def test_records_round_trip(records, base):
    asked = frames.Fetch("", "t", 0, base, 1)
    answer = frames.Records([run(records, base)], base + len(records))
    for codec in (binary, json_seed):
        pulled = codec.decode_answer(asked, codec.encode_answer(answer)[4:])
        assert pulled.columns.values() == records
        assert pulled.next_offset == base + len(records)


def test_records_with_bytes_behind_them():
    """Clients ignore what follows the last field (RustLog wire 1.1)."""
    pulled = binary.decode_answer(frames.Fetch("", "t", 0, 0, 1), v.FETCHED_FIVE[4:] + b"trailing bytes")
    assert pulled.columns.values() == [b"hello", b"from", b"rustlog", b"", b"k"]
    assert pulled.next_offset == 5


@given(st.binary(min_size=1, max_size=60))
def test_any_payload_is_an_operation_or_undecodable(payload):
    with contextlib.suppress(Undecodable):
        assert isinstance(CODECS[encoding_of(payload)].decode(payload), frames.Operation)


@given(st.binary(min_size=1, max_size=60), st.sampled_from([o for o, _ in ANSWERS + BINARY_ANSWERS]))
def test_any_answer_is_one_or_a_wire_error(payload, operation):
    for codec in (binary, json_seed):
        with contextlib.suppress(WireError):
            assert isinstance(codec.decode_answer(operation, payload), frames.Answer)


@given(
    st.lists(st.sampled_from([v.PRODUCE_THREE, v.PRODUCE_EMPTY, v.PING, v.J_PRODUCE, v.TRUNCATED]), max_size=12),
    st.data(),
)
def test_chunking_changes_nothing(parts, data):
    """However the bytes are cut into reads, the same records are asked for and the same answers come."""
    stream = b"".join(parts)

    def served(cuts: list[int]) -> tuple[list[bytes], bytes]:
        script = serving()
        offset = 0
        stored: list[bytes] = []
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            script.feed(stream[start:stop])
            while script.asked:
                publish = script.expect(Publish)
                stored += publish.batch.columns.values()
                script.complete(publish, Published("demo", 1, 0, offset))
                offset += publish.batch.columns.count
        return stored, script.sent()

    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    assert served(cuts) == served([])


def test_every_status_has_codes():
    assert set(mapping.CODES) == set(Status)


@given(st.lists(st.sampled_from(Event), max_size=12))
def test_states_never_leave_closed(events):
    state = State.OPEN
    for event in events:
        state = TABLE.get((state, event), state)
        if state is State.CLOSED:
            assert all(TABLE.get((state, e), state) is State.CLOSED for e in Event)


def test_session_survives_any_sequence_of_events():
    for first in ("eof", "drain", "lost"):
        for second in ("eof", "drain", "lost"):
            script = serving()
            for event in (first, second):
                getattr(script, event)()
            assert [type(o) for o in script.others].count(Close) <= 1


def test_sniff():
    assert SPEC.sniff is not None
    assert SPEC.sniff(b"") is Sniff.MORE
    assert SPEC.sniff(v.PING[:1]) is Sniff.YES
    assert SPEC.sniff(v.OVERSIZE) is Sniff.YES
    for other in (b"\xaf\x01", b"\x16\x03", b"{"):
        assert SPEC.sniff(other) is Sniff.NO


def test_metrics_are_cut_between_lines():
    line = "gateway_some_metric_total 1\n"
    said = binary.encode_answer(frames.Metrics(line * (frames.MAX_FRAME // len(line) + 10)))
    assert len(said) <= frames.MAX_FRAME + 4
    assert said.endswith(line.encode())
