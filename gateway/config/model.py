"""The configuration as values: what `routes.yaml` says once it has been read and found good.

Everything here is complete: defaults are filled in, names refer to things that exist, secrets are read. What the keys
are called in the file is in `gateway.config.grammar`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from gateway.settings import Backoff, Dialect, Limits, Seconds, Size
from gateway.store.interface import Durability
from gateway.wire.session import Credentials

# --- listeners ---


@attrs.frozen
class TlsNone:
    """In the clear."""


@attrs.frozen
class TlsSelfSigned:
    """A certificate for localhost, 127.0.0.1 and ::1 made at start, and for these names. It is one for all listeners."""

    names: tuple[str, ...] = ()


class ClientCert(enum.Enum):
    """Whether a client has to show a certificate when `client_ca` is given."""

    REQUIRED = "required"
    OPTIONAL = "optional"


@attrs.frozen
class TlsFiles:
    """A certificate from files (PEM)."""

    cert: str
    key: str
    client_ca: str = ""
    client_cert: ClientCert = ClientCert.REQUIRED


ListenerTls = TlsNone | TlsSelfSigned | TlsFiles


@attrs.frozen
class AuthOpen:
    """Anybody may connect, and whatever credentials they send are right."""


@attrs.frozen
class AuthNone:
    """No authentication on this listener."""


@attrs.frozen
class AuthKeys:
    """One of these keys."""

    api_keys: tuple[str, ...] = attrs.field(repr=False)


@attrs.frozen
class AuthUsers:
    """Accounts in the store. The admin is created, or given this password, at start."""

    admin_name: str = "admin"
    admin_password: str = attrs.field(default="", repr=False)


@attrs.frozen
class AuthJwt:
    """Tokens signed by one of these keys: `jwks` is the JSON text of a key set, `key` one key (PEM or shared secret)."""

    jwks: str = attrs.field(default="", repr=False)
    key: str = attrs.field(default="", repr=False)
    algorithms: tuple[str, ...] = ("EdDSA", "RS256", "ES256")
    issuer: str = ""
    audience: str = ""
    leeway: Seconds = Seconds(30.0)
    principal_claim: str = "sub"
    tenant_claim: str = "tid"
    permissions_claim: str = "perms"


Auth = AuthOpen | AuthNone | AuthKeys | AuthUsers | AuthJwt


@attrs.frozen
class Listener:
    """A place where clients connect. Several protocols on one are told apart by their first bytes."""

    name: str
    protocols: tuple[str, ...]
    host: str
    port: int
    tls: ListenerTls = attrs.Factory(TlsNone)
    auth: Auth = attrs.Factory(AuthNone)
    dialect: Dialect = Dialect.AUTO
    limits: Limits = attrs.Factory(Limits)
    settings: Mapping[str, Any] = attrs.Factory(dict)
    """By protocol: an instance of its `ProtocolSpec.settings`."""


@attrs.frozen
class Admin:
    """Where health, metrics and the bulk API are served. Without a token the API is open to whoever reaches it."""

    host: str = "127.0.0.1"
    port: int = 9600
    token: str = attrs.field(default="", repr=False)
    tls: ListenerTls = TlsNone()


@attrs.frozen
class Cluster:
    """Which other gateways this one knows from the start. Each keeps its own log; others can be joined while it runs."""

    id: str = "gateway"
    address: str = ""  # host:port by which the others reach it; empty: that of its first TCP listener
    peers: tuple[str, ...] = ()


# --- the store ---


@attrs.frozen
class DurabilitySetting:
    """When an append counts as stored; `interval` is the longest time unsynced, for `Durability.INTERVAL`."""

    kind: Durability = Durability.FSYNC
    interval: Seconds = Seconds(0.005)


@attrs.frozen
class Storage:
    """Where the log lives and what it may use."""

    path: str = "./data"
    durability: DurabilitySetting = attrs.Factory(DurabilitySetting)
    tail_cache: Size = Size(64 << 20)
    page_cache: Size = Size(32 << 20)
    free_space_floor: Size = Size(1 << 30)


@attrs.frozen
class Memory:
    """One budget over all connections: parsed requests, pending commits, unsent replies, and what ingests have not stored yet."""

    budget: Size = Size(256 << 20)


@attrs.frozen
class Retention:
    """How long and how much a topic keeps, per topic. None is without limit."""

    time: Seconds | None = None
    bytes: Size | None = None


@attrs.frozen
class TopicSettings:
    """What a `store` target or a glob under `topics` decides about a topic. None: it does not say."""

    partitions: int | None = None
    retention: Retention | None = None
    durability: DurabilitySetting | None = None
    schema: str | None = None


# --- upstreams ---


@attrs.frozen
class TlsSystem:
    """Verified against the system's roots."""


