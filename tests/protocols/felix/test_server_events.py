"""What a Felix server session makes of subscriptions: replies, event streams, replay, the pace of the push."""

from __future__ import annotations

import base64
import json
import math

import pytest

from gateway import requests
from gateway.errors import CorruptChunk, Denied, OffsetOutOfRange, Throttled, UnknownTopic
from gateway.protocols.felix.server.subscriptions import MAX_FEEDS, UNREAD_BYTES
from gateway.protocols.felix.settings import EventSettings
from gateway.protocols.felix.wire.binary import decode_events
from gateway.settings import Dialect
from gateway.wire.session import Close, Finish, Kind, Open, Reset, Send
from tests.protocols.felix.values import FRAMES, IDENTITY, STREAM, js, serving, split_frames, taken
from tests.protocols.script import Script


def subscribe(**fields: object) -> bytes:
    return js(type="subscribe", **STREAM, **fields)


def subscribed(number: int = 5, next_offset: int = 0) -> requests.Subscribed:
    return requests.Subscribed(number, "demo", next_offset)


def logged_in(script: Script, flags: int | None = None) -> Script:
    fields = {} if flags is None else {"client_flags": flags}
    script.feed(js(type="auth", tenant_id="t1", token="x", **fields)).answer(requests.Authenticate, IDENTITY)
    script.sent()
    return script


def hello(known_as: object = 5) -> bytes:
    return js(type="event_stream_hello", subscription_id=known_as)


def event(value: bytes, **fields: object) -> bytes:
    return js(type="event", **STREAM, payload=base64.b64encode(value).decode(), **fields)


def begun(script: Script, data: bytes, known_as: object = 5) -> int:
    """Subscribe, look at the reply and the hello; returns the event stream's token."""
    script.feed(data).answer(requests.Subscribe, subscribed(), address="demo", start=requests.Start.LATEST, name="")
    script.sends(js(type="subscribed", subscription_id=known_as))
    token = script.output(Open, kind=Kind.WRITE_ONLY).token
    assert token < 0
    script.sends(hello(known_as), token)
    return token


# --- the reply ---


@pytest.mark.parametrize(
    ("fields", "known_as"), [({}, 5), ({"subscription_id": 1}, 1), ({"subscription_id": "a"}, "a")]
)
def test_subscription_is_known_by_the_clients_id_or_ours(fields, known_as):
    """Wire 2.12, rows 3 and 4."""
    script = serving()
    token = begun(script, subscribe(**fields), known_as)
    script.expect(requests.Take, subscription=5, hold_until=math.inf)
    script.open(token, Kind.WRITE_ONLY).quiet()


def test_captured_subscribe():
    """Wire 2.11: subscribe id 1, subscribed 1, and the event the default broker sends to whoever chose an integer."""
    script = serving().feed(FRAMES["subscribe_with_id"]).answer(requests.Subscribe, subscribed(7))
    script.sends(FRAMES["subscribed"])
    token = script.output(Open).token
    script.sent(token)
    binary = "464c583100010002000000150000000000000001000000010000000568656c6c6f"
    script.answer(requests.Take, taken(b"hello")).sends(bytes.fromhex(binary), token)


def test_captured_event_as_json():
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"hello")).sends(FRAMES["event_hello"], token)


def test_document_answers_ok_and_knows_ids_as_strings():
    script = serving(Dialect.DOCUMENT).feed(subscribe()).answer(requests.Subscribe, subscribed()).sends(js(type="ok"))
    token = script.output(Open).token
    script.sends(hello("5"), token)


def test_stream_stays_open_behind_a_subscribe():
    """Wire 2.12, row 16."""
    script = serving()
    begun(script, subscribe())
    script.expect(requests.Take)
    script.feed(FRAMES["publish_acked"]).expect(requests.Publish)
    assert script.session.in_flight == 1, "a waiting Take is not a reply that is owed"


def test_subscription_outlives_its_stream():
    """Stock clients finish and stop the stream at once (wire 2.2)."""
    script = serving()
    token = begun(script, subscribe())
    take = script.expect(requests.Take)
    script.stopped(0).eof(0).quiet()
    script.complete(take, taken(b"x")).sends(event(b"x"), token)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnknownTopic(), "stream not found: tenant=t1 namespace=default stream=demo"),
        (Denied(), "forbidden"),
        (Throttled("x"), "server overloaded"),
    ],
)
def test_refused_subscription(error, text):
    script = serving(create=False).feed(subscribe()).answer(requests.Subscribe, error, create=False)
    script.sends(js(type="error", message=text)).quiet()


