"""The grammar of `routes.yaml`, version 1: every key there is, in one place.

From it the file is read (`gateway.config.load`) and the JSON Schema is made (`gateway.config.schema`). Keys whose values
follow from the types in `gateway.model` are not spelled out twice; the keys that only one protocol has come from
its settings class.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway import model, notation
from gateway.config.document import INVALID, Place
from gateway.config.records import ConfigKey, Record, suggestion
from gateway.config.shapes import (
    DURATION,
    ENDPOINT,
    Either,
    ListOf,
    MapOf,
    Number,
    Tagged,
    Text,
    Then,
    Words,
    alternatives,
    record,
    shape_of,
)
from gateway.errors import ConfigProblem
from gateway.notation import show_duration, show_endpoint
from gateway.protocols.registry import ProtocolSpec
from gateway.routing.glob import glob, template
from gateway.settings import Dialect, Limits, Says, Seconds, Transport
from gateway.store.interface import Durability
from gateway.wire.session import Credentials

VERSION = 1
MOST_PARTITIONS = 10_000
"""A partition costs a position in every reader; more than this is a mistake in the file."""
MOST_WINDOW = 1_000_000
MOST_POOL = 1_000
MOST_GROUPS = 100
MOST_REPLICAS = 100
LEAST_KAFKA, MOST_KAFKA = 1.0, 300.0
"""Seconds for a write of the log on Kafka: its library takes no less for a transaction, and no more for a socket."""

Specs = Mapping[str, ProtocolSpec]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,100}")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
LONGEST_HOST = 253


def _name(text: str) -> str:
    # names become metric labels and names of cursors, so they stay simple
    if not _NAME.fullmatch(text):
        raise ConfigProblem(f"not a name: {text!r} (letters, digits, '_', '.', '-'; at most 64)")
    return text


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ConfigProblem(f"names on Kafka have letters, digits, '.', '_' and '-', and not {text!r}")
    return text


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if not _HOST.fullmatch(text) or len(text) > LONGEST_HOST:
            raise ConfigProblem(f"neither the name of a host nor an IP address: {text!r}") from None
        return text


def _glob(text: str) -> str:
    return glob(text).text


def _template(text: str) -> str:
    return template(text).text


def _finite(text: str) -> Seconds:
    value = DURATION.convert(text)
    if not 0 < value < math.inf:
        raise ConfigProblem(f"expected a duration longer than nothing, and not {text!r}")
    return Seconds(value)


def _of_kafka(text: str) -> Seconds:
    value = _finite(text)
    if not LEAST_KAFKA <= value <= MOST_KAFKA:
        raise ConfigProblem(f"Kafka's client takes {LEAST_KAFKA:g} to {MOST_KAFKA:g} seconds, and not {text!r}")
    return value


NAME = Text("a name", _name)
HOST = Text("a host", _host)
GLOB = Text("a glob", _glob, description="* is part of a segment, ** is anything")
TEMPLATE = Text("a template", _template, description="{1}, {2}, ... are captures, {topic} the address")
FINITE = Text("a duration", _finite, any_tag=True, description="5ms, 2s, 7d", show=show_duration)


def _or_none(text: str) -> str:
    return "" if text == "none" else text


# --- values that are written in several ways ---

DURABILITY = Either(
    "fsync, none, memory or {interval: T}",
    scalar=Words({kind.value: model.DurabilitySetting(kind) for kind in Durability if kind is not Durability.INTERVAL}),
    mappings=(
        Record(
            model.DurabilitySetting,
            (
                ConfigKey(
                    "interval",
                    FINITE,
                    required=True,
                    says=Says("The longest time until what is acknowledged is on the disk."),
                ),
            ),
            adapt=lambda interval: {"kind": Durability.INTERVAL, "interval": interval},
        ),
    ),
)


def _limit(value: Seconds | None) -> Seconds | None:
    return None if value is None or math.isinf(value) else value


RETENTION = Either(
    "a duration, none, or a mapping with time and bytes",
    scalar=Then(DURATION, lambda value: model.Retention(time=_limit(value))),
    mappings=(
        attrs.evolve(
            record(model.Retention),
            adapt=lambda time=None, **rest: {"time": _limit(time), **rest},
        ),
    ),
)

TOPIC_SETTINGS = record(
    model.TopicSettings, partitions=Number(1, MOST_PARTITIONS), retention=RETENTION, durability=DURABILITY
)

LISTENER_TLS = Either(
    "none, self-signed or a mapping with self-signed, or with cert and key",
    scalar=Words({"none": model.TlsNone(), "self-signed": model.TlsSelfSigned()}),
    mappings=(
        record(model.TlsFiles),
        Record(
            lambda self_signed: self_signed,
            (
                ConfigKey(
                    "self-signed",
                    record(model.TlsSelfSigned, names=ListOf(HOST, least=1, or_one=True)),
                    required=True,
                    to="self_signed",
                    says=Says("A certificate that is made at start, for more names; there is one for all listeners."),
                ),
            ),
        ),
    ),
)

UPSTREAM_TLS = Either(
    "none, system or a mapping with ca, cert, key and server_name",
    scalar=Words({"none": model.TlsNone(), "system": model.TlsSystem()}),
    mappings=(record(model.TlsTrust),),
)

KAFKA = record(
    model.Kafka,
    brokers=ListOf(ENDPOINT, least=1, or_one=True),
    prefix=Text("how names begin", _prefix, empty=True),
    replication=Number(1, MOST_REPLICAS),
    min_insync=Number(0, MOST_REPLICAS),
    timeout=Text("a duration", _of_kafka, any_tag=True, description="1s to 5m", show=show_duration),
    tls=UPSTREAM_TLS,
    sasl=record(model.Sasl, secrets=("password",)),
    link=record(model.KafkaLink, bind=ENDPOINT, advertise=HOST),
)

_ADMIN_USER = Record(
    dict,
    (
        ConfigKey("name", NAME, says=Says("What the administrator is called."), default="admin"),
        ConfigKey(
            "password", Text("a password"), required=True, secret=True, says=Says("The administrator's password.")
        ),
    ),
)

AUTH = Either(
    "open, none, or a mapping with api_keys, users or jwt",
    scalar=Words({"open": model.AuthOpen(), "none": model.AuthNone()}),
    mappings=(
        Record(
            model.AuthKeys,
            (
                ConfigKey(
                    "api_keys",
                    ListOf(Text("a key"), least=1),
                    required=True,
                    secret=True,
                    split=True,
                    says=Says("The keys, one of which a client has to send."),
                ),
            ),
        ),
        Record(
            model.AuthUsers,
            (
                ConfigKey(
                    "users", Words({"store": "store"}), required=True, says=Says("Accounts are kept in the log.")
                ),
                ConfigKey("admin", _ADMIN_USER, required=True, says=Says("The administrator, who is made at start.")),
            ),
            adapt=lambda users, admin: {  # noqa: ARG005 - `store` is the only place accounts are kept
                "admin_name": admin.get("name", "admin"),
                "admin_password": admin["password"],
            },
        ),
        Record(
            lambda jwt: jwt,
            (
                ConfigKey(
                    "jwt",
                    record(model.AuthJwt, secrets=("jwks", "key")),
                    required=True,
                    says=Says("Tokens, signed by one of these keys."),
                ),
            ),
        ),
    ),
)

_WORDS = Words({**{word: (word,) for word in model.ACCEPTABLE}, "all": model.ACCEPTABLE})

ACCEPT_LOSS = Then(
    Either(
        f"a list of {alternatives(model.ACCEPTABLE)}; or all",
        scalar=Words({"all": (model.ACCEPTABLE,)}),
        listed=ListOf(_WORDS),
    ),
    lambda lists: frozenset(word for words in lists for word in words),
)

STEP = Tagged(
    "a transform step",
    {
        "set_header": Then(MapOf(Text(empty=True), least=1), model.SetHeader),
        "remove_header": Then(ListOf(Text(), least=1, or_one=True), model.RemoveHeader),
        "rename_header": Then(MapOf(Text(), least=1), model.RenameHeader),
        "rewrite": record(model.Rewrite, address=TEMPLATE),
        "filter": Then(Text("an expression"), model.Filter),
        "project": Then(MapOf(Text("an expression"), least=1), model.Project),
    },
    {
        "set_header": Says("Gives headers these values, whether they were there or not."),
        "remove_header": Says("Takes headers away."),
        "rename_header": Says("Old name to new name."),
        "rewrite": Says("A new key, a new address, or both."),
        "filter": Says("Keeps the messages for which the expression is true."),
        "project": Says("Makes a new JSON payload: field to expression."),
    },
)

TARGET = Tagged(
    "a target",
    {
        "store": Record(
            model.StoreTarget,
            (ConfigKey("topic", TEMPLATE, required=True, stand_in="", says=Says("The topic.")), *TOPIC_SETTINGS.fields),
            adapt=lambda topic, **settings: {"topic": topic, "settings": model.TopicSettings(**settings)},
        ),
        "bridge": record(model.Bridge, address=TEMPLATE, accept_loss=ACCEPT_LOSS),
        "forward": Record(
            model.Forward,
            tuple(
                attrs.evolve(field, required=field.required and field.key != "name")
                for field in record(
                    model.Forward,
                    address=TEMPLATE,
                    name=NAME,
                    retry=record(model.Retry, max=Number(1)),
                    window=Number(1, MOST_WINDOW),
                    dead_letter=TEMPLATE,
                    accept_loss=ACCEPT_LOSS,
                ).fields
            ),
            adapt=lambda name="", **rest: {"name": name, **rest},
        ),
        "mirror": record(model.Mirror, address=TEMPLATE, percent=Number(0, 100, whole=False)),
        "proxy": record(model.Proxy, address=TEMPLATE, timeout=FINITE),
    },
    {
        "store": Says("Appends to a topic; what is given here beside its name counts before `topics`."),
        "bridge": Says("Makes the topic readable and writable at an address of another protocol here."),
        "forward": Says("Publishes what is stored to a broker elsewhere."),
        "mirror": Says("Sends a share of the messages to a broker elsewhere, for comparison."),
        "proxy": Says("Leaves message and answer to a broker elsewhere; nothing is stored here."),
    },
)

MATCH = record(
    model.Match,
    protocol=ListOf(Text(), or_one=True),
    listener=ListOf(Text(), or_one=True),
    topic=GLOB,
    key=GLOB,
    header=MapOf(GLOB),
    principal=GLOB,
)

ROUTE = Record(
    model.Route,
    (
        ConfigKey("name", NAME, required=True, stand_in="", says=Says("What the route is called in metrics.")),
        ConfigKey(
            "match",
            MATCH,
            required=True,
            stand_in=model.Match(),
            says=Says("Which messages it takes: those that fit all that is given; `{}` is every message."),
        ),
        ConfigKey("transform", ListOf(STEP), says=Says("What is done to its messages, in this order.")),
        ConfigKey(
            "to",
            ListOf(TARGET, least=1),
            required=True,
            to="targets",
            stand_in=(),
            says=Says("Where they go; the first `store` gives partition and offset."),
        ),
    ),
)


def _mode(text: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ConfigProblem(f"not the mode of a file: {text!r} (write it as 0660)")
    return int(text, 8)


PLACE = Text("host:port, or a path", notation.place, description="127.0.0.1:9092, [::1]:9092, /run/gateway.sock")
MODE = Text("the mode of a file", _mode, any_tag=True, show=lambda mode: f"{mode:04o}")


UPSTREAM = Record(
    model.Upstream,
    (
        ConfigKey("protocol", Text("the name of a protocol"), required=True, stand_in="", says=Says("What it speaks.")),
        ConfigKey(
            "address",
            ListOf(PLACE, least=1, or_one=True),
            required=True,
            to="addresses",
            stand_in=(),
            says=Says("Where it is, in order of preference; paths with `transport: unix`."),
        ),
        ConfigKey(
            "transport",
            shape_of(Transport),
            says=Says("What is dialled, where the protocol runs over several; its usual one, if nothing is said."),
        ),
        ConfigKey(
            "auth",
            record(Credentials, secrets=("api_key", "password", "token")),
            says=Says("What is shown to be let in."),
        ),
        ConfigKey("tls", UPSTREAM_TLS, says=Says("Whether it is dialled over TLS, and whom to trust."), default="none"),
        ConfigKey("dialect", shape_of(Dialect), says=Says("How it is spoken to."), default=Dialect.AUTO.value),
        ConfigKey("pool", Number(1, MOST_POOL), says=Says("Connections."), default=1),
        ConfigKey("timeout", FINITE, says=Says("How long an answer, or a connection, may take."), default="10s"),
        ConfigKey(
            "ingest",
            ListOf(
                Record(
                    model.Ingest,
                    (
                        ConfigKey("from", GLOB, required=True, to="source", says=Says("The addresses there.")),
                        ConfigKey("into", TEMPLATE, required=True, says=Says("What they are called here.")),
                        ConfigKey(
                            "group",
                            NAME,
                            says=Says("Under which name the position is kept there."),
                            default="gateway",
                        ),
                    ),
                )
            ),
            says=Says("What is pulled from it."),
        ),
    ),
    adapt=lambda **values: {"name": "", **values},
)


def _bound_to(**values: Any) -> Mapping[str, Any]:
    if "bind" in values:
        values["host"], values["port"] = values.pop("bind")
    return values


ADMIN = Record(
    model.Admin,
    (
        ConfigKey("bind", ENDPOINT, says=Says("Where it is served."), default="127.0.0.1:9600"),
        ConfigKey(
            "token",
            Text("a token", _or_none),
            secret=True,
            says=Says(
                "The bearer token for everything but the probes and the documentation, and the console's login; it may "
                "`administer`. Without any token the API and the console answer only on a loopback address."
            ),
        ),
        ConfigKey(
            "tokens",
            MapOf(record(model.AdminToken, secrets=("token",), token=Text("a token", _or_none)), _name),
            says=Says("Further tokens, by the name of whoever has one, each with a role."),
        ),
        ConfigKey("tls", LISTENER_TLS, says=Says("As a listener's."), default="none"),
    ),
    adapt=_bound_to,
)


def _reachable(endpoint: tuple[str, int]) -> str:
    host, port = endpoint
    if not port:
        raise ConfigProblem("the port of a gateway that others are to reach cannot be 0")
    return show_endpoint(host, port)


def _measured(groups: tuple[str, ...]) -> tuple[str, ...]:
    if len(groups) > MOST_GROUPS:
        raise ConfigProblem(f"each group is a series of a metric: {len(groups)} are more than {MOST_GROUPS}")
    return tuple(dict.fromkeys(groups))


_REACHABLE = Then(ENDPOINT, _reachable)
CLUSTER = record(model.ClusterSettings, id=NAME, address=_REACHABLE, peers=ListOf(_REACHABLE, or_one=True))

METRICS = record(model.Metrics, groups=Then(ListOf(Text("the name of a group")), _measured), bind=ENDPOINT)

LIMITS = record(
    Limits,
    connections=Number(1),
    per_address=Number(1),
    subscriptions=Number(1),
    subscriptions_per_connection=Number(1),
    in_flight=Number(1),
)


_COMMON = (
    ConfigKey(
        "protocol",
        ListOf(Text("the name of a protocol"), least=1, or_one=True),
        required=True,
        to="protocols",
        says=Says("The protocol, or several on one port, told apart by their first bytes."),
    ),
    ConfigKey(
        "bind",
        PLACE,
        required=True,
        stand_in=("", 0),
        says=Says("Where clients connect; with port 0 the system chooses one. A path with `transport: unix`."),
    ),
    ConfigKey(
        "transport",
        shape_of(Transport),
        says=Says(
            "What the protocol runs over, where it may run over several (Fujin); its usual one, if nothing is said."
        ),
    ),
    ConfigKey(
        "mode",
        MODE,
        says=Says("Who may connect to a Unix socket, as the mode of its file."),
        default="0600",
    ),
    ConfigKey(
        "origins",
        ListOf(Text("an origin, or *")),
        says=Says("Web pages that may connect over WebSocket, by their origins; programs send none, and may."),
    ),
    ConfigKey(
        "tls",
        LISTENER_TLS,
        says=Says("In the clear, with a certificate that is made at start, or with one from files that are followed."),
        default="none",
    ),
    ConfigKey(
        "auth",
        AUTH,
        says=Says("`none`: no authentication; `open`: whatever is sent is right; or by keys, accounts or tokens."),
        default="none",
    ),
    ConfigKey(
        "dialect",
        shape_of(Dialect),
        says=Says(
            "Where document and stock clients differ: after the one, the other, or told apart (FlyMQ, Felix, Fujin)."
        ),
        default=Dialect.AUTO.value,
    ),
    ConfigKey("limits", LIMITS, says=Says("Bounds; each has a metric for being hit.")),
)


@attrs.frozen
class ListenerShape:
    """A listener: the keys all have, and those of its protocols' own settings."""

    specs: Specs
    elsewhere: frozenset[str] = frozenset()
    """Protocols that are dialled and not served."""

    def read(self, place: Place) -> Any:
        """The listener; INVALID when a protocol of it is not there."""
        if not place.is_mapping:
            return place.problem(f"expected a mapping, not {place.kind}")
        spoken = self._spoken(place)
        place.notes.spoken.update(spoken)
        unknown = [name for name in spoken if name not in self.specs]
        own = {name: _own(self.specs[name]) for name in spoken if name in self.specs}
        fields = {field.key: field for record in own.values() for field in record.fields}
        common = {field.key for field in _COMMON}
        shape = Record(
            model.Listener,
            (*_COMMON, *(field for key, field in fields.items() if key not in common)),
            adapt=lambda **values: self._adapt(own, values),
            lenient=bool(unknown) or not spoken,
        )
        listener = shape.read(place)
        return INVALID if unknown or listener is INVALID else listener

    def _spoken(self, place: Place) -> tuple[str, ...]:
        # the names under `protocol`, with a problem for each that is not there
        for key, entry in place.entries():
            if key != "protocol":
                continue
            names = list(entry.items()) if entry.is_list else [entry]
            spoken = []
            for name in names:
                text = name.text("the name of a protocol")
                if isinstance(text, str):
                    spoken.append(text)
                    if text in self.elsewhere:
                        name.problem(f"{text} is for brokers elsewhere (upstreams), and not served here")
                    elif text not in self.specs:
                        name.problem(f"unknown or not available protocol {text!r}{suggestion(text, self.specs)}")
            return tuple(spoken)
        return ()

    @staticmethod
    def _adapt(own: Mapping[str, Record], values: dict[str, Any]) -> Mapping[str, Any]:
        settings: dict[str, Any] = {}
        for protocol, shape in own.items():
            keys = [field.key for field in shape.fields if field.key in values]
            settings[protocol] = shape.cls(**{key: values[key] for key in keys})
        for shape in own.values():
            for field in shape.fields:
                values.pop(field.key, None)
        return {"name": "", "settings": settings, **_bound_to(**values)}

    def schema(self) -> dict[str, Any]:
        """The keys of every protocol; which of them go with which, `check` knows."""
        own = {
            field.key: attrs.evolve(field, says=Says(f"{name}: {field.says.text}", field.says.since))
            if field.says
            else field
            for name, spec in self.specs.items()
            for field in _own(spec).fields
        }
        common = {field.key: field for field in _COMMON}
        fields = {**common, **own, **common}  # common ones come first and win
        schema = Record(model.Listener, tuple(fields.values())).schema()
        protocol = {"enum": sorted(self.specs)}
        schema["properties"]["protocol"] |= {"anyOf": [protocol, {"type": "array", "items": protocol, "minItems": 1}]}
        return schema


