"""What a translation costs: every rule by itself, and what a route has to accept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import model
from gateway.config.load import parse
from gateway.protocols.registry import Acknowledgement, Carries, Ordering
from gateway.routing.fidelity import ORDINARY_VALUE, Fate, Way, fidelity, sources_of, targets_of
from tests.unit.config.toys import TOYS, carries

FULL: dict[str, Any] = {
    "key": True,
    "headers": True,
    "partition": True,
    "offset": True,
    "time": True,
    "expiry": True,
    "ordering": Ordering.PARTITION,
    "acknowledgement": Acknowledgement.STORED,
    "batch_atomic": True,
    "max_value": 32 << 20,
    "min_value": 0,
    "consumer_acknowledges": True,
}


def pair(source: dict[str, Any], target: dict[str, Any], way: Way) -> Any:
    return fidelity("a", "b", {"a": carries(**{**FULL, **source}), "b": carries(**{**FULL, **target})}, way)


RULES: list[tuple[str, dict[str, Any], dict[str, Any], Fate, Fate]] = [
    # field, what the source is, what the target is, by bridge, by forward
    ("key", {}, {}, Fate.KEPT, Fate.KEPT),
    ("key", {}, {"key": False}, Fate.LOST, Fate.LOST),
    ("key", {"key": False}, {}, Fate.ABSENT, Fate.ABSENT),
    ("headers", {}, {}, Fate.KEPT, Fate.KEPT),
    ("headers", {}, {"headers": False}, Fate.LOST, Fate.LOST),
    ("headers", {"headers": False}, {"headers": False}, Fate.ABSENT, Fate.ABSENT),
    ("ordering", {}, {}, Fate.KEPT, Fate.MAPPED),
    ("ordering", {"key": False}, {}, Fate.KEPT, Fate.KEPT),
    ("ordering", {}, {"ordering": Ordering.TOPIC}, Fate.MAPPED, Fate.MAPPED),
    ("ordering", {"ordering": Ordering.TOPIC}, {}, Fate.MAPPED, Fate.MAPPED),
    ("ordering", {}, {"ordering": Ordering.NONE}, Fate.LOST, Fate.LOST),
    ("ordering", {"ordering": Ordering.NONE}, {"ordering": Ordering.NONE}, Fate.ABSENT, Fate.ABSENT),
    ("acknowledgement", {}, {}, Fate.KEPT, Fate.KEPT),
    ("acknowledgement", {}, {"acknowledgement": Acknowledgement.BARRIER}, Fate.KEPT, Fate.MAPPED),
    ("acknowledgement", {}, {"acknowledgement": Acknowledgement.NOTHING}, Fate.KEPT, Fate.LOST),
    (
        "acknowledgement",
        {"acknowledgement": Acknowledgement.NOTHING},
        {"acknowledgement": Acknowledgement.NOTHING},
        Fate.ABSENT,
        Fate.ABSENT,
    ),
    ("size", {}, {}, Fate.KEPT, Fate.KEPT),
    ("size", {}, {"max_value": 16 << 20}, Fate.MAPPED, Fate.MAPPED),
    ("size", {}, {"max_value": ORDINARY_VALUE}, Fate.MAPPED, Fate.MAPPED),
    ("size", {}, {"max_value": ORDINARY_VALUE - 1}, Fate.LOST, Fate.LOST),
    ("size", {"max_value": 1000}, {"max_value": 1000}, Fate.KEPT, Fate.KEPT),
    ("size", {}, {"min_value": 1}, Fate.LOST, Fate.LOST),
    ("size", {"min_value": 1}, {"min_value": 1}, Fate.KEPT, Fate.KEPT),
    ("atomicity", {}, {}, Fate.KEPT, Fate.KEPT),
    ("atomicity", {}, {"batch_atomic": False}, Fate.KEPT, Fate.LOST),
    ("atomicity", {"batch_atomic": False}, {}, Fate.ABSENT, Fate.ABSENT),
    ("expiry", {}, {}, Fate.KEPT, Fate.KEPT),
    ("expiry", {}, {"expiry": False}, Fate.KEPT, Fate.LOST),
    ("expiry", {}, {"hands_on_expiry": False}, Fate.KEPT, Fate.LOST),
    ("expiry", {"expiry": False}, {"expiry": False}, Fate.ABSENT, Fate.ABSENT),
    ("partition", {}, {"partition": False}, Fate.LOST, Fate.LOST),
    ("offset", {}, {}, Fate.MAPPED, Fate.MAPPED),
    ("time", {"time": False}, {"time": False}, Fate.ABSENT, Fate.ABSENT),
    ("provenance", {}, {"headers": False}, Fate.MAPPED, Fate.LOST),
]


@pytest.mark.parametrize(("field", "source", "target", "bridge", "forward"), RULES)
def test_what_becomes_of_a_field(
    field: str, source: dict[str, Any], target: dict[str, Any], bridge: Fate, forward: Fate
) -> None:
    assert pair(source, target, Way.BRIDGE).field(field).fate is bridge
    assert pair(source, target, Way.FORWARD).field(field).fate is forward


def test_what_belongs_to_the_log_is_reported_and_never_refused() -> None:
    poor = {"partition": False, "offset": False, "time": False, "headers": False}
    found = pair({"headers": False}, poor, Way.FORWARD)
    assert {f.name for f in found.fields if f.fate is Fate.LOST} == {"partition", "offset", "time", "provenance"}
    assert found.losses == frozenset()


@st.composite
def some_carries(draw: st.DrawFn) -> Carries:
    return carries(
        **{name: draw(st.booleans()) for name, value in FULL.items() if isinstance(value, bool)},
        ordering=draw(st.sampled_from(Ordering)),
        acknowledgement=draw(st.sampled_from(Acknowledgement)),
        max_value=draw(st.sampled_from([65_536, 10 << 20, 32 << 20])),
        min_value=draw(st.sampled_from([0, 1])),
    )


@given(some_carries(), some_carries(), st.sampled_from(Way))
def test_every_field_has_a_fate_and_a_protocol_costs_itself_nothing(one: Carries, two: Carries, way: Way) -> None:
    both = fidelity("a", "b", {"a": one, "b": two}, way)
    assert {field.name for field in both.fields} == {*model.ACCEPTABLE, "partition", "offset", "time", "provenance"}
    assert both.promise.endswith(".")
    assert fidelity("a", "a", {"a": one}, way).losses == frozenset()


@pytest.mark.parametrize(
    ("source", "target", "way", "words"),
    [
        ({}, {}, Way.BRIDGE, "at least once"),
        ({}, {"consumer_acknowledges": False}, Way.BRIDGE, "at most once from there"),
        ({}, {}, Way.FORWARD, "at least once, in order per key; what is sent again is there again"),
        ({}, {"copies": True}, Way.FORWARD, "effectively once where the remote is another gateway"),
        ({}, {"acknowledgement": Acknowledgement.BARRIER}, Way.FORWARD, "answers the exchange"),
        ({}, {"acknowledgement": Acknowledgement.NOTHING}, Way.FORWARD, "at most once from here"),
        ({"acknowledgement": Acknowledgement.NOTHING}, {}, Way.BRIDGE, "told nothing"),
        ({"acknowledgement": Acknowledgement.BARRIER}, {}, Way.BRIDGE, "exchange behind it is answered"),
    ],
)
def test_the_promise_in_words(source: dict[str, Any], target: dict[str, Any], way: Way, words: str) -> None:
    assert words in pair(source, target, way).promise


CONFIG = """
version: 1
listeners:
  fly:  {{protocol: [flymq, rustlog], bind: "127.0.0.1:1"}}
  blip: {{protocol: blipmq, bind: "127.0.0.1:2", auth: open}}
  lix:  {{protocol: felix, bind: "127.0.0.1:3", tls: self-signed}}
  fuj:  {{protocol: fujin, bind: "127.0.0.1:4", tls: self-signed}}