@attrs.frozen
class TlsTrust:
    """Verified against `ca` (the system's roots if empty), with a client certificate if there is one."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""


UpstreamTls = TlsNone | TlsSystem | TlsTrust


@attrs.frozen
class Ingest:
    """Remote addresses that are pulled in, under names made from their captures."""

    source: str
    into: str
    group: str = "gateway"


@attrs.frozen
class Upstream:
    """A broker elsewhere."""

    name: str
    protocol: str
    addresses: tuple[tuple[str, int], ...]
    """(host, port), in order of preference."""
    auth: Credentials = attrs.field(factory=Credentials, repr=False)
    tls: UpstreamTls = attrs.Factory(TlsNone)
    dialect: Dialect = Dialect.AUTO
    pool: int = 1
    timeout: Seconds = Seconds(10.0)
    ingest: tuple[Ingest, ...] = ()


# --- routes ---


@attrs.frozen
class Match:
    """What a route takes. Empty means any. `topic`, `key`, `principal` and header values are globs."""

    protocol: tuple[str, ...] = ()
    listener: tuple[str, ...] = ()
    topic: str = ""
    key: str = ""
    header: Mapping[str, str] = attrs.Factory(dict)
    principal: str = ""


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

    key: str = ""
    address: str = ""


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
class Store:
    """Append to a topic. The first of a route is its primary: it gives partition and offset."""

    topic: str
    settings: TopicSettings = attrs.Factory(TopicSettings)


@attrs.frozen
class Bridge:
    """The primary's topic, readable and writable at this address of a protocol on this gateway."""

    protocol: str
    address: str
    accept_loss: frozenset[str] = frozenset()


@attrs.frozen
class Retry:
    """How often and how soon a forward tries again."""

    max: int = 10
    backoff: Backoff = attrs.Factory(lambda: Backoff(Seconds(0.1), Seconds(30.0)))


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

    upstream: str
    address: str
    name: str
    retry: Retry = attrs.Factory(Retry)
    window: int = 256
    scope: Scope = Scope.ROUTE
    start: ForwardStart = ForwardStart.EARLIEST
    dead_letter: str = ""
    """A topic; empty: a lane that cannot go on waits."""
    accept_loss: frozenset[str] = frozenset()


class Compare(enum.Enum):
    """What a mirror compares."""

    ACK = "ack"
    PAYLOAD = "payload"
    LATENCY = "latency"


@attrs.frozen
class Mirror:
    """A share of the route's traffic to a second target, never affecting the first."""

    upstream: str
    address: str
    percent: float = 100.0
    compare: tuple[Compare, ...] = ()


@attrs.frozen
class Proxy:
    """The remote's own answer is the reply."""

    upstream: str
    address: str
    timeout: Seconds = Seconds(5.0)


Target = Store | Bridge | Forward | Mirror | Proxy


@attrs.frozen
class Route:
    """What is taken, what is done to it, and where it goes."""

    name: str
    match: Match
    targets: tuple[Target, ...]
    transform: tuple[Step, ...] = ()


@attrs.frozen
class Config:
    """A whole configuration."""

    listeners: Mapping[str, Listener]
    routes: tuple[Route, ...]
    admin: Admin | None = None
    """None: nothing is served."""
    cluster: Cluster = attrs.Factory(Cluster)
    storage: Storage = attrs.Factory(Storage)
    memory: Memory = attrs.Factory(Memory)
    topics: Mapping[str, TopicSettings] = attrs.Factory(dict)
    """Glob to settings, in the order of the file; the first that matches counts."""
    upstreams: Mapping[str, Upstream] = attrs.Factory(dict)
    file: str = ""

    @property
    def certified_names(self) -> tuple[str, ...]:
        """What the self-signed certificate is for, beside localhost."""
        tls = [each.tls for each in self.listeners.values()] + ([self.admin.tls] if self.admin is not None else [])
        return tuple(name for one in tls if isinstance(one, TlsSelfSigned) for name in one.names)


IDENTITY = Route(name="identity", match=Match(), targets=(Store(topic="{topic}"),))
"""The route of a configuration that has none: an address is the topic of the same name."""