def _own(spec: ProtocolSpec) -> Record:
    return record(spec.settings)


def grammar(specs: Specs) -> Record:
    served = {name: spec for name, spec in specs.items() if spec.server is not None}
    fields: Sequence[ConfigKey] = (
        ConfigKey(
            "version",
            Number(VERSION, VERSION),
            required=True,
            stand_in=VERSION,
            says=Says("The version of this format."),
        ),
        ConfigKey(
            "listeners",
            MapOf(ListenerShape(served, frozenset(specs) - frozenset(served)), _name, named=True, into="listeners"),
            required=True,
            says=Says("Where clients connect, by name."),
        ),
        ConfigKey(
            "admin",
            ADMIN,
            says=Says("The console, the admin API, health, metrics and the documentation; without it nothing of that."),
        ),
        ConfigKey("cluster", CLUSTER, says=Says("What FlyMQ clients are told about this gateway and others.")),
        ConfigKey("storage", record(model.Storage, durability=DURABILITY, kafka=KAFKA), says=Says("The log.")),
        ConfigKey("memory", record(model.Memory), says=Says("What everything together may use.")),
        ConfigKey("metrics", METRICS, says=Says("What is measured beside what always is.")),
        ConfigKey(
            "topics",
            MapOf(TOPIC_SETTINGS, _glob),
            says=Says("Settings of topics by glob; the first that matches counts."),
        ),
        ConfigKey(
            "upstreams", MapOf(UPSTREAM, _name, named=True, into="upstreams"), says=Says("Brokers elsewhere, by name.")
        ),
        ConfigKey(
            "routes",
            ListOf(ROUTE),
            says=Says(
                "Where messages go: the first that matches; without any, an address is the topic of the same name."
            ),
        ),
    )
    return Record(dict, tuple(fields))
