"""What sessions ask of the broker, and what it answers: plain values, no behaviour.

A session numbers its requests; the broker answers each id exactly once, with the reply named in the request's docstring
or with a GatewayError. `Cancel` ends a waiting request early (it is still answered: with what it has so far). Client
sessions take the same requests and give the same replies, so a bridge hands values from one side to the other.

Addresses are what clients call a destination; only the broker knows topics.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from gateway.envelope import Batch, Columns, Run
from gateway.errors import GatewayError


@attrs.frozen
class Request:
    """Root of all requests."""

    id: int


@attrs.frozen
class Write(Request):
    """Root of the requests that change the log or a table. Reads wait for earlier writes of their connection."""


# --- writing ---


@attrs.frozen
class Publish(Write):
    """Append a batch -> Published (or Delayed, when `deliver_at_ms` is set)."""

    batch: Batch
    transaction: str = ""
    """Inside a transaction the reply comes at once, with offset 0."""
    deliver_at_ms: int = 0
    schema: str = ""
    """Validate against this schema as well as the topic's own."""
    delay_ms: int = 0
    """Like `deliver_at_ms`, counted from when the broker takes the request: sessions have no wall clock."""
    ttl_ms: int = 0
    """Every message of the batch expires this long after the broker took it (0: never); beside `Columns.expires`."""
    create: bool = True
    """False: the topic has to exist (UnknownTopic), and the partition in it (UnknownPartition)."""


@attrs.frozen
class Published:
    """Where the messages went. `refused` names the members of the batch that were not taken, by index."""

    topic_address: str
    timestamp_ms: int
    partition: int = 0
    base_offset: int = 0
    scattered: Sequence[tuple[int, int]] | None = None
    """(partition, offset) per message, when they did not all go to one partition or some were refused."""
    refused: Mapping[int, GatewayError] = attrs.Factory(dict)

    def position(self, index: int) -> tuple[int, int]:
        """(partition, offset) of one message of the batch."""
        if self.scattered is not None:
            return self.scattered[index]
        return self.partition, self.base_offset + index


@attrs.frozen
class Delayed:
    """The messages wait for their time; `ids` cancel them."""

    timestamp_ms: int
    ids: Sequence[str]
    """One for each message; empty for one that is not kept (refused or filtered)."""
    refused: Mapping[int, GatewayError] = attrs.Factory(dict)


@attrs.frozen
class CancelDelayed(Write):
    """Take a delayed message back -> Done, or NotFound once it has fired."""

    address: str
    delayed_id: str


@attrs.frozen
class Begin(Write):
    """Open a transaction of this connection -> Begun."""

    timeout: float | None = None


@attrs.frozen
class Begun:
    """The transaction's id."""

    transaction: str


@attrs.frozen
class Commit(Write):
    """Append everything the transaction holds, in one unit -> Done, Conflict for an id that is not open here."""

    transaction: str


@attrs.frozen
class Rollback(Write):
    """Forget everything the transaction holds -> Done."""

    transaction: str


@attrs.frozen
class Done:
    """It is done."""


DONE = Done()


# --- reading ---


