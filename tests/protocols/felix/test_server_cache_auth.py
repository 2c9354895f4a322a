"""What a Felix server session makes of cache requests and of logging in."""

from __future__ import annotations

import pytest

from gateway import requests
from gateway.errors import NotFound, Unauthenticated
from gateway.protocols.felix.server.stream import LARGE_REPLY
from gateway.protocols.felix.wire.frames import AFTER, COPIES
from gateway.settings import Dialect
from gateway.wire.session import Finish, Kind, Send, StopSending
from tests.protocols.felix.values import FRAMES, IDENTITY, PUBLISHED, STREAM, batch, framed, js, serving

SCOPE = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}


def test_captured_put():
    """Wire 2.11."""
    script = serving().feed(FRAMES["cache_put_with_id"])
    fields = {"cache": "t1/default/primary", "key": "demo-key", "value": b"cached", "ttl_ms": 1000, "create": True}
    script.answer(requests.CachePut, requests.DONE, **fields)
    script.sends(js(type="cache_ok", request_id=1)).quiet()


def test_captured_get():
    """Wire 2.4: cache_value with everything, null on a miss."""
    script = serving().feed(FRAMES["cache_get_with_id"])
    script.answer(requests.CacheGet, requests.CacheValue(b"cached"), cache="t1/default/primary", key="demo-key")
    script.sends(js(type="cache_value", **SCOPE, key="demo-key", value="Y2FjaGVk", request_id=3))
    script.feed(FRAMES["cache_get_with_id"]).answer(requests.CacheGet, requests.CacheValue(None))
    script.sends(js(type="cache_value", **SCOPE, key="demo-key", value=None, request_id=3)).quiet()


def test_captured_value():
    """Wire 3.1."""
    script = serving().feed(FRAMES["cache_get"]).answer(requests.CacheGet, requests.CacheValue(b"cached"))
    script.sends(FRAMES["cache_value"])


MISSING = "cache scope not found: t1/default/primary"
PUTS = [
    # request_id, the answer to a success, the answer to a failure (wire 2.7; 2.12, row 7)
    ({"request_id": 1}, js(type="cache_ok", request_id=1), js(type="error", message=MISSING)),
    ({"request_id": "a"}, js(type="ok", request_id="a"), js(type="error", message=MISSING, request_id="a")),
    ({}, js(type="ok"), js(type="error", message=MISSING)),
]


@pytest.mark.parametrize(("shown", "good", "bad"), PUTS)
def test_puts(shown, good, bad):
    data = js(type="cache_put", **SCOPE, key="k", value="", **shown)
    script = serving(create=False).feed(data).answer(requests.CachePut, requests.DONE, create=False).sends(good)
    script.feed(data).answer(requests.CachePut, NotFound()).sends(bad).quiet()


def test_document_shapes():
    """Document, CachePut, CacheGet, CacheValue: no scope, string ids."""
    script = serving(Dialect.DOCUMENT).feed(
        js(type="cache_put", request_id="1", key="k", value="Y2FjaGVk", ttl_ms=None)
    )
    script.answer(requests.CachePut, requests.DONE, cache="t1/default/default", ttl_ms=None)
    script.sends(js(type="ok", request_id="1"))
    script.feed(js(type="cache_get", request_id="2", key="k")).answer(requests.CacheGet, requests.CacheValue(b"cached"))
    script.sends(js(type="cache_value", request_id="2", key="k", value="Y2FjaGVk"))
    script.feed(js(type="cache_get", request_id="3", key="k")).answer(requests.CacheGet, requests.CacheValue(None))
    script.sends(js(type="cache_value", request_id="3", key="k", value=None))
    script.feed(js(type="cache_get", request_id="4", key="k")).answer(requests.CacheGet, NotFound())
    script.sends(js(type="error", request_id="4", message="cache scope not found: t1/default/default")).quiet()


