"""Transcripts of sessions that bind (wire 6.2): 0.5 with HELLO, v1 without, and what is said to those between the seed and v1."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import (
    CommitFailed,
    Conflict,
    Denied,
    GatewayError,
    NotFound,
    NotRouted,
    OutcomeUnknown,
    Throttled,
    Unauthenticated,
    UnknownSubscription,
)
from gateway.protocols.fujin.server.bound_stream import INIT_PATIENCE
from gateway.protocols.fujin.server.session import FujinServer
from gateway.protocols.fujin.settings import ConnectorSettings, FujinSettings, ReaderSettings
from gateway.protocols.fujin.states import BOUND_EVENTS, SESSIONS, BoundEvent, BoundState
from gateway.protocols.fujin.wire import bound_client as client
from gateway.protocols.fujin.wire.bound_frames import Applied, BoundOp, Code
from gateway.protocols.fujin.wire.bound_headers import EXPIRES, KEY
from gateway.protocols.fujin.wire.frames import LARGEST_MESSAGE, MOST_UNACKED
from gateway.requests import (
    DONE,
    AddressProfile,
    Authenticate,
    Begin,
    Begun,
    Cancel,
    Commit,
    Delivered,
    DescribeTopics,
    Identity,
    Outcome,
    Profile,
    Profiles,
    Publish,
    Published,
    Request,
    Rollback,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    TopicInfo,
    Topics,
    Unsubscribe,
)
from gateway.settings import Dialect, Transport
from gateway.wire.session import LISTENER, Close, Finish, Kind, Open, SessionContext, Spoken, StopSending
from tests.conformance.replier import reply
from tests.protocols.fujin.samples import (
    BIND,
    BOUND_BEGIN,
    BOUND_COMMIT,
    BOUND_FETCH,
    BOUND_ROLLBACK,
    EARLY,
    HELLO,
    HFETCH,
    HPRODUCE,
    HSUBSCRIBE,
    LEAVE,
    PRODUCE,
    SUBSCRIBE,
    TX_HPRODUCE,
    TX_PRODUCE,
    UNSUBSCRIBE,
)
from tests.protocols.script import Script, hexed

GREETED = hexed("13 00 01 01 00000007 67617465776179")
BYE = hexed("0f")
PING = hexed("63")
PUB, SUB = AddressProfile("pub", False, True, True), AddressProfile("sub", True, False, False)


def fresh(
    *, alpn: str = "fujin", transport: Transport = Transport.QUIC, auth: bool = False,
    dialect: Dialect = Dialect.AUTO, settings: FujinSettings | None = None,
) -> Script:  # fmt: skip
    context = SessionContext(
        "fujin", settings or FujinSettings(), dialect=dialect, auth_required=auth, transport=transport, alpn=alpn
    )
    return Script(FujinServer(context))


def routes(script: Script, *profiles: AddressProfile) -> Script:
    """What the broker says of a connector that shows everything."""
    script.answer(DescribeTopics, Topics([TopicInfo(one.address, ()) for one in profiles]), address="", after="")
    return script.answer(Profile, Profiles(profiles), addresses=[one.address for one in profiles])


def bound(*, transport: Transport = Transport.QUIC, settings: FujinSettings | None = None) -> Script:
    script = fresh(transport=transport, settings=settings).feed(HELLO + BIND).sends(GREETED)
    routes(script).sends(hexed("10 00 00000000"))
    return script


def told(script: Script, kind: int, cid: int) -> tuple[int, int, str]:
    """The one failure that went out: its code, outcome and reason."""
    data = script.sent()
    assert data[0] == kind
    answer = client.decode_bound_answer(data, 0)
    assert answer.end == len(data)
    assert answer.cid == cid
    assert answer.failure is not None
    assert answer.failure.message
    return answer.failure.code, answer.failure.applied, answer.failure.reason


def over(script: Script, channel: int = 0) -> None:
    script.output(Finish, channel=channel)
    script.output(StopSending, channel=channel)
    script.quiet()


def taken(*values: bytes, first_tag: int = 1, **columns: object) -> Taken:
    meta = BatchMeta(b"", Origin("test", "test"))
    run = Run("sub", 0, 0, Columns.of(values, **columns), [0] * len(values), [(0, 0, meta)])  # type: ignore[arg-type]
    return Taken([Delivered(run, first_tag)])


# --- HELLO and BIND ---


def test_hello_and_bind_as_captured() -> None:
    script = fresh().feed(HELLO).sends(GREETED)
    script.feed(BIND)
    routes(script, SUB, PUB)
    script.sends(hexed("10 00 00000002  00000003 707562 07 03 00 00   00000003 737562 3a 00 01 01")).quiet()


def test_a_session_is_known_by_how_it_begins() -> None:
    assert fresh().feed(HELLO).session.spoken == Spoken("0.5", "a session that begins with HELLO")
    assert fresh(alpn="fujin/1").feed(BIND).session.spoken == Spoken("v1", "a session that begins with BIND")
    assert fresh(alpn="fujin/1", dialect=Dialect.V1).feed(BIND).session.spoken == Spoken("v1", LISTENER)


def test_hello_and_bind_byte_by_byte() -> None:
    script = fresh().feed_each_byte(HELLO + BIND).sends(GREETED)
    routes(script).sends(hexed("10 00 00000000"))


@pytest.mark.parametrize(
    "hello", ["00 02", "00 01 00", "00 01 01 00", "00 01 01 02 00000001 74 00000001 30", "00 01 01 01 00000000"]
)
def test_a_bad_hello_is_answered_and_ends_it(hello: str) -> None:
    script = fresh().feed(hexed(hello))
    assert script.sent()[:1] == hexed("13")
    over(script)


@pytest.mark.parametrize("op", [1, 2, 9, 14, 15, 99])
def test_what_is_no_bind_ends_a_greeted_session_silently(op: int) -> None:
    script = fresh().feed(HELLO).sends(GREETED)
    script.feed(bytes((op,)) if op not in (1, 99) else b"\x7f")
    over(script)


def test_a_subscribe_before_bind_is_answered() -> None:
    script = fresh().feed(HELLO).sends(GREETED)
    assert told(script.feed(SUBSCRIBE), 1, 1) == (9, 1, "NOT_BOUND")
    script.feed(BIND).expect(DescribeTopics)


def test_a_route_profile_says_what_may_be_done() -> None:
    script = fresh().feed(HELLO + BIND).sends(GREETED)
    both = AddressProfile("b", True, True, False)
    routes(script, both).sends(hexed("10 00 00000001 00000001 62 3f 02 01 01"))


def test_routes_are_found_page_by_page_and_sorted() -> None:
    script = fresh().feed(HELLO + BIND).sends(GREETED)
    script.answer(DescribeTopics, Topics([TopicInfo("c", ())], following="c"), after="")
    script.answer(Profile, Profiles([AddressProfile("c", True, False, True)]), addresses=["c"])
    script.answer(DescribeTopics, Topics([TopicInfo("a", ())]), after="c")
    script.answer(Profile, Profiles([AddressProfile("a", True, False, True)]), addresses=["a"])
    assert [route.name for route in client.decode_bound(script.sent(), 0)[1]] == ["a", "c"]


def test_a_listener_may_list_its_connectors() -> None:
    settings = FujinSettings(connectors={"shop": ConnectorSettings(("orders",))})
    script = fresh(settings=settings).feed(HELLO).sends(GREETED).feed(BIND)
    failure, _, _ = client.decode_bound(script.sent(), 0)
    assert failure is not None
    assert (failure.code, failure.applied, failure.reason) == (5, 1, "CONNECTOR_NOT_FOUND")
    script.feed(client.bind("shop"))  # it may be tried again
    script.answer(Profile, Profiles([AddressProfile("orders", True, True, True)]), addresses=["orders"])
    script.sends(hexed("10 00 00000001 00000006 6f7264657273 3f 03 01 01"))
    assert told(script.feed(PRODUCE), 3, 1) == (5, 1, "ROUTE_NOT_FOUND")
    assert told(script.feed(BOUND_BEGIN), 5, 4) == (5, 1, "ROUTE_NOT_FOUND")
    assert told(script.feed(SUBSCRIBE), 1, 1) == (5, 1, "ROUTE_NOT_FOUND")
    script.feed(client.produce(1, b"orders", b"x")).expect(Publish)


def test_an_api_key_comes_with_bind() -> None:
    script = fresh(auth=True).feed(HELLO + BIND)
    assert not script.session.handshaken
    sent = script.sent()
    assert b"UNAUTHENTICATED" in sent
    keyed = hexed("01 00000003 736563 0001 00000007 6170695f6b6579 00000001 6b 0000")
    script.feed(keyed).answer(Authenticate, Unauthenticated(), api_key="k", username="", token=None)
    failure, _, _ = client.decode_bound(script.sent(), 0)
    assert failure is not None
    assert (failure.code, failure.applied, failure.reason) == (16, 1, "UNAUTHENTICATED")
    script.feed(keyed).answer(Authenticate, Identity(True, "k"))
    routes(script).sends(hexed("10 00 00000000"))
    assert script.session.handshaken


def test_nothing_can_be_overridden_but_what_changes_nothing() -> None:
    script = fresh().feed(HELLO + client.bind("mem", (), [("routes.pub.acks", "0")]))
    assert b"OPERATION_UNSUPPORTED" in script.sent()
    script.feed(client.bind("mem", (), [("routes.pub.transactional_id", "t")])).expect(DescribeTopics)


def test_a_second_bind_ends_it() -> None:
    over(bound().feed(BIND).sends(BYE))


def test_a_bind_the_broker_refuses() -> None:
    script = fresh().feed(HELLO + BIND).answer(DescribeTopics, Denied())
    assert b"PERMISSION_DENIED" in script.sent()
    script.feed(BIND).expect(DescribeTopics)


# --- producing ---


def test_produces_of_one_read_are_one_batch() -> None:
    script = bound().feed(PRODUCE * 3)
    publish = script.expect(Publish, transaction="")
    assert (publish.batch.address, publish.batch.columns.values()) == ("pub", [b"hello"] * 3)
    script.complete(publish, Published("pub", 1)).sends(hexed("03 00000001 00") * 3).quiet()


def test_headers_keys_and_expiries() -> None:
    pairs = (("k", b"v"), (KEY, b"\xff1"), (EXPIRES, b"1234"), ("k", b"w"))
    script = bound().feed(HPRODUCE + client.produce(3, b"pub", b"x", pairs))
    columns = script.expect(Publish).batch.columns
    assert columns.headers == [(("k", b"v"),), (("k", b"v"), ("k", b"w"))]
    assert (columns.keys, columns.expires) == ([None, b"\xff1"], [0, 1234])


@pytest.mark.parametrize(
    ("error", "code", "applied", "reason"),
    [
        (NotRouted(), Code.NOT_FOUND, Applied.NO, "ROUTE_NOT_FOUND"),
        (Throttled(), Code.RESOURCE_EXHAUSTED, Applied.NO, "THROTTLED"),
        (CommitFailed(), Code.UNAVAILABLE, Applied.NO, "UNAVAILABLE"),
        (OutcomeUnknown(), Code.UNKNOWN, Applied.UNKNOWN, "UNKNOWN"),
        (Denied(), Code.PERMISSION_DENIED, Applied.NO, "PERMISSION_DENIED"),
    ],
)
def test_what_became_of_it_is_said(error: GatewayError, code: int, applied: int, reason: str) -> None:
    script = bound().feed(PRODUCE).answer(Publish, error)
    assert told(script, 3, 1) == (code, applied, reason)


def test_one_of_a_batch_is_refused() -> None:
    script = bound().feed(PRODUCE * 2).answer(Publish, Published("pub", 1, refused={1: Throttled()}))
    sent = script.sent()
    assert sent.startswith(hexed("03 00000001 00 03 00000001 08 01"))


@pytest.mark.parametrize("first", [PRODUCE, b""])
def test_an_empty_payload_is_answered_and_ends_it(first: bytes) -> None:
    script = bound().feed(first + hexed("02 00000009 00000003 707562 00000000"))
    if first:
        script.answer(Publish, Published("pub", 1))
    sent = script.sent()
    assert sent.endswith(BYE)
    assert hexed("03 00000009 02 01 00000007 554e4b4e4f574e") in sent
    over(script)


def test_odd_headers_are_answered_and_it_goes_on() -> None:
    odd = hexed("03 00000009 00000003 707562 0001 00000001 6b 00000001 78")
    script = bound().feed(odd + PRODUCE)
    sent = script.sent()
    assert client.decode_bound_answer(sent, 0).failure.reason == "INVALID_HEADERS"  # type: ignore[union-attr]
    script.expect(Publish)


@pytest.mark.parametrize("op", ["00", "01", "0f", "10", "11", "20", "62", "ff"])
def test_what_a_bound_session_does_not_know_ends_it(op: str) -> None:
    over(bound().feed(hexed(op)).sends(BYE))


def test_a_pong_is_nothing() -> None:
    bound().feed(PING).quiet()


# --- transactions ---


def in_tx() -> Script:
    return bound().feed(BOUND_BEGIN).answer(Begin, Begun("tx")).sends(hexed("05 00000004 00"))


def test_a_transaction() -> None:
    script = in_tx().feed(TX_PRODUCE + TX_HPRODUCE)
    first = script.expect(Publish, transaction="tx")
    assert (first.batch.address, first.batch.columns.values()) == ("pub", [b"tx1"])
    second = script.expect(Publish, transaction="tx")
    assert second.batch.columns.headers == [(("a", b"b"),)]
    script.complete(first, Published("pub", 1)).complete(second, Published("pub", 1))
    script.sends(hexed("11 00000006 00 12 00000007 00"))
    script.feed(BOUND_COMMIT).answer(Commit, DONE, transaction="tx").sends(hexed("06 00000008 00"))
    assert told(script.feed(BOUND_ROLLBACK), 7, 9) == (9, 1, "NO_TRANSACTION")
    script.feed(BOUND_BEGIN).answer(Begin, Begun("tx2")).sends(hexed("05 00000004 00"))
    script.feed(BOUND_ROLLBACK).answer(Rollback, DONE, transaction="tx2").sends(hexed("07 00000009 00")).quiet()


def test_what_is_not_for_a_transaction() -> None:
    script = in_tx()
    assert told(script.feed(BOUND_BEGIN), 5, 4) == (9, 1, "TRANSACTION_ACTIVE")
    script.feed(PRODUCE).answer(Rollback, DONE, transaction="tx").sends(BYE)
    over(script)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Conflict(), (10, 1, "TRANSACTION_ABORTED")),
        (NotFound(), (10, 1, "TRANSACTION_ABORTED")),
        (OutcomeUnknown(), (2, 3, "COMMIT_OUTCOME_UNKNOWN")),
        (CommitFailed(), (14, 1, "UNAVAILABLE")),
    ],
)
def test_a_commit_that_fails_ends_the_transaction(error: GatewayError, said: tuple[int, int, str]) -> None:
    script = in_tx().feed(BOUND_COMMIT).answer(Commit, error)
    assert told(script, 6, 8) == said
    script.feed(PRODUCE).expect(Publish, transaction="")


def test_a_transaction_that_was_given_up() -> None:
    script = in_tx().feed(TX_PRODUCE).answer(Publish, Conflict())
    assert told(script, 17, 6) == (10, 1, "TRANSACTION_ABORTED")


def test_an_open_transaction_is_rolled_back() -> None:
    script = in_tx().feed(LEAVE)
    script.answer(Rollback, DONE, transaction="tx").sends(BYE)
    over(script)


# --- subscriptions ---


def subscribed(command: bytes = SUBSCRIBE, *, number: int = 0, acknowledge: bool = False) -> Script:
    script = bound().feed(command)
    subscribe = script.expect(
        Subscribe,
        address="sub",
        name="sub",
        start=Start.LATEST,
        acknowledge=acknowledge,
        largest_value=LARGEST_MESSAGE,
        smallest_value=1,
    )
    return script.complete(subscribe, Subscribed(2, "sub"))


def test_subscribe_as_captured() -> None:
    script = subscribed().sends(hexed("01 00000001 00 00"))
    take = script.expect(Take, subscription=2, hold_until=math.inf)
    script.complete(take, taken(b"m1", b"m2")).sends(hexed("08 00 00000002 6d31 08 00 00000002 6d32"))
    script.expect(Take)


def test_hsubscribe_manual_as_captured() -> None:
    script = subscribed(HSUBSCRIBE, acknowledge=True).sends(hexed("02 00000003 00 00"))
    take = script.expect(Take, max_messages=MOST_UNACKED)
    script.complete(take, taken(b"m2", headers=[(("k", b"v"),)], keys=[b"K"], expires=[7]))
    head = "09 00 0006 00000001 6b 00000001 76"
    key = f"0000000d {KEY.encode().hex()} 00000001 4b 00000014 {EXPIRES.encode().hex()} 00000001 37"
    script.sends(hexed(f"{head} {key} 00000009 01 00000001 00000001 00000002 6d32"))


def test_readers_of_the_listener() -> None:
    settings = FujinSettings(readers={"sub": ReaderSettings("other", Start.EARLIEST)})
    bound(settings=settings).feed(SUBSCRIBE).expect(Subscribe, address="other", name="sub", start=Start.EARLIEST)


def test_a_subscription_that_is_refused_leaves_its_id() -> None:
    script = bound().feed(SUBSCRIBE).answer(Subscribe, NotRouted())
    assert told(script, 1, 1) == (5, 1, "ROUTE_NOT_FOUND")
    script.feed(SUBSCRIBE).answer(Subscribe, Subscribed(2, "sub")).sends(hexed("01 00000001 00 00"))


def test_ids_of_subscriptions_are_used_again() -> None:
    script = subscribed().sends(hexed("01 00000001 00 00"))
    take = script.expect(Take)
    script.feed(UNSUBSCRIBE).sends(hexed("0e 00000002 00"))
    script.answer(Unsubscribe, DONE, subscription=2)
    script.complete(take, Taken((), ended=True)).quiet()
    assert told(script.feed(UNSUBSCRIBE), 14, 2) == (5, 1, "SUBSCRIPTION_NOT_FOUND")
    script.feed(SUBSCRIBE).answer(Subscribe, Subscribed(2, "sub")).sends(hexed("01 00000001 00 00"))


def test_there_are_256_ids() -> None:
    script = bound()
    for number in range(256):
        script.feed(client.subscribe(number, b"sub", auto=True, headered=False))
        script.answer(Subscribe, Subscribed(2, "sub")).expect(Take)
        script.sends(hexed(f"01 {number:08x} 00 {number:02x}"))
    assert told(script.feed(SUBSCRIBE), 1, 1) == (8, 1, "SUBSCRIPTION_IDS_EXHAUSTED")


def test_a_bad_bool_is_answered_and_ends_it() -> None:
    script = bound().feed(hexed("0b 00000001 02"))
    sent = script.sent()
    assert sent.startswith(hexed("01 00000001 02 01"))
    assert sent.endswith(BYE)


def test_a_topic_that_goes_ends_the_session() -> None:
    script = subscribed().answer(Take, Taken((), ended=True))
    script.expect(Unsubscribe)


# --- settling ---


def delivered() -> Script:
    """Two messages, tags 7 and 8, sequences 1 and 2 of incarnation 1."""
    script = subscribed(HSUBSCRIBE, acknowledge=True)
    script.answer(Take, taken(b"a", b"b", first_tag=7)).expect(Take)
    script.sent()
    return script


ID = "00000009 01 00000001 {:08x}"


def ack(op: str, *sequences: int, incarnation: int = 1) -> bytes:
    ids = " ".join(f"00000009 01 {incarnation:08x} {sequence:08x}" for sequence in sequences)
    return hexed(f"{op} 00000005 00 {len(sequences):08x} {ids}")


def test_ack_and_nack() -> None:
    script = delivered().feed(ack("09", 2))
    script.answer(Settle, Settled([None]), subscription=2, tags=[8], accepted=True)
    script.sends(hexed("0c 00000005 00 00000001 00000009 01 00000001 00000002 00"))
    script.feed(ack("0a", 1)).answer(Settle, Settled([None]), tags=[7], accepted=False)
    script.sends(hexed("0d 00000005 00 00000001 00000009 01 00000001 00000001 00")).quiet()


@pytest.mark.parametrize(
    "command",
    [
        ack("09", 3),  # never given out
        ack("09", 1, 1),  # twice
        ack("09", 1, 9),
        ack("09", 1, incarnation=2),  # another reader's
        hexed("09 00000005 00 00000001 00000005 0000000174"),  # foreign
        hexed("09 00000005 00 00000001 00000009 02 00000001 00000001"),
    ],
)
def test_one_bad_id_makes_the_whole_ack_fail(command: bytes) -> None:
    script = delivered()
    assert told(script.feed(command), 12, 5) == (3, 1, "INVALID_MESSAGE_ID")
    script.feed(ack("09", 1, 2)).expect(Settle, tags=[7, 8])  # and nothing was settled


def test_what_is_settled_is_settled() -> None:
    script = delivered().feed(ack("09", 1)).answer(Settle, Settled([None]))
    script.sent()
    assert told(script.feed(ack("0a", 1)), 13, 5) == (3, 1, "INVALID_MESSAGE_ID")


def test_zero_ids_and_unknown_readers() -> None:
    script = delivered().feed(hexed("09 00000005 00 00000000")).sends(hexed("0c 00000005 00 00000000"))
    assert told(script.feed(hexed("09 00000005 07 00000000")), 12, 5) == (5, 1, "SUBSCRIPTION_NOT_FOUND")


def test_each_id_has_its_own_envelope() -> None:
    script = delivered().feed(ack("09", 1, 2)).answer(Settle, Settled([None, UnknownSubscription()]))
    sent = script.sent()
    _, results = client.decode_bound_settled(sent, 0)
    first, second = results.values()
    assert first is None
    assert second is not None
    assert (second.code, second.applied, second.reason) == (3, 1, "INVALID_MESSAGE_ID")


def test_ids_die_with_their_reader() -> None:
    script = delivered().feed(UNSUBSCRIBE)
    script.answer(Unsubscribe, DONE)
    script.sent()
    script.feed(HSUBSCRIBE).answer(Subscribe, Subscribed(2, "sub")).answer(Take, taken(b"a", first_tag=9)).expect(Take)
    script.sent()
    assert told(script.feed(ack("09", 1)), 12, 5) == (3, 1, "INVALID_MESSAGE_ID")
    script.feed(ack("09", 1, incarnation=2)).expect(Settle, tags=[9])


def test_two_readers_that_are_one_for_the_broker() -> None:
    """Who leaves gives back; who stays goes on."""
    script = delivered().feed(client.subscribe(9, b"sub", auto=False, headered=False))
    script.answer(Subscribe, Subscribed(2, "sub")).sends(hexed("01 00000009 00 01"))
    script.expect(Take)
    script.feed(UNSUBSCRIBE).sends(hexed("0e 00000002 00"))
    script.expect(Cancel)
    script.expect(Settle, subscription=2, tags=[7, 8], accepted=False, tried=False)
    script.quiet()


# --- FETCH ---


def test_fetch_as_captured() -> None:
    script = bound().feed(BOUND_FETCH)
    script.answer(Subscribe, Subscribed(2, "sub"), acknowledge=True)
    take = script.expect(Take, max_messages=2, hold_until=script.now + 8)
    script.complete(take, taken(b"hello", first_tag=3))
    script.sends(hexed("0a 00000001 00 00 00000001 00000009 01 00000001 00000001 00000005 68656c6c6f"))
    script.feed(BOUND_FETCH).answer(Take, Taken(())).sends(hexed("0a 00000001 00 00 00000000"))
    script.feed(ack("09", 1)).expect(Settle, tags=[3])


def test_one_fetch_at_a_time_and_each_kind_has_its_reader() -> None:
    script = bound().feed(BOUND_FETCH).answer(Subscribe, Subscribed(2, "sub"))
    take = script.expect(Take)
    assert told(script.feed(BOUND_FETCH), 10, 1) == (10, 1, "FETCH_BUSY")
    script.feed(HFETCH).answer(Subscribe, Subscribed(2, "sub"))
    other = script.expect(Take)
    script.complete(other, taken(b"x", first_tag=5)).sends(hexed("0b 0000000a 00 01 00000001 0000 00000001 78"))
    script.expect(Settle, tags=[5], accepted=True)  # auto commit: handed out is settled
    script.complete(take, Taken(())).sends(hexed("0a 00000001 00 00 00000000"))


def test_a_plain_fetch_stays_plain_behind_a_headered_one() -> None:
    """The original forgets that from then on (wire 6.2)."""
    script = bound().feed(HFETCH).answer(Subscribe, Subscribed(2, "sub")).answer(Take, Taken(()))
    script.sent()
    script.feed(BOUND_FETCH).answer(Subscribe, Subscribed(2, "sub")).answer(Take, Taken(()))
    script.sends(hexed("0a 00000001 00 01 00000000"))


def test_fetch_for_nothing_and_a_fetch_whose_reader_is_closed() -> None:
    script = bound()
    assert told(script.feed(hexed("07 00000001 00 00000003 737562 00000000")), 10, 1) == (3, 1, "INVALID_BATCH_SIZE")
    script.feed(BOUND_FETCH).answer(Subscribe, Subscribed(2, "sub"))
    take = script.expect(Take)
    script.feed(UNSUBSCRIBE).sends(hexed("0e 00000002 00"))
    script.complete(take, Taken((), ended=True))
    assert told(script, 10, 1) == (1, 1, "CANCELED")


# --- the end, pings, transports ---


def test_disconnect_waits_for_what_is_under_way() -> None:
    script = bound().feed(PRODUCE + LEAVE + PRODUCE)
    script.answer(Publish, Published("pub", 1)).sends(hexed("03 00000001 00") + BYE)
    over(script)


def test_pings_are_strict_and_may_fail_some_times() -> None:
    script = bound()
    for token, answer in ((-1, PING), (-2, b""), (-3, b"\x0b"), (-4, PING), (-5, b""), (-6, PING + PING), (-7, b"")):
        script.pass_time(2).output(Open, token=token, kind=Kind.DUPLEX)
        script.sends(PING, token).output(Finish, channel=token)
        if answer:
            script.feed(answer, token)
        script.eof(token)
    closed = script.output(Close, code=1)
    assert closed.reason.startswith("ping failed after retries")


def test_a_client_that_never_answers_has_the_same_number_of_pings() -> None:
    script = bound()
    script.pass_time(2)
    for token in (-1, -2, -3):
        script.output(Open, token=token)
        script.sends(PING, token).output(Finish, channel=token)
        script.pass_time(5)
    assert script.output(Close, code=1).reason.startswith("ping failed after retries")
    script.quiet()


def test_stop_is_another_byte_here() -> None:
    script = bound().drain().sends(hexed("62"))
    script.feed(LEAVE).sends(BYE).output(Finish, channel=0)


def test_over_a_byte_stream_the_first_byte_is_all_there_is() -> None:
    script = bound(transport=Transport.TCP).pass_time(60).quiet()
    script.feed(LEAVE).sends(BYE).output(Finish, channel=0)
    script.output(StopSending)
    script.output(Close)
    v1 = fresh(transport=Transport.TCP).feed(BIND)
    routes(v1).sends(hexed("10 00 00000000"))
    nobody = fresh(transport=Transport.TCP).feed(hexed("02 01 01 00000003 737562"))
    nobody.output(Finish)
    nobody.output(StopSending)
    nobody.output(Close)


def test_both_generations_on_one_connection() -> None:
    script = bound().open(4).feed(hexed("01 00000000"), 4).feed(hexed("03 00000001 00000003 707562 00000001 78"), 4)
    script.answer(Publish, Published("pub", 1)).sends(hexed("02 00000001 00"), 4)
    script.open(8).feed(hexed("00"), 8).feed(HELLO[1:], 8).sends(GREETED, 8)


def test_v1_is_known_by_its_alpn() -> None:
    script = fresh(alpn="fujin/1").feed(BIND)
    routes(script).sends(hexed("10 00 00000000"))
    script.pass_time(2).output(Open)
    script.sends(PING, -1)
    over(fresh(alpn="fujin/1").feed(HELLO))


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENT, Dialect.STOCK])
def test_a_listener_of_the_seed_has_no_sessions(dialect: Dialect) -> None:
    over(fresh(dialect=dialect).feed(HELLO))


@pytest.mark.parametrize(("dialect", "first"), [(Dialect.SESSION, b"\1"), (Dialect.V1, b"\0")])
def test_a_listener_of_one_dialect(dialect: Dialect, first: bytes) -> None:
    over(fresh(dialect=dialect, alpn="fujin/1" if first == b"\1" else "fujin").feed(first + bytes(8)))


# --- those between the seed and v1 (wire 6.1) ---


def test_connect_of_the_second_generation_hears_what_it_knows() -> None:
    over(fresh(alpn="fujin/1").feed(EARLY + hexed("03 00000001")).sends(BYE))


def test_init_is_told_what_to_do() -> None:
    script = fresh(alpn="fujin/1").feed(hexed("01 0001 00000003 612e62 00000001 63"))
    sent = script.sent()
    assert sent.startswith(hexed("10 01 000000"))
    assert b"HELLO (0.5)" in sent
    assert sent.endswith(BYE)


def test_init_without_overrides_is_all_there_is() -> None:
    script = fresh(alpn="fujin/1").feed(hexed("01 0000")).pass_time(INIT_PATIENCE / 2).quiet()
    assert b"HELLO (0.5)" in script.pass_time(INIT_PATIENCE).sent()
    late = fresh(alpn="fujin/1").feed(BIND[:3]).pass_time(INIT_PATIENCE / 2).feed(BIND[3:]).pass_time(60)
    late.expect(DescribeTopics)


# --- the tables ---


def test_every_op_is_an_event_of_the_table() -> None:
    assert set(BOUND_EVENTS) == set(BoundOp)
    assert {event for _, event in SESSIONS} == set(BoundEvent)
    assert all((state, BoundEvent.END) in SESSIONS for state in BoundState if state is not BoundState.ENDING)


# --- whatever comes ---

COMMANDS = [
    PRODUCE, HPRODUCE, BOUND_BEGIN, BOUND_COMMIT, BOUND_ROLLBACK, TX_PRODUCE, TX_HPRODUCE, SUBSCRIBE, HSUBSCRIBE, UNSUBSCRIBE,
    BOUND_FETCH, HFETCH, LEAVE, HELLO, BIND, PING, ack("09", 1), ack("0a", 2, incarnation=2), hexed("09 00000005 01 00000000"),
]  # fmt: skip


@given(
    pieces=st.lists(st.sampled_from(COMMANDS) | st.binary(max_size=30), max_size=12),
    alpn=st.sampled_from(["fujin", "fujin/1"]),
    cut=st.integers(1, 60),
)
def test_every_session_ends_in_one_way_whatever_it_is_told(pieces: list[bytes], alpn: str, cut: int) -> None:
    """In any state any bytes, in pieces of any size; with what the broker says meanwhile. Then the client goes."""
    script = fresh(alpn=alpn)
    sent = (HELLO if alpn == "fujin" else b"") + BIND + b"".join(pieces)
    takes = 0

    def broker(request: Request) -> Outcome:
        nonlocal takes
        if isinstance(request, Take):
            takes += 1
            return reply(request) if takes < 4 else Taken(())
        return reply(request)

    waiting: list[Take] = []
    for at in range(0, len(sent), cut):
        script.feed(sent[at : at + cut])
        while script.asked:
            request = script.asked.popleft()
            if isinstance(request, Take) and takes >= 4 and request.hold_until == math.inf:
                waiting.append(request)
            else:
                script.complete(request, broker(request))
    script.eof()
    script.serve(broker)
    for take in waiting:
        script.complete(take, Taken((), ended=True))
    script.serve(broker)
    finishes = [output for output in script.others if isinstance(output, Finish) and output.channel == 0]
    assert len(finishes) == 1
    assert script.session.in_flight == 0
    assert script.sent()[:1] in (b"\x13", b"\x10")
