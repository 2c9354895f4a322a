"""What grows with what, as text and as an SVG that needs nothing else: each chart a line, as multiples of its least. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

import msgspec

from gateway.bench.plot import COLOURS, STYLE

BARS, DECADES = 40, 4
PANEL, HIGH, GAP, HEAD, LEGEND = 480, 190, 45, 44, 15


class GrowthChart(msgspec.Struct, frozen=True):
    axis: str
    """What there is more and more of."""
    title: str
    unit: str
    points: Sequence[tuple[str, float]]

    @property
    def least(self) -> float:
        return min(value for _name, value in self.points)


class GrowthFigures(msgspec.Struct, frozen=True):
    charts: Sequence[GrowthChart]


def text(chart: GrowthChart) -> str:
    """Bars as long as the logarithm of what they stand for: a tenfold is always the same step."""
    digits = 0 if chart.least >= 10 else 1 if chart.least >= 1 else 3
    lines = [chart.title, ""]
    for name, value in chart.points:
        ratio = value / chart.least
        bar = "#" * (1 + round(BARS / DECADES * math.log10(ratio)))
        lines.append(f"{name:>12} {value:>10,.{digits}f} {chart.unit:<3} {ratio:>8,.1f} x  {bar}")
    return "\n".join(lines)


def svg(charts: Sequence[GrowthChart]) -> str:
    """A panel for each axis."""
    axes = list(dict.fromkeys(chart.axis for chart in charts))
    parts: list[str] = []
    top = float(HEAD)
    for row in range(0, len(axes), 2):
        pair = [[chart for chart in charts if chart.axis == axis] for axis in axes[row : row + 2]]
        for column, some in enumerate(pair):
            parts += _panel(some, column * (PANEL + GAP) + GAP, top)
        top += HIGH + 50 + LEGEND * max(map(len, pair))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * (PANEL + GAP)} {top:.0f}" role="img">'
    title = "What grows with what: multiples of the least of each line, on a logarithmic scale"
    name = f'<title>{title}</title><style>{STYLE}</style><text x="0" y="14">{title}</text>'
    return "\n".join([head, name, *parts, "</svg>\n"])


def _panel(charts: Sequence[GrowthChart], left: float, top: float) -> Iterator[str]:
    names = [name for name, _value in charts[0].points]
    highest = max(value / chart.least for chart in charts for _name, value in chart.points)
    decades = max(1, math.ceil(math.log10(highest)))
    wide = PANEL - 30

    def x(number: int) -> float:
        return left + number * wide / max(len(names) - 1, 1)

    def y(ratio: float) -> float:
        return top + HIGH - HIGH * math.log10(ratio) / decades

    yield f'<text x="{left:.0f}" y="{top - 8:.0f}">{escape(charts[0].axis)}</text>'
    for power in range(decades + 1):
        at = y(10.0**power)
        yield f'<line class="grid" x1="{left:.0f}" y1="{at:.1f}" x2="{left + wide:.0f}" y2="{at:.1f}"/>'
        yield f'<text class="soft" x="{left - 5:.0f}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>'
    for number, name in enumerate(names):
        yield f'<text class="soft" x="{x(number):.1f}" y="{top + HIGH + 16:.0f}" text-anchor="middle">{escape(name)}</text>'
    for place, chart in enumerate(charts):
        colour = COLOURS[place % len(COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if place >= len(COLOURS) else ""
        line = " ".join(
            f"{x(number):.1f},{y(value / chart.least):.1f}" for number, (_, value) in enumerate(chart.points)
        )
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        below = top + HIGH + 34 + LEGEND * place
        yield f'<line x1="{left:.0f}" y1="{below - 4:.0f}" x2="{left + 18:.0f}" y2="{below - 4:.0f}" stroke="{colour}" stroke-width="2"{dashes}/>'
        least = f"{chart.least:,.3g} {chart.unit}"
        yield f'<text class="soft" x="{left + 24:.0f}" y="{below:.0f}">{escape(chart.title)} (least: {least})</text>'
