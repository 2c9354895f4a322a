"""Well framed and wrong: the documented error, the connection stays, nothing is asked of the broker that is half a thing."""

from __future__ import annotations

import pytest

from gateway.errors import (
    Conflict,
    Denied,
    GatewayError,
    NotFound,
    NotRouted,
    OffsetOutOfRange,
    SchemaViolation,
    Status,
    UnknownPartition,
    UnknownTopic,
    Unsupported,
)
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.mapping import NAMED, REFUSALS, WORDS, Subject, refusal, words
from gateway.requests import (
    CancelDelayed,
    Commit,
    CommitOffset,
    CreateUser,
    DeadLetters,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    Fetched,
    GetSchemas,
    GroupOffset,
    PartitionInfo,
    Publish,
    Published,
    ReadDeadLetters,
    ReadOffset,
    ReplayDeadLetter,
    Request,
    Schemas,
    TopicInfo,
    Topics,
)
from gateway.wire.session import BEFORE_LOGIN
from tests.protocols.flymq.made import NO, YES, array, b, error, fr, i32, i64, produce, s, s8, server, u32, u64

REFUSED_HERE = [
    ("negative partition", produce("t", b"v", partition=-2), "partition -2 out of range"),
    ("least partition", produce("t", b"v", partition=-(1 << 31)), "partition -2147483648 out of range"),
    ("consume from -1", fr(Op.CONSUME, s("t") + i32(-1) + u64(0)), "partition -1 out of range"),
    ("fetch from -1", fr(Op.FETCH, s("t") + i32(-1) + u64(0) + i32(1)), "partition -1 not found"),
    ("commit to -1", fr(Op.COMMIT, s("t") + s("g") + i32(-1) + u64(0)), "partition -1 not found"),
    ("negative count", fr(Op.CREATE_TOPIC, s("t") + i32(-1)), "invalid partition count: -1"),
    ("huge count", fr(Op.CREATE_TOPIC, s("t") + i32((1 << 31) - 1)), "invalid partition count: 2147483647"),
    ("oversize key", produce("t", b"v", b"k" * 65_536), "key too large: 65536 bytes, at most 65535"),
    ("no group", fr(Op.COMMIT, s("t") + s("") + i32(0) + u64(0)), "invalid group name"),
    ("hostile group", fr(Op.COMMIT, s("t") + s("g\0") + i32(0) + u64(0)), "invalid group name"),
    ("long group", fr(Op.DELETE_GROUP, s("t") + s("g" * 513)), "invalid group name"),
    ("unsigned offset", fr(Op.COMMIT, s("t") + s("g") + i32(0) + u64(1 << 63)), "invalid offset: 9223372036854775808"),
    ("negative delay", fr(Op.PRODUCE_DELAYED, s("t") + b(b"v") + i64(-1)), "invalid delay: -1 ms, at most 86400000"),
    ("long delay", fr(Op.PRODUCE_DELAYED, s("t") + b(b"v") + i64(86_400_001)), "invalid delay: 86400001 ms"),
    ("negative ttl", fr(Op.PRODUCE_WITH_TTL, s("t") + b(b"v") + i64(-5)), "invalid ttl: -5 ms"),
    (
        "endless ttl",
        fr(Op.PRODUCE_WITH_TTL, s("t") + b(b"v") + i64((1 << 63) - 1)),
        "invalid ttl: 9223372036854775807 ms",
    ),
    ("no transaction", fr(Op.TXN_PRODUCE, s("") + s("t") + b(b"v")), "transaction not found: "),
    ("schema language", fr(Op.REGISTER_SCHEMA, s("n") + s8("xml") + b(b"")), "unsupported schema type: xml"),
    ("nameless schema", fr(Op.GET_SCHEMA, s("") + u32(0)), "no schema found for topic: "),
    ("nameless topic", fr(Op.METADATA, s("")), "topic not found: "),
    ("nameless user", fr(Op.USER_GET, s("")), "user not found: "),
    ("no password", fr(Op.USER_CREATE, s("a") + s("") + s("") + u32(0) + YES), "username and password are required"),
    ("nameless acl", fr(Op.ACL_GET, s("")), "topic name is required"),
    ("large filter", fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(1) + s(r"\pL{20}")), "invalid filter: "),
    ("long filter", fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(1) + s("a" * 1025)), "invalid filter: longer"),
]


