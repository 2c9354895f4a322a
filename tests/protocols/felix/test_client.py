"""What a Felix client session sends to each generation of server, and what it makes of the answers."""

from __future__ import annotations

import base64
import math

import pytest

from gateway import requests
from gateway.envelope import MOST_MESSAGES, Batch, Columns
from gateway.errors import (
    OffsetOutOfRange,
    Status,
    TargetLost,
    TargetRefused,
    TooLarge,
    UnknownSubscription,
    Unsupported,
)
from gateway.protocols.felix.client.session import FelixClient
from gateway.settings import Dialect
from gateway.wire.session import (
    CONNECTION,
    ClientContext,
    Close,
    Credentials,
    Finish,
    Kind,
    Open,
    StopSending,
    Withhold,
)
from tests.protocols.felix.values import FRAMES, STREAM, batch, framed, js, split_frames
from tests.protocols.script import ClientScript

AUTH = js(type="auth", tenant_id="t1", token="demo-token", client_flags=63)
OLD = js(type="ok")
NEW = js(type="auth_ok", server_flags=63)


def client(dialect: Dialect = Dialect.AUTO) -> ClientScript:
    context = ClientContext(Credentials(token="demo-token"), dialect)
    return ClientScript(FelixClient(context), channel=CONNECTION)


def publish(number: int, *values: bytes, address: str = "demo") -> requests.Publish:
    return requests.Publish(number, Batch(address, Columns.of(values)))


def logged_in(script: ClientScript, answer: bytes = NEW) -> int:
    """The stream that the session just opened, once its login is through."""
    token = script.output(Open, kind=Kind.DUPLEX).token
    script.sends(AUTH, token)
    script.open(token).feed(answer, token)
    return token


def test_captured_login():
    """Wire 2.11."""
    script = client().submit(publish(1, b"hello"))
    token = script.output(Open).token
    script.sends(FRAMES["auth_all_flags"], token)


def test_publish_to_a_newer_server():
    """Wire 1.2: binary, acknowledged in binary."""
    script = client().submit(publish(1, b"hello")).submit(publish(2, b"x", b"y", address="acme/shop/a%2Fb"))
    token = logged_in(script)
    first, second = batch(b"hello", request=(1, 2)), batch(b"x", b"y", names=("acme", "shop", "a/b"), request=(2, 2))
    script.sends(first + second, token)
    acks = framed(b"\x00" + (1).to_bytes(8, "big") + b"\x00\x00", 16) + framed(
        b"\x01" + (2).to_bytes(8, "big") + b"\x00\x02no", 16
    )
    script.feed_each_byte(acks, token)
    script.expect(1, requests.Published)
    script.expect(2, TargetRefused, final=False)
    script.submit(publish(3, b"z")).sends(batch(b"z", request=(3, 2)), token).quiet()


def test_publish_to_an_older_server():
    """JSON, well-formed, answered by publish_ok."""
    script = client().submit(publish(1, b"a", b"b"))
    token = logged_in(script, OLD)
    script.sends(js(type="publish_batch", **STREAM, payloads=["YQ==", "Yg=="], request_id=1, ack="per_batch"), token)
    script.feed(js(type="publish_ok", request_id=1), token).expect(1, requests.Published)
    script.submit(publish(2, b"a")).feed(js(type="publish_error", request_id=2, message="stream not found: x"), token)
    script.expect(2, TargetRefused, refusal=Status.NOT_FOUND, final=True)


def test_publish_by_the_document():
    script = client(Dialect.DOCUMENT).submit(publish(1, b"a"))
    token = script.output(Open).token
    script.sends(js(type="publish_batch", **STREAM, payloads=["YQ=="], ack="per_batch"), token)
    script.feed(OLD, token).expect(1, requests.Published)


def test_refused_login():
    script = client().submit(publish(1, b"a"))
    token = script.output(Open).token
    script.sent(token)
    script.feed(js(type="error", message="auth failed"), token)
    script.expect(1, TargetRefused, refusal=Status.UNAUTHENTICATED, final=True)
    script.quiet()


def test_batch_beyond_a_frame_goes_in_parts():
    script = client().submit(publish(1, *[bytes(6 << 20)] * 4))
    token = logged_in(script)
    frames = split_frames(script.sent(token))
    assert len(frames) == 2
    assert all(len(payload) <= 16 << 20 for _, payload in frames)
    for number in (1, 2):
        script.quiet().feed(framed(b"\x00" + number.to_bytes(8, "big") + b"\x00\x00", 16), token)
    script.expect(1, requests.Published)


@pytest.mark.parametrize("messages", [[b"x"] * (MOST_MESSAGES + 1), [b"x" * 160] * 80_000, [bytes(12_500_000), b"x"]])
def test_json_frames_hold_what_they_can(messages):
    script = client(Dialect.DOCUMENT).submit(publish(1, *messages))
    token = script.output(Open).token
    frames = split_frames(script.sent(token))
    assert len(frames) == 2
    assert all(len(payload) <= 16 << 20 for _, payload in frames)


