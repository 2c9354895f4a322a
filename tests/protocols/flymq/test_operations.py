"""One transcript for each operation in each dialect; a missing one fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import pytest

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.flymq.server.session import OPERATIONS
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import (
    DONE,
    Acl,
    Acls,
    Authenticate,
    Begin,
    Begun,
    BuiltInRole,
    CancelDelayed,
    ChangePassword,
    Cluster,
    ClusterAnswer,
    ClusterJoin,
    ClusterLeave,
    ClusterStatus,
    Commit,
    CommitOffset,
    CreateTopic,
    CreateUser,
    DeadLetter,
    DeadLetters,
    Delayed,
    DeleteAcl,
    DeleteGroup,
    DeleteSchema,
    DeleteTopic,
    DeleteUser,
    DescribeTopics,
    Fetch,
    Fetched,
    GetAcls,
    GetRoles,
    GetSchemas,
    GetUsers,
    GroupInfo,
    GroupOffset,
    Groups,
    Identity,
    JoinGroup,
    ListGroups,
    Member,
    Offset,
    OffsetForTime,
    Outcome,
    PartitionInfo,
    Publish,
    Published,
    PurgeDeadLetters,
    ReadDeadLetters,
    ReadOffset,
    RegisterSchema,
    ReplayDeadLetter,
    Request,
    Roles,
    Rollback,
    SchemaInfo,
    SchemaKind,
    Schemas,
    SetAcl,
    TopicCreated,
    TopicInfo,
    Topics,
    UpdateUser,
    UserInfo,
    Users,
    ValidateSchema,
    Validation,
    WhoAmI,
)
from gateway.settings import DOCUMENT_OR_STOCK, Dialect
from tests.protocols.flymq.made import (
    NO,
    YES,
    array,
    b,
    fr,
    i32,
    i64,
    recorded,
    s,
    s8,
    server,
    u32,
    u64,
)

AUTO, DOCUMENT, STOCK = Dialect.AUTO, Dialect.DOCUMENT, Dialect.STOCK

Exchange = tuple[type[Request], Mapping[str, object], Outcome]


@attrs.frozen
class Row:
    op: Op
    request: bytes
    exchanges: Sequence[Exchange]
    answer: bytes | Mapping[Dialect, bytes]
    """The payload of the answer, in every dialect or in each."""
    replies_as: Op | None = None
    dialects: Sequence[Dialect] = (AUTO, DOCUMENT, STOCK)


def run_of(*values: bytes, base: int, keys: list[bytes | None] | None = None) -> Run:
    meta = BatchMeta(b"", Origin("test", "test"))
    return Run("test", 0, base, Columns.of(values, keys), [0] * len(values), ((0, 0, meta),))


ONE = Topics([TopicInfo("test", [PartitionInfo(0, 3, 9), PartitionInfo(1, 0, 0)])])
TWO = Topics([TopicInfo("a", [PartitionInfo(0, 0, 1)]), TopicInfo("b", [])])
ALONE = Cluster("standalone", [Member("node1", "127.0.0.1:9092", True, True)])
PAIR = Cluster(
    "gateways", [Member("node1", "127.0.0.1:9092", True, True), Member("node2", "10.0.0.2:9092", False, False)]
)
SCHEMA = SchemaInfo("pb", 1, SchemaKind.PROTOBUF, b"syntax")
ALICE = UserInfo("alice", ["producer"], ["write"], True, 0x6AFD440E, 0x6AFD440F)
ALICE_BYTES = s("alice") + array([s("producer")]) + array([s("write")]) + YES + i64(0x6AFD440E) + i64(0x6AFD440F)
PRODUCED = Published("test", 1705123456000, 0, 42)
GROUP = GroupInfo("test", "g1", 2, [(0, 5), (3, 7)])
GROUP_BYTES = s("test") + s("g1") + u32(2) + array([i32(0) + u64(5), i32(3) + u64(7)])
SHORT_FLAG = {AUTO: YES + s(""), DOCUMENT: YES + s(""), STOCK: YES}
AT = s("test") + s("g1") + i32(0)
LETTER = DeadLetter("0:4", Columns.of([b"boom"]), "retries", 16, "first", "last", "test")


def partition_bytes(number: int) -> bytes:
    node = s("node1")
    return i32(number) + node + s("127.0.0.1:9092") + u64(1) + s("online") + array([node]) + array([node])


CLUSTER_ONE = array([s("test") + array([partition_bytes(0), partition_bytes(1)])])
FETCHED = Fetched([run_of(b"kv", b"", base=42, keys=[b"user-123", None])], 44, 0, 50)
FETCHED_DOCUMENT = (
    u32(2) + b(b"user-123") + b(b"kv") + u64(42) + b(b"") + b(b"") + u64(43) + u64(44)
)  # FlyMQ document, FETCH
FETCHED_SERVER = u32(2) + u64(44) + u64(42) + b(b"user-123") + b(b"kv") + u64(43) + b(b"") + b(b"")  # FlyMQ wire 2.2
FETCHED_EACH = {AUTO: FETCHED_DOCUMENT, DOCUMENT: FETCHED_DOCUMENT, STOCK: FETCHED_SERVER}
FETCH_ASKED = {"address": "test", "partition": 0, "offset": 42, "max_messages": 500, "hold_until": None}
CONSUMED = ((Fetch, {"address": "test", "offset": 7, "max_messages": 1}, Fetched([run_of(b"v", base=7)], 8, 0, 9)),)
NOTHING_MORE: Sequence[Exchange] = ()

ROWS = [
    Row(
        Op.PRODUCE,
        s("test") + b(b"k1") + b(b"hello") + i32(-1),
        [(Publish, {"transaction": "", "schema": ""}, PRODUCED)],
        recorded("test", 0, 42, 1705123456000, 2, 5),
    ),
    Row(Op.CONSUME, s("test") + i32(0) + u64(7), CONSUMED, b(b"") + b(b"v")),
    Row(Op.CONSUME_ZERO_COPY, s("test") + i32(0) + u64(7), CONSUMED, b(b"") + b(b"v")),
    Row(
        Op.CREATE_TOPIC,
        s("test") + i32(4),
        [(CreateTopic, {"address": "test", "partitions": 4}, TopicCreated(True, 4))],
        SHORT_FLAG,
    ),
    Row(
        Op.METADATA,
        s("test"),
        [(DescribeTopics, {"address": "test"}, ONE)],
        s("test") + array([i32(0) + i32(0) + u64(3) + u64(9), i32(1) + i32(0) + u64(0) + u64(0)]),
    ),
    Row(
        Op.SUBSCRIBE,
        AT + s("earliest"),
        [(DescribeTopics, {"address": "test"}, ONE), (JoinGroup, {"address": "test", "group": "g1"}, DONE)],
        u64(3),
        dialects=(AUTO, DOCUMENT),
    ),
    Row(
        Op.SUBSCRIBE,
        AT + s8("commit"),
        [
            (DescribeTopics, {"address": "test"}, ONE),
            (ReadOffset, {"group": "g1", "partition": 0}, GroupOffset(5, True)),
            (JoinGroup, {"group": "g1"}, DONE),
        ],
        u64(5),
        dialects=(AUTO, STOCK),
    ),
    Row(
        Op.COMMIT,
        AT + u64(43),
        [(CommitOffset, {"address": "test", "group": "g1", "partition": 0, "offset": 43, "reset": False}, DONE)],
        SHORT_FLAG,
    ),
    Row(Op.FETCH, s("test") + i32(0) + u64(42) + i32(500), [(Fetch, FETCH_ASKED, FETCHED)], FETCHED_EACH),
    Row(Op.FETCH_BINARY, s("test") + i32(0) + u64(42) + i32(500), [(Fetch, FETCH_ASKED, FETCHED)], FETCHED_EACH),
    Row(Op.LIST_TOPICS, b"", [(DescribeTopics, {"address": ""}, TWO)], array([s("a"), s("b")])),
    Row(Op.DELETE_TOPIC, s("test"), [(DeleteTopic, {"address": "test"}, DONE)], SHORT_FLAG),
    Row(
        Op.REGISTER_SCHEMA,
        s("pb") + s8("proto") + b(b"syntax"),
        [(RegisterSchema, {"name": "pb", "kind": "protobuf", "definition": b"syntax"}, Schemas([SCHEMA]))],
        s("pb") + s8("protobuf") + u32(1),
    ),
    Row(
        Op.GET_SCHEMA,
        s("pb") + u32(0),
        [(GetSchemas, {"name": "pb", "version": 0}, Schemas([SCHEMA]))],
        {
            DOCUMENT: s("pb-v1") + s("pb") + u32(1) + s8("protobuf") + b(b"syntax") + s8("backward"),
            AUTO: u32(1) + s("pb") + s8("protobuf") + u32(1) + s("pb-v1") + b(b"syntax") + s8("backward"),
            STOCK: u32(1) + s("pb") + s8("protobuf") + u32(1) + s("pb-v1") + b(b"syntax") + s8("backward"),
        },
    ),
    Row(
        Op.LIST_SCHEMAS,
        b"",
        [(GetSchemas, {"name": "", "version": None}, Schemas([SCHEMA]))],
        array([s("pb-v1") + s8("protobuf") + u32(1)]),
    ),
    Row(
        Op.VALIDATE_SCHEMA,
        s("orders") + b(b"{}"),
        [(ValidateSchema, {"name": "orders", "value": b"{}"}, Validation(["missing required field: id"]))],
        NO + array([s("missing required field: id")]),
    ),
    Row(
        Op.PRODUCE_WITH_SCHEMA,
        s("test") + s("orders") + b(b"{}"),
        [(Publish, {"schema": "orders"}, PRODUCED)],
        recorded("test", 0, 42, 1705123456000, -1, 2),
    ),
    Row(
        Op.DELETE_SCHEMA,
        s("orders") + u32(2),
        [(DeleteSchema, {"name": "orders", "version": 2}, DONE)],
        YES + s("OK"),
    ),
    Row(
        Op.FETCH_DLQ,
        s("test") + i32(10),
        [(ReadDeadLetters, {"address": "test", "max_messages": 10}, DeadLetters([LETTER]))],
        array([s("0:4") + b(b"boom") + s("last") + i32(16)]),
    ),
    Row(
        Op.REPLAY_DLQ,
        s("test") + s("0:4"),
        [(ReplayDeadLetter, {"address": "test", "letter": "0:4"}, DONE)],
        YES + s("OK"),
    ),
    Row(Op.PURGE_DLQ, s("test"), [(PurgeDeadLetters, {"address": "test"}, DONE)], YES + s("OK")),
    Row(
        Op.PRODUCE_DELAYED,
        s("test") + b(b"hi") + i64(1500),
        [(Publish, {"delay_ms": 1500, "deliver_at_ms": 0}, Delayed(77, ["d-1"]))],
        recorded("test", 0, 0, 77, -1, 2, more=s("d-1")),
    ),
    Row(
        Op.CANCEL_DELAYED,
        s("test") + s("d-1"),
        [(CancelDelayed, {"address": "test", "delayed_id": "d-1"}, DONE)],
        YES + s("OK"),
    ),
    Row(
        Op.PRODUCE_WITH_TTL,
        s("test") + b(b"hi") + i64(60_000),
        [(Publish, {"ttl_ms": 60_000}, PRODUCED)],
        recorded("test", 0, 42, 1705123456000, -1, 2),
    ),
    Row(Op.TXN_BEGIN, b"", [(Begin, {}, Begun("txn-1"))], s("txn-1") + YES),
    Row(Op.TXN_COMMIT, s("txn-1"), [(Commit, {"transaction": "txn-1"}, DONE)], s("txn-1") + YES),
    Row(Op.TXN_ROLLBACK, s("txn-1"), [(Rollback, {"transaction": "txn-1"}, DONE)], s("txn-1") + YES),
    Row(
        Op.TXN_PRODUCE,
        s("txn-1") + s("test") + b(b"hi"),
        [(Publish, {"transaction": "txn-1"}, Published("test", 77, 0, 999))],
        recorded("test", 0, 0, 77, -1, 2),
    ),
    Row(
        Op.CLUSTER_JOIN,
        s("h:9093"),
        [(ClusterJoin, {"peer": "h:9093"}, ClusterAnswer(True, "joined"))],
        YES + s("joined"),
    ),
    Row(Op.CLUSTER_LEAVE, b"", [(ClusterLeave, {}, ClusterAnswer(False, "last member"))], NO + s("last member")),
    Row(
        Op.CLUSTER_STATUS,
        b"",
        [(ClusterStatus, {}, PAIR), (DescribeTopics, {"address": ""}, ONE)],
        s("gateways")
        + CLUSTER_ONE
        + array([s("node1") + s("127.0.0.1:9092") + YES + YES, s("node2") + s("10.0.0.2:9092") + NO + NO]),
    ),
    Row(
        Op.CLUSTER_METADATA,
        s("test"),
        [(ClusterStatus, {}, ALONE), (DescribeTopics, {"address": "test"}, ONE)],
        s("standalone") + CLUSTER_ONE,
    ),
    Row(Op.GET_OFFSET, AT, [(ReadOffset, {"group": "g1"}, GroupOffset(43, True))], u64(43)),
    Row(
        Op.RESET_OFFSET,
        AT + s8("offset") + u64(7),
        [
            (DescribeTopics, {"address": "test"}, ONE),
            (CommitOffset, {"group": "g1", "partition": 0, "offset": 7, "reset": True, "must_exist": True}, DONE),
        ],
        SHORT_FLAG,
    ),
    Row(Op.LIST_GROUPS, b"", [(ListGroups, {"address": "", "group": ""}, Groups([GROUP]))], array([GROUP_BYTES])),
    Row(
        Op.DESCRIBE_GROUP,
        s("test") + s("g1"),
        [(ListGroups, {"address": "test", "group": "g1"}, Groups([GROUP]))],
        GROUP_BYTES,
    ),
    Row(
        Op.GET_LAG,
        AT,
        [
            (ReadOffset, {"address": "test"}, GroupOffset(43, True, 0, 50)),
            (DescribeTopics, {"address": "test"}, Topics([TopicInfo("test", [PartitionInfo(0, 0, 50)])])),
        ],
        u64(43) + u64(43) + u64(50) + u64(7),
    ),
    Row(Op.DELETE_GROUP, s("test") + s("g1"), [(DeleteGroup, {"address": "test", "group": "g1"}, DONE)], SHORT_FLAG),
    Row(
        Op.SEEK_TO_TIMESTAMP,
        AT + i64(1705123456000),
        [(OffsetForTime, {"address": "test", "partition": 0, "timestamp_ms": 1705123456000}, Offset(9))],
        u64(9),
    ),
    Row(
        Op.AUTH,
        s("admin") + s("secret"),
        [(Authenticate, {"username": "admin", "password": "secret"}, Identity(True, "admin", ["admin"]))],
        {
            AUTO: YES + bytes(10),  # FlyMQ wire 2.3
            DOCUMENT: YES + s("") + s("admin") + array([s("admin")]),  # FlyMQ document, AUTH
            STOCK: YES + s("admin") + array([s8("admin")]) + s(""),  # FlyMQ wire 2.4, AUTH ok
        },
        replies_as=Op.AUTH_RESPONSE,
    ),
    Row(
        Op.WHOAMI,
        b"",
        [(WhoAmI, {}, Identity(True, "alice", ["producer"], ["write"]))],
        {
            AUTO: YES + s("alice") + bytes(8) + YES + s("alice") + array([s("producer")]) + array([s("write")]),
            DOCUMENT: YES + s("alice") + array([s("producer")]) + array([s("write")]),
            STOCK: YES + s("alice") + bytes(8) + YES + s("alice") + array([s("producer")]) + array([s("write")]),
        },
    ),
    Row(
        Op.USER_CREATE,
        s("alice") + s("pw") + s("") + array([s("producer")]) + YES,
        [(CreateUser, {"name": "alice", "password": "pw", "roles": ["producer"]}, Users([ALICE]))],
        ALICE_BYTES,
    ),
    Row(Op.USER_DELETE, s("alice"), [(DeleteUser, {"name": "alice"}, DONE)], YES + s("alice")),
    Row(
        Op.USER_UPDATE,
        s("alice") + s("") + s("") + array([]) + NO,
        [(UpdateUser, {"name": "alice", "roles": [], "enabled": False}, DONE)],
        YES + s("alice"),
    ),
    Row(Op.USER_LIST, b"", [(GetUsers, {"name": ""}, Users([ALICE]))], array([ALICE_BYTES])),
    Row(Op.USER_GET, s("alice"), [(GetUsers, {"name": "alice"}, Users([ALICE]))], ALICE_BYTES),
    Row(
        Op.ACL_SET,
        s("t") + NO + array([s("alice")]) + array([s("consumer")]),
        [(SetAcl, {"acl": Acl("t", True, False, ["alice"], ["consumer"])}, DONE)],
        YES + s("t"),
    ),
    Row(
        Op.ACL_GET,
        s("t"),
        [(GetAcls, {"address": "t"}, Acls([], True))],
        s("t") + NO + NO + YES + array([]) + array([]),
    ),
    Row(Op.ACL_DELETE, s("t"), [(DeleteAcl, {"address": "t"}, DONE)], YES + s("t")),
    Row(
        Op.ACL_LIST,
        b"",
        [(GetAcls, {"address": ""}, Acls([Acl("pub", True, True)], False))],
        array([s("pub") + YES + YES + array([]) + array([])]) + NO,
    ),
    Row(
        Op.PASSWORD_CHANGE,
        s("alice") + s("new") + s("old") + array([]) + NO,
        [(ChangePassword, {"name": "alice", "new_password": "new", "old_password": "old"}, DONE)],
        YES + s("alice"),
    ),
    Row(
        Op.ROLE_LIST,
        b"",
        [(GetRoles, {}, Roles([BuiltInRole("admin", ["read", "write"], "all")]))],
        array([s("admin") + array([s("read"), s("write")]) + s("all")]),
    ),
]

CASES = [(row, dialect) for row in ROWS for dialect in row.dialects]


@pytest.mark.parametrize(("row", "dialect"), CASES, ids=[f"{row.op.name}-{d.value}" for row, d in CASES])
def test_transcript(row: Row, dialect: Dialect) -> None:
    script = server(dialect).feed(fr(row.op, row.request))
    for kind, fields, outcome in row.exchanges:
        asked = script.expect(kind)
        assert {name: getattr(asked, name) for name in fields} == fields
        script.complete(asked, outcome)
    answer = row.answer if isinstance(row.answer, bytes) else row.answer[dialect]
    script.sends(fr(row.replies_as or row.op, answer)).quiet()
    assert script.session.in_flight == 0


@pytest.mark.parametrize(("row", "dialect"), CASES, ids=[f"{row.op.name}-{d.value}" for row, d in CASES])
def test_refusal_of_the_first_step_is_an_error_frame(row: Row, dialect: Dialect) -> None:
    """Whatever is refused, the connection goes on and the next request is answered."""
    from gateway.errors import StoreReadOnly

    script = server(dialect).feed(fr(row.op, row.request))
    script.complete(script.asked.popleft(), StoreReadOnly("no space"))
    sent = script.sent()
    assert sent[2] == Op.ERROR
    assert b"storage is read-only: no space" in sent
    script.feed(fr(Op.LIST_TOPICS)).answer(DescribeTopics, Topics([])).sends(fr(Op.LIST_TOPICS, u32(0))).quiet()


def test_every_operation_has_a_transcript_in_every_dialect() -> None:
    """51 operations of the document beside ERROR, of which AUTH_RESPONSE only answers, and 0x53."""
    asked = set(Op) - {Op.AUTH_RESPONSE, Op.ERROR}
    assert len(asked) == 51
    assert {(row.op, dialect) for row, dialect in CASES} == {
        (op, dialect) for op in asked for dialect in DOCUMENT_OR_STOCK
    }
    assert set(OPERATIONS) | {Op.PRODUCE} == asked
