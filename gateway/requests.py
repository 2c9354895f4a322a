"""What sessions ask of the broker, and what it answers: plain values, no behaviour.

A session numbers its requests; the broker answers each id exactly once, with the reply named in the request's docstring
or with a GatewayError. `Cancel` ends a waiting request early (it is still answered: with what it has so far). Client
sessions take the same requests and give the same replies, so a bridge hands values from one side to the other.

Addresses are what clients call a destination; only the broker knows topics.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.envelope import Batch, Columns, Run
from gateway.errors import GatewayError


class Request(msgspec.Struct, frozen=True, tag=True):
    """Root of all requests. What one is says its name, where it is told to another gateway."""

    id: int


class Write(Request, frozen=True):
    """Root of the requests that change the log or a table. Reads wait for earlier writes of their connection."""


# --- writing ---


class Publish(Write, frozen=True, gc=False):
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


class Published(msgspec.Struct, frozen=True):
    """Where the messages went. `refused` names the members of the batch that were not taken, by index."""

    topic_address: str
    timestamp_ms: int
    partition: int = 0
    base_offset: int = 0
    scattered: Sequence[tuple[int, int]] | None = None
    """(partition, offset) per message, when they did not all go to one partition or some were refused."""
    refused: Mapping[int, GatewayError] = msgspec.field(default_factory=dict)

    def position(self, index: int) -> tuple[int, int]:
        """(partition, offset) of one message of the batch."""
        if self.scattered is not None:
            return self.scattered[index]
        return self.partition, self.base_offset + index


class Delayed(msgspec.Struct, frozen=True):
    """The messages wait for their time; `ids` cancel them."""

    timestamp_ms: int
    ids: Sequence[str]
    """One for each message; empty for one that is not kept (refused or filtered)."""
    refused: Mapping[int, GatewayError] = msgspec.field(default_factory=dict)


class CancelDelayed(Write, frozen=True):
    """Take a delayed message back -> Done, or NotFound once it has fired."""

    address: str
    delayed_id: str


class Begin(Write, frozen=True):
    """Open a transaction of this connection -> Begun."""

    timeout: float | None = None


class Begun(msgspec.Struct, frozen=True):
    """The transaction's id."""

    transaction: str


class Commit(Write, frozen=True):
    """Append everything the transaction holds, in one unit -> Done, Conflict for an id that is not open here."""

    transaction: str


class Rollback(Write, frozen=True):
    """Forget everything the transaction holds -> Done."""

    transaction: str


class Done(msgspec.Struct, frozen=True):
    """It is done."""


DONE = Done()


# --- reading ---


