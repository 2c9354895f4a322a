"""The grammar of `routes.yaml`, version 1: every key there is, in one place.

From it the file is read (`gateway.config.load`) and the JSON Schema is made (`gateway.config.schema`). Keys whose values
follow from the types in `gateway.model` are not spelled out twice; the keys that only one protocol has come from
its settings class.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from gateway import model, notation
from gateway.config.document import INVALID, Place, Shape
from gateway.config.records import ConfigKey, Record, suggestion
from gateway.config.shapes import (
    DURATION,
    ENDPOINT,
    Either,
    ListOf,
    MapOf,
    Tagged,
    Then,
    alternatives,
    number,
    record,
    text,
    words,
)
from gateway.errors import ConfigProblem
from gateway.notation import show_duration, show_endpoint
from gateway.protocols.registry import ProtocolSpec
from gateway.routing.glob import glob, template
from gateway.settings import Limits, Says, Seconds
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


NAME = text("a name", _name)
HOST = text("a host", _host)
GLOB = text("a glob", _glob, description="* is part of a segment, ** is anything")
TEMPLATE = text("a template", _template, description="{1}, {2}, ... are captures, {topic} the address")
PROTOCOL = text("the name of a protocol")
FINITE = text("a duration", _finite, any_tag=True, description="5ms, 2s, 7d", show=show_duration)


def _or_none(text: str) -> str:
    return "" if text == "none" else text


# --- values that are written in several ways ---

DURABILITY = Either(
    "fsync, none, memory or {interval: T}",
    scalar=words({kind.value: model.DurabilitySetting(kind) for kind in Durability if kind is not Durability.INTERVAL}),
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
    mappings=(record(model.Retention, adapt=lambda time=None, **rest: {"time": _limit(time), **rest}),),
)

TOPIC_SETTINGS = record(
    model.TopicSettings, partitions=number(1, MOST_PARTITIONS), retention=RETENTION, durability=DURABILITY
)


def _within(key: str, shape: Shape, says: str) -> Record:
    # a mapping that says by its only key what is in it
    name = key.replace("-", "_")
    only = ConfigKey(key, shape, required=True, to=name, says=Says(says))
    return Record(lambda **values: values[name], (only,))


LISTENER_TLS = Either(
    "none, self-signed or a mapping with self-signed, or with cert and key",
    scalar=words({"none": model.TlsNone(), "self-signed": model.TlsSelfSigned()}),
    mappings=(
        record(model.TlsFiles),
        _within(
            "self-signed",
            record(model.TlsSelfSigned, names=ListOf(HOST, least=1, or_one=True)),
            "A certificate that is made at start, for more names; there is one for all listeners.",
        ),
    ),
)

UPSTREAM_TLS = Either(
    "none, system or a mapping with ca, cert, key and server_name",
    scalar=words({"none": model.TlsNone(), "system": model.TlsSystem()}),
    mappings=(record(model.TlsTrust),),
)

KAFKA = record(
    model.Kafka,
    brokers=ListOf(ENDPOINT, least=1, or_one=True),
    prefix=text("how names begin", _prefix, empty=True),
    replication=number(1, MOST_REPLICAS),
    min_insync=number(0, MOST_REPLICAS),
    timeout=text("a duration", _of_kafka, any_tag=True, description="1s to 5m", show=show_duration),
    tls=UPSTREAM_TLS,
    sasl=record(model.Sasl, secrets=("password",)),
    link=record(model.KafkaLink, bind=ENDPOINT, advertise=HOST),
)

AUTH = Either(
    "open, none, or a mapping with api_keys, users or jwt",
    scalar=words({"open": model.AuthOpen(), "none": model.AuthNone()}),
    mappings=(
        record(model.AuthKeys, secrets=("api_keys",), api_keys=ListOf(text("a key"), least=1)),
        Record(
            lambda users, admin: model.AuthUsers(admin),  # noqa: ARG005 - `store` is the only place accounts are kept
            (
                ConfigKey(
                    "users", words({"store": "store"}), required=True, says=Says("Accounts are kept in the log.")
                ),
                *record(
                    model.AuthUsers,
                    admin=record(model.Administrator, secrets=("password",), name=NAME, password=text("a password")),
                ).fields,
            ),
        ),
        _within("jwt", record(model.AuthJwt, secrets=("jwks", "key")), "Tokens, signed by one of these keys."),
    ),
)

_WORDS = words({**{word: (word,) for word in model.ACCEPTABLE}, "all": model.ACCEPTABLE})

ACCEPT_LOSS = Then(
    Either(
        f"a list of {alternatives(model.ACCEPTABLE)}; or all",
        scalar=words({"all": (model.ACCEPTABLE,)}),
        listed=ListOf(_WORDS),
    ),
    lambda lists: frozenset(word for words in lists for word in words),
)

STEP = Tagged(
    "a transform step",
    {
        "set_header": Then(MapOf(text(empty=True), least=1), model.SetHeader),
        "remove_header": Then(ListOf(text(), least=1, or_one=True), model.RemoveHeader),
        "rename_header": Then(MapOf(text(), least=1), model.RenameHeader),
        "rewrite": record(model.Rewrite, address=TEMPLATE),
        "filter": Then(text("an expression"), model.Filter),
        "project": Then(MapOf(text("an expression"), least=1), model.Project),
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
            (*record(model.StoreTarget, but=("settings",), topic=TEMPLATE).fields, *TOPIC_SETTINGS.fields),
            adapt=lambda topic, **settings: {"topic": topic, "settings": model.TopicSettings(**settings)},
        ),
        "bridge": record(model.Bridge, address=TEMPLATE, accept_loss=ACCEPT_LOSS),
        "forward": record(
            model.Forward,
            address=TEMPLATE,
            name=NAME,
            retry=record(model.Retry, max=number(1)),
            window=number(1, MOST_WINDOW),
            dead_letter=TEMPLATE,
            accept_loss=ACCEPT_LOSS,
        ),
        "mirror": record(model.Mirror, address=TEMPLATE, percent=number(0, 100, whole=False)),
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
    protocol=ListOf(text(), or_one=True),
    listener=ListOf(text(), or_one=True),
    topic=GLOB,
    key=GLOB,
    header=MapOf(GLOB),
    principal=GLOB,
)

ROUTE = record(
    model.Route,
    stand_ins={"match": model.Match(), "targets": ()},
    name=NAME,
    match=MATCH,
    transform=ListOf(STEP),
    targets=ListOf(TARGET, least=1),
)


def _mode(text: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text):
        raise ConfigProblem(f"not the mode of a file: {text!r} (write it as 0660)")
    return int(text, 8)


PLACE = text("host:port, or a path", notation.place, description="127.0.0.1:9092, [::1]:9092, /run/gateway.sock")
MODE = text("the mode of a file", _mode, any_tag=True, show=lambda mode: f"{mode:04o}")


def _unnamed(**values: Any) -> Mapping[str, Any]:
    # its name is the key that it stands under
    return {"name": "", **values}


UPSTREAM = record(
    model.Upstream,
    but=("name",),
    stand_ins={"addresses": ()},
    adapt=_unnamed,
    protocol=PROTOCOL,
    addresses=ListOf(PLACE, least=1, or_one=True),
    auth=record(Credentials, secrets=("api_key", "password", "token")),
    tls=UPSTREAM_TLS,
    pool=number(1, MOST_POOL),
    timeout=FINITE,
    ingest=ListOf(
        record(
            model.Ingest,
            stand_ins={"source": INVALID, "into": INVALID},
            source=GLOB,
            into=TEMPLATE,
            group=NAME,
        )
    ),
)


def _bound_to(**values: Any) -> Mapping[str, Any]:
    if "bind" in values:
        values["host"], values["port"] = values.pop("bind")
    return values


ADMIN = Record(
    model.Admin,
    (
        ConfigKey("bind", ENDPOINT, says=Says("Where it is served."), default="127.0.0.1:9600"),
        *record(
            model.Admin,
            but=("host", "port"),
            secrets=("token",),
            token=text("a token", _or_none),
            tokens=MapOf(record(model.AdminToken, secrets=("token",), token=text("a token", _or_none)), _name),
            tls=LISTENER_TLS,
        ).fields,
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

METRICS = record(model.Metrics, groups=Then(ListOf(text("the name of a group")), _measured), bind=ENDPOINT)

LIMITS = record(
    Limits,
    connections=number(1),
    per_address=number(1),
    subscriptions=number(1),
    subscriptions_per_connection=number(1),
    in_flight=number(1),
)


_PROTOCOL, *_REST = record(
    model.Listener,
    but=("name", "host", "port", "settings"),
    protocols=ListOf(PROTOCOL, least=1, or_one=True),
    mode=MODE,
    origins=ListOf(text("an origin, or *")),
    tls=LISTENER_TLS,
    auth=AUTH,
    limits=LIMITS,
).fields
_BIND = ConfigKey(
    "bind",
    PLACE,
    required=True,
    stand_in=("", 0),
    says=Says("Where clients connect; with port 0 the system chooses one. A path with `transport: unix`."),
)
_COMMON = (_PROTOCOL, _BIND, *_REST)


@attrs.frozen
class ListenerShape:
    """A listener: the keys all have, and those of its protocols' own settings."""

    specs: Specs
    elsewhere: frozenset[str] = frozenset()
    """Protocols that are dialled and not served."""

    def read(self, place: Place) -> Any:
        """The listener; INVALID when a protocol of it is not there."""
        if not place.is_mapping:
            raise ConfigProblem(f"expected a mapping, not {place.kind}")
        spoken = self._spoken(place)
        place.notes.spoken.update(spoken)
        known = bool(spoken) and all(name in self.specs for name in spoken)
        # where nobody can tell which protocol it is, a key may be any protocol's
        own = {name: _own(self.specs[name]) for name in (spoken if known else self.specs)}
        fields = {field.key: field for record in own.values() for field in record.fields}
        common = {field.key for field in _COMMON}
        shape = Record(
            model.Listener,
            (*_COMMON, *(field for key, field in fields.items() if key not in common)),
            adapt=lambda **values: self._adapt(own, values),
        )
        listener = shape.read(place)
        return listener if known else INVALID

    def _spoken(self, place: Place) -> tuple[str, ...]:
        # the names under `protocol`, with a problem for each that is not there
        spoken: list[str] = []
        for name in (name for key, entry in place.entries() if key == "protocol" for name in entry.items_or_one()):
            text = name.read(PROTOCOL)
            if text is INVALID:
                continue
            spoken.append(text)
            if text in self.elsewhere:
                name.problem(f"{text} is for brokers elsewhere (upstreams), and not served here")
            elif text not in self.specs:
                name.problem(f"unknown or not available protocol {text!r}{suggestion(text, self.specs)}")
        return tuple(spoken)

    @staticmethod
    def _adapt(own: Mapping[str, Record], values: dict[str, Any]) -> Mapping[str, Any]:
        settings: dict[str, Any] = {}
        for protocol, shape in own.items():
            keys = [field.key for field in shape.fields if field.key in values]
            settings[protocol] = shape.cls(**{key: values[key] for key in keys})
        for shape in own.values():
            for field in shape.fields:
                values.pop(field.key, None)
        return _unnamed(settings=settings, **_bound_to(**values))

    def schema(self) -> dict[str, Any]:
        """The keys of every protocol; which of them go with which, `check` knows."""
        own = {
            field.key: attrs.evolve(
                field, says=field.says and attrs.evolve(field.says, text=f"{name}: {field.says.text}")
            )
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
    version = ConfigKey(
        "version", number(VERSION, VERSION), required=True, stand_in=VERSION, says=Says("The version of this format.")
    )
    keys = record(
        model.Config,
        but=("file",),
        listeners=MapOf(ListenerShape(served, frozenset(specs) - frozenset(served)), _name, into="listeners"),
        admin=ADMIN,
        cluster=CLUSTER,
        storage=record(model.Storage, durability=DURABILITY, kafka=KAFKA),
        metrics=METRICS,
        topics=MapOf(TOPIC_SETTINGS, _glob),
        upstreams=MapOf(UPSTREAM, _name, into="upstreams"),
        routes=ListOf(ROUTE),
    )
    return Record(dict, (version, *keys.fields))
