"""`gateway bench` against a gateway: several places in turns, beside the bare loops, in a closed and in an open loop."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.integration.running import Served, started

CONFIG = """
version: 1
listeners:
  flymq:   {{protocol: flymq, bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [key]}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("bench")
    with started(directory, CONFIG.format(data=directory / "data")) as one:
        yield one


def bench(served: Served, *args: str, code: int = 0) -> str:
    urls = [f"{name}://127.0.0.1:{served.ports[name]}/bench" for name in ("flymq", "rustlog")]
    command = [sys.executable, "-m", "gateway", "bench", *urls, *args]
    done = trio.run(partial(trio.run_process, command, capture_stdout=True, capture_stderr=True, check=False))
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == code, said
    return said


def test_places_are_compared_in_turns_beside_the_bare_loops(served: Served, tmp_path: Path) -> None:
    report, svg, pid = tmp_path / "report.json", tmp_path / "plot.svg", str(served.pid)
    said = bench(
        served, "--workload", "one", "--messages", "60", "--rounds", "2", "--bare", "--pid", pid, "--pid", pid,
        "--report", str(report), "--svg", str(svg),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(report.read_text())
    assert (found["workload"], found["plan"]["messages"], found["plan"]["batch"]) == ("one", 60, 1)
    names = [one["name"] for one in found["targets"]]
    assert names[2:] == ["bare echo", "bare durable"]
    assert [one["mark"] for one in found["targets"]] == [False, False, True, True]
    for one in found["targets"]:
        assert [each["messages"] for each in one["rounds"]] == [60, 60]
        assert all(each["processor_seconds"] > 0 for each in one["rounds"])
        assert all(
            list(each["milliseconds"].values()) == sorted(each["milliseconds"].values()) for each in one["rounds"]
        )
    assert all(set(one["checked"].values()) == {0} for place in found["targets"][:2] for one in place["rounds"])
    for summary, place in zip(found["summary"], found["targets"], strict=True):
        for mark in (one for one in found["targets"] if one["mark"] and one is not place):
            ratios = [
                mine["processor_seconds"] / mine["requests"] / (least["processor_seconds"] / least["requests"])
                for mine, least in zip(place["rounds"], mark["rounds"], strict=True)
            ]
            spread = summary["ratios"][mark["name"]]
            assert (spread["least"], spread["most"]) == (pytest.approx(min(ratios)), pytest.approx(max(ratios)))
    assert all(name in said for name in names)
    assert "240 messages read back" in said
    assert "bare durable" in ET.fromstring(svg.read_text()).find("{*}polyline[last()]/{*}title").text  # type: ignore[union-attr,operator]


def test_an_open_loop_sends_when_it_is_due(served: Served) -> None:
    found = json.loads(
        bench(served, "--rate", "200", "--messages", "100", "--batch", "2", "--window", "4", "--output", "json")
    )
    for one in found["targets"]:
        (once,) = one["rounds"]
        assert once["requests"] == 50
        # the last of fifty is due 49/200 s after the first, and answered no sooner
        assert once["seconds"] >= 49 / 200
        assert set(once["checked"].values()) == {0}


def test_what_readers_get_is_counted_and_timed(served: Served) -> None:
    found = json.loads(
        bench(served, "--workload", "fan-out", "--messages", "200", "--readers", "3", "--output", "json")
    )
    for one in found["targets"]:
        (once,) = one["rounds"]
        assert once["delivered"] == 600
        assert set(once["checked"].values()) == {0}
        delivery = once["delivery_milliseconds"]
        assert 0 < delivery["p50"] <= delivery["p99"] <= delivery["max"] <= once["delivered_seconds"] * 1e3
    without_offsets = f"blipmq://127.0.0.1:{served.ports['blipmq']}/bench"
    asked = ("--workload", "replay", "--messages", "3000", "--readers", "2", "--output", "json")
    late = json.loads(bench(served, without_offsets, "--api-key", "key", *asked))
    assert len(late["targets"]) == 3
    for one in late["targets"]:
        (once,) = one["rounds"]
        assert (once["delivered"], once["delivery_milliseconds"]) == (6000, {})
    assert all(one["delivered_per_second"]["median"] > 0 for one in late["summary"])


def test_what_makes_no_sense_is_said(served: Served) -> None:
    assert "one for each URL" in bench(served, "--pid", "1", code=2)
    assert "--size" in bench(served, "--size", "3", code=2)
    for url, option, said in (("fujin://127.0.0.1:1/a", ("--readers", "2"), "shares it"),):
        assert said in bench(served, url, *option, code=2)


def test_a_round_that_is_not_answered_is_given_up(served: Served) -> None:
    assert "were not answered within" in bench(served, "--messages", "100000000", "--timeout", "0.5", code=2)