def test_subscriptions_have_a_bound():
    script = serving()
    for number in range(MAX_FEEDS):
        script.feed(subscribe()).answer(requests.Subscribe, subscribed(number + 2))
        script.expect(requests.Take)
    script.others.clear()
    script.bytes_of.clear()
    script.feed(subscribe()).sends(js(type="error", message="max subscriptions per connection exceeded")).quiet()


# --- events ---


def test_events_as_json_to_a_peer_that_showed_nothing():
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"a", b"", b"\xff")).sends(event(b"a") + event(b"") + event(b"\xff"), token)


def test_events_as_binary_to_a_peer_that_logged_in():
    """Wire section 0, row 9, and 2.11."""
    script = logged_in(serving())
    token = begun(script, subscribe(subscription_id=7), 7)
    script.answer(requests.Take, taken(b"hello")).sends(FRAMES["events_one"], token).room(token)
    script.answer(requests.Take, taken(b"one", b"two", b"")).sends(FRAMES["events_three"], token)


@pytest.mark.parametrize(("flags", "frame"), [(63, 0x0002), (0x0002, 0x0002), (0x0004, 0x0004), (0, 0), (0x0008, 0)])
def test_events_in_what_was_negotiated(flags, frame):
    script = logged_in(serving(), flags)
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"one", b"two"))
    assert split_frames(script.sent(token))[0][0] == frame


def test_shared_events():
    script = logged_in(serving(), 4)
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"one", b"two")).sends(FRAMES["shared_events"], token)


def test_binary_single_is_for_peers_that_showed_nothing():
    script = serving(events=EventSettings(binary_single=True, delay=0.0))
    token = begun(script, subscribe(), 5)
    script.answer(requests.Take, taken(b"hello"))
    assert split_frames(script.sent(token))[0][0] == 0x0002


def test_an_integer_for_an_id_is_a_released_clients():
    """Wire 2.4 and 2.6: the document's ids are texts, and clients that choose a number understand flag 0x0002."""
    script = serving()
    token = begun(script, subscribe(subscription_id=7), 7)
    script.answer(requests.Take, taken(b"hello")).sends(FRAMES["events_one"], token)
    script = serving(Dialect.DOCUMENT).feed(subscribe(subscription_id=7)).answer(requests.Subscribe, subscribed())
    token = script.output(Open).token
    script.sent(token)
    script.answer(requests.Take, taken(b"hello")).sends(event(b"hello"), token)


def test_string_ids_have_no_binary_events():
    script = logged_in(serving())
    token = begun(script, subscribe(subscription_id="a"), "a")
    script.answer(requests.Take, taken(b"x")).sends(event(b"x"), token)


def test_document_batches_events():
    script = serving(Dialect.DOCUMENT, events=EventSettings(count=2, delay=0.0)).feed(subscribe())
    script.answer(requests.Subscribe, subscribed())
    token = script.output(Open).token
    script.sent(token)
    script.answer(requests.Take, taken(b"a", b"b", b"c"))
    batches = [json.loads(payload) for _, payload in split_frames(script.sent(token))]
    assert batches == [
        {"type": "event_batch", **STREAM, "payloads": ["YQ==", "Yg=="]},
        {"type": "event_batch", **STREAM, "payloads": ["Yw=="]},
    ]


def test_frames_are_bounded_by_count_and_bytes():
    script = logged_in(serving(events=EventSettings(count=3, bytes=1000, delay=0.0)))
    token = begun(script, subscribe())
    take = script.expect(requests.Take)
    assert take.max_bytes == 1000
    values = [b"a", b"b", b"c", b"d", bytes(600), bytes(600), bytes(2000)]
    script.complete(take, taken(*values))
    frames = [decode_events(payload, flags) for flags, payload in split_frames(script.sent(token))]
    assert [v for _, _, columns in frames for v in columns.values()] == values
    for _, _, columns in frames:
        assert columns.count <= 3
        assert columns.count == 1 or len(columns.packed) <= 1000


