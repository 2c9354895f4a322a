"""The asking side against raw bytes: what it sends, and what it makes of either dialect's answers."""

from __future__ import annotations

import math

import pytest

from gateway.envelope import Batch, Columns
from gateway.errors import (
    GatewayError,
    Status,
    TargetError,
    TargetLost,
    TargetRefused,
    TooLarge,
    Unauthenticated,
    UnknownSubscription,
    Unsupported,
)
from gateway.protocols.flymq.client.session import FlymqClient
from gateway.protocols.flymq.wire.frames import MAX_PAYLOAD, Op
from gateway.requests import (
    DONE,
    Authenticate,
    CacheGet,
    Cancel,
    DescribeTopics,
    Done,
    Fetch,
    Fetched,
    GroupOffset,
    Identity,
    PartitionInfo,
    Publish,
    Published,
    ReadOffset,
    ReadTotals,
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
from gateway.settings import DOCUMENT_OR_STOCK, Dialect
from gateway.wire.session import ClientContext, Close, Credentials
from tests.protocols.flymq.made import NO, YES, array, b, error, fr, i32, produce, recorded, s, s8, u32, u64
from tests.protocols.script import ClientScript

LOGIN = Credentials(username="admin", password="secret")
NOT_FOUND = error("topic not found: t")
REFUSED_PARTITION = error("partition 1 not found", Dialect.STOCK)


def client(dialect: Dialect = Dialect.AUTO, credentials: Credentials | None = None) -> ClientScript:
    return ClientScript(FlymqClient(ClientContext(credentials or Credentials(), dialect)))


def publish(
    number: int, *values: bytes, keys: list[bytes | None] | None = None, partition: int | None = None
) -> Publish:
    return Publish(number, Batch("t", Columns.of(values, keys), partition=partition))


# --- logging in ---


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(YES + bytes(10), id="everybody's"),
        pytest.param(YES + s("") + s("admin") + array([s("admin")]), id="document"),
        pytest.param(YES + s("admin") + array([s8("admin")]) + s(""), id="stock"),
    ],
)
def test_requests_wait_for_the_login(answer: bytes) -> None:
    script = client(credentials=LOGIN).submit(publish(1, b"v"))
    script.sends(fr(Op.AUTH, s("admin") + s("secret"))).quiet()
    script.feed(fr(Op.AUTH_RESPONSE, answer)).sends(produce("t", b"v")).quiet()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(fr(Op.AUTH_RESPONSE, NO + s("invalid username or password") + s("") + u32(0)), id="document"),
        pytest.param(fr(Op.AUTH_RESPONSE, NO + s("") + u32(0) + s("invalid username or password")), id="stock"),
        pytest.param(fr(Op.AUTH_RESPONSE, bytes(11)), id="everybody's"),
        pytest.param(error("invalid username or password"), id="error"),
    ],
)
def test_a_refused_login_ends_all_that_waited(answer: bytes) -> None:
    script = client(credentials=LOGIN).submit(publish(1, b"v"))
    script.sent()
    script.feed(answer).expect(1, TargetRefused, refusal=Status.UNAUTHENTICATED, final=True)
    script.output(Close)
    script.quiet()
    script.submit(publish(2, b"v")).expect(2, TargetError)


def test_without_a_name_nothing_is_said_first() -> None:
    client().quiet()


def test_a_login_of_its_own() -> None:
    script = client().submit(Authenticate(1, username="u", password="p"))
    script.sends(fr(Op.AUTH, s("u") + s("p")))
    script.feed(fr(Op.AUTH_RESPONSE, YES + s("u") + array([s8("admin")]) + s("")))
    script.expect(1, Identity, authenticated=True, name="u", roles=["admin"])
    script.submit(Authenticate(2, username="u", password="x")).feed(fr(Op.AUTH_RESPONSE, NO + s("no") + s("") + u32(0)))
    script.expect(2, Unauthenticated, message="no")


# --- publishing ---


def test_a_batch_is_frames_sent_at_once_and_one_reply() -> None:
    script = client().submit(publish(7, b"a", b"bb", keys=[b"k", None], partition=3))
    script.sends(produce("t", b"a", b"k", 3) + produce("t", b"bb", b"", 3))
    answers = fr(Op.PRODUCE, recorded("t", 3, 10, 55, 1, 1)) + fr(Op.PRODUCE, recorded("t", 3, 11, 56, -1, 2))
    script.feed_each_byte(answers).expect(7, Published, base_offset=10, partition=3, timestamp_ms=56, scattered=None)
    script.quiet()
    assert script.session.in_flight == 0


