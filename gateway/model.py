"""The configuration as values: what `routes.yaml` says once it has been read and found good.

Everything here is complete: defaults are filled in, names refer to things that exist, secrets are read. What the keys
are called in the file is in `gateway.config.grammar`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import attrs

from gateway.settings import Backoff, Dialect, Limits, Says, Seconds, Size, Transport
from gateway.store.interface import Durability
from gateway.wire.session import Credentials

# --- listeners ---


@attrs.frozen
class TlsNone:
    """No TLS."""


@attrs.frozen
class TlsSelfSigned:
    """A certificate for localhost, 127.0.0.1 and ::1 made at start, and for these names. It is one for all listeners."""

    names: Annotated[tuple[str, ...], Says("What it is for beside localhost, 127.0.0.1 and ::1.")] = ()


class ClientCert(enum.Enum):
    """Whether a client has to show a certificate when `client_ca` is given."""

    REQUIRED = "required"
    OPTIONAL = "optional"


@attrs.frozen
class TlsFiles:
    """A certificate from files (PEM)."""

    cert: Annotated[str, Says("The certificate and what leads from it to its authority (PEM).")]
    key: Annotated[str, Says("Its key (PEM).")]
    client_ca: Annotated[str, Says("The authorities of clients' certificates; without it none is asked for.")] = ""
    client_cert: Annotated[
        ClientCert,
        Says("Whether a client has to show a certificate, or may."),
    ] = ClientCert.REQUIRED


ListenerTls = TlsNone | TlsSelfSigned | TlsFiles


@attrs.frozen
class AuthOpen:
    """Anybody may connect, and whatever credentials they send are right."""


@attrs.frozen
class AuthNone:
    """No authentication on this listener."""


@attrs.frozen
class AuthKeys:
    """A client has to send one of these keys."""

    api_keys: Annotated[tuple[str, ...], Says("The keys, one of which a client has to send.")] = attrs.field(repr=False)


@attrs.frozen
class Administrator:
    name: Annotated[str, Says("What the administrator is called.")] = "admin"
    password: Annotated[str, Says("The administrator's password.")] = attrs.field(kw_only=True, repr=False)


@attrs.frozen
class AuthUsers:
    """Accounts in the store. The admin is created, or given this password, at start."""

    admin: Annotated[Administrator, Says("The administrator, who is made at start.")]


@attrs.frozen
class AuthJwt:
    """Tokens signed by one of these keys: `jwks` is the JSON text of a key set, `key` one key (PEM or shared secret)."""

    jwks: Annotated[str, Says("The JSON text of a key set.")] = attrs.field(default="", repr=False)
    key: Annotated[str, Says("One key: PEM, or a shared secret.")] = attrs.field(default="", repr=False)
    algorithms: Annotated[
        tuple[str, ...],
        Says("Which algorithms a signature may have."),
    ] = ("EdDSA", "RS256", "ES256")
    issuer: Annotated[str, Says("What `iss` has to be; anything, if this is not given.")] = ""
    audience: Annotated[str, Says("What `aud` has to be; anything, if this is not given.")] = ""
    leeway: Annotated[Seconds, Says("How far the clocks of gateway and issuer may be apart.")] = Seconds(30.0)
    principal_claim: Annotated[str, Says("The claim that says who it is.")] = "sub"
    tenant_claim: Annotated[str, Says("The claim that says whose it is.")] = "tid"
    permissions_claim: Annotated[str, Says("The claim with what is permitted.")] = "perms"


Auth = AuthOpen | AuthNone | AuthKeys | AuthUsers | AuthJwt


@attrs.frozen
class Listener:
    """A place where clients connect. Several protocols on one are told apart by their first bytes."""

    name: str
    protocols: Annotated[
        tuple[str, ...],
        Says("The protocol, or several on one port, told apart by their first bytes.", key="protocol"),
    ]
    host: str
    port: int
    transport: Annotated[
        Transport | None,
        Says("What the protocol runs over, where it may run over several (Fujin); its usual one, if nothing is said."),
    ] = None
    """A Unix socket's path is the host."""
    mode: Annotated[int, Says("Who may connect to a Unix socket, as the mode of its file.")] = 0o600
    origins: Annotated[
        tuple[str, ...],
        Says("Web pages that may connect over WebSocket, by their origins; programs send none, and may."),
    ] = ()
    tls: Annotated[
        ListenerTls,
        Says("In the clear, with a certificate that is made at start, or with one from files that are followed."),
    ] = attrs.Factory(TlsNone)
    auth: Annotated[
        Auth,
        Says("`none`: no authentication; `open`: whatever is sent is right; or by keys, accounts or tokens."),
    ] = attrs.Factory(AuthNone)
    dialect: Annotated[
        Dialect,
        Says("Where document and stock clients differ: after the one, the other, or told apart (FlyMQ, Felix, Fujin)."),
    ] = Dialect.AUTO
    limits: Annotated[Limits, Says("Bounds; each has a metric for being hit.")] = attrs.Factory(Limits)
    settings: Mapping[str, Any] = attrs.Factory(dict)
    """By protocol: an instance of its `ProtocolSpec.settings`."""