def test_names_are_escaped_in_json():
    script = serving()
    script.feed(js(type="subscribe", tenant_id='t"', namespace="nä", stream="s\\")).answer(
        requests.Subscribe, subscribed()
    )
    token = script.output(Open).token
    script.sent(token)
    script.answer(requests.Take, taken(b"x"))
    ((_, payload),) = split_frames(script.sent(token))
    assert json.loads(payload) == {
        "type": "event",
        "tenant_id": 't"',
        "namespace": "nä",
        "stream": "s\\",
        "payload": "eA==",
    }


def test_largest_event_is_what_a_frame_holds():
    script = serving().feed(subscribe())
    as_json = script.expect(requests.Subscribe).largest_value
    script = logged_in(serving()).feed(subscribe())
    as_binary = script.expect(requests.Subscribe).largest_value
    assert as_binary == (16 << 20) - 24
    assert as_json * 4 / 3 < 16 << 20
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(bytes(as_json)))
    assert len(script.sent(token)) <= 12 + (16 << 20)


# --- the pace ---


def test_one_take_at_a_time_and_none_without_room():
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"x")).sends(event(b"x"), token).quiet()
    assert [o for o in script.history if isinstance(o, Send)][-1].notify
    script.room(token).answer(requests.Take, taken(b"y")).sends(event(b"y"), token).quiet()


def test_many_subscriptions_share_what_may_wait_for_a_client():
    script = serving()
    begun(script, subscribe())
    script.expect(requests.Take, max_bytes=EventSettings().bytes)
    for number in range(6, 70):
        script.feed(subscribe()).answer(requests.Subscribe, subscribed(number))
        take = script.expect(requests.Take, subscription=number)
    assert take.max_bytes == UNREAD_BYTES // 65


def test_frames_that_are_not_full_keep_a_distance():
    script = serving(events=EventSettings(count=2, delay=0.25))
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"a")).room(token)
    assert not script.asked
    script.pass_time(0.2)
    assert not script.asked
    script.pass_time(0.1)
    script.answer(requests.Take, taken(b"b", b"c"))
    script.room(token).expect(requests.Take)


def test_slow_subscription_delays_no_other():
    script = serving()
    slow = begun(script, subscribe())
    script.answer(requests.Take, taken(b"x")).sends(event(b"x"), slow)
    script.feed(subscribe()).answer(requests.Subscribe, subscribed(6))
    script.sent()
    fast = script.output(Open).token
    script.sent(fast)
    for value in (b"1", b"2", b"3"):
        script.answer(requests.Take, taken(value), subscription=6).sends(event(value), fast).room(fast)


def test_stop_sending_unsubscribes():
    """Wire 2.2 and 2.6."""
    script = serving()
    token = begun(script, subscribe())
    take = script.expect(requests.Take)
    script.stopped(token).answer(requests.Unsubscribe, requests.DONE, subscription=5)
    script.complete(take, taken(b"x")).room(token).stopped(token).quiet()


def test_stream_that_the_client_does_not_grant():
    script = serving()
    token = begun(script, subscribe())
    script.expect(requests.Take)
    script.reset(token).expect(requests.Unsubscribe, subscription=5)


def test_end_of_a_topic_is_a_clean_end():
    """Wire 2.6: remaining events, FIN."""
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"x", ended=True)).sends(event(b"x"), token)
    script.output(Finish, channel=token)
    script.quiet()


def test_damage_ends_a_subscription_with_a_reset():
    script = serving()
    token = begun(script, subscribe())
    script.answer(requests.Take, CorruptChunk("demo", 0, 1, 2))
    script.output(Reset, channel=token)
    script.expect(requests.Unsubscribe)


def test_drain_finishes_event_streams():
    script = serving()
    token = begun(script, subscribe())
    script.expect(requests.Take)
    script.drain().output(Finish, channel=token)
    script.output(Close, code=0)


# --- replay ---


def described(start: int, end: int, partitions: int = 1) -> requests.Topics:
    infos = [requests.PartitionInfo(i, start, end) for i in range(partitions)]
    return requests.Topics([requests.TopicInfo("demo", infos)])