def test_message_beyond_a_frame_is_refused_here():
    script = client().submit(publish(1, bytes(16 << 20)))
    logged_in(script)
    script.expect(1, TooLarge)


def test_cache():
    script = client().submit(requests.CachePut(1, "t1/default/primary", "demo-key", b"cached", 1000))
    token = logged_in(script)
    script.sends(FRAMES["cache_put_with_id"], token).feed(js(type="cache_ok", request_id=1), token)
    script.expect(1, requests.Done)
    script.submit(requests.CacheGet(2, "t1/default/primary", "demo-key"))
    script.sent(token)
    script.feed(FRAMES["cache_value"], token).expect(2, requests.CacheValue, value=b"cached")
    script.submit(requests.CacheGet(3, "t1/default/primary", "k")).feed(js(type="error", message="no"), token)
    script.expect(3, TargetRefused)


def subscribed(script: ClientScript, number: int = 7) -> int:
    """Subscribe, have the event stream opened and greeted; returns the subscription."""
    script.submit(requests.Subscribe(1, "demo"))
    token = logged_in(script)
    script.sends(FRAMES["subscribe"], token).output(Finish, channel=token)
    script.feed(js(type="subscribed", subscription_id=number), token).eof(token)
    script.open(3, Kind.READ_ONLY).feed(js(type="event_stream_hello", subscription_id=number), 3)
    return script.expect(1, requests.Subscribed).subscription


def values(taken: requests.Taken) -> list[bytes]:
    return [value for delivered in taken.deliveries for value in delivered.run.columns.values()]


@pytest.mark.parametrize("name", ["events_three", "shared_events", "event_hello"])
def test_events_in_every_encoding(name):
    script = client()
    number = subscribed(script)
    script.feed_each_byte(FRAMES[name], 3)
    script.submit(requests.Take(2, number, 100))
    wanted = {"events_three": [b"one", b"two", b""], "shared_events": [b"one", b"two"], "event_hello": [b"hello"]}[name]
    assert values(script.expect(2, requests.Taken)) == wanted


def test_take_waits_for_events():
    script = client()
    number = subscribed(script)
    script.submit(requests.Take(2, number, 100, hold_until=math.inf)).quiet()
    script.feed(FRAMES["events_one"], 3)
    assert values(script.expect(2, requests.Taken)) == [b"hello"]
    script.submit(requests.Take(3, number, 100, hold_until=script.now + 1)).pass_time(1)
    script.expect(3, requests.Taken, deliveries=())
    script.submit(requests.Take(4, number, 100, hold_until=math.inf)).submit(requests.Cancel(5, 4))
    script.expect(4, requests.Taken, deliveries=())
    script.expect(5, requests.Done)
    script.submit(requests.Take(6, number, 1)).expect(6, requests.Taken, deliveries=())


def test_take_is_bounded():
    script = client()
    number = subscribed(script)
    script.feed(FRAMES["events_three"] * 2, 3)
    script.submit(requests.Take(2, number, 4)).submit(requests.Take(3, number, 4, max_bytes=1))
    assert values(script.expect(2, requests.Taken)) == [b"one", b"two", b"", b"one"]
    assert values(script.expect(3, requests.Taken)) == [b"two"]


def test_events_without_bytes_count_too():
    script = client()
    number = subscribed(script)
    event = js(type="event", **STREAM, payload="")
    script.feed(event * 15_000, 3).quiet()
    script.feed(event * 1_000, 3).output(Withhold, channel=3, on=True)
    script.submit(requests.Take(2, number, 15_000)).expect(2, requests.Taken)
    script.output(Withhold, channel=3, on=False)


def test_a_stream_that_nobody_takes_from_is_not_read():
    script = client()
    number = subscribed(script)
    event = js(type="event", **STREAM, payload=base64.b64encode(b"x" * 300_000).decode())
    script.feed(event * 3, 3).quiet()
    script.feed(event, 3).output(Withhold, channel=3, on=True)
    script.feed(event, 3).quiet()  # what was on its way
    for request_id in range(2, 6):
        script.quiet().submit(requests.Take(request_id, number, 1))
        assert values(script.expect(request_id, requests.Taken)) == [b"x" * 300_000]
    script.quiet().submit(requests.Take(6, number, 1)).expect(6, requests.Taken)
    script.output(Withhold, channel=3, on=False)
    script.quiet()


def test_hello_before_the_reply():
    """Wire 2.6: they may arrive in either order."""
    script = client().submit(requests.Subscribe(1, "demo"))
    token = logged_in(script)
    script.open(3, Kind.READ_ONLY).feed(js(type="event_stream_hello", subscription_id=7) + FRAMES["events_one"], 3)
    script.feed(js(type="subscribed", subscription_id=7), token)
    number = script.expect(1, requests.Subscribed).subscription
    script.submit(requests.Take(2, number, 9))
    assert values(script.expect(2, requests.Taken)) == [b"hello"]