class AdminRole(enum.Enum):
    """What who shows a token of the admin address may do; each may do what those before it may."""

    READ = "read"
    OPERATE = "operate"
    ADMINISTER = "administer"


@attrs.frozen
class AdminToken:
    """Somebody who may use the admin address."""

    token: Annotated[str, Says("What is shown, as bearer token or at the console's login.")] = attrs.field(
        default="", repr=False
    )
    role: Annotated[
        AdminRole,
        Says(
            "`read` looks; `operate` also redrives, resets and closes; `administer` also publishes, deletes and applies "
            "a configuration."
        ),
    ] = AdminRole.READ


@attrs.frozen
class Admin:
    """Where health, metrics, the admin API and the console are served. Without a token they answer this machine alone."""

    host: str = "127.0.0.1"
    port: int = 9600
    token: Annotated[
        str,
        Says(
            "The bearer token for everything but the probes and the documentation, and the console's login; it may "
            "`administer`. Without any token the API and the console answer only on a loopback address."
        ),
    ] = attrs.field(default="", repr=False)
    tokens: Annotated[
        Mapping[str, AdminToken], Says("Further tokens, by the name of whoever has one, each with a role.")
    ] = attrs.Factory(dict)
    tls: Annotated[ListenerTls, Says("As a listener's.")] = TlsNone()


@attrs.frozen
class ClusterSettings:
    """Which other gateways this one knows from the start. Each keeps its own log; others can be joined while it runs."""

    id: Annotated[str, Says("What this gateway is called.")] = "gateway"
    address: Annotated[
        str,
        Says(
            "`host:port` by which other gateways reach it, and whose host FlyMQ clients are told when a listener "
            "is bound to every interface; otherwise that of its first TCP listener."
        ),
    ] = ""
    peers: Annotated[
        tuple[str, ...],
        Says("The gateways it knows from the start; FlyMQ's JOIN and LEAVE change that."),
    ] = ()


# --- the store ---


@attrs.frozen
class DurabilitySetting:
    """When an append counts as stored; `interval` is the longest time unsynced, for `Durability.INTERVAL`."""

    kind: Durability = Durability.FSYNC
    interval: Seconds = Seconds(0.005)


class KafkaCompression(enum.Enum):
    """How batches are packed on their way to the brokers, and lie there."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class KafkaMechanism(enum.Enum):
    """How a client of Kafka logs in."""

    PLAIN = "plain"
    SCRAM_SHA_256 = "scram-sha-256"
    SCRAM_SHA_512 = "scram-sha-512"
    OAUTHBEARER = "oauthbearer"


@attrs.frozen
class Sasl:
    """A login at Kafka. With `oauthbearer` a token is fetched from `token_url` for `username` and `password`."""

    mechanism: Annotated[KafkaMechanism, Says("How to log in.")]
    username: Annotated[str, Says("The account; with `oauthbearer` the client's id.")] = ""
    password: Annotated[str, Says("Its password; with `oauthbearer` the client's secret.")] = attrs.field(
        default="", repr=False
    )
    token_url: Annotated[str, Says("Where tokens are to be had (`oauthbearer`).")] = ""
    scope: Annotated[str, Says("What a token is asked for (`oauthbearer`).")] = ""


@attrs.frozen
class TlsSystem:
    """Verified against the system's roots."""


@attrs.frozen
class TlsTrust:
    """Verified against `ca` (the system's roots if empty), with a client certificate if there is one."""

    ca: Annotated[str, Says("The authorities that are trusted; the system's, if this is not given.")] = ""
    cert: Annotated[str, Says("A certificate of ours, where the broker asks for one.")] = ""
    key: Annotated[str, Says("Its key.")] = ""
    server_name: Annotated[str, Says("What the certificate has to be for, if not the host that is dialled.")] = ""


UpstreamTls = TlsNone | TlsSystem | TlsTrust


