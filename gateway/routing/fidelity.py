"""What a translation costs: for each pair of protocols, what becomes of every field, and what is promised.

Worked out from what each protocol says it carries (`ProtocolSpec.carries`); no protocol is named here. Losing a field
must be accepted by the route's author (`accept_loss`) where a message is handed over to another protocol by a route; the
fields that belong to the log itself (partition, offset, time, provenance) are only reported.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from gateway import model
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, row_of
from gateway.settings import Dialect

ORDINARY_VALUE = 8 << 20
"""A limit above this is reported but costs nothing that has to be accepted: every protocol has one about there. A limit
below it loses messages that are ordinary elsewhere. What is too large is never lost silently: it goes to the dead letters
with reason `size`, or is a typed error at its offset."""


class Fate(enum.Enum):
    """What becomes of a field."""

    KEPT = "kept"
    MAPPED = "mapped"  # there, in another form or with a bound
    LOST = "lost"
    ABSENT = "absent"  # the source has none


class Way(enum.Enum):
    """How a message gets from one protocol to the other."""

    BRIDGE = "bridge"  # a view: stored here, read here
    FORWARD = "forward"  # stored here, delivered to a broker elsewhere


@attrs.frozen
class Field:
    """What becomes of one field between two protocols."""

    name: str
    fate: Fate
    note: str = ""

    @property
    def costs(self) -> bool:
        return self.fate in (Fate.MAPPED, Fate.LOST)


@attrs.frozen
class Fidelity:
    source: str
    target: str
    way: Way
    fields: tuple[Field, ...]
    promise: str

    @property
    def losses(self) -> frozenset[str]:
        """The words that `accept_loss` has to name."""
        return frozenset(f.name for f in self.fields if f.fate is Fate.LOST and f.name in model.ACCEPTABLE)

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


def fidelity(source: str, target: str, carries: Mapping[str, Carries], way: Way) -> Fidelity:
    """What becomes of a message that came in by `source` on its way to readers, or a broker, that speak `target`."""
    one, two = carries[source], carries[target]
    fields = (
        _plain("key", one.key, two.key),
        _plain("headers", one.headers, two.headers),
        _ordering(one, two, way),
        _acknowledgement(one, two, way),
        _size(one, two),
        _atomicity(one, two, way),
        _expiry(one, two, way),
        _reported("partition", one.partition, two.partition, "the log's own"),
        _reported(
            "offset", one.offset, two.offset, "the log's own" if way is Way.BRIDGE else "the remote gives its own"
        ),
        _reported("time", one.time, two.time, "the time it was stored"),
        Field("provenance", Fate.MAPPED, "kept in the log, for readers of the envelope")
        if way is Way.BRIDGE
        else Field("provenance", Fate.MAPPED if two.headers else Fate.LOST, "headers" if two.headers else "no headers"),
    )
    return Fidelity(source, target, way, fields, _promise(one, two, way))


def _plain(name: str, has: bool, carries: bool) -> Field:
    if not has:
        return Field(name, Fate.ABSENT)
    return Field(name, Fate.KEPT if carries else Fate.LOST)


def _reported(name: str, has: bool, carries: bool, note: str) -> Field:
    if not carries:
        return Field(name, Fate.LOST if has else Fate.ABSENT)
    return Field(name, Fate.MAPPED, note)


def _ordering(one: Carries, two: Carries, way: Way) -> Field:
    if one.ordering is Ordering.NONE:
        return Field("ordering", Fate.ABSENT)
    if two.ordering is Ordering.NONE:
        return Field("ordering", Fate.LOST)
    if way is Way.FORWARD and one.key:
        return Field("ordering", Fate.MAPPED, "per key, and of those without one")
    if one.ordering is two.ordering:
        return Field("ordering", Fate.KEPT, f"per {two.ordering.value}")
    return Field("ordering", Fate.MAPPED, "per partition of the topic")


def _acknowledgement(one: Carries, two: Carries, way: Way) -> Field:
    if one.acknowledgement is Acknowledgement.NOTHING:
        return Field("acknowledgement", Fate.ABSENT)
    if way is Way.BRIDGE:
        return Field("acknowledgement", Fate.KEPT, "the publisher's is given by the log")
    if two.acknowledgement is Acknowledgement.NOTHING:
        return Field("acknowledgement", Fate.LOST, "the remote confirms nothing")
    if two.acknowledgement is Acknowledgement.BARRIER:
        return Field("acknowledgement", Fate.MAPPED, "an exchange that follows proves it")
    return Field("acknowledgement", Fate.KEPT)


def _size(one: Carries, two: Carries) -> Field:
    least = two.min_value > one.min_value
    bounds = f"{two.min_value} to {two.max_value} bytes"
    if least or two.max_value < min(one.max_value, ORDINARY_VALUE):
        return Field("size", Fate.LOST, f"only {bounds}")
    if two.max_value < one.max_value:
        return Field("size", Fate.MAPPED, f"up to {two.max_value} bytes")
    return Field("size", Fate.KEPT)


def _atomicity(one: Carries, two: Carries, way: Way) -> Field:
    if not one.batch_atomic:
        return Field("atomicity", Fate.ABSENT)
    if way is Way.BRIDGE:
        return Field("atomicity", Fate.KEPT, "a batch becomes visible as a whole")
    return Field("atomicity", Fate.KEPT if two.batch_atomic else Fate.LOST)


def _expiry(one: Carries, two: Carries, way: Way) -> Field:
    if not one.expiry:
        return Field("expiry", Fate.ABSENT)
    if way is Way.BRIDGE:
        return Field("expiry", Fate.KEPT, "expired messages are not delivered")
    return Field("expiry", Fate.KEPT if two.expiry and two.hands_on_expiry else Fate.LOST)


def _promise(one: Carries, two: Carries, way: Way) -> str:
    if one.acknowledgement is Acknowledgement.NOTHING:
        door = "A publisher is told nothing, so what is lost on its way here is not noticed"
    elif one.acknowledgement is Acknowledgement.BARRIER:
        door = "A publisher knows that a message is stored when the exchange behind it is answered"
    else:
        door = "A publisher is told when its message is stored"
    if way is Way.FORWARD:
        if two.acknowledgement is Acknowledgement.NOTHING:
            return f"{door}; the remote confirms nothing: at most once from here."
        sign = "says so" if two.acknowledgement is Acknowledgement.STORED else "answers the exchange behind it"
        again = f"{door}; it is delivered again until the remote {sign}: at least once, in order per key"
        if two.copies:
            return f"{again}; effectively once where {two.copies_where}."
        return f"{again}; what is sent again is there again."
    if two.consumer_acknowledges:
        return f"{door}; a reader that does not confirm it gets it again, or reads on from its own position: at least once."
    return f"{door}; handed to a reader's connection it counts as delivered: at most once from there."


def sources_of(route: model.Route, config: model.Config, carries: Mapping[str, Carries]) -> Sequence[str]:
    """The protocols whose messages a route can take: those it names, or all that come in where it listens."""
    protocols: dict[str, None] = {}
    for listener in config.listeners.values():
        if not route.match.listener or listener.name in route.match.listener:
            for name in listener.protocols:
                protocols.update(dict.fromkeys(rows_of(name, listener.dialect, carries)))
    for upstream in config.upstreams.values():
        if upstream.ingest and (not route.match.listener or upstream.name in route.match.listener):
            protocols.update(dict.fromkeys(rows_of(upstream.protocol, upstream.dialect, carries)))
    return [row for row in protocols if not route.match.protocol or row.split()[0] in route.match.protocol]


def rows_of(name: str, dialect: Dialect, carries: Mapping[str, Carries]) -> Sequence[str]:
    """The rows of what is spoken: of the one dialect, or of all that may be."""
    if row_of(name, dialect) in carries:
        return [row_of(name, dialect)]
    if dialect is not Dialect.AUTO:
        return [name]
    return [name, *(row for row in carries if row.startswith(f"{name} "))]


@attrs.frozen
class TargetFidelity:
    """What one target of a route costs, from every protocol that the route takes messages of."""

    route: str
    target: model.Bridge | model.Forward
    pairs: tuple[Fidelity, ...]

    @property
    def refused(self) -> Sequence[str]:
        """The words that are missing in its `accept_loss`, in their usual order."""
        lost = frozenset(word for pair in self.pairs for word in pair.losses) - self.target.accept_loss
        return [word for word in model.ACCEPTABLE if word in lost]


def targets_of(route: model.Route, config: model.Config, carries: Mapping[str, Carries]) -> Sequence[TargetFidelity]:
    """The fidelity of every bridge and forward of a route whose protocols are known."""
    found = []
    for target in route.targets:
        if isinstance(target, model.Bridge):
            protocol, way = target.protocol, Way.BRIDGE
        elif isinstance(target, model.Forward) and target.upstream in config.upstreams:
            upstream = config.upstreams[target.upstream]
            protocol, way = rows_of(upstream.protocol, upstream.dialect, carries)[0], Way.FORWARD
        else:
            continue
        if protocol in carries:
            pairs = tuple(
                fidelity(source, protocol, carries, way)
                for source in sources_of(route, config, carries)
                if source in carries
            )
            found.append(TargetFidelity(route.name, target, pairs))
    return found