def test_take_before_the_hello():
    script = client().submit(requests.Subscribe(1, "demo"))
    token = logged_in(script)
    script.feed(js(type="subscribed", subscription_id=7), token)
    number = script.expect(1, requests.Subscribed).subscription
    script.submit(requests.Take(2, number, 9, hold_until=math.inf)).open(3, Kind.READ_ONLY)
    script.feed(js(type="event_stream_hello", subscription_id=7) + FRAMES["events_one"], 3)
    assert values(script.expect(2, requests.Taken)) == [b"hello"]


def test_subscription_by_the_document():
    script = client(Dialect.DOCUMENT).submit(requests.Subscribe(1, "demo"))
    token = script.output(Open).token
    script.sends(FRAMES["subscribe"], token)
    script.feed(OLD, token).open(3, Kind.READ_ONLY).feed(js(type="event_stream_hello", subscription_id="s"), 3)
    number = script.expect(1, requests.Subscribed).subscription
    script.feed(js(type="event_batch", **STREAM, payloads=["YQ==", "Yg=="]), 3).submit(requests.Take(2, number, 9))
    assert values(script.expect(2, requests.Taken)) == [b"a", b"b"]


def test_replay():
    script = client().submit(requests.Subscribe(1, "demo", start=8))
    token = logged_in(script)
    script.sends(js(type="subscribe", **STREAM, start={"offset": 8}), token)
    script.feed(js(type="subscribe_cursor_error", reason="too_old", requested=8, available=9), token)
    script.expect(1, OffsetOutOfRange, first=9)
    script.output(Finish, channel=token)
    script.submit(requests.Subscribe(2, "demo", start=requests.Start.EARLIEST))
    token = logged_in(script, OLD)
    script.expect(2, Unsupported)


def test_offsets_of_events():
    script = client()
    number = subscribed(script)
    payload = (7).to_bytes(8, "big") + (40).to_bytes(8, "big") + b"\x00\x00\x00\x01\x00\x00\x00\x01x"
    script.feed(framed(payload, 0x22), 3).submit(requests.Take(2, number, 9))
    assert script.expect(2, requests.Taken).deliveries[0].run.base_offset == 40


def test_unsubscribing_is_reading_no_more():
    """Wire 2.2."""
    script = client()
    number = subscribed(script)
    script.others.clear()
    script.submit(requests.Unsubscribe(2, number)).expect(2, requests.Done)
    script.output(StopSending, channel=3)
    script.submit(requests.Take(3, number, 1)).expect(3, UnknownSubscription)


@pytest.mark.parametrize(("end", "kind"), [("eof", requests.Taken), ("reset", TargetLost)])
def test_end_of_an_event_stream(end, kind):
    """Wire 2.6: FIN is a clean end, a reset is an error."""
    script = client()
    number = subscribed(script)
    script.feed(FRAMES["events_one"], 3)
    getattr(script, end)(3)
    script.submit(requests.Take(2, number, 9))
    assert values(script.expect(2, requests.Taken)) == [b"hello"]
    script.submit(requests.Take(3, number, 9, hold_until=math.inf)).expect(3, kind)


def test_events_of_another_subscription_are_a_violation():
    script = client()
    subscribed(script, 8)
    script.others.clear()
    script.submit(requests.Take(2, 2, 9, hold_until=math.inf)).feed(FRAMES["events_one"], 3)
    script.expect(2, TargetLost)
    script.output(Close)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad", js(type="subscribed", subscription_id=1), framed(b"{", 0), framed(b"\x00", 16)]
)
def test_server_that_breaks_the_protocol(data):
    script = client().submit(publish(1, b"a"))
    token = logged_in(script)
    script.sent(token)
    script.feed(data, token).expect(1, TargetLost)
    script.output(Close)


def test_publish_stream_that_ends_is_replaced():
    script = client().submit(publish(1, b"a"))
    token = logged_in(script)
    script.sent(token)
    script.eof(token).expect(1, TargetLost)
    script.submit(publish(2, b"b"))
    assert script.output(Open).token != token


def test_connection_that_is_lost():
    script = client()
    number = subscribed(script)
    script.others.clear()
    script.submit(requests.Take(2, number, 9, hold_until=math.inf)).lost().expect(2, TargetLost)
    script.submit(publish(3, b"a")).expect(3, TargetLost)


def test_nothing_goes_out_before_the_connection_is_up():
    script = ClientScript(FelixClient(ClientContext()), channel=None).submit(publish(1, b"a"))
    script.quiet()
    script.open(CONNECTION).output(Open)


def test_what_it_cannot_express():
    client().submit(requests.ReadOffset(1, "demo", "g", 0)).expect(1, Unsupported)