@attrs.frozen
class KafkaLink:
    """Where the other gateways of one log reach this one, to pass on what their clients ask of a subscription that is here."""

    bind: Annotated[
        tuple[str, int] | None,
        Says(
            "Where it listens for them, over TLS. Without it: at the address of this machine from which the brokers are reached, "
            "at any port. With `--workers` each process takes the next port."
        ),
    ] = None
    advertise: Annotated[
        str, Says("The host that they are told, if it is not that of `bind` or the address just named.")
    ] = ""


@attrs.frozen
class Kafka:
    """A cluster of Kafka that holds the log, with any number of gateways in front of it."""

    brokers: Annotated[tuple[tuple[str, int], ...], Says("Brokers to begin with; they name the others.")]
    prefix: Annotated[str, Says("How the names of Kafka's topics begin that are this log's.")] = "gw."
    replication: Annotated[int, Says("On how many brokers each topic is.")] = 3
    min_insync: Annotated[
        int, Says("How many of them have to have a message before it is acknowledged; 0: all but one.")
    ] = 0
    timeout: Annotated[
        Seconds, Says("How long a write waits to be confirmed, and for how long a gateway that froze holds up others.")
    ] = Seconds(10.0)
    largest: Annotated[Size, Says("The largest message, key and headers among it.")] = Size(16 << 20)
    compression: Annotated[
        KafkaCompression,
        Says("How records are packed: what is known of each beside its value is said again and again."),
    ] = KafkaCompression.LZ4
    tls: Annotated[UpstreamTls, Says("Whether brokers are dialled over TLS, and whom to trust.")] = attrs.Factory(
        TlsNone
    )
    sasl: Annotated[Sasl | None, Says("How to log in.")] = None
    link: Annotated[KafkaLink, Says("How the gateways of one log reach each other.")] = attrs.Factory(KafkaLink)

    @property
    def insync(self) -> int:
        """How many brokers have to have a message."""
        return self.min_insync or max(1, self.replication - 1)


@attrs.frozen
class Storage:
    """Where the log lives and what it may use."""

    path: Annotated[str, Says("The directory of the log.")] = "./data"
    durability: Annotated[
        DurabilitySetting,
        Says("What an acknowledgement means, for topics that say nothing else."),
    ] = attrs.Factory(DurabilitySetting)
    tail_cache: Annotated[Size, Says("Memory for what was written last.")] = Size(64 << 20)
    page_cache: Annotated[Size, Says("Memory for reading older data.")] = Size(32 << 20)
    free_space_floor: Annotated[
        Size, Says("Free space below which writes are refused; a twentieth of the volume at most.")
    ] = Size(1 << 30)
    kafka: Annotated[
        Kafka | None, Says("Keeps the log on Kafka; `path` then only holds what is this machine's: certificates.")
    ] = None


@attrs.frozen
class Memory:
    """One budget over all connections: parsed requests, pending commits, unsent replies, and what ingests have not stored yet."""

    budget: Annotated[
        Size,
        Says(
            "Frames that are not whole yet, parsed requests, pending commits and unsent replies of all "
            "connections together, what subscriptions have read ahead (an eighth at most), what they have handed out "
            "and nobody has acknowledged (a quarter at most), bodies that come to the admin address, and what "
            "ingests have taken and not stored yet (half of it at most)."
        ),
    ] = Size(256 << 20)


@attrs.frozen
class Metrics:
    """What is measured beside what always is, and where else it is told."""

    groups: Annotated[
        tuple[str, ...],
        Says("Consumer groups whose lag is a metric and in the audit, by name; at most 100 of them."),
    ] = ()
    bind: Annotated[
        tuple[str, int] | None,
        Says("Where `/metrics` and the probes are served as well, without a token and beside nothing else."),
    ] = None


@attrs.frozen
class Retention:
    """How long and how much a topic keeps, per topic. None is without limit."""

    time: Annotated[Seconds | None, Says("How long messages are kept.")] = None
    bytes: Annotated[Size | None, Says("How much is kept, over all partitions of the topic.")] = None


@attrs.frozen
class TopicSettings:
    """What a `store` target or a glob under `topics` decides about a topic. None: it does not say."""

    partitions: Annotated[int | None, Says("How many partitions it is made with.")] = None
    retention: Annotated[
        Retention | None,
        Says("How long and how much is kept: a duration, or `time` and `bytes`."),
    ] = None
    durability: Annotated[DurabilitySetting | None, Says("What an acknowledgement means.")] = None
    schema: Annotated[str | None, Says("The registered schema that messages have to fit.")] = None