@pytest.mark.parametrize(("frame", "text"), [row[1:] for row in REFUSED_HERE], ids=[row[0] for row in REFUSED_HERE])
def test_refused_without_asking_anybody(frame: bytes, text: str) -> None:
    script = server(auth=len(frame) <= BEFORE_LOGIN).feed(frame)
    sent = script.sent()
    assert sent[2] == Op.ERROR
    assert text.encode() in sent
    assert not script.asked
    script.feed(fr(Op.LIST_TOPICS)).answer(DescribeTopics, Topics([])).sends(fr(Op.LIST_TOPICS, u32(0))).quiet()


ONE = Topics([TopicInfo("t", [PartitionInfo(0, 3, 9)])])
REFUSED_THERE: list[tuple[bytes, type[Request], GatewayError, bytes]] = [
    (produce("../t", b"v"), Publish, Denied("invalid topic name"), error("invalid topic name")),
    (produce("t", b"v"), Publish, NotRouted(), error("topic not found: t")),
    (produce("t", b"v", partition=4), Publish, UnknownPartition(), error("partition 4 out of range")),
    (fr(Op.CONSUME, s("t") + i32(0) + u64(0)), Fetch, UnknownTopic(), error("topic not found: t")),
    (
        fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(1)),
        Fetch,
        OffsetOutOfRange(first=5, next_offset=9),
        error("offset out of range: first=5 next=9"),
    ),
    (fr(Op.TXN_COMMIT, s("x")), Commit, NotFound("transaction not found: x"), error("transaction not found: x")),
    (fr(Op.TXN_COMMIT, s("x")), Commit, Conflict("transaction rolled back: x"), error("transaction rolled back: x")),
    (
        fr(Op.PRODUCE_WITH_SCHEMA, s("t") + s("o") + b(b"{}")),
        Publish,
        SchemaViolation(problems=["a", "b"]),
        error("schema validation failed: [a b]"),
    ),
    (
        fr(Op.USER_CREATE, s("a") + s("b") + s("") + array([s("admin")]) + YES),
        CreateUser,
        Denied(),
        error("unauthorized"),
    ),
    (fr(Op.GET_SCHEMA, s("o") + u32(3)), GetSchemas, NotFound("?"), error("schema not found: o v3")),
    (fr(Op.REPLAY_DLQ, s("t") + s("9")), ReplayDeadLetter, UnknownTopic(), error("topic not found: t")),
    (
        fr(Op.CANCEL_DELAYED, s("t") + s("9")),
        CancelDelayed,
        NotFound(),
        fr(Op.CANCEL_DELAYED, NO + s("message not found")),
    ),
    (fr(Op.DELETE_TOPIC, s("t")), DeleteTopic, UnknownTopic(), fr(Op.DELETE_TOPIC, YES + s(""))),
]


@pytest.mark.parametrize(("frame", "kind", "refused", "answer"), REFUSED_THERE)
def test_refused_by_the_broker(frame: bytes, kind: type[Request], refused: GatewayError, answer: bytes) -> None:
    script = server().feed(frame).answer(kind, refused).sends(answer).quiet()
    assert script.session.in_flight == 0


ACCOUNT_OPERATIONS = [
    (Op.USER_CREATE, s("a") + s("b") + s("") + u32(0) + YES),
    (Op.USER_DELETE, s("a")),
    (Op.USER_UPDATE, s("a") + s("") + s("") + u32(0) + YES),
    (Op.USER_LIST, b""),
    (Op.USER_GET, s("a")),
    (Op.ACL_SET, s("t") + YES + u32(0) + u32(0)),
    (Op.ACL_GET, s("t")),
    (Op.ACL_DELETE, s("t")),
    (Op.ACL_LIST, b""),
    (Op.PASSWORD_CHANGE, s("a") + s("b") + s("") + u32(0) + YES),
    (Op.ROLE_LIST, b""),
]


@pytest.mark.parametrize(("op", "payload"), ACCOUNT_OPERATIONS)
def test_account_operations_are_refused_while_there_are_no_accounts(op: Op, payload: bytes) -> None:
    server(auth=False).feed(fr(op, payload)).sends(error("authentication is not enabled")).quiet()