def test_replay_with_offsets_in_binary():
    """Wire 1.2: flag 0x0022, the base offset behind the subscription's id."""
    script = logged_in(serving(), 63).feed(subscribe(start={"offset": 8}))
    script.answer(requests.DescribeTopics, described(4, 10), address="demo")
    script.answer(requests.Subscribe, subscribed(5, 8), start=8)
    token = script.output(Open).token
    script.sent(token)
    script.answer(requests.Take, taken(b"a", b"b", base=8))
    ((flags, payload),) = split_frames(script.sent(token))
    subscription, base, columns = decode_events(payload, flags)
    assert (flags, subscription, base, columns.values()) == (0x0022, 5, 8, [b"a", b"b"])


def test_replay_with_offsets_in_json():
    script = serving().feed(subscribe(start="earliest")).answer(requests.DescribeTopics, described(4, 10))
    script.answer(requests.Subscribe, subscribed(), start=requests.Start.EARLIEST)
    token = script.output(Open).token
    script.sent(token)
    script.answer(requests.Take, taken(b"a", b"b", base=4)).sends(event(b"a", offset=4) + event(b"b", offset=5), token)


def live(flags: int, **fields: object) -> tuple[Script, int]:
    """A subscription from now on, of a topic whose offsets last."""
    script = logged_in(serving(), flags).feed(subscribe(**fields))
    script.answer(requests.Subscribe, requests.Subscribed(5, "demo", 9, lasting_offsets=True))
    token = script.output(Open).token
    script.sent(0)
    script.sent(token)
    return script, token


@pytest.mark.parametrize(
    ("flags", "frame"),
    [
        # magic, version, flags 0x0022, length; subscription 5, offset 9, one event of two bytes
        (63, "464c5831 0001 0022 0000001a 0000000000000005 0000000000000009 00000001 00000002 6869"),
        (0x24, "464c5831 0001 0024 00000012 0000000000000009 00000001 00000002 6869"),
        (31, "464c5831 0001 0002 00000012 0000000000000005 00000001 00000002 6869"),
    ],
)
def test_live_events_carry_offsets_where_that_was_negotiated(flags: int, frame: str):
    """Wire 1.2: so that who follows the tail can remember a place and begin there."""
    script, token = live(flags)
    script.answer(requests.Take, taken(b"hi", base=9)).sends(bytes.fromhex(frame), token)


def test_live_events_as_json_carry_offsets_as_well():
    script, token = live(0x20)
    script.answer(requests.Take, taken(b"a", b"b", base=9)).sends(event(b"a", offset=9) + event(b"b", offset=10), token)


def test_offsets_that_do_not_last_are_not_told():
    """In memory they begin anew at each start, as at the original, and of several partitions they say nothing."""
    script = logged_in(serving(), 63)
    token = begun(script, subscribe())
    script.answer(requests.Take, taken(b"a", base=9))
    assert split_frames(script.sent(token))[0][0] == 0x0002


@pytest.mark.parametrize(("asked", "reason", "available"), [(3, "too_old", 4), (11, "in_future", 10)])
def test_cursor_errors(asked, reason, available):
    """Wire 1.2."""
    script = serving().feed(subscribe(start={"offset": asked})).answer(requests.DescribeTopics, described(4, 10))
    said = js(type="subscribe_cursor_error", reason=reason, requested=asked, available=available)
    script.sends(said).quiet()


def test_cursor_error_that_only_the_broker_sees():
    script = serving().feed(subscribe(start={"offset": 4})).answer(requests.DescribeTopics, described(4, 10))
    script.answer(requests.Subscribe, OffsetOutOfRange(first=6, next_offset=10))
    script.sends(js(type="subscribe_cursor_error", reason="too_old", requested=4, available=6)).quiet()


def test_replay_of_a_topic_that_is_not_there_yet():
    script = serving().feed(subscribe(start="earliest")).answer(requests.DescribeTopics, UnknownTopic())
    script.expect(requests.Subscribe, start=requests.Start.EARLIEST)
    script = serving().feed(subscribe(start={"offset": 3})).answer(requests.DescribeTopics, UnknownTopic())
    script.sends(js(type="subscribe_cursor_error", reason="in_future", requested=3, available=0)).quiet()


def test_replay_needs_one_partition():
    script = serving().feed(subscribe(start="earliest")).answer(requests.DescribeTopics, described(0, 1, 2))
    reason = "an offset does not say in which of 2 it is, and nothing else here can"
    script.sends(js(type="error", message=f"replay needs a stream of one partition: {reason}")).quiet()