class Start(enum.Enum):
    """Where a reader begins when it has no position yet."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Redelivery(msgspec.Struct, frozen=True, gc=False):
    """What happens to a delivery that nobody acknowledges, or that is refused."""

    max_deliveries: int = 16
    first_delay: float = 0.1
    longest_delay: float = 30.0
    unanswered: bool = True
    """False: as long as its client is there, only what is refused is handed out again."""


class Subscribe(Request, frozen=True, gc=False):
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


class Subscribed(msgspec.Struct, frozen=True):
    """The subscription's number (unique in this gateway's life on this store, never below 2) and where it begins."""

    subscription: int
    address: str
    next_offset: int = 0
    """The first offset it will see, for topics of one partition."""
    lasting_offsets: bool = False
    """An offset is worth remembering: one partition, which is on disk."""


class Resume(Request, frozen=True):
    """Go on with a subscription of an earlier connection -> Subscribed. For client sessions of brokers that keep one under
    the number they gave out; they cannot say whether it is still there.
    """

    subscription: int
    address: str


class Unsubscribe(Request, frozen=True):
    """End a subscription and forget its cursor if it has no name -> Done."""

    subscription: int


class Take(Request, frozen=True):
    """Take what a subscription has next -> Taken.

    Answers as soon as there is one message; waits until `hold_until` (the clock of `now`) for it, and answers empty then.
    `hold_until=None` does not wait; `math.inf` waits until cancelled.
    """

    subscription: int
    max_messages: int
    max_bytes: int = 1 << 20
    hold_until: float | None = None
    at_most_once_settled: bool = False
    """Nobody will acknowledge what was published at most once: it is settled when it is handed out, as far as that can be."""


class Delivered(msgspec.Struct, frozen=True):
    """A run handed out by a subscription. `first_tag + i` names record i when the subscription acknowledges."""

    run: Run
    first_tag: int = 0
    attempt: int = 1
    settled: bool = False
    """It is done with: no tag of it is known."""


class Taken(msgspec.Struct, frozen=True):
    """What a subscription handed out, in order; empty when nothing came in time. `ended`: the topic is gone.

    Whoever takes need not be who subscribed, so the reply says what the subscriber asked for: its address (never the
    topic behind it) and whether it acknowledges.
    """

    deliveries: Sequence[Delivered]
    ended: bool = False
    address: str = ""
    acknowledge: bool = False


class Settle(Request, frozen=True):
    """Acknowledge (or refuse, with `accepted=False`) tags of a subscription -> Settled. Any connection may."""

    subscription: int
    tags: Sequence[int]
    accepted: bool = True
    tried: bool = True
    """False, of what is not accepted: given back as it came, which is no attempt and waits for nothing."""


class Settled(msgspec.Struct, frozen=True):
    """One entry per tag, in order: None, or why it could not be settled."""

    results: Sequence[GatewayError | None]


Sieve = Callable[[Sequence[Run]], tuple[Sequence[Run], int | None]]
"""Records -> those that are wanted, and where to read on if not all were looked at."""


class Fetch(Request, frozen=True):
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


class Fetched(msgspec.Struct, frozen=True):
    """What was read. Runs are contiguous but for expired records; `next_offset` is where to read on."""

    runs: Sequence[Run]
    next_offset: int
    log_start: int
    log_end: int


class Cancel(Request, frozen=True):
    """End a waiting Take or Fetch of this connection now -> Done; the waiting one answers with what it has."""

    request: int


class Pause(Request, frozen=True):
    """Let others have the event loop -> Done, in a later pass of it. For work of a session's own that takes long: it is done
    in slices.
    """


# --- groups ---


class CommitOffset(Write, frozen=True):
    """Remember the next offset a group will read -> Done. `must_exist`: the topic and partition have to."""

    address: str
    group: str
    partition: int
    offset: int
    must_exist: bool = False
    reset: bool = False
    """An operator moves the group, not one of its members: needs the right to administer."""


class ReadOffset(Request, frozen=True):
    """-> GroupOffset."""

    address: str
    group: str
    partition: int


class GroupOffset(msgspec.Struct, frozen=True):
    """What a group has committed (None: nothing there), and whether the group exists at all on the topic."""

    offset: int | None
    group_exists: bool
    log_start: int = 0
    log_end: int = 0


class JoinGroup(Request, frozen=True):
    """Count this connection as a member of a group until it closes -> Done."""

    address: str
    group: str


class ListGroups(Request, frozen=True):
    """-> Groups, a page of them, sorted by topic and name. An empty address means any; an empty group means all."""

    address: str = ""
    group: str = ""
    after: tuple[str, str] | None = None
    """Go on where a page ended (`Groups.following`)."""


class GroupInfo(msgspec.Struct, frozen=True):
    """One group on one topic."""

    address: str
    group: str
    members: int
    offsets: Sequence[tuple[int, int]]
    """(partition, committed offset), ascending."""


class Groups(msgspec.Struct, frozen=True):
    """The groups asked for, or the first of them."""

    groups: Sequence[GroupInfo]
    following: tuple[str, str] | None = None
    """Where to go on, if there are more; None at the end."""


class ResetTo(enum.Enum):
    """Where a group or a durable consumer is put."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