def test_an_offset_beyond_what_the_log_counts_is_the_end_not_a_crash() -> None:
    script = server().feed(fr(Op.FETCH, s("t") + i32(0) + u64((1 << 64) - 1) + i32(5)))
    asked = script.expect(Fetch, offset=(1 << 63) - 1)
    script.complete(asked, Fetched((), (1 << 63) - 1, 0, 9)).sends(fr(Op.FETCH, u32(0) + u64((1 << 64) - 1))).quiet()


@pytest.mark.parametrize(("asked", "given"), [(0, 10), (-1, 10), (-(1 << 31), 10), (500, 500), (1 << 30, 100_000)])
def test_how_many_messages_a_fetch_asks_for(asked: int, given: int) -> None:
    """FlyMQ wire 2.2: max <= 0 means 10; and what is asked for is bounded."""
    server().feed(fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(asked))).expect(Fetch, max_messages=given)


def test_an_expired_message_is_not_mistaken_for_another() -> None:
    from gateway.envelope import BatchMeta, Columns, Origin, Run

    later = Run("t", 0, 8, Columns.of([b"v"]), [0], ((0, 0, BatchMeta(b"", Origin("a", "b"))),))
    script = server().feed(fr(Op.CONSUME, s("t") + i32(0) + u64(5)))
    script.answer(Fetch, Fetched([later], 9, 0, 9)).sends(error("message expired: go on at 8")).quiet()


def test_a_reset_of_a_partition_that_is_not_there_moves_nothing() -> None:
    script = server().feed(fr(Op.RESET_OFFSET, s("t") + s("g") + i32(4) + s8("earliest")))
    script.answer(DescribeTopics, ONE).sends(error("partition 4 not found")).quiet()


def test_a_group_that_never_committed_is_not_a_reason_to_fail_a_commit() -> None:
    server().feed(fr(Op.COMMIT, s("t") + s("new") + i32(0) + u64(0))).expect(
        CommitOffset, group="new", must_exist=False
    )


def test_every_status_has_words_and_every_word_is_understood() -> None:
    assert set(WORDS) == set(Status)
    for status, template in WORDS.items():
        kind = type("Some", (GatewayError,), {"status": status, "__doc__": "because"})
        text = words(kind(), Subject("topic", "group", 3))
        assert text
        if template != "{message}":
            assert any(text.startswith(beginning) for beginning in REFUSALS), text
    for kind in NAMED:
        text = words(kind(), Subject("topic", "group", 3))
        assert refusal(text).refusal is kind.status
    assert refusal("no such words").final is False
    assert refusal("not leader: leader_addr=10.0.0.1:9092").refusal is Status.UNAVAILABLE


def test_an_empty_list_of_schemas_is_a_schema_not_found() -> None:
    server().feed(fr(Op.GET_SCHEMA, s("o") + u32(0))).answer(GetSchemas, Schemas([])).sends(
        error("no schema found for topic: o")
    ).quiet()


def test_refusals_by_type_not_by_text() -> None:
    """A broker's own words are passed on where the protocol has none of its own."""
    server().feed(produce("t", b"v")).answer(Publish, Unsupported("not here")).sends(error("not here")).quiet()
    server().feed(produce("t", b"v")).answer(Publish, Published("t", 1)).sent()


@pytest.mark.parametrize("name", [s("9"), u64(7)])
def test_a_dead_letter_that_nobody_wrote(name: bytes) -> None:
    script = server().feed(fr(Op.REPLAY_DLQ, s("t") + name)).answer(ReplayDeadLetter, NotFound())
    script.answer(ReadDeadLetters, DeadLetters([]), address="t")
    script.sends(fr(Op.REPLAY_DLQ, NO + s("message not found"))).quiet()


def test_the_lag_on_a_partition_that_is_not_there() -> None:
    """FlyMQ wire 2.2: the group is looked for first, then the topic, then the partition."""
    lag = fr(Op.GET_LAG, s("t") + s("g") + i32(7))
    script = server().feed(lag).answer(ReadOffset, GroupOffset(None, False, 0, 0))
    script.sends(error("consumer group not found: t:g")).quiet()
    script = server().feed(lag).answer(ReadOffset, GroupOffset(1, True, 0, 0)).answer(DescribeTopics, UnknownTopic())
    script.sends(error("topic not found: t")).quiet()
    script = server().feed(lag).answer(ReadOffset, GroupOffset(1, True, 0, 0)).answer(DescribeTopics, ONE)
    script.sends(error("partition 7 not found")).quiet()
