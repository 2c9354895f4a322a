"""Both roles joined: what a client session is asked arrives at the broker as the same request, and the reply comes back
the same, whatever dialect the listener speaks. What the wire cannot carry is named here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway import requests as r
from gateway.envelope import Batch, Columns
from gateway.errors import Denied, Status, TargetRefused, UnknownTopic
from gateway.protocols.flymq.client.session import FlymqClient
from gateway.requests import DONE, Outcome, Reply, Request
from gateway.settings import DOCUMENT_OR_STOCK, Dialect
from gateway.wire.session import ClientContext
from tests.protocols.flymq.made import server
from tests.protocols.script import ClientScript, Script


class Pair:
    """A client and a server session with the wire between them, and a broker that answers as told."""

    def __init__(self, dialect: Dialect) -> None:
        self.server: Script = server(dialect)
        self.client = ClientScript(FlymqClient(ClientContext(dialect=dialect)))
        self.asked: list[Request] = []

    def ask(self, request: Request, *answers: Outcome) -> Outcome:
        """Submit a request; the broker gives these answers, one after the other."""
        left = list(answers)
        self.client.submit(request)
        while not self.client.completions:
            data = self.client.sent()
            assert data or self.server.asked, f"nothing moves; asked so far: {self.asked}"
            if data:
                self.server.feed(data)
            while self.server.asked:
                asked = self.server.asked.popleft()
                self.asked.append(asked)
                self.server.complete(asked, left.pop(0) if len(left) > 1 else left[0])
            answer = self.server.sent()
            if answer:
                self.client.feed(answer)
        number, outcome = self.client.completions.popleft()
        assert number == request.id
        self.client.quiet()
        return outcome


MESSAGES = Batch("t", Columns.of([b"a", b"b"], [b"k", None]))
ONE = Batch("t", Columns.of([b"{}"]))
ALICE = r.UserInfo("alice", ["producer"], ["write"], True, 5, 6)
SCHEMA = r.SchemaInfo("orders", 2, r.SchemaKind.AVRO, b"def", "backward")
GROUP = r.GroupInfo("t", "g", 3, [(0, 5), (2, 9)])
ACL = r.Acl("t", True, True, ["alice"], ["admin"])
TOPIC = r.TopicInfo("t", [r.PartitionInfo(0, 2, 9)])
CLUSTER = r.Cluster("c", [r.Member("node1", "h:1", True, True), r.Member("node2", "h:2", False, False)])

SAME: list[tuple[Request, Reply]] = [
    (r.Publish(5, MESSAGES), r.Published("t", 77, 1, 30)),
    (r.Publish(5, ONE, transaction="x"), r.Published("t", 77, scattered=[(0, 0)])),
    (r.Publish(5, ONE, schema="orders"), r.Published("t", 77, scattered=[(1, 4)])),
    (r.Publish(5, ONE, ttl_ms=1000), r.Published("t", 77, scattered=[(1, 4)])),
    (r.Publish(5, ONE, delay_ms=1000), r.Delayed(77, ["d-1"])),
    (r.CancelDelayed(5, "t", "d-1"), DONE),
    (r.Begin(5), r.Begun("txn-1")),
    (r.Commit(5, "txn-1"), DONE),
    (r.Rollback(5, "txn-1"), DONE),
    (r.CommitOffset(5, "t", "g", 1, 9), DONE),
    (r.ReadOffset(5, "t", "g", 1), r.GroupOffset(None, False)),
    (r.ListGroups(5), r.Groups([GROUP])),
    (r.DeleteGroup(5, "t", "g"), DONE),
    (r.CreateTopic(5, "t", 3), r.TopicCreated(True, 3)),
    (r.DeleteTopic(5, "t"), DONE),
    (r.DescribeTopics(5, "t"), r.Topics([TOPIC])),
    (r.OffsetForTime(5, "t", 0, 123), r.Offset(7)),
    (r.RegisterSchema(5, "orders", "avro", b"def"), r.Schemas([SCHEMA])),
    (r.GetSchemas(5, "orders", 2), r.Schemas([SCHEMA])),
    (r.ValidateSchema(5, "orders", b"x"), r.Validation(["wrong", "also"])),
    (r.ValidateSchema(5, "orders", b"x"), r.Validation(())),
    (r.DeleteSchema(5, "orders", 2), DONE),
    (r.ReplayDeadLetter(5, "t", "0:4"), DONE),
    (r.PurgeDeadLetters(5, "t"), DONE),
    (r.CreateUser(5, "alice", "pw", ["producer"]), r.Users([ALICE])),
    (r.UpdateUser(5, "alice", ["consumer"], False), DONE),
    (r.DeleteUser(5, "alice"), DONE),
    (r.ChangePassword(5, "alice", "new", "old"), DONE),
    (r.GetUsers(5, "alice"), r.Users([ALICE])),
    (r.GetUsers(5), r.Users([ALICE, ALICE])),
    (r.SetAcl(5, ACL), DONE),
    (r.DeleteAcl(5, "t"), DONE),
    (r.GetAcls(5), r.Acls([ACL], True)),
    (r.GetAcls(5, "t"), r.Acls([ACL], False)),
    (r.GetRoles(5), r.Roles([r.BuiltInRole("admin", ["read"], "all")])),
    (r.ClusterJoin(5, "h:1"), r.ClusterAnswer(True, "joined")),
    (r.ClusterLeave(5), r.ClusterAnswer(False, "the last member stays")),
    (r.WhoAmI(5), r.Identity(True, "alice", ["producer"], ["write"])),
    (r.Fetch(5, "t", 0, 9, 10, 1 << 20), r.Fetched([], 9, 0, 9)),
]
FREE = {"id", "max_bytes", "record_overhead", "version", "must_exist"}
"""Fields that do not travel, or say the same in other words."""


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
@pytest.mark.parametrize(("request_", "reply"), SAME, ids=lambda value: type(value).__name__)
def test_the_same_request_and_the_same_reply(request_: Request, reply: Reply, dialect: Dialect) -> None:
    pair = Pair(dialect)
    outcome = pair.ask(request_, reply)
    assert _plain(outcome) == _plain(reply)
    asked = pair.asked[0]
    assert type(asked) is type(request_)
    for field in msgspec.structs.fields(request_):
        if field.name not in FREE and field.name != "batch":
            assert _plain(getattr(asked, field.name)) == _plain(getattr(request_, field.name)), field.name
    if isinstance(request_, r.Publish) and isinstance(asked, r.Publish):
        assert asked.batch.columns.values() == request_.batch.columns.values()
        if not (request_.transaction or request_.schema or request_.delay_ms or request_.ttl_ms):
            assert asked.batch.columns.keys == request_.batch.columns.keys


def _plain(value: Any) -> Any:
    """Sequences of whatever kind, compared by what is in them."""
    if isinstance(value, msgspec.Struct):
        return type(value), {name: _plain(item) for name, item in msgspec.structs.asdict(value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
def test_the_requests_that_take_several_questions(dialect: Dialect) -> None:
    pair = Pair(dialect)
    topics = r.Topics([TOPIC])
    assert pair.ask(r.DescribeTopics(1), topics) == topics
    listed = r.Schemas([SCHEMA])
    assert pair.ask(r.GetSchemas(2), listed) == listed
    status = pair.ask(r.ClusterStatus(3), CLUSTER, topics)
    assert status == CLUSTER
    letter = r.DeadLetter("0:4", Columns.of([b"v"]), "retries", 3, "first", "last", "t")
    letters = pair.ask(r.ReadDeadLetters(4, "t", 5), r.DeadLetters([letter]))
    assert isinstance(letters, r.DeadLetters)
    assert (letters.letters[0].id, letters.letters[0].attempts, letters.letters[0].last_error) == ("0:4", 3, "last")
    assert letters.letters[0].columns.values() == [b"v"]
    assert pair.ask(r.JoinGroup(6, "t", "g"), topics, r.GroupOffset(None, False), DONE) == DONE
    assert type(pair.asked[-1]) is r.JoinGroup


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
@pytest.mark.parametrize(
    ("request_", "error", "status"),
    [
        (r.Publish(5, MESSAGES), Denied(), Status.DENIED),
        (r.CreateTopic(5, "t"), Denied(), Status.DENIED),
        (r.Fetch(5, "t", 0, 0, 1, 1), UnknownTopic(), Status.NOT_FOUND),
        (r.DescribeTopics(5, "t"), UnknownTopic(), Status.NOT_FOUND),
        (r.CancelDelayed(5, "t", "x"), UnknownTopic(), Status.NOT_FOUND),
    ],
)
def test_a_refusal_keeps_its_status(request_: Request, error: Denied, status: Status, dialect: Dialect) -> None:
    outcome = Pair(dialect).ask(request_, error)
    assert isinstance(outcome, TargetRefused)
    assert outcome.refusal is status


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
def test_a_reader_over_the_wire(dialect: Dialect) -> None:
    from gateway.envelope import BatchMeta, Origin, Run

    pair = Pair(dialect)
    topics = r.Topics([TOPIC])
    subscribed = pair.ask(
        r.Subscribe(1, "t", name="g", start=r.Start.EARLIEST, acknowledge=True),
        topics,
        DONE,
        topics,
        r.GroupOffset(None, False),
    )
    assert isinstance(subscribed, r.Subscribed)
    run = Run("t", 0, 2, Columns.of([b"a", b"b"], [b"k", None]), [1, 1], ((0, 0, BatchMeta(b"", Origin("a", "b"))),))
    taken = pair.ask(r.Take(2, subscribed.subscription, 10), r.Fetched([run], 4, 0, 9))
    assert isinstance(taken, r.Taken)
    (delivered,) = taken.deliveries
    assert delivered.run.columns.values() == [b"a", b"b"]
    assert delivered.run.columns.keys == [b"k", None]
    assert (delivered.run.base_offset, delivered.run.partition) == (2, 0)
    settled = pair.ask(r.Settle(3, subscribed.subscription, [delivered.first_tag, delivered.first_tag + 1]), DONE)
    assert settled == r.Settled([None, None])
    commit = pair.asked[-1]
    assert isinstance(commit, r.CommitOffset)
    assert (commit.group, commit.offset) == ("g", 4)


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
def test_a_groups_offset_comes_with_the_end_of_its_log(dialect: Dialect) -> None:
    kept = r.GroupOffset(9, True, 0, 12)
    bounds = r.Topics([r.TopicInfo("t", [r.PartitionInfo(1, 0, 12)])])
    assert Pair(dialect).ask(r.ReadOffset(5, "t", "g", 1), kept, bounds) == kept