class PositionReset(msgspec.Struct, frozen=True, kw_only=True):
    """Put a reader elsewhere on a topic, on one partition or on all. `value` is an offset, or a time in milliseconds."""

    topic: str
    to: ResetTo
    value: int = 0
    partition: int | None = None
    dry_run: bool = False
    force: bool = False
    """Although connections read there now."""


class GroupReset(PositionReset, frozen=True, kw_only=True):
    """Put a consumer group elsewhere."""

    group: str


class ConsumerReset(PositionReset, frozen=True, kw_only=True):
    """Put a subscription, a named reader or a forward elsewhere."""

    kind: str
    """`subscription`, `reader` or `forward`."""
    name: str
    """A subscription's is its number."""


class GroupMove(msgspec.Struct, frozen=True):
    """Where a group was on a partition (None: nowhere), and where it is."""

    partition: int
    before: int | None
    after: int
    start: int
    end: int
    lag: int
    """Messages it will read; at most so many, where some offsets have none, and so are the others."""
    skipped: int | None = None
    """Messages that it had not committed and will not read; None where it was nowhere."""
    repeated: int | None = None
    """Messages that it had committed and reads again."""


class ConsumerMove(msgspec.Struct, frozen=True):
    """Where a durable consumer was on a partition, and where it is. Where a log has offsets without a message, skipped and
    repeated count offsets.
    """

    partition: int
    before: int
    """The first offset that was not settled."""
    after: int
    start: int
    end: int
    skipped: int
    """Not settled, and now passed over."""
    repeated: int
    """Settled, or before where it began; they come again."""
    backlog: int
    """What it has before it now."""


class ConsumerMoved(msgspec.Struct, frozen=True):
    """By partition, where a durable consumer is that was put elsewhere."""

    moves: Sequence[ConsumerMove]


class DeleteGroup(Write, frozen=True):
    """-> Done; UnknownGroup if it does not exist. An empty address deletes it on every topic."""

    address: str
    group: str


# --- topics ---


class CreateTopic(Write, frozen=True):
    """-> TopicCreated. What exists is kept as it is."""

    address: str
    partitions: int = 1


class TopicCreated(msgspec.Struct, frozen=True):
    """`created` is False when it was there already."""

    created: bool
    partitions: int


class DeleteTopic(Write, frozen=True):
    """-> Done, UnknownTopic. Refused (Conflict) while a forward has not delivered everything."""

    address: str


class DescribeTopics(Request, frozen=True):
    """-> Topics: one address, or a page of all that this listener can name when it is empty, sorted by what they are called
    in the log (where that is their address: by its bytes).
    """

    address: str = ""
    after: str = ""
    """Go on where a page ended (`Topics.following`)."""


class PartitionInfo(msgspec.Struct, frozen=True):
    """[start, end) of one partition."""

    id: int
    start: int
    end: int


class TopicInfo(msgspec.Struct, frozen=True):
    """A topic as a client sees it."""

    address: str
    partitions: Sequence[PartitionInfo]


class Topics(msgspec.Struct, frozen=True):
    """The topics asked for, or the first of them."""

    topics: Sequence[TopicInfo]
    following: str = ""
    """Where to go on, if there are more; None at the end."""


class Profile(Request, frozen=True):
    """-> Profiles: what the caller may do at these addresses, and what an acknowledgement means there."""

    addresses: Sequence[str]


class AddressProfile(msgspec.Struct, frozen=True):
    """One address. Its topic need not be there yet."""

    address: str
    readable: bool
    writable: bool
    durable: bool
    """Whether what is acknowledged is on a disk."""


class Profiles(msgspec.Struct, frozen=True):
    """Those that lead to a topic, in the order they were asked for."""

    profiles: Sequence[AddressProfile]


class OffsetForTime(Request, frozen=True):
    """The first offset at or after a time -> Offset (the log's end if there is none)."""

    address: str
    partition: int
    timestamp_ms: int


