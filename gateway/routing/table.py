"""The routing table: from an address to topics and back. Compiled from a configuration, cached per address; it
changes as a whole or not at all.

An address means one topic, for writing and for reading. A bridge whose template matches the address comes first, then
the first route that matches: writing considers all of `match`, reading only protocol, listener and topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import attrs

from gateway import model
from gateway.envelope import Columns
from gateway.errors import InvalidRequest, NotRouted
from gateway.protocols.registry import ProtocolSpec
from gateway.protocols.registry import protocols as registered
from gateway.routing.address import check_topic, is_reserved
from gateway.routing.compiled import (
    CompiledRoute,
    IngestRule,
    RemoteRule,
    ResolvedProxy,
    ResolvedRoute,
    compile_ingest,
    compile_route,
)
from gateway.routing.glob import BoundTemplate, bind, template
from gateway.routing.settings import TopicRules
from gateway.store.interface import TopicConfig

__all__ = ["IngestRule", "Plan", "RemoteRule", "ResolvedProxy", "ResolvedRoute", "RoutingTable", "compile_table"]

CACHED = 65_536
"""Addresses remembered per kind of look-up; the oldest makes room."""
LONGEST_ADDRESS = 2_048
"""Characters of an address that is looked at: no topic is longer, and globs take time with length."""

K = TypeVar("K")
V = TypeVar("V")

Parts = Sequence[tuple[ResolvedRoute, Sequence[int] | None]]


@attrs.frozen(eq=False)
class Plan:
    """Where messages for an address go. `route` when all of them go one way; otherwise `split` says which go where."""

    address: str
    route: ResolvedRoute | None
    candidates: tuple[ResolvedRoute, ...]

    def split(self, columns: Columns) -> tuple[Parts, Sequence[int]]:
        """The routes with the indexes of their messages (None: all of them), and the messages that no route takes."""
        if self.route is not None:
            return [(self.route, None)], ()
        groups: dict[str, list[int]] = {}
        refused: list[int] = []
        takes = [(route.name, route.compiled.matcher) for route in self.candidates]
        for index in range(columns.count):
            for name, matcher in takes:
                if not matcher.conditional or matcher.takes(columns, index):
                    groups.setdefault(name, []).append(index)
                    break
            else:
                refused.append(index)
        routes = {route.name: route for route in self.candidates}
        if len(groups) == 1 and not refused:
            return [(routes[next(iter(groups))], None)], ()
        return [(routes[name], indexes) for name, indexes in groups.items()], refused


@attrs.frozen(eq=False)
class _View:
    """A bridge as one listener's clients write it."""

    template: BoundTemplate
    route: CompiledRoute