class Start(enum.Enum):
    """Where a reader begins when it has no position yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


@attrs.frozen
class Redelivery:
    """What happens to a delivery that nobody acknowledges."""

    max_deliveries: int = 16
    first_delay: float = 0.1
    longest_delay: float = 30.0


@attrs.frozen
class Subscribe(Request):
    """Open a reader -> Subscribed.

    With a `name` the cursor is durable and shared by everyone who uses that name on that address; without one it is this
    subscription's own. `durable_grace` keeps a nameless subscription that many seconds after its connection is gone
    (BlipMQ); None ends it with the connection (Felix).
    `acknowledge=False`: what is handed out counts as delivered.
    """

    address: str
    name: str = ""
    start: Start | int = Start.LATEST
    """An int is an offset, for addresses of one partition."""
    acknowledge: bool = False
    redelivery: Redelivery | None = None
    durable_grace: float | None = None
    max_in_flight: int = 65_536
    largest_value: int | None = None
    """Values beyond this size cannot be carried: they go to the dead letters with reason `size`."""
    smallest_value: int = 0
    create: bool = True
    """False: the topic has to exist (UnknownTopic)."""


@attrs.frozen
class Subscribed:
    """The subscription's number (unique in this gateway's life on this store, never below 2) and where it begins."""

    subscription: int
    address: str
    next_offset: int = 0
    """The first offset it will see, for topics of one partition."""


@attrs.frozen
class Resume(Request):
    """Go on with a subscription of an earlier connection -> Subscribed. For client sessions of brokers that keep one under
    the number they gave out; they cannot say whether it is still there.
    """

    subscription: int
    address: str


@attrs.frozen
class Unsubscribe(Request):
    """End a subscription and forget its cursor if it has no name -> Done."""

    subscription: int


@attrs.frozen
class Take(Request):
    """Take what a subscription has next -> Taken.

    Answers as soon as there is one message; waits until `hold_until` (the clock of `now`) for it, and answers empty then.
    `hold_until=None` does not wait; `math.inf` waits until cancelled.
    """

    subscription: int
    max_messages: int
    max_bytes: int = 1 << 20
    hold_until: float | None = None


@attrs.frozen
class Delivered:
    """A run handed out by a subscription. `first_tag + i` names record i when the subscription acknowledges."""

    run: Run
    first_tag: int = 0
    attempt: int = 1


@attrs.frozen
class Taken:
    """What a subscription handed out, in order; empty when nothing came in time. `ended`: the topic is gone.

    Whoever takes need not be who subscribed, so the reply says what the subscriber asked for: its address (never the
    topic behind it) and whether it acknowledges.
    """

    deliveries: Sequence[Delivered]
    ended: bool = False
    address: str = ""
    acknowledge: bool = False


@attrs.frozen
class Settle(Request):
    """Acknowledge (or give back, with `accepted=False`) tags of a subscription -> Settled. Any connection may."""

    subscription: int
    tags: Sequence[int]
    accepted: bool = True


@attrs.frozen
class Settled:
    """One entry per tag, in order: None, or why it could not be settled."""

    results: Sequence[GatewayError | None]


Sieve = Callable[[Sequence[Run]], tuple[Sequence[Run], int | None]]
"""Records -> those that are wanted, and where to read on if not all were looked at."""


@attrs.frozen
class Fetch(Request):
    """Read an address by offset -> Fetched. Beyond the end: no runs, and `next_offset` = the offset asked for.

    Sessions that read for a group ask for its offset first (ReadOffset) and decide themselves.
    """

    address: str
    partition: int
    offset: int
    max_messages: int
    max_bytes: int
    hold_until: float | None = None
    record_overhead: int = 0
    """What each record costs against `max_bytes` beside its value."""
    value_limit: int | None = None
    """A record beyond this size cannot be carried: TooLarge at its offset, saying how to pass it."""
    allow_gaps: bool = True
    """False: the answer ends before the first expired record, for protocols that number records by position."""
    sieve: Sieve | None = None
    """Answer only with what it picks. It looks at the records beside the event loop."""


@attrs.frozen
class Fetched:
    """What was read. Runs are contiguous but for expired records; `next_offset` is where to read on."""

    runs: Sequence[Run]
    next_offset: int
    log_start: int
    log_end: int


@attrs.frozen
class Cancel(Request):
    """End a waiting Take or Fetch of this connection now -> Done; the waiting one answers with what it has."""

    request: int


# --- groups ---


@attrs.frozen
class CommitOffset(Write):
    """Remember the next offset a group will read -> Done. `must_exist`: the topic and partition have to."""

    address: str
    group: str
    partition: int
    offset: int
    must_exist: bool = False
    reset: bool = False
    """An operator moves the group, not one of its members: needs the right to administer."""


@attrs.frozen
class ReadOffset(Request):
    """-> GroupOffset."""

    address: str
    group: str
    partition: int


@attrs.frozen
class GroupOffset:
    """What a group has committed (None: nothing there), and whether the group exists at all on the topic."""

    offset: int | None
    group_exists: bool
    log_start: int = 0
    log_end: int = 0


@attrs.frozen
class JoinGroup(Request):
    """Count this connection as a member of a group until it closes -> Done."""

    address: str
    group: str


@attrs.frozen
class ListGroups(Request):
    """-> Groups. An empty address means any; an empty group means all."""

    address: str = ""
    group: str = ""


@attrs.frozen
class GroupInfo:
    """One group on one topic."""

    address: str
    group: str
    members: int
    offsets: Sequence[tuple[int, int]]
    """(partition, committed offset), ascending."""


@attrs.frozen
class Groups:
    """The groups asked for."""

    groups: Sequence[GroupInfo]


@attrs.frozen
class DeleteGroup(Write):
    """-> Done; UnknownGroup if it does not exist. An empty address deletes it on every topic."""

    address: str
    group: str


# --- topics ---


@attrs.frozen
class CreateTopic(Write):
    """-> TopicCreated. What exists is kept as it is."""

    address: str
    partitions: int = 1


@attrs.frozen
class TopicCreated:
    """`created` is False when it was there already."""

    created: bool
    partitions: int


@attrs.frozen
class DeleteTopic(Write):
    """-> Done, UnknownTopic. Refused (Conflict) while a forward has not delivered everything."""

    address: str


@attrs.frozen
class DescribeTopics(Request):
    """-> Topics: one address, or all that this listener can name when it is empty. Sorted by the bytes of the name."""

    address: str = ""


@attrs.frozen
class PartitionInfo:
    """[start, end) of one partition."""

    id: int
    start: int
    end: int


@attrs.frozen
class TopicInfo:
    """A topic as a client sees it."""

    address: str
    partitions: Sequence[PartitionInfo]


@attrs.frozen
class Topics:
    """The topics asked for."""

    topics: Sequence[TopicInfo]


@attrs.frozen
class OffsetForTime(Request):
    """The first offset at or after a time -> Offset (the log's end if there is none)."""

    address: str
    partition: int
    timestamp_ms: int


@attrs.frozen
class Offset:
    """An offset."""

    offset: int


# --- cache (Felix) ---


@attrs.frozen
class CachePut(Write):
    """Keep a value under a key for a time -> Done. `cache` is the full name (tenant/namespace/cache)."""

    cache: str
    key: str
    value: bytes
    ttl_ms: int | None = None
    create: bool = True
    durable: bool = False
    """Stored before it is answered, and back after a restart."""


@attrs.frozen
class CacheGet(Request):
    """-> CacheValue."""

    cache: str
    key: str
    create: bool = True


@attrs.frozen
class CacheValue:
    """None: there is nothing, or it has expired."""

    value: bytes | None


# --- schemas ---


class SchemaKind(enum.Enum):
    """The schema languages."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@attrs.frozen
class SchemaInfo:
    """One version of a schema."""

    name: str
    version: int
    kind: SchemaKind
    definition: bytes
    compatibility: str = "backward"


@attrs.frozen
class RegisterSchema(Write):
    """-> Schemas with the one that was registered; Conflict if it breaks compatibility."""

    name: str
    kind: str
    definition: bytes


@attrs.frozen
class GetSchemas(Request):
    """-> Schemas: all versions of a name (all names when empty), or one version (0 = the latest)."""

    name: str = ""
    version: int | None = None


@attrs.frozen
class Schemas:
    """The schemas asked for."""

    schemas: Sequence[SchemaInfo]


@attrs.frozen
class ValidateSchema(Request):
    """-> Validation, against the latest version; an unknown schema accepts everything."""

    name: str
    value: bytes


@attrs.frozen
class Validation:
    """What is wrong with the value; empty when nothing is."""

    problems: Sequence[str]


@attrs.frozen
class DeleteSchema(Write):
    """-> Done. Version 0 deletes all."""

    name: str
    version: int = 0


# --- dead letters ---


@attrs.frozen
class ReadDeadLetters(Request):
    """-> DeadLetters of an address, oldest first."""

    address: str
    max_messages: int


@attrs.frozen
class DeadLetter:
    """One message that could not be delivered. Its id is `partition:offset` in the dead-letter topic."""

    id: str
    columns: Columns
    reason: str
    attempts: int
    first_error: str
    last_error: str
    origin_topic: str


@attrs.frozen
class DeadLetters:
    """The dead letters asked for."""

    letters: Sequence[DeadLetter]


@attrs.frozen
class ReplayDeadLetter(Write):
    """Publish a dead letter to the topic it came from again -> Done."""

    address: str
    letter: str


@attrs.frozen
class PurgeDeadLetters(Write):
    """-> Done."""

    address: str


# --- accounts ---


@attrs.frozen
class Authenticate(Request):
    """Log this connection in, by what is set -> Identity, or Unauthenticated. A barrier for the session."""

    username: str = ""
    password: str = attrs.field(default="", repr=False)
    api_key: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    tenant: str = ""


@attrs.frozen
class WhoAmI(Request):
    """-> Identity."""


@attrs.frozen
class Identity:
    """Who this connection is."""

    authenticated: bool
    name: str = ""
    roles: Sequence[str] = ()
    permissions: Sequence[str] = ()
    auth_enabled: bool = True
    tenant: str = ""
    """The only tenant whose addresses it may name; empty: they are not divided."""
    expires_ms: int = 0
    """When the login ends (milliseconds since the epoch, 0 = never)."""


@attrs.frozen
class UserInfo:
    """An account as others may see it."""

    name: str
    roles: Sequence[str]
    permissions: Sequence[str]
    enabled: bool
    created_s: int
    updated_s: int


@attrs.frozen
class CreateUser(Write):
    """-> Users with the new one."""

    name: str
    password: str = attrs.field(repr=False)
    roles: Sequence[str] = ()


@attrs.frozen
class UpdateUser(Write):
    """Set roles and whether the account is enabled -> Done."""

    name: str
    roles: Sequence[str]
    enabled: bool


@attrs.frozen
class DeleteUser(Write):
    """-> Done."""

    name: str


@attrs.frozen
class ChangePassword(Write):
    """-> Done. For oneself with the old password; an admin may set others'."""

    name: str
    new_password: str = attrs.field(repr=False)
    old_password: str = attrs.field(default="", repr=False)


@attrs.frozen
class GetUsers(Request):
    """-> Users: one, or all when the name is empty."""

    name: str = ""


@attrs.frozen
class Users:
    """The accounts asked for."""

    users: Sequence[UserInfo]


@attrs.frozen
class Acl:
    """Who may use a topic beside those whose roles allow it."""

    address: str
    exists: bool
    public: bool
    users: Sequence[str] = ()
    roles: Sequence[str] = ()


@attrs.frozen
class SetAcl(Write):
    """-> Done."""

    acl: Acl


@attrs.frozen
class DeleteAcl(Write):
    """-> Done, whether or not it existed."""

    address: str


@attrs.frozen
class GetAcls(Request):
    """-> Acls: one, or all when the address is empty."""

    address: str = ""


@attrs.frozen
class Acls:
    """The ACLs asked for, and what holds for topics without one."""

    acls: Sequence[Acl]
    default_public: bool


@attrs.frozen
class GetRoles(Request):
    """-> Roles."""


@attrs.frozen
class Role:
    """A built-in role."""

    name: str
    permissions: Sequence[str]
    description: str


@attrs.frozen
class Roles:
    """All roles."""

    roles: Sequence[Role]


# --- cluster and observation ---


@attrs.frozen
class ClusterJoin(Write):
    """Add a peer gateway by its address -> ClusterAnswer."""

    peer: str


@attrs.frozen
class ClusterLeave(Write):
    """Leave the cluster -> ClusterAnswer; the last member is refused."""


@attrs.frozen
class ClusterAnswer:
    """Whether it was done, and a sentence about it."""

    done: bool
    message: str


@attrs.frozen
class ClusterStatus(Request):
    """-> Cluster."""


@attrs.frozen
class Member:
    """A gateway of the cluster and whether it answers."""

    id: str
    address: str
    healthy: bool
    is_self: bool


@attrs.frozen
class Cluster:
    """The gateways that know each other."""

    id: str
    members: Sequence[Member]


@attrs.frozen
class ReadMetrics(Request):
    """-> MetricsText."""


@attrs.frozen
class MetricsText:
    """The metrics in Prometheus' text format."""

    text: str


Reply = (
    Published
    | Delayed
    | Begun
    | Done
    | Subscribed
    | Taken
    | Settled
    | Fetched
    | GroupOffset
    | Groups
    | TopicCreated
    | Topics
    | Offset
    | CacheValue
    | Schemas
    | Validation
    | DeadLetters
    | Identity
    | Users
    | Acls
    | Roles
    | ClusterAnswer
    | Cluster
    | MetricsText
)
"""Every reply there is."""

Outcome = Reply | GatewayError
"""How a request ends."""

Completion = tuple[int, Outcome]
"""A request's id and how it ended."""