class Offset(msgspec.Struct, frozen=True):
    offset: int


# --- cache (Felix) ---


class CachePut(Write, frozen=True):
    """Keep a value under a key for a time -> Done. `cache` is the full name (tenant/namespace/cache)."""

    cache: str
    key: str
    value: bytes
    ttl_ms: int | None = None
    create: bool = True
    durable: bool = False
    """Stored before it is answered, and back after a restart."""


class CacheGet(Request, frozen=True):
    """-> CacheValue."""

    cache: str
    key: str
    create: bool = True


class CacheValue(msgspec.Struct, frozen=True):
    """None where the cache has nothing under this key, or it has expired."""

    value: bytes | None


# --- schemas ---


class SchemaKind(enum.Enum):
    """The schema languages."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class SchemaInfo(msgspec.Struct, frozen=True):
    """One version of a schema."""

    name: str
    version: int
    kind: SchemaKind
    definition: bytes
    compatibility: str = "backward"


class RegisterSchema(Write, frozen=True):
    """-> Schemas with the one that was registered; Conflict if it breaks compatibility."""

    name: str
    kind: str
    definition: bytes


class GetSchemas(Request, frozen=True):
    """-> Schemas: all versions of a name (all names when empty), or one version (0 = the latest)."""

    name: str = ""
    version: int | None = None


class Schemas(msgspec.Struct, frozen=True):
    schemas: Sequence[SchemaInfo]


class ValidateSchema(Request, frozen=True):
    """-> Validation, against the latest version; an unknown schema accepts everything."""

    name: str
    value: bytes


class Validation(msgspec.Struct, frozen=True):
    """What is wrong with the value; empty when nothing is."""

    problems: Sequence[str]


class DeleteSchema(Write, frozen=True):
    """-> Done. Version 0 deletes all."""

    name: str
    version: int = 0


# --- dead letters ---


class ReadDeadLetters(Request, frozen=True):
    """-> DeadLetters of an address, oldest first."""

    address: str
    max_messages: int
    to_replay: bool = False
    """To find the one to publish again; the client sees none of them, so it needs the right to write, not to read."""


class DeadLetter(msgspec.Struct, frozen=True):
    """One message that could not be delivered. Its id is `partition:offset` in the dead-letter topic."""

    id: str
    columns: Columns
    reason: str
    attempts: int
    first_error: str
    last_error: str
    origin_topic: str


class DeadLetters(msgspec.Struct, frozen=True):
    letters: Sequence[DeadLetter]


class ReplayDeadLetter(Write, frozen=True):
    """Publish a dead letter to the topic it came from again -> Done."""

    address: str
    letter: str


class PurgeDeadLetters(Write, frozen=True):
    """-> Done."""

    address: str


# --- accounts ---


class Authenticate(Request, frozen=True):
    """Log this connection in, by what is set -> Identity, or Unauthenticated. A barrier for the session."""

    username: str = ""
    password: str = ""
    api_key: str | None = None
    token: str | None = None
    tenant: str = ""

    def __repr__(self) -> str:  # no secret gets into a log or a traceback
        return f"Authenticate(id={self.id}, username={self.username!r}, tenant={self.tenant!r})"


class WhoAmI(Request, frozen=True):
    """-> Identity."""


class Identity(msgspec.Struct, frozen=True):
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


class UserInfo(msgspec.Struct, frozen=True):
    """An account as others may see it."""

    name: str
    roles: Sequence[str]
    permissions: Sequence[str]
    enabled: bool
    created_s: int
    updated_s: int


class CreateUser(Write, frozen=True):
    """-> Users with the new one."""

    name: str
    password: str
    roles: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"CreateUser(id={self.id}, name={self.name!r}, roles={self.roles!r})"


class UpdateUser(Write, frozen=True):
    """Set roles and whether the account is enabled -> Done."""

    name: str
    roles: Sequence[str]
    enabled: bool


class DeleteUser(Write, frozen=True):
    """-> Done."""

    name: str


class ChangePassword(Write, frozen=True):
    """-> Done. For oneself with the old password; an admin may set others'."""

    name: str
    new_password: str
    old_password: str = ""

    def __repr__(self) -> str:
        return f"ChangePassword(id={self.id}, name={self.name!r})"


