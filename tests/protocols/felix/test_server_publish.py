"""What a Felix server session makes of publishes, in every acknowledgement mode of every generation."""

from __future__ import annotations

import struct

import pytest

from gateway import requests
from gateway.envelope import Delivery
from gateway.errors import (
    Denied,
    GatewayError,
    NotRouted,
    SchemaViolation,
    Status,
    StoreReadOnly,
    Throttled,
    TooLarge,
    UnknownTopic,
)
from gateway.protocols.felix.server.session import MAX_INCOMPLETE
from gateway.protocols.felix.wire.mapping import TEXTS
from gateway.settings import Dialect
from gateway.wire.session import Close, Finish, Kind, StopSending
from tests.protocols.felix.values import FRAMES, IDENTITY, PUBLISHED, STREAM, batch, framed, js, serving

NOT_FOUND = "stream not found: tenant=t1 namespace=default stream=demo"


def publish(**fields: object) -> bytes:
    return js(type="publish", **STREAM, payload="aGVsbG8=", **fields)


def test_stock_acked_publish():
    """Wire 2.11: publish acked, publish_ok id 1."""
    script = serving().feed(FRAMES["publish_acked"])
    request = script.expect(requests.Publish, create=True)
    assert (request.batch.address, request.batch.columns.values()) == ("demo", [b"hello"])
    assert request.batch.delivery is Delivery.AT_LEAST_ONCE
    assert request.batch.partition is None
    script.complete(request, PUBLISHED).sends(FRAMES["publish_ok"]).quiet()


def test_split_at_every_byte():
    script = serving().feed_each_byte(FRAMES["publish_acked"] + FRAMES["binary_batch"])
    script.answer(requests.Publish, PUBLISHED).sends(FRAMES["publish_ok"])
    script.answer(requests.Publish, PUBLISHED).quiet()


ANSWERS = [
    # what the sender showed, the answer to a success, the answer to a failure (wire 2.12, rows 1, 2 and 5)
    (
        {"request_id": 7, "ack": "per_message"},
        js(type="publish_ok", request_id=7),
        js(type="publish_error", request_id=7, message=NOT_FOUND),
    ),
    ({"request_id": 7}, js(type="publish_ok", request_id=7), js(type="publish_error", request_id=7, message=NOT_FOUND)),
    (
        {"request_id": 0, "ack": "per_batch"},
        js(type="publish_ok", request_id=0),
        js(type="publish_error", request_id=0, message=NOT_FOUND),
    ),
    ({"request_id": "a"}, js(type="ok", request_id="a"), js(type="error", message=NOT_FOUND, request_id="a")),
    ({"ack": "per_message"}, js(type="ok"), js(type="error", message=NOT_FOUND)),
    ({}, js(type="ok"), js(type="error", message=NOT_FOUND)),
    ({"ack": "none"}, b"", b""),
    ({"ack": "none", "request_id": 3}, b"", b""),
]


@pytest.mark.parametrize(("shown", "good", "bad"), ANSWERS)
def test_answers(shown, good, bad):
    script = serving().feed(publish(**shown)).answer(requests.Publish, PUBLISHED)
    script.sends(good).quiet()
    script.feed(publish(**shown)).answer(requests.Publish, UnknownTopic()).sends(bad).quiet()


DOCUMENT = [
    ({"ack": "per_message"}, js(type="ok"), js(type="error", message=NOT_FOUND)),
    ({"request_id": "a"}, js(type="ok", request_id="a"), js(type="error", request_id="a", message=NOT_FOUND)),
    ({"ack": "none"}, b"", js(type="error", message=NOT_FOUND)),
]


@pytest.mark.parametrize(("shown", "good", "bad"), DOCUMENT)
def test_answers_by_the_document(shown, good, bad):
    script = serving(Dialect.DOCUMENT).feed(publish(**shown)).answer(requests.Publish, PUBLISHED)
    script.sends(good).quiet()
    script.feed(publish(**shown)).answer(requests.Publish, UnknownTopic()).sends(bad).quiet()


