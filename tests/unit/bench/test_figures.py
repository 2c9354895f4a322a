"""Quantiles, spreads, turns, ratios and the plot: by their definitions, not by how they are worked out."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bench.figures import (
    MEASURED,
    QUANTILES,
    WORKLOADS,
    Comparison,
    Measured,
    Round,
    Schedule,
    Workload,
    as_json,
    quantile,
    quantiles,
    spread,
    table,
    turns,
)
from gateway.bench.plot import plot

SECONDS = st.floats(1e-6, 100.0, allow_nan=False)


@given(st.lists(SECONDS, min_size=1), st.sampled_from(sorted(QUANTILES.values())))
def test_a_quantile_is_the_least_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(one <= found for one in values) >= share * len(values) - 1e-6
    below = [one for one in values if one < found]
    assert not below or sum(one <= max(below) for one in values) < share * len(values) + 1e-6


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, (1, 1, 1, 1)), (10, (5, 9, 10, 10)), (100, (50, 90, 99, 100)), (1000, (500, 900, 990, 999))],
)
def test_quantiles_of_the_first_numbers_are_their_ranks(count: int, expected: tuple[int, ...]) -> None:
    ascending = [float(number) for number in range(1, count + 1)]
    assert tuple(quantile(ascending, share) for share in (0.5, 0.9, 0.99, 0.999)) == expected


@given(st.lists(SECONDS, min_size=1))
def test_quantiles_ascend_and_are_milliseconds(values: list[float]) -> None:
    found = list(quantiles(values).values())
    assert found == sorted(found)
    assert math.isclose(found[-1], max(values) * 1e3, abs_tol=1e-4)
    assert quantiles([]) == {}


@given(st.lists(SECONDS, min_size=1))
def test_half_of_the_rounds_are_on_either_side_of_a_median(values: list[float]) -> None:
    found = spread(values)
    assert (found.least, found.most) == (min(values), max(values))
    assert sum(one <= found.median + 1e-9 for one in values) >= len(values) / 2
    assert sum(one >= found.median - 1e-9 for one in values) >= len(values) / 2


@given(st.integers(1, 8), st.integers(1, 20))
def test_all_have_a_turn_in_each_round_and_each_begins_as_often(targets: int, rounds: int) -> None:
    found = list(turns(targets, rounds))
    assert len(found) == rounds
    assert all(sorted(one) == list(range(targets)) for one in found)
    first = Counter(one[0] for one in found)
    assert max(first.values()) - min(first[one] for one in range(targets)) <= 1


@given(st.floats(0.1, 1e5), st.floats(0, 1e6), st.integers(1, 500), st.integers(1, 9))
def test_all_connections_together_are_even_and_do_not_drift(
    rate: float, begins: float, each: int, connections: int
) -> None:
    plan = Workload(messages=each * connections, batch=1, connections=connections, rate=rate)
    due: list[float] = []
    for number in range(connections):
        schedule = Schedule(plan, number, begins)
        while (one := schedule.take()) is not None:
            due.append(one)
        assert schedule.take() is None
    assert len(due) == plan.requests
    for number, one in enumerate(sorted(due)):
        assert math.isclose(one - begins, number / rate, rel_tol=1e-6, abs_tol=1e-6)


@given(st.integers(1, 5000), st.integers(1, 40), st.integers(1, 300))
def test_the_connections_share_the_messages(messages: int, connections: int, batch: int) -> None:
    plan = Workload(messages=messages, connections=connections, batch=batch)
    assert sum(plan.shares) == messages
    assert max(plan.shares) - min(plan.shares) <= 1
    assert plan.requests == sum(math.ceil(one / batch) for one in plan.shares)


def a_round(processor_us: float | None, rate: float = 100.0) -> Round:
    requests = 1000
    return Round(
        requests=requests,
        messages=requests,
        seconds=requests / rate,
        milliseconds=dict.fromkeys(QUANTILES, 2.0) | {"p99.9": 4.0, "max": 40.0},
        processor_seconds=None if processor_us is None else processor_us * requests / 1e6,
    )


def comparison() -> Comparison:
    return Comparison(
        workload="one",
        plan=WORKLOADS["one"],
        machine={"cores": "2"},
        targets=[
            Measured(name="ours <&>", mark=False, rounds=[a_round(90.0), a_round(200.0, 50.0)]),
            Measured(name="far", mark=False, rounds=[a_round(None), a_round(None)]),
            Measured(name="bare echo", mark=True, rounds=[a_round(30.0, 500.0), a_round(50.0, 400.0)]),
        ],
    )


def test_a_ratio_is_of_one_round_and_not_of_medians() -> None:
    found = comparison()
    (ratio,) = found.ratios(found.targets[0]).values()
    assert (round(ratio.least, 6), round(ratio.most, 6), round(ratio.median, 6)) == (3.0, 4.0, 3.5)
    assert found.ratios(found.targets[1]) == {}
    assert found.ratios(found.targets[2]) == {}


def test_the_table_says_what_was_done_and_from_where_to_where_it_went() -> None:
    lines = table(comparison()).splitlines()
    assert lines[0] == (
        "one: 3,000 messages of 1,024 B, 1 in a request, 1 connection, closed loop, window 1; 2 rounds each, in turns"
    )
    assert "75 (50–100)" in lines[3]
    assert "145 (90–200)" in lines[3]
    assert lines[3].endswith("3.50 (3.00–4.00)")
    assert lines[4].endswith("–")


def test_what_is_written_can_be_read_and_plotted_again() -> None:
    found = comparison()
    again = msgspec.json.decode(as_json(found), type=Comparison)
    assert again == found
    assert plot(again) == plot(found)
    summary = msgspec.json.decode(as_json(found))["summary"]
    assert [one["name"] for one in summary] == ["ours <&>", "far", "bare echo"]
    assert summary[0]["ratios"]["bare echo"]["median"] == pytest.approx(3.5)


@pytest.mark.parametrize("workload", MEASURED)
def test_the_plots_of_the_page_are_made_of_the_figures_beside_them(workload: str) -> None:
    images = Path("gateway/docs/images")
    found = msgspec.json.decode((images / f"bench-{workload}.json").read_bytes(), type=Comparison)
    assert (found.workload, found.plan) == (workload, WORKLOADS[workload])
    assert plot(found) == (images / f"bench-{workload}.svg").read_text()


SVG = "{http://www.w3.org/2000/svg}"


def test_a_plot_is_an_svg_with_a_line_and_a_bar_for_each() -> None:
    root = ET.fromstring(plot(comparison()))  # made here
    assert root.tag == f"{SVG}svg"
    titles = [one.findtext(f"{SVG}title") for one in root.iter(f"{SVG}polyline")]
    assert titles == ["ours <&>", "far", "bare echo"]
    widths = [float(one.get("width") or 0) for one in root.iter(f"{SVG}rect")]
    assert widths[2] > widths[1] > widths[0]
    numbers = [
        float(part)
        for one in root.iter(f"{SVG}polyline")
        for part in (one.get("points") or "").replace(",", " ").split()
    ]
    assert all(0 <= one <= 880 for one in numbers)


@given(st.lists(st.lists(SECONDS, min_size=1, max_size=5), min_size=1, max_size=10))
def test_a_plot_stays_within_its_frame(values: list[list[float]]) -> None:
    rounds = [
        Round(requests=len(one), messages=len(one), seconds=sum(one), milliseconds=quantiles(one)) for one in values
    ]
    found = Comparison(
        workload="w", plan=Workload(), machine={}, targets=[Measured(name="a", mark=False, rounds=rounds)]
    )
    root = ET.fromstring(plot(found))  # made here
    for one in (*root.iter(f"{SVG}polyline"), *root.iter(f"{SVG}polygon")):
        for pair in (one.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 880
            assert 0 <= y <= 360
