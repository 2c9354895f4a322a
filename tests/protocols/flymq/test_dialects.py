"""What tells a shipped client, and what is said to it from then on (FlyMQ wire 2.3)."""

from __future__ import annotations

import pytest

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import Denied, InvalidRequest, Unauthenticated, UnknownGroup, UnknownTopic
from gateway.protocols.flymq.wire.dialect import Speech, read_mode
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import (
    Authenticate,
    Cluster,
    ClusterStatus,
    DescribeTopics,
    Fetch,
    Fetched,
    GroupOffset,
    Groups,
    Identity,
    ListGroups,
    PartitionInfo,
    ReadOffset,
    TopicInfo,
    Topics,
)
from gateway.settings import Dialect
from tests.protocols.flymq.made import NO, YES, array, b, error, fr, i32, s, s8, server, u32, u64
from tests.protocols.script import Script

ONE = Topics([TopicInfo("t", [PartitionInfo(0, 3, 9)])])
BAD = fr(0x63 + 0x20)  # an operation nobody has
BAD_TEXT = f"unknown opcode: {0x83}"
FETCH = s("t") + i32(0) + u64(0) + i32(1)
RUN = Run("t", 0, 0, Columns.of([b"v"]), [0], ((0, 0, BatchMeta(b"", Origin("test", "test"))),))
FETCHED = Fetched([RUN], 1, 0, 1)
DOCUMENT_FORM = fr(Op.FETCH, u32(1) + b(b"") + b(b"v") + u64(0) + u64(1))
SERVER_FORM = fr(Op.FETCH, u32(1) + u64(1) + u64(0) + b(b"") + b(b"v"))
TEXT = error(BAD_TEXT, Dialect.STOCK)
CODED = fr(0xFF, i32(1) + s(BAD_TEXT))


def subscribe_narrow(script: Script) -> None:
    script.feed(fr(Op.SUBSCRIBE, s("t") + s("") + i32(0) + s8("earliest"))).answer(DescribeTopics, ONE).sent()


def fetch_with_suffix(script: Script) -> None:
    script.feed(fr(Op.FETCH, FETCH + s(""))).answer(Fetch, FETCHED).sends(SERVER_FORM)


def fetch_binary_with_suffix(script: Script) -> None:
    script.feed(fr(Op.FETCH_BINARY, FETCH + s(""))).answer(Fetch, Fetched((), 0, 0, 0)).sent()


def cluster_metadata(script: Script) -> None:
    script.feed(fr(Op.CLUSTER_METADATA, s("")))
    script.answer(ClusterStatus, Cluster("standalone", [])).answer(DescribeTopics, Topics([])).sent()


def no_flags(script: Script) -> None:
    script.feed(fr(Op.LIST_TOPICS, flags=0)).answer(DescribeTopics, Topics([])).sent()


def produce_without_flags(script: Script) -> None:
    from gateway.requests import Publish, Published
    from tests.protocols.flymq.made import produce

    script.feed(produce("t", b"v", flags=0)).answer(Publish, Published("t", 1)).sent()


SIGNS = [
    (subscribe_narrow, TEXT),
    (fetch_with_suffix, CODED),
    (fetch_binary_with_suffix, CODED),
    (cluster_metadata, CODED),
    (no_flags, TEXT),
    (produce_without_flags, TEXT),
]


@pytest.mark.parametrize(("sign", "shape"), SIGNS)
def test_a_sign_turns_auto_for_good(sign: object, shape: bytes) -> None:
    script = server()
    script.feed(BAD).sends(error(BAD_TEXT))
    script.feed(fr(Op.FETCH, FETCH)).answer(Fetch, FETCHED).sends(DOCUMENT_FORM)
    sign(script)  # type: ignore[operator]
    for _ in range(2):
        script.feed(BAD).sends(shape)
        script.feed(fr(Op.FETCH, FETCH)).answer(Fetch, FETCHED).sends(SERVER_FORM)
    script.feed(fr(Op.AUTH, s("u") + s("p"))).answer(Authenticate, Identity(True, "u", ["admin"]))
    roles = bytes(8) if sign in {no_flags, produce_without_flags} else array([s8("admin")]) + s("")
    script.sends(fr(Op.AUTH_RESPONSE, YES + s("u") + roles)).quiet()


