"""Drawings as numbers for SVG: the map, bars, lines.

Apart from the pages, which ask and answer: this is arithmetic. A template writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import attrs

from gateway.admin.overview import GatewayMap, MapNode

WIDTH = 1180
NODE_WIDTH, NODE_HEIGHT, GAP = 218, 50, 16
TOP = 34
COLUMNS = {"listener": 0, "route": 1, "topics": 2, "target": 3}
HEADINGS = ("comes in at", "routes", "stored as", "goes out by")
PAGES = {"listener": "/connections?search=", "route": "/routes", "topics": "/topics", "target": "/connections?search="}
LONGEST_NAME, LONGEST_LABEL = 25, 33


@attrs.frozen
class DrawnNode:
    node: MapNode
    x: float
    y: float
    title: str
    label: str
    href: str


@attrs.frozen
class DrawnEdge:
    id: str
    path: str
    x: float
    y: float
    """Where its rate is written."""
    title: str


@attrs.frozen
class DrawnMap:
    width: int
    height: int
    nodes: Sequence[DrawnNode]
    edges: Sequence[DrawnEdge]
    headings: Sequence[tuple[float, str]]


def draw_map(found: GatewayMap) -> DrawnMap:
    """Four columns of places, and arrows between them."""
    step = (WIDTH - NODE_WIDTH) / (len(HEADINGS) - 1)
    columns: list[list[MapNode]] = [[] for _ in HEADINGS]
    for node in found.nodes:
        columns[COLUMNS[node.kind]].append(node)
    tallest = max((len(column) for column in columns), default=0)
    height = TOP + max(tallest, 1) * (NODE_HEIGHT + GAP)
    drawn: dict[str, DrawnNode] = {}
    for number, column in enumerate(columns):
        used = len(column) * (NODE_HEIGHT + GAP) - GAP
        y = TOP + (height - TOP - GAP - used) / 2
        for node in column:
            drawn[node.id] = DrawnNode(
                node, number * step, y, _short(node.name, LONGEST_NAME), _short(node.label, LONGEST_LABEL), _href(node)
            )
            y += NODE_HEIGHT + GAP
    out = _fan(found, drawn, source=True)
    into = _fan(found, drawn, source=False)
    edges: list[DrawnEdge] = []
    for edge in found.edges:
        one, two = drawn[edge.source], drawn[edge.target]
        x1, y1 = one.x + NODE_WIDTH, one.y + out[edge.id]
        x2, y2 = two.x, two.y + into[edge.id]
        bend = (x2 - x1) / 2 if x2 - x1 < step else step / 3
        path = f"M{x1:.0f} {y1:.1f}C{x1 + bend:.0f} {y1:.1f} {x2 - bend:.0f} {y2:.1f} {x2:.0f} {y2:.1f}"
        # near its beginning, where it has not met the others yet; neighbours not beside each other
        at = 0.26 + 0.2 * (len(edges) % 3) if bend < step / 2 or abs(y2 - y1) > 1 else 0.5
        edges.append(
            DrawnEdge(edge.id, path, *_along(at, (x1, y1), bend, (x2, y2)), f"{one.node.name} to {two.node.name}")
        )
    headings = [(number * step, text) for number, text in enumerate(HEADINGS)]
    return DrawnMap(WIDTH, round(height), list(drawn.values()), edges, headings)


def _fan(found: GatewayMap, drawn: Mapping[str, DrawnNode], *, source: bool) -> Mapping[str, float]:
    # how far down a node each of its arrows begins or ends: in the order of what is at their other end
    at: dict[str, list[tuple[float, str]]] = {}
    for edge in found.edges:
        here, there = (edge.source, edge.target) if source else (edge.target, edge.source)
        at.setdefault(here, []).append((drawn[there].y, edge.id))
    places: dict[str, float] = {}
    for arrows in at.values():
        for number, (_y, name) in enumerate(sorted(arrows), 1):
            places[name] = NODE_HEIGHT * number / (len(arrows) + 1)
    return places


def _along(t: float, one: tuple[float, float], bend: float, two: tuple[float, float]) -> tuple[float, float]:
    # a point of a cubic curve whose handles are level
    (x1, y1), (x2, y2) = one, two
    a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
    return a * x1 + b * (x1 + bend) + c * (x2 - bend) + d * x2, (a + b) * y1 + (c + d) * y2 + 4


def _href(node: MapNode) -> str:
    if node.kind == "target" and "upstream" in node.notes:
        return "/upstreams"
    if node.kind in ("listener", "target"):
        return PAGES[node.kind] + quote(node.name, safe="")
    if node.kind == "topics":
        first = node.name.split("{")[0].split(",")[0]
        return f"/topics?search={quote(first, safe='')}" if first else "/topics"
    return f"/routes#route-{quote(node.name)}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def line(values: Sequence[float | None], width: int = 120, height: int = 30) -> str:
    """A line over equal steps, as the path of an SVG; a gap where there is no value."""
    known = [one for one in values if one is not None]
    if not known:
        return ""
    top = max(*known, 1e-9)
    step = width / max(1, len(values) - 1)
    parts, pen = [], "M"
    for number, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{number * step:.1f} {height - 2 - (height - 4) * value / top:.1f}")
        pen = "L"
    return "".join(parts)


@attrs.frozen
class Bar:
    x: float
    y: float
    width: float
    height: float
    value: int
    time_ms: int


def bars(values: Sequence[int], start_ms: int, step_ms: int, width: int = 960, height: int = 90) -> Sequence[Bar]:
    top = max((*values, 1))
    wide = width / max(1, len(values))
    return [
        Bar(number * wide, height - high, max(wide - 1.5, 1), high, value, start_ms + number * step_ms)
        for number, value in enumerate(values)
        for high in [height * value / top]
    ]
