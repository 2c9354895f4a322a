"""The page on growth shows the figures that are kept beside it, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench.growth import CHARTS, PLOT, kept_figures
from tests.bench.growth_log import LENGTHS, UNITS
from tests.bench.growth_plot import svg, text

PAGE = Path("gateway/docs/growth.md")
CHARTS_KEPT = kept_figures()


def test_the_charts_of_the_page_are_those_of_the_figures():
    shown = re.findall(r"^```\n(.*?)\n```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert sorted(shown) == sorted(text(chart) for chart in CHARTS_KEPT)


def test_the_plot_is_of_the_figures():
    assert PLOT.read_text() == svg(CHARTS_KEPT)


def test_there_is_a_chart_of_everything_that_the_run_measures():
    known = [(axis, title) for axis, title, _measure in CHARTS] + [("records", title) for title in UNITS]
    assert sorted((chart.axis, chart.title) for chart in CHARTS_KEPT) == sorted(known)


@pytest.mark.parametrize(
    ("axis", "last"),
    [
        ("connections", "5,000"),
        ("topics", "50,000"),
        ("records", "100,000,000"),
        ("subscribers", "1,000"),
        ("size", "16 MiB"),
    ],
)
def test_each_axis_goes_as_far_as_it_is_said_to(axis: str, last: str):
    for chart in CHARTS_KEPT:
        assert chart.axis != axis or chart.points[-1][0] == last
    assert LENGTHS[-1] == 100_000_000