def test_stock_dialect_wants_an_id():
    """Wire 2.5."""
    script = serving(Dialect.STOCK).feed(FRAMES["publish"])
    script.sends(js(type="error", message="missing request_id for acked publish"))
    script.feed(js(type="publish_batch", **STREAM, payloads=["YQ=="]))
    script.sends(js(type="error", message="missing request_id for acked publish batch")).quiet()
    script.feed(publish(request_id="a")).sent()
    script.output(Finish)


def test_binary_batch_is_never_answered_and_never_touched():
    script = serving().feed(FRAMES["binary_batch"])
    request = script.expect(requests.Publish)
    assert request.batch.delivery is Delivery.AT_MOST_ONCE
    assert request.batch.columns.packed == FRAMES["binary_batch"][-10:]
    script.complete(request, UnknownTopic()).quiet()


def test_binary_batch_that_fails_by_the_document():
    script = serving(Dialect.DOCUMENT).feed(FRAMES["binary_batch"])
    script.answer(requests.Publish, UnknownTopic()).sends(js(type="error", message=NOT_FOUND)).quiet()


@pytest.mark.parametrize("name", ["binary_publish_acked", "acked_binary_per_message"])
def test_acked_binary_batch(name):
    """Wire 1.2: a binary acknowledgement."""
    script = serving().feed(FRAMES[name])
    assert script.asked[0].batch.columns.values() == [b"hello"]
    ack = framed(bytes([0]) + FRAMES[name][12:20] + b"\x00\x00", 0x10)
    script.answer(requests.Publish, PUBLISHED).sends(ack).quiet()
    script.feed(batch(b"x", request=(9, 1))).answer(requests.Publish, UnknownTopic())
    text = NOT_FOUND.encode()
    script.sends(framed(b"\x01" + (9).to_bytes(8, "big") + len(text).to_bytes(2, "big") + text, 0x10)).quiet()


def test_unknown_acknowledgement_mode_ends_the_stream():
    script = serving().feed(batch(b"x", request=(9, 3)))
    assert b"malformed" in script.sent()
    script.output(Finish)
    script.output(StopSending)


def test_empty_batches():
    """Wire 2.5: an acked one is acknowledged, another one is nothing."""
    script = serving().feed(js(type="publish_batch", **STREAM, payloads=[], request_id=4))
    script.sends(js(type="publish_ok", request_id=4))
    script.feed(batch()).feed(batch(request=(4, 2))).sends(
        framed(b"\x00" + (4).to_bytes(8, "big") + b"\x00\x00", 0x10)
    ).quiet()


def test_broken_acked_batch_is_mended():
    """Wire 2.9."""
    script = serving().feed(FRAMES["broken_acked_batch"])
    request = script.expect(requests.Publish)
    assert request.batch.columns.values() == [b"a", b"b"]
    script.complete(request, PUBLISHED).sends(js(type="publish_ok", request_id=1)).quiet()
    serving(Dialect.DOCUMENT).feed(FRAMES["broken_acked_batch"]).output(Finish)


def test_key_that_looks_like_the_broken_batch_is_left_alone():
    script = serving().feed(framed(b'{"type":"cache_get","key":"a]","request_id":1}'))
    script.expect(requests.CacheGet, key="a]")


def test_consecutive_publishes_are_one_batch_with_an_answer_each():
    frames = [
        publish(request_id=1),
        publish(request_id="b"),
        batch(b"x", b"y", request=(3, 2)),
        batch(b"z", request=(4, 1)),
    ]
    script = serving().feed(b"".join(frames))
    request = script.expect(requests.Publish)
    assert request.batch.columns.values() == [b"hello", b"hello", b"x", b"y", b"z"]
    script.complete(request, PUBLISHED)
    acks = [framed(b"\x00" + n.to_bytes(8, "big") + b"\x00\x00", 0x10) for n in (3, 4)]
    script.sends(js(type="publish_ok", request_id=1) + js(type="ok", request_id="b") + acks[0] + acks[1]).quiet()


