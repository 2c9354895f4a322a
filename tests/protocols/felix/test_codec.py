"""The Felix codecs turn back what they made, take any bytes without harm, and do not care how bytes are cut into reads."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from gateway import requests
from gateway.envelope import Columns
from gateway.errors import WireError
from gateway.protocols.felix.states import FEEDS, STREAMS, FeedEvent, FeedState, StreamEvent, StreamState
from gateway.protocols.felix.wire import binary, codec, mapping
from gateway.wire.session import Finish
from tests.protocols.felix.values import FRAMES, PUBLISHED, batch, serving, split_frames

names = st.builds(binary.Names, *[st.text(max_size=20)] * 3)
values = st.lists(st.binary(max_size=50), max_size=30)


@given(names, values, st.none() | st.integers(0, codec.U64_MAX))
def test_batch_round_trip(where, messages, request_id):
    columns = Columns.of(messages) if messages else Columns.from_packed(b"", 0)
    ((flags, payload),) = split_frames(binary.encode_batch(binary.encode_names(where), columns, request_id))
    start = 0
    if request_id is not None:
        assert flags == 9
        assert binary.decode_request(payload, 0, len(payload)) == (request_id, binary.PER_BATCH)
        start = binary.REQUEST_SIZE
    end = binary.names_end(payload, start, len(payload))
    assert binary.decode_names(payload[start:end]) == where
    assert binary.decode_values(payload, end, len(payload)).values() == messages


@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=30),
    st.none() | st.integers(0, codec.U64_MAX),
    st.none() | st.integers(0, 1 << 60),
    st.integers(1, 8),
    st.integers(1, 200),
)
def test_events_round_trip(messages, subscription, base, most, most_bytes):
    frames = binary.encode_events(Columns.of(messages), subscription, base, most=most, most_bytes=most_bytes)
    read: list[bytes] = []
    for flags, payload in split_frames(b"".join(frames)):
        known_as, offset, columns = binary.decode_events(payload, flags)
        assert known_as == subscription
        assert offset == (None if base is None else base + len(read))
        assert columns.count == 1 or (columns.count <= most and len(columns.packed) <= most_bytes)
        read += columns.values()
    assert read == messages


@given(st.integers(0, codec.U64_MAX), st.none() | st.text(max_size=80))
def test_ack_round_trip(request_id, error):
    ((_, payload),) = split_frames(binary.encode_ack(request_id, error))
    assert binary.decode_ack(payload) == (request_id, error)


@given(names)
def test_addresses_round_trip(where):
    for scope in ("t1/default", f"{mapping.escape(where.tenant)}/{mapping.escape(where.namespace)}"):
        assert mapping.names_of(mapping.address_of(where, scope), scope) == where


@given(names, names)
def test_scopes_cannot_collide(one, other):
    same = mapping.address_of(one, "t1/default") == mapping.address_of(other, "t1/default")
    assert same == (one == other)


@given(st.binary(max_size=80), st.integers(0, 0xFFFF))
def test_any_payload_is_refused_or_read(payload, flags):
    with contextlib.suppress(WireError):
        codec.decode_client(payload, repair=True)
    with contextlib.suppress(WireError):
        codec.decode_server(payload)
    with contextlib.suppress(WireError):
        binary.decode_events(payload, flags)
    with contextlib.suppress(WireError):
        binary.decode_ack(payload)
    with contextlib.suppress(WireError):
        binary.decode_values(payload, binary.names_end(payload, 0, len(payload)), len(payload))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_end_the_stream_or_wait(data, cut):
    script = serving().feed(data[:cut]).feed(data[cut:]).eof()
    script.serve(lambda request: PUBLISHED if isinstance(request, requests.Publish) else requests.DONE)
    assert [output for output in script.others if isinstance(output, Finish)]


STEPS = [
    FRAMES["publish_acked"],
    FRAMES["binary_batch"],
    FRAMES["acked_binary_per_message"],
    FRAMES["broken_acked_batch"],
    batch(b"", b"x"),
]


@given(st.lists(st.sampled_from(STEPS), max_size=10), st.data())
def test_chunking_changes_nothing(parts, data):
    """However the bytes are cut into reads, the same messages are stored and the same answers given."""
    stream = b"".join(parts)

    def served(cuts: list[int]) -> tuple[list[bytes], bytes]:
        script = serving()
        stored: list[bytes] = []
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            script.feed(stream[start:stop])
            while script.asked:
                request = script.expect(requests.Publish)
                stored += request.batch.columns.values()
                script.complete(request, PUBLISHED)
        return stored, script.sent()

    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    assert served(cuts) == served([])


def test_tables_have_a_way_out_of_every_state():
    for state in StreamState:
        assert state is StreamState.CLOSED or (state, StreamEvent.FAIL) in STREAMS
        assert (state, StreamEvent.EOF) in STREAMS
    for feed in FeedState:
        assert FEEDS[feed, FeedEvent.END] is FeedState.ENDED


def test_deep_json_is_refused():
    script = serving()
    payload = b'{"type":"publish","x":' + b"[" * 200_000
    script.feed(b"FLX1\x00\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload)
    assert b'"error"' in script.sent()