class GetUsers(Request, frozen=True):
    """-> Users: one, or all when the name is empty."""

    name: str = ""


class Users(msgspec.Struct, frozen=True):
    """The accounts asked for."""

    users: Sequence[UserInfo]


class Acl(msgspec.Struct, frozen=True):
    """Who may use a topic beside those whose roles allow it."""

    address: str
    exists: bool
    public: bool
    users: Sequence[str] = ()
    roles: Sequence[str] = ()


class SetAcl(Write, frozen=True):
    """-> Done."""

    acl: Acl


class DeleteAcl(Write, frozen=True):
    """-> Done, whether or not it existed."""

    address: str


class GetAcls(Request, frozen=True):
    """-> Acls: one, or all when the address is empty."""

    address: str = ""


class Acls(msgspec.Struct, frozen=True):
    """The ACLs asked for, and what holds for topics without one."""

    acls: Sequence[Acl]
    default_public: bool


class GetRoles(Request, frozen=True):
    """-> Roles."""


class BuiltInRole(msgspec.Struct, frozen=True):
    name: str
    permissions: Sequence[str]
    description: str


class Roles(msgspec.Struct, frozen=True):
    roles: Sequence[BuiltInRole]


# --- cluster and observation ---


class ClusterJoin(Write, frozen=True):
    """Add a peer gateway by its address -> ClusterAnswer."""

    peer: str


class ClusterLeave(Write, frozen=True):
    """Leave the cluster -> ClusterAnswer; the last member is refused."""


class ClusterAnswer(msgspec.Struct, frozen=True):
    """Whether it was done, and a sentence about it."""

    done: bool
    message: str


class ClusterStatus(Request, frozen=True):
    """-> Cluster."""


class Member(msgspec.Struct, frozen=True):
    """A gateway of the cluster and whether it answers."""

    id: str
    address: str
    healthy: bool
    is_self: bool


class Cluster(msgspec.Struct, frozen=True):
    """The gateways that know each other."""

    id: str
    members: Sequence[Member]


class ReadTotals(Request, frozen=True):
    """-> Totals."""


Quantiles = tuple[float, float, float]
"""Half, 95 and 99 of 100 took no longer, in seconds."""


class Totals(msgspec.Struct, frozen=True):
    """What the gateway has done since it started, over all listeners and topics together."""

    received: int = 0
    received_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    connections: int = 0
    held_back: int = 0
    """How often a peer was not read from because it did not read."""
    cut_off: int = 0
    """Peers that were closed because they did not read."""
    damaged: int = 0
    upkeep: Mapping[str, Upkeep] = {}
    """By what was done (`gateway.recorder.UPKEEP`)."""
    publishes: Quantiles = (0.0, 0.0, 0.0)
    fetches: Quantiles = (0.0, 0.0, 0.0)
    lag: int = 0
    """Messages behind what groups have committed."""


class Upkeep(msgspec.Struct, frozen=True):
    """Steps of one kind of the store's upkeep, and the chunks and bytes that they did away with."""

    steps: int = 0
    chunks: int = 0
    size: int = 0


Reply = (
    Published
    | Delayed
    | Begun
    | Done
    | Subscribed
    | Taken
    | Settled
    | ConsumerMoved
    | Fetched
    | GroupOffset
    | Groups
    | TopicCreated
    | Topics
    | Profiles
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
    | Totals
)
"""Every reply there is."""

Outcome = Reply | GatewayError
"""How a request ends."""

Completion = tuple[int, Outcome]
"""A request's id and how it ended."""