def test_other_stream_or_delivery_begins_another_batch():
    other = ("t1", "default", "other")
    script = serving().feed(batch(b"1") + batch(b"2") + batch(b"3", names=other) + publish(ack="none") + publish())
    batches = [script.expect(requests.Publish).batch for _ in range(4)]
    assert [(b.address, b.columns.values(), b.delivery) for b in batches] == [
        ("demo", [b"1", b"2"], Delivery.AT_MOST_ONCE),
        ("other", [b"3"], Delivery.AT_MOST_ONCE),
        ("demo", [b"hello"], Delivery.AT_MOST_ONCE),
        ("demo", [b"hello"], Delivery.AT_LEAST_ONCE),
    ]
    script.quiet()


def test_answers_keep_the_order_of_requests_on_each_stream():
    script = serving().open(4).feed(publish(request_id=1)).feed(publish(request_id=2)).feed(publish(request_id=3), 4)
    first, second, third = (script.expect(requests.Publish) for _ in range(3))
    script.complete(third, PUBLISHED).sends(js(type="publish_ok", request_id=3), 4)
    script.complete(second, PUBLISHED).quiet()
    assert script.session.in_flight == 2
    script.complete(first, PUBLISHED).sends(js(type="publish_ok", request_id=1) + js(type="publish_ok", request_id=2))
    assert script.session.in_flight == 0


def test_member_that_is_refused_is_answered_alone():
    script = serving().feed(publish(request_id=1) + publish(request_id=2))
    script.answer(requests.Publish, requests.Published("demo", 1, refused={1: SchemaViolation("no")}))
    script.sends(js(type="publish_ok", request_id=1) + js(type="publish_error", request_id=2, message="no"))


ERRORS = [
    (UnknownTopic(), NOT_FOUND),
    (NotRouted(), NOT_FOUND),
    (Denied("no"), "forbidden"),
    (Throttled("slow"), "server overloaded"),
    (StoreReadOnly("full"), "publish queue closed: full"),
    (TooLarge("too large"), "too large"),
]


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_errors_keep_the_stream(error: GatewayError, text: str):
    script = serving().feed(publish(request_id=1)).answer(requests.Publish, error)
    script.sends(js(type="publish_error", request_id=1, message=text)).quiet()


def test_document_calls_a_denial_unauthorized():
    script = serving(Dialect.DOCUMENT).feed(publish(request_id="a")).answer(requests.Publish, Denied())
    script.sends(js(type="error", request_id="a", message="unauthorized"))


def test_every_status_has_words():
    assert set(TEXTS) == set(Status)


@pytest.mark.parametrize(
    ("names", "address"),
    [
        (("t1", "default", "orders"), "orders"),
        (("acme", "shop", "orders"), "acme/shop/orders"),
        (("t1", "shop", "orders"), "t1/shop/orders"),
        (("acme", "shop", "a/b%"), "acme/shop/a%2Fb%25"),
        (("t1", "default", "a/b/c"), "a%2Fb%2Fc"),
        (("acme/shop", "", "x"), "acme%2Fshop//x"),
    ],
)
def test_addresses(names, address):
    request = serving().feed(batch(b"x", names=names)).expect(requests.Publish)
    assert request.batch.address == address


def test_listener_scope_and_closed_list():
    script = serving(scope="acme/shop", create=False).feed(batch(b"x", names=("acme", "shop", "orders")))
    assert script.expect(requests.Publish, create=False).batch.address == "orders"


# --- the end of streams ---


def test_fin_follows_fin_when_all_is_answered():
    script = serving().feed(publish(request_id=1)).eof()
    request = script.expect(requests.Publish)
    script.quiet()
    script.complete(request, PUBLISHED).sends(js(type="publish_ok", request_id=1))
    script.output(Finish, channel=0)
    script.quiet()


def test_queued_replies_go_before_the_error_and_the_fin():
    script = serving().feed(publish(request_id=1) + framed(b"{") + publish(request_id=2))
    request = script.expect(requests.Publish)
    assert not script.others
    script.complete(request, PUBLISHED)
    sent = script.sent()
    assert sent.startswith(js(type="publish_ok", request_id=1))
    assert b'"error"' in sent
    script.output(Finish)
    script.output(StopSending)
    script.feed(publish(request_id=3)).quiet()