@pytest.mark.parametrize("dialect", [Dialect.AUTO, Dialect.STOCK])
def test_the_client_that_sends_no_flags_can_read_its_login(dialect: Dialect) -> None:
    """It expects `bool, str user, str[] roles, str[] permissions`; no layout with roles is one it reads (FlyMQ wire 2.3)."""
    script = server(dialect).feed(fr(Op.AUTH, s("u") + s("p"), flags=0))
    script.answer(Authenticate, Identity(True, "u", ["admin"]))
    script.sends(fr(Op.AUTH_RESPONSE, YES + s("u") + u32(0) + u32(0))).quiet()
    script = server(dialect).feed(fr(Op.AUTH, s("u") + s("p"), flags=0))
    script.answer(Authenticate, Unauthenticated("invalid username or password"))
    script.sends(fr(Op.AUTH_RESPONSE, NO + s("") + u32(0) + u32(0))).quiet()


def test_the_document_is_the_document_whatever_the_flags() -> None:
    script = server(Dialect.DOCUMENT).feed(fr(Op.AUTH, s("u") + s("p"), flags=0))
    script.answer(Authenticate, Identity(True, "u", ["admin"]))
    script.sends(fr(Op.AUTH_RESPONSE, YES + s("") + s("u") + array([s("admin")]))).quiet()


@pytest.mark.parametrize("sign", [sign for sign, _ in SIGNS if sign not in {subscribe_narrow, fetch_with_suffix}])
def test_nothing_turns_the_document(sign: object) -> None:
    script = server(Dialect.DOCUMENT)
    sign(script)  # type: ignore[operator]
    script.feed(BAD).sends(error(BAD_TEXT))
    script.feed(fr(Op.FETCH, FETCH)).answer(Fetch, FETCHED).sends(DOCUMENT_FORM).quiet()


def test_the_document_has_no_narrow_modes() -> None:
    script = server(Dialect.DOCUMENT).feed(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(0) + s8("earliest")))
    script.sends(error("buffer too small")).quiet()


@pytest.mark.parametrize("dialect", [Dialect.AUTO, Dialect.STOCK])
@pytest.mark.parametrize("mode", ["", "earliest", "latest", "commit", "x" * 200])
def test_both_widths_of_a_mode_are_told_apart(dialect: Dialect, mode: str) -> None:
    narrow, wide = Speech(dialect), Speech(dialect)
    assert read_mode(s8(mode), narrow) == mode
    assert narrow.stock
    assert read_mode(s(mode), wide) == mode
    assert wide.stock is (dialect is Dialect.STOCK)


def test_stock_says_plain_text_until_it_is_a_newer_one() -> None:
    script = server(Dialect.STOCK).feed(BAD).sends(TEXT)
    fetch_with_suffix(script)
    script.feed(BAD).sends(CODED).quiet()


def test_a_message_in_the_document_s_shape_ends_before_one_shipped_client_breaks() -> None:
    """FlyMQ wire 2.3: a length of 128 or more is read as broken UTF-8 by 1.26.8."""
    script = server().feed(fr(Op.METADATA, s("é" * 200)))
    script.answer(DescribeTopics, UnknownTopic())
    sent = script.sent()
    length = int.from_bytes(sent[9:11], "big")
    assert length <= 127
    assert sent[11:].decode().startswith("topic not found: éé")
    script.feed(fr(Op.SUBSCRIBE, s("t") + s("") + i32(0) + s8("latest"))).answer(DescribeTopics, ONE).sent()
    script.feed(fr(Op.METADATA, s("é" * 200))).answer(DescribeTopics, UnknownTopic())
    script.sends(error("topic not found: " + "é" * 200, Dialect.STOCK)).quiet()