# --- upstreams ---


@attrs.frozen
class Ingest:
    """Remote addresses that are pulled in, under names made from their captures."""

    source: Annotated[str, Says("The addresses there.", key="from")]
    into: Annotated[str, Says("What they are called here.")]
    group: Annotated[str, Says("Under which name the position is kept there.")] = "gateway"


@attrs.frozen
class Upstream:
    """A broker elsewhere."""

    name: str
    protocol: Annotated[str, Says("What it speaks.")]
    addresses: Annotated[
        tuple[tuple[str, int], ...],
        Says("Where it is, in order of preference; paths with `transport: unix`.", key="address"),
    ]
    transport: Annotated[
        Transport | None,
        Says("What is dialled, where the protocol runs over several; its usual one, if nothing is said."),
    ] = None
    auth: Annotated[Credentials, Says("What is shown to be let in.")] = attrs.field(factory=Credentials, repr=False)
    tls: Annotated[UpstreamTls, Says("Whether it is dialled over TLS, and whom to trust.")] = attrs.Factory(TlsNone)
    dialect: Annotated[Dialect, Says("How it is spoken to.")] = Dialect.AUTO
    pool: Annotated[int, Says("Connections.")] = 1
    timeout: Annotated[Seconds, Says("How long an answer, or a connection, may take.")] = Seconds(10.0)
    ingest: Annotated[tuple[Ingest, ...], Says("What is pulled from it.")] = ()


# --- routes ---


@attrs.frozen
class Match:
    """What a route takes. Empty means any. `topic`, `key`, `principal` and header values are globs."""

    protocol: Annotated[tuple[str, ...], Says("By which it came.")] = ()
    listener: Annotated[tuple[str, ...], Says("At which it came, or the upstream it was pulled from.")] = ()
    topic: Annotated[str, Says("A glob over the address.")] = ""
    key: Annotated[str, Says("A glob over the key.")] = ""
    header: Annotated[Mapping[str, str], Says("Header to glob.")] = attrs.Factory(dict)
    principal: Annotated[str, Says("A glob over who sent it.")] = ""


@attrs.frozen
class SetHeader:
    """Give headers these values, whether they were there or not."""

    headers: Mapping[str, str]


@attrs.frozen
class RemoveHeader:
    """Take headers away."""

    names: tuple[str, ...]


@attrs.frozen
class RenameHeader:
    """Old name to new name."""

    names: Mapping[str, str]


@attrs.frozen
class Rewrite:
    """A new key (an expression) and a new address (a template), where given."""

    key: Annotated[str, Says("An expression that gives the new key.")] = ""
    address: Annotated[str, Says("The new address.")] = ""


@attrs.frozen
class Filter:
    """Keep the messages for which this expression is true."""

    expression: str


@attrs.frozen
class Project:
    """A new JSON payload: field name to expression."""

    fields: Mapping[str, str]


Step = SetHeader | RemoveHeader | RenameHeader | Rewrite | Filter | Project

ACCEPTABLE = ("key", "headers", "ordering", "acknowledgement", "size", "atomicity", "expiry")
"""The words `accept_loss` knows, beside `all`."""


@attrs.frozen
class StoreTarget:
    """Append to a topic. The first of a route is its primary: it gives partition and offset."""

    word: ClassVar[str] = "store"
    """What the file calls such a target."""
    topic: Annotated[str, Says("The topic.")]
    settings: TopicSettings = attrs.Factory(TopicSettings)


@attrs.frozen
class Bridge:
    """The primary's topic, readable and writable at this address of a protocol on this gateway."""

    word: ClassVar[str] = "bridge"
    protocol: Annotated[str, Says("Whose clients are to find the topic there.")]
    address: Annotated[str, Says("Where.")]
    accept_loss: Annotated[frozenset[str], Says("What may be lost on the way.")] = frozenset()


@attrs.frozen
class Retry:
    """How often and how soon a forward tries again."""

    max: Annotated[int, Says("Attempts before a message is given up.")] = 10
    backoff: Annotated[
        Backoff,
        Says("The first wait, doubling up to the longest."),
    ] = attrs.Factory(lambda: Backoff(Seconds(0.1), Seconds(30.0)))
    outage: Annotated[Seconds, Says("How long a message waits for an upstream that is away.")] = Seconds(math.inf)


class Scope(enum.Enum):
    """What a forward delivers: the batches of its own route, or everything in the topic."""

    ROUTE = "route"
    TOPIC = "topic"