def test_absent_scope_is_the_listeners():
    """Wire 2.12, row 6; the reply says what it was."""
    script = serving(scope="acme/shop").feed(js(type="cache_get", key="k", request_id=1))
    script.answer(requests.CacheGet, requests.CacheValue(None), cache="acme/shop/default")
    fields = {"tenant_id": "acme", "namespace": "shop", "cache": "default", "key": "k", "value": None, "request_id": 1}
    script.sends(js(type="cache_value", **fields))


def test_stock_dialect_wants_the_scope():
    script = serving(Dialect.STOCK).feed(js(type="cache_get", key="k", request_id=1))
    assert b"error" in script.sent()
    script.output(Finish)


@pytest.mark.parametrize(("sent", "asked"), [(0, 0), (None, None), (2**64 - 1, None), (2**40, 2**40)])
def test_time_to_live(sent, asked):
    """Wire 2.7: 0 expires at once, u64 is accepted."""
    script = serving().feed(js(type="cache_put", key="k", value="", ttl_ms=sent))
    script.expect(requests.CachePut, ttl_ms=asked)


def test_replies_keep_their_order():
    """Wire 2.12, row 17."""
    script = serving().feed(
        js(type="cache_put", key="b", value="", request_id=1) + js(type="cache_get", key="a", request_id=2)
    )
    put, get = script.expect(requests.CachePut), script.expect(requests.CacheGet)
    script.complete(get, requests.CacheValue(None)).quiet()
    script.complete(put, requests.DONE)
    assert script.sent().startswith(js(type="cache_ok", request_id=1))


# --- logging in ---


def test_login_without_flags():
    """v0.1.1: plain ok (wire section 0)."""
    script = serving().feed(js(type="auth", tenant_id="t1", token="secret") + FRAMES["publish_acked"])
    login = script.expect(requests.Authenticate, tenant="t1", token="secret")
    script.quiet()
    assert script.session.held, "what is behind a login is not read"
    script.complete(login, IDENTITY).sends(js(type="ok"))
    script.answer(requests.Publish, PUBLISHED).sends(FRAMES["publish_ok"]).quiet()


def test_login_with_flags():
    """HEAD: auth_ok with the flags both understand (wire 3.1)."""
    script = serving().feed(FRAMES["auth_with_capabilities"]).answer(requests.Authenticate, IDENTITY)
    script.sends(FRAMES["auth_ok"])
    script = serving().feed(js(type="auth", tenant_id="t1", token="x", client_flags=0xFFFF))
    script.answer(requests.Authenticate, IDENTITY).sends(js(type="auth_ok", server_flags=63 | COPIES | AFTER))


def test_failed_login_ends_the_stream():
    script = serving(auth=True).feed(js(type="auth", tenant_id="t1", token="x") + FRAMES["publish_acked"])
    script.answer(requests.Authenticate, Unauthenticated()).sends(js(type="error", message="auth failed"))
    script.output(Finish)
    script.output(StopSending)
    script.quiet()
    assert not script.session.handshaken


@pytest.mark.parametrize("data", [FRAMES["publish_acked"], batch(b"x"), FRAMES["subscribe"], FRAMES["cache_get"]])
def test_login_is_the_first_frame_where_it_is_required(data):
    script = serving(auth=True).feed(data).sends(js(type="error", message="auth required"))
    script.output(Finish)
    script.output(StopSending)
    script.quiet()


def header(length):
    return framed(b"")[:8] + length.to_bytes(4)


def test_before_the_login_a_frame_has_64_kib_on_each_stream():
    script = serving(auth=True).feed(header(65_536)).quiet()
    script = serving(auth=True).open(4).feed(js(type="auth", tenant_id="t1", token="x"))
    script.answer(requests.Authenticate, IDENTITY).sends(js(type="ok"))
    script.feed(header(65_537)).quiet()
    script.feed(header(65_537), 4)
    script.sends(js(type="error", message="malformed frame: payload of 65537 bytes (max: 65536)"), 4)


def test_before_the_login_the_streams_of_a_connection_together_hold_four_such_frames():
    script = serving(auth=True)
    for channel in range(0, 16, 4):
        script.open(channel).feed(header(60_000) + bytes(59_000), channel).quiet()
    script.open(16).feed(header(60_000) + bytes(59_000), 16)
    script.sends(js(type="error", message="too many bytes of incomplete frames"), 16)