def test_scattered_and_refused_members() -> None:
    script = client().submit(publish(7, b"a", b"b", b"c"))
    script.sent()
    script.feed(
        fr(Op.PRODUCE, recorded("t", 3, 10, 55, 1, 1))
        + error("storage is read-only: disk")
        + fr(Op.PRODUCE, recorded("t", 1, 4, 56, -1, 2))
    )
    published = script.expect(7, Published)
    assert published.position(0) == (3, 10)
    assert published.position(2) == (1, 4)
    assert set(published.refused) == {1}
    assert published.refused[1].refusal is Status.READ_ONLY  # type: ignore[attr-defined]


def test_a_batch_refused_altogether_is_a_refusal() -> None:
    script = client().submit(publish(7, b"a", b"b"))
    script.sent()
    script.feed(NOT_FOUND * 2).expect(7, TargetRefused, refusal=Status.NOT_FOUND, final=True)


def test_what_no_frame_holds_is_not_sent() -> None:
    script = client().submit(publish(7, bytes(MAX_PAYLOAD)))
    script.expect(7, TooLarge)
    script.quiet()


def test_answers_belong_to_requests_in_order() -> None:
    script = client().submit(publish(1, b"a")).submit(DescribeTopics(2, "t")).submit(publish(3, b"b"))
    script.sends(produce("t", b"a") + fr(Op.METADATA, s("t")) + produce("t", b"b"))
    script.feed(fr(Op.PRODUCE, recorded("t", 0, 0, 1, -1, 1))).expect(1, Published)
    script.feed(fr(Op.METADATA, s("t") + array([i32(0) + i32(0) + u64(1) + u64(9)])))
    script.expect(2, Topics, topics=[TopicInfo("t", [PartitionInfo(0, 1, 9)])])
    script.feed(fr(Op.PRODUCE, recorded("t", 0, 1, 1, -1, 1))).expect(3, Published, base_offset=1)
    script.quiet()


# --- what goes wrong ---


def test_a_lost_connection_tells_what_may_have_happened_from_what_has_not() -> None:
    script = client(credentials=LOGIN).submit(publish(1, b"a")).lost()
    script.expect(1, TargetError, status=Status.UNAVAILABLE)
    script = client().submit(publish(1, b"a")).submit(DescribeTopics(2, "t"))
    script.sent()
    script.eof().expect(1, TargetLost, status=Status.UNKNOWN_OUTCOME)
    script.expect(2, TargetLost)
    script.output(Close)
    script.quiet()
    assert script.session.in_flight == 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"HTTP/1.1", id="magic"),
        pytest.param(fr(Op.FETCH), id="another operation"),
        pytest.param(b"\xaf\x01\x01\x01\xff\xff\xff\xff", id="too long"),
    ],
)
def test_an_answer_that_cannot_be_one_hangs_up(data: bytes) -> None:
    script = client().submit(publish(1, b"a"))
    script.sent()
    script.feed(data).expect(1, TargetLost)
    script.output(Close)
    script.quiet()


def test_an_answer_nobody_asked_for_hangs_up() -> None:
    script = client().feed(fr(Op.PRODUCE, recorded("t", 0, 0, 1, -1, 1)))
    script.output(Close)
    script.quiet()


def test_an_answer_cut_off_is_an_error_of_its_request() -> None:
    script = client().submit(ReadOffset(1, "t", "g", 0)).submit(ReadOffset(2, "t", "g", 0))
    script.sent()
    script.feed(fr(Op.GET_LAG, b"\x00")).expect(1, GatewayError)
    script.feed(fr(Op.GET_LAG, u64(3) + u64(3) + u64(9) + u64(6))).expect(2, GroupOffset, offset=3, log_end=9)
    script.quiet()


@pytest.mark.parametrize("request_", [CacheGet(5, "c", "k"), ReadTotals(5)])
def test_what_flymq_cannot_say(request_: CacheGet | ReadTotals) -> None:
    script = client().submit(request_)
    script.expect(5, Unsupported)
    script.quiet()


def test_closing_says_nothing() -> None:
    script = client().close()
    script.output(Close)
    script.quiet()


# --- reading ---


def subscribed(
    dialect: Dialect = Dialect.AUTO, *, acknowledge: bool = False, name: str = ""
) -> tuple[ClientScript, int]:
    """A reader of two partitions at 3 and 7."""
    script = client(dialect).submit(Subscribe(1, "t", name=name, start=Start.EARLIEST, acknowledge=acknowledge))
    width = s if dialect is Dialect.DOCUMENT else s8
    for partition, start in enumerate((3, 7)):
        script.sends(fr(Op.SUBSCRIBE, s("t") + s(name) + i32(partition) + width("earliest")))
        script.feed(fr(Op.SUBSCRIBE, u64(start)))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s(name) + i32(2) + width("earliest"))).feed(REFUSED_PARTITION)
    if name:
        for partition in range(2):
            script.sends(fr(Op.GET_OFFSET, s("t") + s(name) + i32(partition)))
            script.feed(error("consumer group not found: t:g"))
    number = script.expect(1, Subscribed, address="t").subscription
    assert number >= 2
    return script, number