class ForwardStart(enum.Enum):
    """Where a forward begins in a topic that exists when it is first seen."""

    EARLIEST = "earliest"
    NOW = "now"


@attrs.frozen
class Forward:
    """Deliver what was stored to a broker elsewhere, with a durable cursor called `name`."""

    word: ClassVar[str] = "forward"
    upstream: Annotated[str, Says("The broker it goes to.")]
    address: Annotated[str, Says("Where to, there.")]
    name: Annotated[str, Says("What its cursor and its metrics are called; otherwise after route and upstream.")] = ""
    retry: Annotated[Retry, Says("How a message that fails is tried again.")] = attrs.Factory(Retry)
    window: Annotated[int, Says("Messages of a partition that may be under way.")] = 256
    scope: Annotated[Scope, Says("The messages of this route alone, or all of the topic.")] = Scope.ROUTE
    start: Annotated[
        ForwardStart,
        Says("Where it begins in a topic that is there when it is first seen."),
    ] = ForwardStart.EARLIEST
    dead_letter: Annotated[str, Says("The topic for what is given up; without one its key waits.")] = ""
    """A topic; empty: a lane that cannot go on waits."""
    accept_loss: Annotated[frozenset[str], Says("What may be lost on the way.")] = frozenset()


class Compare(enum.Enum):
    """What a mirror compares."""

    ACK = "ack"
    PAYLOAD = "payload"
    LATENCY = "latency"


@attrs.frozen
class Mirror:
    """A share of the route's traffic to a second target, never affecting the first."""

    word: ClassVar[str] = "mirror"
    upstream: Annotated[str, Says("The broker it goes to.")]
    address: Annotated[str, Says("Where to, there.")]
    percent: Annotated[float, Says("The share of the keys.")] = 100.0
    compare: Annotated[tuple[Compare, ...], Says("What is compared.")] = ()


@attrs.frozen
class Proxy:
    """The remote's own answer is the reply."""

    word: ClassVar[str] = "proxy"
    upstream: Annotated[str, Says("The broker that answers.")]
    address: Annotated[str, Says("Where to, there.")]
    timeout: Annotated[Seconds, Says("How long its answer is waited for.")] = Seconds(5.0)


Target = StoreTarget | Bridge | Forward | Mirror | Proxy


@attrs.frozen
class Route:
    """What is taken, what is done to it, and where it goes."""

    name: Annotated[str, Says("What the route is called in metrics.")]
    match: Annotated[Match, Says("Which messages it takes: those that fit all that is given; `{}` is every message.")]
    transform: Annotated[tuple[Step, ...], Says("What is done to its messages, in this order.")] = attrs.field(
        default=(), kw_only=True
    )
    targets: Annotated[
        tuple[Target, ...], Says("Where they go; the first `store` gives partition and offset.", key="to")
    ]


@attrs.frozen
class Config:
    """A whole configuration."""

    listeners: Annotated[Mapping[str, Listener], Says("Where clients connect, by name.")]
    admin: Annotated[
        Admin | None,
        Says("The console, the admin API, health, metrics and the documentation; without it nothing of that."),
    ] = None
    cluster: Annotated[ClusterSettings, Says("What FlyMQ clients are told about this gateway and others.")] = (
        attrs.Factory(ClusterSettings)
    )
    storage: Annotated[Storage, Says("The log.")] = attrs.Factory(Storage)
    memory: Annotated[Memory, Says("What everything together may use.")] = attrs.Factory(Memory)
    metrics: Annotated[Metrics, Says("What is measured beside what always is.")] = attrs.Factory(Metrics)
    topics: Annotated[
        Mapping[str, TopicSettings], Says("Settings of topics by glob; the first that matches counts.")
    ] = attrs.Factory(dict)
    upstreams: Annotated[Mapping[str, Upstream], Says("Brokers elsewhere, by name.")] = attrs.Factory(dict)
    routes: Annotated[
        tuple[Route, ...],
        Says("Where messages go: the first that matches; without any, an address is the topic of the same name."),
    ] = ()
    file: str = ""

    @property
    def certified_names(self) -> tuple[str, ...]:
        """What the self-signed certificate is for, beside localhost."""
        tls = [each.tls for each in self.listeners.values()] + ([self.admin.tls] if self.admin is not None else [])
        return tuple(name for one in tls if isinstance(one, TlsSelfSigned) for name in one.names)


IDENTITY = Route(name="identity", match=Match(), targets=(StoreTarget(topic="{topic}"),))
"""The route of a configuration that has none: an address is the topic of the same name."""