class RoutingTable:
    """See the module. Every look-up is pure; what is remembered only saves time."""

    def __init__(self, config: model.Config, specs: Mapping[str, ProtocolSpec]) -> None:
        self.routes: Sequence[CompiledRoute] = tuple(compile_route(route) for route in config.routes)
        self.forwards: Sequence[RemoteRule] = tuple(rule for route in self.routes for rule in route.forwards)
        self.mirrors: Sequence[RemoteRule] = tuple(rule for route in self.routes for rule in route.mirrors)
        self.ingests: Mapping[str, Sequence[IngestRule]] = {
            name: tuple(compile_ingest(ingest) for ingest in upstream.ingest)
            for name, upstream in config.upstreams.items()
        }
        self.version: object = object()
        """Another one whenever the table has become another."""
        self._topics = TopicRules(config, self.routes)
        self._views = _views(self.routes, config, specs)
        self._plans: dict[tuple[str, str, str, str], Plan] = {}
        self._readers: dict[tuple[str, str, str], str] = {}
        self._names: dict[tuple[str, str, str], str | None] = {}

    def become(self, other: RoutingTable) -> None:
        """From now on, for everybody who holds it, be what another table is. What was asked before keeps its answer: plans
        and resolved routes are never changed. Call it from the event loop's thread only.
        """
        self.routes, self.forwards, self.mirrors, self.ingests = (
            other.routes,
            other.forwards,
            other.mirrors,
            other.ingests,
        )
        self.version = other.version
        self._topics, self._views = other._topics, other._views
        self._plans, self._readers, self._names = other._plans, other._readers, other._names

    # --- writing and reading ---

    def writer(self, protocol: str, listener: str, address: str, principal: str = "") -> Plan:
        """Where messages for an address go. NotRouted if no route could take them, InvalidRequest for a topic that
        cannot be.
        """
        question = (protocol, listener, address, principal)
        plan = self._plans.get(question)
        if plan is None:
            plan = self._plan(protocol, listener, address, principal)
            _remember(self._plans, question, plan)
        return plan

    def reader(self, protocol: str, listener: str, address: str) -> str:
        """The topic that is read at an address. NotRouted if there is none, InvalidRequest for one that cannot be."""
        question = (protocol, listener, address)
        topic = self._readers.get(question)
        if topic is None:
            topic = self._read(protocol, listener, address)
            _remember(self._readers, question, topic)
        return topic

    def _plan(self, protocol: str, listener: str, address: str, principal: str) -> Plan:
        _check_length(address)
        bridged = self._bridged(protocol, listener, address)
        if bridged is not None:
            return Plan(address, _checked(bridged), ())
        candidates: list[ResolvedRoute] = []
        for route in self.routes:
            captures = route.matcher.captures(protocol, listener, address)
            if captures is None or not route.matcher.allows(principal):
                continue
            candidates.append(_checked(route.resolve(dict(enumerate(captures)))))
            # nothing can pass a route that asks for no more than the address: those behind it are never reached
            if not route.matcher.conditional:
                break
        if not candidates:
            raise NotRouted(f"no route takes {address[:64]!r}")
        sure = not candidates[0].compiled.matcher.conditional
        return Plan(address, candidates[0] if sure else None, tuple(candidates))

    def _read(self, protocol: str, listener: str, address: str) -> str:
        _check_length(address)
        bridged = self._bridged(protocol, listener, address)
        if bridged is not None:
            return _checked(bridged).topic
        for route in self.routes:
            captures = route.matcher.captures(protocol, listener, address)
            if captures is None:
                continue
            resolved = _checked(route.resolve(dict(enumerate(captures))))
            if not resolved.topics:
                raise NotRouted(f"{address[:64]!r} goes to a broker elsewhere: there is nothing to read here")
            return resolved.topic
        raise NotRouted(f"no route takes {address[:64]!r}")

    def _bridged(self, protocol: str, listener: str, address: str) -> ResolvedRoute | None:
        for view in self._views_of(protocol, listener):
            captures = view.template.invert(address)
            if captures is not None:
                return view.route.resolve(captures, only_primary=True)
        return None

    def _views_of(self, protocol: str, listener: str) -> Sequence[_View]:
        found = self._views.get((protocol, listener))
        return found if found is not None else self._views.get((protocol, ""), ())

    # --- from topics back ---

    def address_of(self, protocol: str, listener: str, topic: str) -> str | None:
        """An address by which a client of a listener reaches a topic; None if there is none (or the topic is hidden)."""
        question = (protocol, listener, topic)
        if question in self._names:
            return self._names[question]
        address = self._name(protocol, listener, topic)
        _remember(self._names, question, address)
        return address

    def _name(self, protocol: str, listener: str, topic: str) -> str | None:
        if is_reserved(topic):
            return None
        for view in self._views_of(protocol, listener):
            primary = view.route.primary
            captures = primary.invert(topic) if primary is not None else None
            if captures is not None and view.template.used <= captures.keys():
                address = view.template.expand(captures)
                if self._leads_to(protocol, listener, address, topic):
                    return address
        for route in self.routes:
            candidate = route.address_of(topic)
            if candidate is not None and self._leads_to(protocol, listener, candidate, topic):
                return candidate
        return None

    def _leads_to(self, protocol: str, listener: str, address: str, topic: str) -> bool:
        try:
            return self._read(protocol, listener, address) == topic
        except (NotRouted, InvalidRequest):
            return False

    def topic_config(self, topic: str) -> TopicConfig:
        return self._topics.config(topic)

    @property
    def has_schemas(self) -> bool:
        return self._topics.has_schemas

    def decides_partitions(self, topic: str) -> bool:
        """Whether the configuration says how many partitions a topic has; if not, the client who creates it may."""
        return self._topics.decides_partitions(topic)


def compile_table(config: model.Config, specs: Mapping[str, ProtocolSpec] | None = None) -> RoutingTable:
    """The table of a configuration. `specs` are the protocols there are, if not the registered ones."""
    return RoutingTable(config, registered() if specs is None else specs)


def _views(
    routes: Sequence[CompiledRoute], config: model.Config, specs: Mapping[str, ProtocolSpec]
) -> Mapping[tuple[str, str], Sequence[_View]]:
    # per protocol and listener the bridges, as its clients write their addresses; under the listener "" as the file has
    # them
    places = [(protocol, "", None) for protocol in {b.protocol for route in routes for _, b in route.bridges}]
    for listener in config.listeners.values():
        places.extend((protocol, listener.name, listener.settings.get(protocol)) for protocol in listener.protocols)
    views: dict[tuple[str, str], list[_View]] = {}
    for protocol, listener_name, settings in places:
        found = views.setdefault((protocol, listener_name), [])
        for route in routes:
            for as_written, bridge in route.bridges:
                if bridge.protocol == protocol:
                    found.append(_View(localize(as_written, bridge, route, specs.get(protocol), settings), route))
    return views


def localize(
    as_written: BoundTemplate, bridge: model.Bridge, route: CompiledRoute, spec: ProtocolSpec | None, settings: object
) -> BoundTemplate:
    """A bridge's template as the sessions of a listener with these settings name it."""
    if spec is None or settings is None:
        return as_written
    text = spec.local_address(settings, bridge.address)
    if text == bridge.address:
        return as_written
    return bind(template(text), route.matcher.glob, route.topic)


def _check_length(address: str) -> None:
    if len(address) > LONGEST_ADDRESS:
        raise InvalidRequest(f"an address has at most {LONGEST_ADDRESS} characters")


def _checked(route: ResolvedRoute) -> ResolvedRoute:
    for topic in route.topics:
        check_topic(topic)
    return route


def _remember(cache: dict[K, V], question: K, answer: V) -> None:
    if len(cache) >= CACHED:
        del cache[next(iter(cache))]
    cache[question] = answer
