"""A report as one HTML page: nothing in it comes from elsewhere, and no name in it can be more than text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import attrs

from gateway.pipeline.report import DIMENSIONS, LogReport, Traffic

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH, HEIGHT = 960, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 26
LABEL = 100
SLOTS = 9
"""Colours there are; `others` is always the last one's."""
SHOWN = 160
"""Characters of a name."""
FINDINGS = 200


@attrs.frozen
class StackedBar:
    x: float
    y: float
    width: float
    height: float
    slot: int
    title: str


@attrs.frozen
class Tick:
    at: float
    text: str


@attrs.frozen
class Chart:
    """What an SVG is drawn from."""

    label: str
    bars: Sequence[StackedBar]
    down: Sequence[Tick]
    across: Sequence[Tick]
    line: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def page(report: LogReport) -> str:
    charts = {one: over_time(report, one) for one in DIMENSIONS}
    return _template().render(
        report=report,
        charts=charts,
        sizes=by_size(report),
        latency=latency(report),
        dimensions=DIMENSIONS,
        findings=FINDINGS,
        last_slot=SLOTS - 1,
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gateway.pipeline"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        name=shown, key=shown_key, number=number, size=size, when=when, milliseconds=milliseconds, rows=rows_of
    )
    return environment.get_template("report.html")


def over_time(report: LogReport, dimension: str) -> Chart | None:
    """Messages a step, one bar upon the other."""
    if report.first_s is None or report.last_s is None:
        return None
    traffic = report.traffic[dimension]
    first = report.first_s - report.first_s % report.step_s
    steps = list(range(first, report.last_s + 1, report.step_s))
    sums = {at: sum(counts.get(at, 0) for counts in traffic.messages.values()) for at in steps}
    top = _round_up(max(sums.values(), default=0))
    wide = (WIDTH - LEFT - RIGHT) / len(steps)
    bars: list[StackedBar] = []
    for index, at in enumerate(steps):
        base = 0
        for name in traffic.names:
            count = traffic.messages.get(name, {}).get(at, 0)
            if count:
                y, low = _y(base + count, top), _y(base, top)
                title = f"{when(at)}: {shown(name)}, {number(count)} messages"
                bars.append(
                    StackedBar(LEFT + index * wide, y, max(wide - 1, 0.5), low - y, _slot(traffic, name), title)
                )
                base += count
    label = f"Messages over time by {dimension}, in steps of {_step_text(report.step_s)}"
    return Chart(label, bars, [Tick(_y(one, top), number(one)) for one in _grid(top)], list(_times(steps, wide)))


def by_size(report: LogReport) -> Chart | None:
    """Messages by the power of two that their values are below."""
    if not report.sizes:
        return None
    powers = list(range(min(report.sizes), max(report.sizes) + 1))
    top = _round_up(max(report.sizes.values()))
    wide = (WIDTH - LEFT - RIGHT) / len(powers)
    bars = []
    for index, power in enumerate(powers):
        count = report.sizes.get(power, 0)
        y = _y(count, top)
        text = "empty" if power == 0 else f"{size(1 << power >> 1)} to {size((1 << power) - 1)}"
        bars.append(
            StackedBar(LEFT + index * wide, y, max(wide - 2, 1), _y(0, top) - y, 0, f"{text}: {number(count)} messages")
        )
    every = max(1, len(powers) // 12)
    across = [
        Tick(LEFT + (index + 0.5) * wide, "0" if not power else size(1 << power >> 1))
        for index, power in enumerate(powers)
        if index % every == 0
    ]
    return Chart(
        "Messages by the size of their values", bars, [Tick(_y(one, top), number(one)) for one in _grid(top)], across
    )


def latency(report: LogReport) -> Chart | None:
    """The 95th percentile over time."""
    if not report.latency or report.first_s is None:
        return None
    first, last = min(report.latency), max(report.latency)
    steps = list(range(first, last + 1, report.step_s))
    top = _round_up(max(report.latency.values()))
    wide = (WIDTH - LEFT - RIGHT) / len(steps)
    points = [
        (LEFT + (index + 0.5) * wide, _y(report.latency[at], top))
        for index, at in enumerate(steps)
        if at in report.latency
    ]
    bars = [
        StackedBar(
            LEFT + (index + 0.5) * wide - 2,
            _y(report.latency[at], top) - 2,
            4,
            4,
            0,
            f"{when(at)}: {milliseconds(report.latency[at])}",
        )
        for index, at in enumerate(steps)
        if at in report.latency
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    down = [Tick(_y(one, top), milliseconds(one)) for one in _grid(top)]
    return Chart("95 % of deliveries took at most so long, over time", bars, down, list(_times(steps, wide)), line)


def _slot(traffic: Traffic, name: str) -> int:
    index = list(traffic.names).index(name)
    return min(index, SLOTS - 1)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _round_up(value: float) -> float:
    # a round number that is not less; something, even for nothing
    unit = 1.0
    while unit * 10 < value:
        unit *= 10
    return next(unit * one for one in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * one >= value)


def _grid(top: float) -> Sequence[float]:
    return (0, top / 2, top)


def _times(steps: Sequence[int], wide: float) -> Iterator[Tick]:
    every = max(1, len(steps) // 6)
    for index in range(0, len(steps), every):
        if index == 0 or LEFT + index * wide < WIDTH - LABEL:  # or it would be cut off
            yield Tick(LEFT + index * wide, when(steps[index]))


def _step_text(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def shown(text: str) -> str:
    """A name as it may be looked at: what cannot be seen, or turns the line around, is written out."""
    seen = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:SHOWN])
    return f"{seen}…" if len(text) > SHOWN else seen


def shown_key(key: tuple[bytes, int]) -> str:
    """A key's beginning, as text where it is that; in a browser's own words it is never more."""
    start, length = key
    text = start.decode(errors="replace") if length > len(start) else None
    if text is None:
        try:
            text = start.decode()
        except UnicodeDecodeError:
            text = f"0x{start.hex()}"
    return shown(text) + ("…" if length > len(start) else "")


def number(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f") if value == int(value) else f"{value:,.1f}".replace(",", "\u202f")


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def when(seconds: int) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M}"


def milliseconds(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def rows_of(traffic: Traffic) -> Sequence[tuple[str, int, int]]:
    """Name, messages and bytes, for the table beside a chart."""
    return [(name, sum(traffic.messages.get(name, {}).values()), traffic.sizes.get(name, 0)) for name in traffic.names]