def fetch_of(partition: int, offset: int, most: int = 10) -> bytes:
    return fr(Op.FETCH, s("t") + i32(partition) + u64(offset) + i32(most))


def records(*found: tuple[int, bytes, bytes], following: int, stock: bool = True) -> bytes:
    if stock:
        body = b"".join(u64(at) + b(key) + b(value) for at, key, value in found)
        return fr(Op.FETCH, u32(len(found)) + u64(following) + body)
    body = b"".join(b(key) + b(value) + u64(at) for at, key, value in found)
    return fr(Op.FETCH, u32(len(found)) + body + u64(following))


@pytest.mark.parametrize("stock", [True, False])
@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
def test_taking_is_fetching_partition_by_partition(dialect: Dialect, stock: bool) -> None:
    script, number = subscribed(dialect)
    script.submit(Take(2, number, 10)).sends(fetch_of(0, 3))
    script.feed(records(following=3)).sends(fetch_of(1, 7))
    script.feed(records((7, b"k", b"v"), (8, b"", b"w"), (10, b"", b"x"), following=11, stock=stock))
    taken = script.expect(2, Taken, address="t", acknowledge=False)
    runs = [delivered.run for delivered in taken.deliveries]
    assert [(run.partition, run.base_offset, run.columns.values()) for run in runs] == [
        (1, 7, [b"v", b"w"]),
        (1, 10, [b"x"]),
    ]
    assert runs[0].columns.keys == [b"k", None]
    script.submit(Take(3, number, 10)).sends(fetch_of(0, 3)).feed(records(following=3)).sends(fetch_of(1, 11))
    script.feed(records(following=11)).expect(3, Taken, deliveries=())
    script.quiet()


def test_waiting_is_asking_again_with_pauses_that_grow() -> None:
    script, number = subscribed()
    script.submit(Take(2, number, 10, hold_until=101.0))
    asked = 0
    while not script.completions:
        sent = script.sent()
        if sent:
            asked += 1
            assert sent in {fetch_of(0, 3), fetch_of(1, 7)}
            script.feed(records(following=3 if sent == fetch_of(0, 3) else 7))
        else:
            due = script.session.timeout_at()
            assert due is not None
            assert script.now < due <= 101.0
            script.pass_time(due - script.now)
    script.expect(2, Taken, deliveries=())
    assert script.now == 101.0
    assert asked <= 20, "a second of waiting is a handful of questions"


def test_a_waiting_reader_takes_what_comes() -> None:
    script, number = subscribed()
    script.submit(Take(2, number, 10, hold_until=math.inf))
    script.sends(fetch_of(0, 3)).feed(records(following=3)).sends(fetch_of(1, 7)).feed(records(following=7)).quiet()
    script.pass_time(0.02).sends(fetch_of(0, 3)).feed(records((3, b"", b"v"), following=4))
    assert script.expect(2, Taken).deliveries[0].run.columns.values() == [b"v"]


@pytest.mark.parametrize("paused", [True, False])
def test_a_waiting_reader_can_be_cancelled(paused: bool) -> None:
    script, number = subscribed()
    script.submit(Take(2, number, 10, hold_until=math.inf)).sends(fetch_of(0, 3)).feed(records(following=3))
    script.sends(fetch_of(1, 7))
    if paused:
        script.feed(records(following=7)).submit(Cancel(3, 2)).expect(2, Taken, deliveries=())
        script.expect(3, Done)
    else:
        script.submit(Cancel(3, 2)).expect(3, Done)
        script.feed(records(following=7)).expect(2, Taken, deliveries=())
    script.quiet()
    assert script.session.timeout_at() is None


def test_settling_commits_what_is_settled_from_the_front() -> None:
    script, number = subscribed(acknowledge=True, name="g")
    script.submit(Take(2, number, 10)).sends(fetch_of(0, 3))
    script.feed(records((3, b"", b"a"), (4, b"", b"b"), (5, b"", b"c"), following=6))
    delivered = script.expect(2, Taken, acknowledge=True).deliveries[0]
    first = delivered.first_tag
    commit = s("t") + s("g") + i32(0)
    script.submit(Settle(3, number, [first + 1])).sends(fr(Op.COMMIT, commit + u64(3))).feed(fr(Op.COMMIT, YES))
    script.expect(3, Settled, results=[None])
    script.submit(Settle(4, number, [first])).sends(fr(Op.COMMIT, commit + u64(5))).feed(fr(Op.COMMIT, YES + s("")))
    script.expect(4, Settled, results=[None])
    script.submit(Settle(5, number, [first + 2, 999])).sends(fr(Op.COMMIT, commit + u64(6))).feed(fr(Op.COMMIT, YES))
    results = script.expect(5, Settled).results
    assert results[0] is None
    assert isinstance(results[1], UnknownSubscription)
    script.quiet()


