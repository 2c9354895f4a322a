"""What was compared, as an SVG that needs nothing else: latency by quantile, and messages a second; the band is from round to
round. Pure. It follows its reader's light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gateway.bench.figures import QUANTILES, Comparison, Measured, describe

WIDTH, HEIGHT, TOP, BOTTOM, LEFT = 880, 360, 64, 44, 64
MIDDLE = 520
"""Where latencies end and rates begin."""
RIGHT = 28
COLOURS = ("#0b6e74", "#b3541e", "#5b4bb5", "#8a7a00", "#a32f6b", "#3b6ea8", "#4d7c2f", "#777777")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b2b2d}.soft{fill:#5c6b6d}.grid{stroke:#d8dede;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#e4eceb}.soft{fill:#9fb0b0}.grid{stroke:#33403f}}"
)


def plot(found: Comparison) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(describe(found))}</title><style>{STYLE}</style>",
        f'<text x="0" y="16">{escape(describe(found))}</text>',
        f'<text class="soft" x="{LEFT}" y="44">latency of a request, ms</text>',
        f'<text class="soft" x="{MIDDLE + 40}" y="44">messages a second; processor time of the server</text>',
        *_latencies(found.targets),
        *_rates(found),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _latencies(targets: Sequence[Measured]) -> Iterator[str]:
    known = [one for one in targets if one.rounds and one.rounds[0].milliseconds]
    if not known:
        return
    values = [getattr(one.milliseconds(name), end) for one in known for name in QUANTILES for end in ("least", "most")]
    low = math.floor(math.log10(max(min(values), 1e-3)))
    high = max(math.ceil(math.log10(max(values))), low + 1)

    def x(number: int) -> float:
        return LEFT + number * (MIDDLE - LEFT - 20) / (len(QUANTILES) - 1)

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    for power in range(low, high + 1):
        at = y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{MIDDLE - 20}" y2="{at:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    for number, name in enumerate(QUANTILES):
        yield f'<text class="soft" x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name}</text>'
    for place, one in enumerate(targets):
        if one not in known:
            continue
        spreads = [one.milliseconds(name) for name in QUANTILES]
        upper = [f"{x(n):.1f},{y(each.most):.1f}" for n, each in enumerate(spreads)]
        lower = [f"{x(n):.1f},{y(each.least):.1f}" for n, each in enumerate(spreads)]
        middle = [f"{x(n):.1f},{y(each.median):.1f}" for n, each in enumerate(spreads)]
        colour = COLOURS[place % len(COLOURS)]
        yield f'<polygon points="{" ".join([*upper, *reversed(lower)])}" fill="{colour}" opacity=".15"/>'
        dashes = ' stroke-dasharray="5 4"' if one.mark else ""
        yield (
            f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"{dashes}>'
            f"<title>{escape(one.name)}</title></polyline>"
        )


def _rates(found: Comparison) -> Iterator[str]:
    targets = found.targets
    top = max((one.per_second.most for one in targets), default=1.0)
    step = min(40.0, (HEIGHT - TOP - BOTTOM) / max(1, len(targets)))
    left, wide = MIDDLE + 40, WIDTH - MIDDLE - 40 - RIGHT - 72
    for place, one in enumerate(targets):
        y, rate, colour = TOP + place * step, one.per_second, COLOURS[place % len(COLOURS)]
        length = wide * rate.median / top
        dear = f'<tspan class="soft">{escape(_dear(found, one))}</tspan>'
        yield f'<text x="{left}" y="{y + 10:.1f}">{escape(one.name)}{dear}</text>'
        yield f'<rect x="{left}" y="{y + 15:.1f}" width="{max(length, 1):.1f}" height="8" rx="2" fill="{colour}"/>'
        ends = f'x1="{left + wide * rate.least / top:.1f}" x2="{left + wide * rate.most / top:.1f}"'
        yield f'<line {ends} y1="{y + 19:.1f}" y2="{y + 19:.1f}" stroke="currentColor" stroke-width="1.5"/>'
        yield f'<text class="soft" x="{left + wide * rate.most / top + 6:.1f}" y="{y + 23:.1f}">{rate.median:,.0f}</text>'


def _dear(found: Comparison, one: Measured) -> str:
    """What a request costs its server, and how many times the first bare loop's that is."""
    if one.processor_us is None:
        return ""
    ratio = next(iter(found.ratios(one).values()), None)
    times = f", {ratio.median:.2f} ×" if ratio is not None and not one.mark else ""
    return f" · {one.processor_us.median:,.0f} µs{times}"
