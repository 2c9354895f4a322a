"""What is wrong although every value by itself is right: ports taken twice, protocols that cannot share one, names that
lead nowhere, secrets nobody could have.

Apart from `load`, which reads: these look at values that have been read, and at several at once.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from gateway import model
from gateway.config.circles import check_circles
from gateway.config.document import Notebook
from gateway.config.records import suggestion
from gateway.config.route_checks import check_routes
from gateway.errors import ConfigProblem
from gateway.notation import is_everywhere, is_path, show_endpoint
from gateway.protocols.registry import ProtocolSpec, Transport, dialled
from gateway.routing.compiled import IngestRule, compile_ingest
from gateway.routing.patterns import overlap
from gateway.store.interface import Durability

Specs = Mapping[str, ProtocolSpec]

ALGORITHMS = frozenset(
    (
        "EdDSA",
        "ES256",
        "ES384",
        "ES512",
        "HS256",
        "HS384",
        "HS512",
        "PS256",
        "PS384",
        "PS512",
        "RS256",
        "RS384",
        "RS512",
    )
)


def check(config: model.Config, specs: Specs, notes: Notebook) -> None:
    for listener in config.listeners.values():
        _check_listener(listener, specs, notes)
    _check_ports(config, specs, notes)
    if config.admin is not None:
        _check_tokens(config.admin, notes)
    for upstream in config.upstreams.values():
        _check_upstream(upstream, specs, notes)
        _check_ingests(upstream, config.listeners, notes)
    check_circles(config, specs, notes)
    check_routes(config, specs, notes)
    if config.storage.kafka is not None:
        _check_kafka(config.storage.kafka, config, notes)


def _check_listener(listener: model.Listener, specs: Specs, notes: Notebook) -> None:
    spoken = [specs[name] for name in listener.protocols]
    if len(set(listener.protocols)) < len(spoken):
        notes.complain(listener, "protocol", "a protocol is named twice")
    _check_transport(listener, spoken, notes)
    for one, two in itertools.combinations(spoken, 2):
        problem = _cannot_share(one, two, listener.transport) if one is not two else ""
        if problem:
            notes.complain(listener, "protocol", problem)
    for spec in spoken:
        if spec.api_key_required and not isinstance(listener.auth, model.AuthKeys | model.AuthOpen):
            problem = (
                f"{spec.name} needs api_keys: without a key nobody could log in (or let everybody in with auth: open)"
            )
            notes.complain(listener, "auth", problem)
        if (listener.transport or spec.transport) is Transport.QUIC and isinstance(listener.tls, model.TlsNone):
            notes.complain(
                listener, "tls", f"{spec.name} runs over QUIC, which needs tls (self-signed, or cert and key)"
            )
    _check_dialect(listener, spoken, notes)
    if isinstance(listener.tls, model.TlsFiles):
        _check_files(listener.tls, ("cert", "key", "client_ca"), notes)
    if isinstance(listener.auth, model.AuthJwt):
        _check_jwt(listener.auth, notes)


def _check_dialect(value: model.Listener | model.Upstream, spoken: Sequence[ProtocolSpec], notes: Notebook) -> None:
    known = {dialect: None for spec in spoken for dialect in spec.dialects}
    if not notes.has(value, "dialect") or value.dialect in known:
        return
    names = " and ".join(spec.name for spec in spoken)
    problem = f"{names} has no dialects"
    if known:
        problem = f"{names} has no dialect {value.dialect.value!r}: {', '.join(one.value for one in known)}"
    notes.complain(value, "dialect", problem)


def _check_transport(listener: model.Listener, spoken: Sequence[ProtocolSpec], notes: Notebook) -> None:
    for spec in spoken:
        if spec.port_over(listener.transport) is None:
            known = ", ".join(one.value for one in (spec.transport, *spec.other_transports))
            notes.complain(listener, "transport", f"{spec.name} does not run over that: {known}")
    _check_place(listener, listener.transport, "bind", listener.host, notes)
    if notes.has(listener, "mode") and listener.transport is not Transport.UNIX:
        notes.complain(listener, "mode", "only a Unix socket has a mode (transport: unix)")
    if notes.has(listener, "origins") and listener.transport is not Transport.WEBSOCKET:
        notes.complain(listener, "origins", "only web pages have origins (transport: websocket)")
    if listener.transport is Transport.WEBSOCKET and len(spoken) > 1:
        notes.complain(listener, "protocol", "a WebSocket is upgraded at the path of one protocol: use two listeners")


def _check_place(value: object, transport: Transport | None, key: str, host: str, notes: Notebook) -> None:
    if is_path(host) and transport is not Transport.UNIX:
        notes.complain(value, key, f"{host!r} is a path: only a Unix socket is at one (transport: unix)")
    elif transport is Transport.UNIX and host and not is_path(host):
        notes.complain(value, key, "a Unix socket is at a path: write /run/gateway/fujin.sock, or ./fujin.sock")


def _cannot_share(one: ProtocolSpec, two: ProtocolSpec, transport: Transport | None) -> str:
    # why two protocols cannot be told apart on one port; empty if they can
    carrier, other = transport or one.transport, transport or two.transport
    if carrier is not other:
        return f"{one.name} runs over {carrier.value} and {two.name} over {other.value}: use two listeners"
    if carrier is not Transport.QUIC and (two.name in one.shares_port_with or one.name in two.shares_port_with):
        return ""
    if carrier is Transport.QUIC and not set(one.alpns or (None,)) & set(two.alpns or (None,)):
        return ""
    return f"{one.name} and {two.name} cannot share a port: their first bytes do not tell them apart"


def _check_jwt(auth: model.AuthJwt, notes: Notebook) -> None:
    if bool(auth.jwks) == bool(auth.key):
        notes.complain(auth, "", "expected either jwks or key (or jwks_file or key_file)")
    unknown = [name for name in auth.algorithms if name not in ALGORITHMS]
    for name in unknown:
        notes.complain(auth, "algorithms", f"unknown algorithm {name!r}{suggestion(name, ALGORITHMS)}")
    if not auth.algorithms:
        notes.complain(auth, "algorithms", "expected at least one algorithm")
    if auth.jwks:
        name = "jwks" if notes.has(auth, "jwks") else "jwks_file"
        try:
            keys = json.loads(auth.jwks)
        except (ValueError, RecursionError):
            keys = None
        if not isinstance(keys, dict) or not isinstance(keys.get("keys"), list):
            notes.complain(auth, name, 'not a key set: expected JSON like {"keys": [...]}')
        elif not _has_key(keys):
            notes.complain(auth, name, "no key of the key set can be used")
    elif auth.key and auth.algorithms and not unknown and not _verifies(auth.key, auth.algorithms):
        name = "key" if notes.has(auth, "key") else "key_file"
        names = ", ".join(auth.algorithms)
        wanted = "a public key in PEM form, or a shared secret and one of HS256, HS384, HS512 in algorithms"
        notes.complain(auth, name, f"no key for {names}: expected {wanted}")


def _has_key(keys: dict[str, object]) -> bool:
    import jwt  # half of what a start would import, and only listeners with `jwt` need it

    try:
        return bool(jwt.PyJWKSet.from_dict(keys).keys)
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _verifies(key: str, algorithms: Sequence[str]) -> bool:
    # Whether a token of one of the algorithms can be checked with it. A public key never serves as a shared secret.
    import jwt

    public = "-----BEGIN" in key
    if "PRIVATE KEY-----" in key:
        return False
    for name in algorithms:
        if name.startswith("HS") is public:
            continue
        try:
            jwt.get_algorithm_by_name(name).prepare_key(key)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        return True
    return False


def _check_files(value: object, keys: Sequence[str], notes: Notebook) -> None:
    for key in keys:
        name = getattr(value, key)
        if not name:
            continue
        try:
            with Path(name).open("rb"):
                pass
        except OSError as error:
            notes.complain(value, key, f"cannot read {name!r}: {error.strerror or error}")


@attrs.frozen
class _PortClaim:
    """A port that something wants to listen on."""

    value: object
    path: str
    transport: Transport
    host: str
    port: int

    def clashes(self, other: _PortClaim) -> bool:
        """Whether both cannot have theirs. Port 0 is a free one each time."""
        if self.transport is other.transport is Transport.UNIX:
            return self.host == other.host
        if self.port == 0 or (self.transport, self.port) != (other.transport, other.port):
            return False
        return self.host == other.host or self._spans(other.host) or other._spans(self.host)

    def _spans(self, host: str) -> bool:
        return is_everywhere(self.host) and (":" in self.host) == (":" in host)


def _claims(config: model.Config, specs: Specs, notes: Notebook) -> Iterator[_PortClaim]:
    for listener in config.listeners.values():
        for transport in dict.fromkeys(listener.transport or specs[name].transport for name in listener.protocols):
            if transport is Transport.WEBSOCKET:  # it begins as TCP
                transport = Transport.TCP
            host = "127.0.0.1" if listener.host == "localhost" else listener.host
            yield _PortClaim(listener, notes.path_of(listener), transport, host, listener.port)
    if config.admin is not None:
        yield _PortClaim(config.admin, "admin", Transport.TCP, config.admin.host, config.admin.port)
    if config.metrics.bind is not None:
        yield _PortClaim(config.metrics, "metrics", Transport.TCP, *config.metrics.bind)


def _check_tokens(admin: model.Admin, notes: Notebook) -> None:
    # everybody has one, and it tells who they are
    names = {admin.token: "admin.token"} if admin.token else {}
    for name, one in admin.tokens.items():
        if name == "admin" and admin.token:
            notes.complain(one, "", "that is what whoever shows admin.token is called: choose another name")
        elif not one.token:
            notes.complain(one, "", "a token is needed, as `token` or `token_file`")
        elif one.token in names:
            notes.complain(one, "token", f"that is {names[one.token]} too: it would not tell who shows it")
        else:
            names[one.token] = f"admin.tokens.{name}"


def _check_ports(config: model.Config, specs: Specs, notes: Notebook) -> None:
    claims = list(_claims(config, specs, notes))
    for index, claim in enumerate(claims):
        earlier = next((other for other in claims[:index] if claim.clashes(other)), None)
        if earlier is not None:
            where = f"{show_endpoint(claim.host, claim.port)} ({claim.transport.value})"
            hint = "; several protocols on one port are one listener with `protocol: [a, b]`"
            both = isinstance(claim.value, model.Listener) and isinstance(earlier.value, model.Listener)
            problem = f"{where} is taken by {earlier.path} already{hint if both else ''}"
            notes.complain(claim.value, "bind", problem)


def _check_upstream(upstream: model.Upstream, specs: Specs, notes: Notebook) -> None:
    spec = specs.get(upstream.protocol)
    if spec is None:
        if upstream.protocol not in notes.spoken:
            problem = f"unknown or not available protocol {upstream.protocol!r}{suggestion(upstream.protocol, specs)}"
            notes.complain(upstream, "protocol", problem)
    else:
        if not dialled(spec):
            notes.complain(upstream, "protocol", f"{spec.name} is served here and not dialled")
        if spec.library is not None and importlib.util.find_spec(spec.library[0]) is None:
            problem = f"{spec.name} needs a library that is not installed: install the gateway with its extra `{spec.library[1]}`"
            notes.complain(upstream, "protocol", problem)
        if spec.one_cluster and upstream.pool > 1:
            notes.complain(upstream, "pool", f"a client of {spec.name} keeps its own connections")
        if spec.port_over(upstream.transport) is None:
            known = ", ".join(one.value for one in (spec.transport, *spec.other_transports))
            notes.complain(upstream, "transport", f"{spec.name} does not run over that: {known}")
        if (upstream.transport or spec.transport) is Transport.QUIC and isinstance(upstream.tls, model.TlsNone):
            notes.complain(
                upstream, "tls", f"{spec.name} runs over QUIC, which needs tls (system, or a mapping with ca)"
            )
        _check_dialect(upstream, [spec], notes)
    for host, port in upstream.addresses:
        _check_place(upstream, upstream.transport, "address", host, notes)
        if port == 0 and not is_path(host):
            notes.complain(upstream, "address", f"{show_endpoint(host, port)}: nobody can be reached at port 0")
    if isinstance(upstream.tls, model.TlsTrust):
        _check_files(upstream.tls, ("ca", "cert", "key"), notes)
        if bool(upstream.tls.cert) != bool(upstream.tls.key):
            notes.complain(upstream.tls, "", "cert and key go together")


def _check_kafka(kafka: model.Kafka, config: model.Config, notes: Notebook) -> None:
    # what a log on Kafka cannot do, and what it does not promise
    for host, port in kafka.brokers:
        if port == 0:
            notes.complain(kafka, "brokers", f"{show_endpoint(host, port)}: nobody can be reached at port 0")
    if isinstance(kafka.tls, model.TlsTrust):
        _check_files(kafka.tls, ("ca", "cert", "key"), notes)
        if bool(kafka.tls.cert) != bool(kafka.tls.key):
            notes.complain(kafka.tls, "", "cert and key go together")
        if kafka.tls.server_name:
            notes.complain(kafka.tls, "server_name", "Kafka's brokers are dialled by the names they give themselves")
    if kafka.min_insync > kafka.replication:
        notes.complain(
            kafka,
            "min_insync",
            f"{kafka.min_insync} brokers cannot have what is on {kafka.replication}: nothing is stored",
        )
    if kafka.insync == 1:
        key = "min_insync" if notes.has(kafka, "min_insync") else "replication"
        notes.warn(kafka, key, "a message is acknowledged when one broker has it: it is lost with that broker's disk")
    sasl = kafka.sasl
    if sasl is not None:
        if sasl.mechanism is model.KafkaMechanism.OAUTHBEARER and not sasl.token_url:
            notes.complain(sasl, "mechanism", "oauthbearer needs token_url, where tokens are to be had")
        if not (sasl.username and sasl.password):
            notes.complain(sasl, "mechanism", f"{sasl.mechanism.value} needs username and password")
        if isinstance(kafka.tls, model.TlsNone) and sasl.mechanism in {
            model.KafkaMechanism.PLAIN,
            model.KafkaMechanism.OAUTHBEARER,
        }:
            notes.warn(
                sasl, "mechanism", f"{sasl.mechanism.value} without tls shows the secret to everybody on the way"
            )
    for key in ("page_cache", "free_space_floor"):
        if notes.has(config.storage, key):
            notes.warn(config.storage, key, "is about a log in a directory: on Kafka nothing comes of it")
    for route in config.routes:
        kept = route.targets[0] if route.targets else None
        forwarded = any(isinstance(target, model.Forward) for target in route.targets)
        if forwarded and isinstance(kept, model.StoreTarget) and kept.settings.retention is not None:
            unsent = "on Kafka retention asks no forward how far it is: what has not been sent by then is not sent"
            notes.warn(kept, "retention", unsent)
    memory = "a log on Kafka has no memory topics"
    if config.storage.durability.kind is Durability.MEMORY:
        notes.complain(config.storage, "durability", memory)
    stored = [target for route in config.routes for target in route.targets if isinstance(target, model.StoreTarget)]
    said = [(one, one) for one in config.topics.values()] + [(target, target.settings) for target in stored]
    for value, settings in said:
        if settings.durability is not None and settings.durability.kind is Durability.MEMORY:
            notes.complain(value, "durability", memory)


def _check_ingests(upstream: model.Upstream, listeners: Mapping[str, model.Listener], notes: Notebook) -> None:
    if upstream.ingest and upstream.name in listeners:
        notes.complain(upstream, "ingest", f"what is pulled comes in as {upstream.name!r}, which is a listener as well")
    compiled: list[tuple[model.Ingest, IngestRule]] = []
    for ingest in upstream.ingest:
        try:
            rule = compile_ingest(ingest)
        except ConfigProblem as problem:
            notes.complain(ingest, "into", problem.message)
            continue
        for other, earlier in compiled:
            example = overlap(rule.symbols, earlier.symbols) if other.group == ingest.group else None
            if example is not None:
                line = notes.line(f"{notes.path_of(other)}.from", notes.path_of(other))
                notes.complain(
                    ingest, "from", f"{example!r} is pulled for the group {ingest.group!r} in line {line} already"
                )
                break
        compiled.append((ingest, rule))