def test_malformed_header_ends_the_connection_in_the_document():
    script = serving(Dialect.DOCUMENT).feed(b"GET / HTTP/1.1\r\n")
    script.output(Close, code=1, reason="malformed frame: bad magic")


def test_other_streams_are_unharmed():
    script = serving().open(4).feed(b"GET / HTTP/1.1\r\n", 4)
    script.sent(4)
    script.output(Finish, channel=4)
    script.output(StopSending, channel=4)
    script.feed(publish(request_id=1)).answer(requests.Publish, PUBLISHED).sends(js(type="publish_ok", request_id=1))


def test_frames_that_are_not_whole_have_a_bound_over_all_streams():
    """A stream may wait for 16 MiB, and a client may open a thousand streams."""
    script = serving()
    part = struct.pack(">4sHHI", b"FLX1", 1, 1, 16 << 20) + bytes(MAX_INCOMPLETE // 4)
    for channel in range(0, 12, 4):
        if channel:
            script.open(channel)
        script.feed(part, channel).quiet()
    script.open(12).feed(part, 12)
    script.sends(js(type="error", message="too many bytes of incomplete frames"), 12)
    script.output(Finish, channel=12)
    script.output(StopSending, channel=12)
    script.feed(bytes(1000)).quiet()  # the others go on
    script.reset(0).open(16).feed(part, 16)  # and what one gives back another may have
    assert not script.sent(16)


def test_reset_stream_is_finished():
    script = serving().feed(publish(request_id=1)[:20]).reset(0)
    script.output(Finish)
    script.quiet()


def test_nothing_is_sent_to_who_reads_no_more():
    script = serving().feed(publish(request_id=1)).stopped(0)
    script.answer(requests.Publish, PUBLISHED).eof().quiet()


def test_unidirectional_stream_may_only_publish():
    script = serving(channel=None).open(2, Kind.READ_ONLY).feed(publish(request_id=1), 2)
    request = script.expect(requests.Publish)
    assert request.batch.delivery is Delivery.AT_MOST_ONCE
    script.complete(request, UnknownTopic()).quiet()
    script.feed(FRAMES["subscribe"], 2).output(StopSending, channel=2)
    script.quiet()


def test_fin_of_a_unidirectional_stream_is_not_answered():
    serving(channel=None).open(2, Kind.READ_ONLY).feed(FRAMES["binary_batch"][:5], 2).eof(2).quiet()


# --- flags ---


def test_unknown_flags_are_ignored():
    script = serving().feed(framed(FRAMES["publish_acked"][12:], 0xFF00))
    script.answer(requests.Publish, PUBLISHED).sends(FRAMES["publish_ok"]).quiet()
    script.feed(framed(FRAMES["publish_acked"][12:], 0x0002)).expect(requests.Publish)


def test_unknown_flags_are_refused_once_flags_are_negotiated():
    """Wire 1.2: the stream goes on."""
    script = serving().feed(FRAMES["auth_all_flags"]).answer(requests.Authenticate, IDENTITY)
    script.sent()
    script.feed(framed(FRAMES["publish_acked"][12:], 0x0100)).sends(js(type="error", message="unsupported frame flags"))
    script.feed(FRAMES["publish_acked"]).expect(requests.Publish)


def test_drain_answers_what_is_under_way():
    """Wire 1.2: application code 0, reason broker shutting down."""
    script = serving().feed(publish(request_id=1))
    request = script.expect(requests.Publish)
    script.drain().quiet()
    script.feed(publish(request_id=2)).quiet()
    script.complete(request, PUBLISHED).sends(js(type="publish_ok", request_id=1))
    script.output(Close, code=0, reason="broker shutting down")


def test_lost_connection_drops_what_comes_back():
    script = serving().feed(publish(request_id=1))
    request = script.expect(requests.Publish)
    script.lost().complete(request, PUBLISHED).quiet()