def test_each_stream_logs_in():
    script = serving(auth=True).open(4).feed(js(type="auth", tenant_id="t1", token="x"))
    script.answer(requests.Authenticate, IDENTITY).sends(js(type="ok"))
    assert script.session.handshaken
    script.feed(FRAMES["publish_acked"]).expect(requests.Publish)
    script.feed(FRAMES["publish_acked"], 4).sends(js(type="error", message="auth required"), 4)


def test_second_login():
    login = js(type="auth", tenant_id="t1", token="x")
    script = serving().feed(login).answer(requests.Authenticate, IDENTITY).sends(js(type="ok"))
    script.feed(login).sends(js(type="error", message="auth already established"))
    script.output(Finish)


OTHER = {**STREAM, "tenant_id": "t2"}


@pytest.mark.parametrize(
    "data",
    [
        js(type="publish", **OTHER, payload="", request_id=1),
        batch(b"x", names=("t2", "default", "demo")),
        js(type="subscribe", **OTHER),
        js(type="cache_get", tenant_id="t2", key="k"),
    ],
)
def test_tenants_keep_to_themselves(data):
    script = serving(auth=True).feed(js(type="auth", tenant_id="t1", token="x")).answer(requests.Authenticate, IDENTITY)
    script.sent()
    script.feed(data).sends(js(type="error", message="tenant mismatch"))
    script.output(Finish)


def test_tenants_do_not_matter_without_authentication():
    script = serving().feed(js(type="auth", tenant_id="t1", token="x")).answer(requests.Authenticate, IDENTITY)
    script.feed(batch(b"x", names=("t2", "default", "demo"))).expect(requests.Publish)


def test_document_knows_no_login():
    script = serving(Dialect.DOCUMENT).feed(js(type="auth", tenant_id="t1", token="x"))
    script.sends(js(type="error", message="unknown message type: auth"))


def test_unidirectional_stream_logs_in_silently():
    script = serving(auth=True, channel=None).open(2, Kind.READ_ONLY)
    script.feed(js(type="auth", tenant_id="t1", token="x") + batch(b"x"), 2).answer(requests.Authenticate, IDENTITY)
    script.answer(requests.Publish, PUBLISHED).quiet()


def test_fin_behind_a_login():
    script = serving().feed(js(type="auth", tenant_id="t1", token="x") + FRAMES["publish_acked"]).eof()
    script.answer(requests.Authenticate, IDENTITY).sends(js(type="ok"))
    script.answer(requests.Publish, PUBLISHED).sends(FRAMES["publish_ok"])
    script.output(Finish)
    script.quiet()


def test_login_that_is_cut_off_by_fin():
    script = serving().feed(js(type="auth", tenant_id="t1", token="x") + FRAMES["publish_acked"][:30]).eof()
    script.answer(requests.Authenticate, IDENTITY)
    script.sends(js(type="ok") + js(type="error", message="malformed frame: cut off"))
    script.output(Finish)
    script.quiet()


def test_bytes_that_come_during_a_login_wait():
    script = serving().feed(js(type="auth", tenant_id="t1", token="x"))
    login = script.expect(requests.Authenticate)
    script.feed_each_byte(FRAMES["publish_acked"]).quiet()
    script.complete(login, IDENTITY).expect(requests.Publish)


def test_values_that_nobody_reads_come_one_at_a_time():
    """A hundred requests in one packet cost one answer, not a hundred."""
    script = serving()
    script.feed(js(type="cache_get", **SCOPE, key="k", request_id=1) * 100)
    script.answer(requests.CacheGet, requests.CacheValue(bytes(LARGE_REPLY)))
    assert not script.asked
    assert [o for o in script.history if isinstance(o, Send)][-1].notify
    script.room(0).answer(requests.CacheGet, requests.CacheValue(b"small"))
    script.answer(requests.CacheGet, requests.CacheValue(b"small")).expect(requests.CacheGet)
