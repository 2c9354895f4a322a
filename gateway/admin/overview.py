"""The map of a gateway: listeners, routes, what they store, and where that goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gateway import model
from gateway.admin.access import Role
from gateway.admin.inside import Inside
from gateway.admin.operation import Asked, Nothing, operation
from gateway.notation import show_endpoint
from gateway.observe import metrics as m
from gateway.routing.address import is_reserved

MOST_NODES = 200
"""On the map; what is beyond is counted."""


class MapNode(msgspec.Struct, frozen=True):
    """A place. `kind`: listener, route, topics, target."""

    id: str
    kind: str
    name: str
    label: str
    notes: Sequence[str] = ()


class MapEdge(msgspec.Struct, frozen=True):
    """An arrow; its id is the `edge` of flows."""

    source: str
    target: str
    kind: str

    @property
    def id(self) -> str:
        return f"{self.source}>{self.target}"


class GatewayMap(msgspec.Struct, frozen=True):
    nodes: Sequence[MapNode]
    edges: Sequence[MapEdge]
    left_out: int = 0
    """Places for which there is no room."""


class Overview:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    @operation("GET", "/v1/map", Role.READ)
    async def map(self, asked: Asked[Nothing, None]) -> GatewayMap:
        """Listeners, routes, what they store and where that goes, as a graph."""
        config = self._inside.config
        nodes = list(self._nodes(config))
        shown = nodes[:MOST_NODES]
        names = {one.id for one in shown}
        edges: dict[tuple[str, str], MapEdge] = {}
        for one in self._edges(config):
            if one.source in names and one.target in names:
                edges.setdefault((one.source, one.target), one)
        return GatewayMap(shown, list(edges.values()), len(nodes) - len(shown))

    def _nodes(self, config: model.Config) -> Iterator[MapNode]:
        for listener in config.listeners.values():
            where = show_endpoint(listener.host, self._inside.ports.get(listener.name, listener.port))
            notes = [f"{'+'.join(listener.protocols)} at {where}"]
            yield MapNode(f"listener:{listener.name}", "listener", listener.name, "+".join(listener.protocols), notes)
        for upstream in config.upstreams.values():
            if upstream.ingest:
                label = f"{upstream.protocol}, pulled"
                yield MapNode(f"listener:{upstream.name}", "listener", upstream.name, label, ["ingest"])
        counts = self._topics_by_route()
        for route in config.routes:
            yield MapNode(f"route:{route.name}", "route", route.name, show_match(route.match), [])
        for route in config.routes:
            stores = [one for one in route.targets if isinstance(one, model.StoreTarget)]
            if stores:
                count = counts.get(route.name, 0)
                label = f"{count} topic{'s' * (count != 1)} of that name"
                yield MapNode(f"topics:{route.name}", "topics", ", ".join(one.topic for one in stores), label, [])
        for listener in config.listeners.values():
            yield MapNode(f"target:{listener.name}", "target", listener.name, "readers", ["readers"])
        for upstream in config.upstreams.values():
            uses = [one.word for route in config.routes for one in _remote(route, upstream.name)]
            if uses:
                label = f"{upstream.protocol}, {', '.join(dict.fromkeys(uses))}"
                yield MapNode(f"target:{upstream.name}", "target", upstream.name, label, ["upstream"])

    def _edges(self, config: model.Config) -> Iterator[MapEdge]:
        for route in config.routes:
            for listener in config.listeners.values():
                if _may_take(route.match, listener.name, listener.protocols):
                    yield MapEdge(f"listener:{listener.name}", f"route:{route.name}", "in")
            for upstream in config.upstreams.values():
                if upstream.ingest and _may_take(route.match, upstream.name, (upstream.protocol,)):
                    yield MapEdge(f"listener:{upstream.name}", f"route:{route.name}", "in")
            if any(isinstance(one, model.StoreTarget) for one in route.targets):
                yield MapEdge(f"route:{route.name}", f"topics:{route.name}", "store")
            for target in route.targets:
                match target:
                    case model.Bridge():
                        for listener in config.listeners.values():
                            if target.protocol in listener.protocols:
                                yield MapEdge(f"topics:{route.name}", f"target:{listener.name}", "bridge")
                    case model.Forward():
                        yield MapEdge(f"topics:{route.name}", f"target:{target.upstream}", "forward")
                    case model.Mirror():
                        yield MapEdge(f"topics:{route.name}", f"target:{target.upstream}", "mirror")
                    case model.Proxy():
                        yield MapEdge(f"route:{route.name}", f"target:{target.upstream}", "proxy")
                    case model.StoreTarget():
                        pass
        # who reads by the topic's own name shows when somebody does
        (delivered,) = self._inside.recorder.counted(m.DELIVERED_MESSAGES)
        for (route_name, target_name), messages in delivered.items():
            if messages:
                yield MapEdge(f"topics:{route_name}", f"target:{target_name}", "read")

    def _topics_by_route(self) -> dict[str, int]:
        # how many topics there are of a name that each route stores to; several may store to one
        found: dict[str, int] = {}
        primaries = [(route.name, route.primary) for route in self._inside.table.routes if route.primary is not None]
        for topic in self._inside.store.topics:
            if is_reserved(topic):
                continue
            for name, primary in primaries:
                if primary.invert(topic) is not None:
                    found[name] = found.get(name, 0) + 1
        return found


def show_match(match: model.Match) -> str:
    """What a route takes, in a few words."""
    words = []
    for name in ("protocol", "listener", "topic", "key", "header", "principal"):
        value = getattr(match, name)
        if value:
            shown = " or ".join(value) if isinstance(value, tuple | list) else str(value)
            words.append(f"{name} {shown}")
    return ", ".join(words) or "everything"


def _may_take(match: model.Match, listener: str, protocols: Sequence[str]) -> bool:
    if match.listener and listener not in match.listener:
        return False
    return not match.protocol or any(one in match.protocol for one in protocols)


def _remote(route: model.Route, upstream: str) -> Iterator[model.Target]:
    for target in route.targets:
        if isinstance(target, model.Forward | model.Mirror | model.Proxy) and target.upstream == upstream:
            yield target
