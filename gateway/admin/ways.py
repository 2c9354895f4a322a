"""What the API answers about a configuration, worked out from it alone. A running gateway is asked of the one in force; the
command line asks of a file by the same code where none runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway import model
from gateway.admin.content import Content, HeaderSent, content_of
from gateway.config.load import Examined
from gateway.errors import ConfigProblem, NotFound
from gateway.protocols import registry
from gateway.routing.explain import Question, explain
from gateway.routing.fidelity import Fidelity, Way, fidelity, targets_of
from gateway.routing.table import RoutingTable

# --- the way of a message ---


class WayAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message somebody would send."""

    protocol: str
    address: str
    listener: str = ""
    """Empty: the first that speaks the protocol."""
    principal: str = ""
    key: bytes | None = None
    headers: Sequence[HeaderSent] = ()
    value: bytes | None = None
    """With one, the transform is applied to it."""


class WayStep(msgspec.Struct, frozen=True):
    kind: str
    where: str
    notes: Sequence[str]


class WayTaken(msgspec.Struct, frozen=True):
    """The way it would take."""

    protocol: str
    listener: str
    address: str
    """As the listener names it."""
    route: str
    topic: str
    read_topic: str
    """What a reader of the same address reads; empty if nothing."""
    steps: Sequence[WayStep]
    before: Content | None = None
    after: Content | None = None
    """What the transform makes of the value, where one was sent and it stays."""


def way_of(config: model.Config, table: RoutingTable, asked: WayAsked) -> WayTaken:
    """The way of a message, by the code that routes. Raises NotFound, NotRouted or InvalidRequest."""
    specs = registry.protocols()
    if asked.protocol not in specs:
        raise NotFound(f"there is no protocol {asked.protocol!r}: there are {', '.join(specs)}")
    listener, address = _listener(config, asked.protocol, asked.listener), asked.address
    if listener in config.listeners:
        settings = config.listeners[listener].settings.get(asked.protocol)
        if settings is not None:
            address = specs[asked.protocol].local_address(settings, address)
    headers = tuple((one.name, one.value) for one in asked.headers)
    question = Question(asked.protocol, listener, address, asked.key, headers, asked.principal, asked.value)
    found = explain(table, config, registry.carried(specs), question)
    after = next((one.where for one in found.steps if one.kind == "becomes"), None)
    return WayTaken(
        asked.protocol,
        listener,
        address,
        found.route,
        found.topic,
        found.read_topic,
        [WayStep(one.kind, one.where, one.notes) for one in found.steps],
        content_of(asked.value) if asked.value is not None else None,
        content_of(after.encode()) if after is not None else None,
    )


def _listener(config: model.Config, protocol: str, name: str) -> str:
    # The listener that is meant: the named one, or the first that speaks the protocol. What is pulled from an upstream comes
    # in as if at a listener of its name.
    speaking = [listener.name for listener in config.listeners.values() if protocol in listener.protocols]
    speaking += [one.name for one in config.upstreams.values() if one.ingest and one.protocol == protocol]
    if not name:
        if not speaking:
            raise NotFound(f"no listener speaks {protocol}")
        return speaking[0]
    if name not in speaking:
        raise NotFound(f"{name!r} does not speak {protocol} (these do: {', '.join(speaking) or 'none'})")
    return name


# --- what is lost on the way ---


class PairField(msgspec.Struct, frozen=True):
    """What becomes of a field: `kept`, `mapped`, `lost`, or `absent` where the source has none."""

    fate: str
    note: str


class PairFidelity(msgspec.Struct, frozen=True):
    """From one protocol to another, by one way: `bridge` (stored here, read here) or `forward` (delivered elsewhere)."""

    source: str
    target: str
    way: str
    fields: Mapping[str, PairField]
    losses: Sequence[str]
    """What `accept_loss` has to name."""
    promise: str


class RouteFidelity(msgspec.Struct, frozen=True):
    """The same for one target of a route, from every protocol whose messages it takes."""

    route: str
    target: str
    address: str
    accept_loss: Sequence[str]
    pairs: Sequence[PairFidelity]


class FidelityReport(msgspec.Struct, frozen=True):
    pairs: Sequence[PairFidelity]
    routes: Sequence[RouteFidelity]


def fidelity_report(config: model.Config) -> FidelityReport:
    carries = registry.carried(registry.protocols())
    targets = {Way.BRIDGE: sorted(registry.carried(registry.served())), Way.FORWARD: sorted(carries)}
    pairs = [_pair(fidelity(one, two, carries, way)) for way in Way for one in sorted(carries) for two in targets[way]]
    return FidelityReport(pairs, list(_routes(config, carries)))


def _pair(pair: Fidelity) -> PairFidelity:
    fields = {one.name: PairField(one.fate.value, one.note) for one in pair.fields}
    return PairFidelity(pair.source, pair.target, pair.way.value, fields, sorted(pair.losses), pair.promise)


def _routes(config: model.Config, carries: Mapping[str, registry.Carries]) -> Iterator[RouteFidelity]:
    for route in config.routes:
        for found in targets_of(route, config, carries):
            target = found.target
            pairs = [_pair(pair) for pair in found.pairs]
            yield RouteFidelity(route.name, target.word, target.address, sorted(target.accept_loss), pairs)


# --- whether it is good ---


class ProblemShown(msgspec.Struct, frozen=True):
    file: str
    line: int
    path: str
    message: str


class Checked(msgspec.Struct, frozen=True):
    """Everything there is to say about a configuration; of a running gateway also what it would change."""

    good: bool
    file: str
    problems: Sequence[ProblemShown]
    warnings: Sequence[ProblemShown]
    listeners: int = 0
    """How many it has, if it is good."""
    routes: int = 0
    plan: Sequence[str] = ()


def checked(file: str, found: Examined, plan: Sequence[str] = ()) -> Checked:
    config = found.config if not found.problems else None
    return Checked(
        config is not None,
        file,
        [_problem(one) for one in found.problems],
        [_problem(one) for one in found.warnings],
        len(config.listeners) if config is not None else 0,
        len(config.routes) if config is not None else 0,
        plan,
    )


def _problem(one: ConfigProblem) -> ProblemShown:
    return ProblemShown(one.file, one.line or 0, one.path or "", one.message)