upstreams:
  far: {{protocol: fujin, address: "h:1", tls: system, ingest: [{{from: "a", into: "b"}}]}}
routes:
  - name: r
    match: {match}
    to: [{{store: {{topic: t}}}}, {{bridge: {{protocol: felix, address: a, accept_loss: all}}}},
         {{forward: {{upstream: far, address: a, accept_loss: all}}}}]
"""


def config(match: str) -> model.Config:
    return parse(CONFIG.format(match=match), "r.yaml", {}, TOYS)


@pytest.mark.parametrize(
    ("match", "sources"),
    [
        ("{}", {"flymq", "rustlog", "blipmq", "felix", "fujin"}),
        ("{listener: fly}", {"flymq", "rustlog"}),
        ("{listener: fly, protocol: rustlog}", {"rustlog"}),
        ("{listener: far}", {"fujin"}),
        ("{protocol: [blipmq, fujin]}", {"blipmq", "fujin"}),
    ],
)
def test_the_protocols_a_route_takes_messages_of(match: str, sources: set[str]) -> None:
    read = config(match)
    assert set(sources_of(read.routes[0], read, {})) == sources


def test_the_words_a_target_has_to_accept() -> None:
    read = config("{protocol: flymq}")
    known = {name: spec.carries for name, spec in TOYS.items()}
    bridge, forward = targets_of(read.routes[0], read, known)
    assert bridge.pairs[0].losses == {"key", "headers"}
    assert forward.pairs[0].losses == {"key", "size", "atomicity", "expiry"}
    assert (bridge.refused, forward.refused) == ([], [])


def test_all_pairs_can_be_worked_out() -> None:
    known = {name: spec.carries for name, spec in TOYS.items()}
    for one, two, way in itertools.product(known, known, Way):
        found = fidelity(one, two, known, way)
        if one == two and way is Way.BRIDGE:
            assert found.losses == frozenset()