@pytest.mark.parametrize(
    ("dialect", "payload"),
    [
        (Dialect.AUTO, NO + s("invalid username or password") + s("") + u32(0)),
        (Dialect.DOCUMENT, NO + s("invalid username or password") + s("") + u32(0)),
        (Dialect.STOCK, NO + s("") + u32(0) + s("invalid username or password")),
    ],
)
def test_a_refused_login(dialect: Dialect, payload: bytes) -> None:
    script = server(dialect).feed(fr(Op.AUTH, s("u") + s("p")))
    script.answer(Authenticate, Unauthenticated("invalid username or password"))
    script.sends(fr(Op.AUTH_RESPONSE, payload)).quiet()


def test_a_disabled_account_is_named_as_such() -> None:
    script = server(Dialect.STOCK).feed(fr(Op.AUTH, s("u") + s("p")))
    script.answer(Authenticate, Denied("user account is disabled"))
    script.sends(fr(Op.AUTH_RESPONSE, NO + s("") + u32(0) + s("user account is disabled"))).quiet()


@pytest.mark.parametrize(
    ("dialect", "payload"),
    [
        (Dialect.AUTO, YES + bytes(10)),
        (Dialect.DOCUMENT, YES + s("") + s("anyone") + u32(0)),
        (Dialect.STOCK, YES + s("anyone") + u32(0) + s("")),
    ],
)
def test_without_authentication_every_login_succeeds(dialect: Dialect, payload: bytes) -> None:
    """FlyMQ wire 4: AUTH against an auth-less server."""
    script = server(dialect, auth=False).feed(fr(Op.AUTH, s("anyone") + s("anything")))
    script.sends(fr(Op.AUTH_RESPONSE, payload)).quiet()


@pytest.mark.parametrize("payload", [s("g"), s("") + s("g")])
def test_a_group_without_a_topic_is_looked_for_everywhere(payload: bytes) -> None:
    """FlyMQ wire 2.2: two shipped clients leave the topic out, one empty, one altogether."""
    script = server().feed(fr(Op.DESCRIBE_GROUP, payload))
    script.answer(ListGroups, Groups([]), address="", group="g").sends(error("consumer group not found: :g")).quiet()


def test_the_words_clients_match() -> None:
    script = server(Dialect.STOCK)
    script.feed(fr(Op.CONSUME, s("t") + i32(0) + u64(9))).answer(Fetch, Fetched((), 9, 0, 9))
    script.sends(error("EOF", Dialect.STOCK))
    script.feed(fr(Op.GET_OFFSET, s("t") + s("g") + i32(0))).answer(ReadOffset, GroupOffset(None, False))
    script.sends(error("consumer group not found: t:g", Dialect.STOCK))
    script.feed(fr(Op.DELETE_GROUP, s("t") + s("g")))
    script.complete(script.asked.popleft(), UnknownGroup())
    script.sends(error("consumer group not found: t:g", Dialect.STOCK))
    script.feed(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(7) + s8("latest"))).answer(DescribeTopics, ONE)
    script.sends(error("partition 7 not found", Dialect.STOCK))
    script.feed(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(0) + s8("newest")))
    script.sends(error("unknown subscribe mode: newest", Dialect.STOCK))
    script.feed(fr(Op.RESET_OFFSET, s("t") + s("g") + i32(0) + s8("x"))).sends(
        error("unknown reset mode: x", Dialect.STOCK)
    )
    script.feed(fr(Op.LIST_TOPICS)).answer(DescribeTopics, Unauthenticated())
    script.sends(error("authentication required", Dialect.STOCK))
    script.feed(fr(Op.LIST_TOPICS)).answer(DescribeTopics, Denied())
    script.sends(error("unauthorized", Dialect.STOCK))
    script.feed(fr(Op.LIST_TOPICS)).answer(DescribeTopics, InvalidRequest("no"))
    script.sends(error("no", Dialect.STOCK)).quiet()