def test_what_is_given_back_comes_again() -> None:
    script, number = subscribed(acknowledge=True, name="g")
    script.submit(Take(2, number, 10)).sends(fetch_of(0, 3))
    script.feed(records((3, b"", b"a"), (4, b"", b"b"), following=5))
    first = script.expect(2, Taken).deliveries[0].first_tag
    script.submit(Settle(3, number, [first], accepted=False)).expect(3, Settled, results=[None])
    script.submit(Take(4, number, 10)).sends(fetch_of(0, 3, 1)).feed(records((3, b"", b"a"), following=4))
    again = script.expect(4, Taken).deliveries[0]
    assert (again.attempt, again.run.columns.values()) == (2, [b"a"])
    script.submit(Settle(5, number, [first + 1])).sends(fr(Op.COMMIT, s("t") + s("g") + i32(0) + u64(3)))
    script.feed(fr(Op.COMMIT, YES)).expect(5, Settled)
    script.submit(Settle(6, number, [again.first_tag])).sends(fr(Op.COMMIT, s("t") + s("g") + i32(0) + u64(5)))


def test_a_named_reader_that_acknowledges_nothing_commits_what_it_hands_out() -> None:
    script, number = subscribed(name="g")
    script.submit(Take(2, number, 10)).sends(fetch_of(0, 3)).feed(records((3, b"", b"a"), following=4))
    script.sends(fr(Op.COMMIT, s("t") + s("g") + i32(0) + u64(4))).feed(fr(Op.COMMIT, YES)).expect(2, Taken)


def test_a_named_reader_goes_on_where_its_group_is() -> None:
    script = client().submit(Subscribe(1, "t", name="g", start=Start.LATEST))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(0) + s8("latest"))).feed(fr(Op.SUBSCRIBE, u64(90)))
    script.sent()
    script.feed(REFUSED_PARTITION).sends(fr(Op.GET_OFFSET, s("t") + s("g") + i32(0)))
    script.feed(fr(Op.GET_OFFSET, u64(42))).expect(1, Subscribed, next_offset=42)


def test_a_group_that_retention_overtook_goes_on_with_what_is_left() -> None:
    script = client().submit(Subscribe(1, "t", name="g", start=Start.EARLIEST))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(0) + s8("earliest"))).feed(fr(Op.SUBSCRIBE, u64(50)))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("g") + i32(1) + s8("earliest"))).feed(REFUSED_PARTITION)
    script.sends(fr(Op.GET_OFFSET, s("t") + s("g") + i32(0))).feed(fr(Op.GET_OFFSET, u64(42)))
    script.expect(1, Subscribed, next_offset=50)


def test_a_subscription_to_nothing_is_refused() -> None:
    script = client().submit(Subscribe(1, "t"))
    script.sent()
    script.feed(NOT_FOUND).expect(1, TargetRefused, refusal=Status.NOT_FOUND)


def test_a_forgotten_subscription_is_unknown() -> None:
    script, number = subscribed()
    script.submit(Unsubscribe(2, number)).expect(2, Done)
    script.submit(Take(3, number, 1)).expect(3, UnknownSubscription)
    script.quiet()


def test_fetch_waits_too() -> None:
    script = client().submit(Fetch(1, "t", 0, 5, 10, 1 << 20, hold_until=100.015))
    script.sends(fetch_of(0, 5)).feed(records(following=5)).pass_time(0.02)
    script.sends(fetch_of(0, 5)).feed(records(following=5)).pass_time(0.02)
    script.expect(1, Fetched, runs=[], next_offset=5)
    script.quiet()


def test_a_broker_without_metadata_is_asked_otherwise() -> None:
    """FlyMQ wire 2.2: METADATA is an unknown opcode to the shipped server."""
    script = client().submit(DescribeTopics(1))
    script.sends(fr(Op.LIST_TOPICS)).feed(fr(Op.LIST_TOPICS, array([s("t")])))
    script.sends(fr(Op.METADATA, s("t"))).feed(error("unknown opcode: 4", Dialect.STOCK))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("") + i32(0) + s8("earliest"))).feed(fr(Op.SUBSCRIBE, u64(2)))
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("") + i32(1) + s8("earliest"))).feed(REFUSED_PARTITION)
    script.sends(fr(Op.SUBSCRIBE, s("t") + s("") + i32(0) + s8("latest"))).feed(fr(Op.SUBSCRIBE, u64(8)))
    script.expect(1, Topics, topics=[TopicInfo("t", [PartitionInfo(0, 2, 8)])])
    script.quiet()
    assert Done() == DONE
