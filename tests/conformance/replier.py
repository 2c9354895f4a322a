"""A plausible answer to every request there is, so that any session can be driven without a broker."""

from __future__ import annotations

from gateway import requests as r
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.requests import Outcome, Request

META = BatchMeta(b"0123456789abcdef", Origin("toy", "toy"), "route")
SCHEMA = r.SchemaInfo("orders", 1, r.SchemaKind.JSON, b"{}")
USER = r.UserInfo("alice", ("producer",), ("write",), True, 1, 2)


def run(values: list[bytes], base: int = 0) -> Run:
    """A run as the log would give it."""
    return Run("orders", 0, base, Columns.of(values), [1_700_000_000_000] * len(values), [(0, 0, META)])


class Replier:
    """A broker in good health, that counts offsets: however a producer's frames were batched, they get the same ones."""

    def __init__(self) -> None:
        self._next = 41

    def __call__(self, request: Request) -> Outcome:
        """The answer to a request."""
        if isinstance(request, r.Publish) and not (request.transaction or request.delay_ms or request.deliver_at_ms):
            base, self._next = self._next, self._next + request.batch.columns.count
            return r.Published(request.batch.address, 1_700_000_000_000, 0, base)
        return reply(request)


def reply(request: Request) -> Outcome:
    """What such a broker says, whatever it said before: every batch lands at the same place."""
    match request:
        case r.Publish(transaction=t) if t:
            return r.Published(request.batch.address, 1, 0, 0)
        case r.Publish() if request.delay_ms or request.deliver_at_ms:
            return r.Delayed(1, [f"1:{i}" for i in range(request.batch.columns.count)])
        case r.Publish():
            return r.Published(request.batch.address, 1_700_000_000_000, 0, 41)
        case r.Begin():
            return r.Begun("txn-1")
        case r.Subscribe():
            return r.Subscribed(2, request.address, 0)
        case r.Take():
            return r.Taken([r.Delivered(run([b"hello"]), 1)], address="orders", acknowledge=True)
        case r.Settle():
            return r.Settled([None] * len(request.tags))
        case r.Fetch():
            return r.Fetched([run([b"hello", b"world"], request.offset)], request.offset + 2, 0, request.offset + 2)
        case r.ReadOffset():
            return r.GroupOffset(7, True, 0, 9)
        case r.ListGroups():
            return r.Groups([r.GroupInfo("orders", "g", 1, [(0, 7)])])
        case r.CreateTopic():
            return r.TopicCreated(True, max(1, request.partitions))
        case r.DescribeTopics():
            return r.Topics([r.TopicInfo(request.address or "orders", [r.PartitionInfo(0, 0, 9)])])
        case r.Profile():
            return r.Profiles([r.AddressProfile(address, True, True, True) for address in request.addresses])
        case r.OffsetForTime():
            return r.Offset(3)
        case r.CacheGet():
            return r.CacheValue(b"cached")
        case r.RegisterSchema() | r.GetSchemas():
            return r.Schemas([SCHEMA])
        case r.ValidateSchema():
            return r.Validation(())
        case r.ReadDeadLetters():
            letter = r.DeadLetter("0:1", Columns.of([b"x"]), "max_deliveries", 3, "a", "b", "orders")
            return r.DeadLetters([letter])
        case r.Authenticate() | r.WhoAmI():
            return r.Identity(True, "alice", ("producer",), ("write",))
        case r.CreateUser() | r.GetUsers():
            return r.Users([USER])
        case r.GetAcls():
            return r.Acls([r.Acl(request.address or "orders", True, True)], True)
        case r.GetRoles():
            return r.Roles([r.BuiltInRole("admin", ("read", "write", "admin"), "everything")])
        case r.ClusterJoin() | r.ClusterLeave():
            return r.ClusterAnswer(True, "ok")
        case r.ClusterStatus():
            return r.Cluster("gateway", [r.Member("gateway", "127.0.0.1:9092", True, True)])
        case r.ReadTotals():
            return r.Totals()
        case _:
            return r.DONE
