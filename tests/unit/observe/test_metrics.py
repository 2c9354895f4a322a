"""The declarations: names, labels, and that the documentation is made of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import docs
from gateway.observe import metrics as m

CONFIGURED_OR_CLOSED = {
    "route", "listener", "protocol", "target", "reason", "limit", "phase", "kind", "durability", "file", "upstream",
    "forward", "version", "python", "family", "source", "state", "outcome", "group", "request", "side",
}  # fmt: skip

PROMISED = [
    "gateway_route_received_messages_total",
    "gateway_route_received_bytes_total",
    "gateway_route_stored_messages_total",
    "gateway_route_stored_bytes_total",
    "gateway_route_delivered_messages_total",
    "gateway_route_delivered_bytes_total",
    "gateway_route_acknowledged_messages_total",
    "gateway_route_acknowledged_bytes_total",
    "gateway_refused_messages_total",
    "gateway_dropped_messages_total",
    "gateway_dead_lettered_messages_total",
    "gateway_publish_latency_seconds",
    "gateway_connections",
    "gateway_store_writable",
    "gateway_build_info",
    "gateway_route_unaccounted_messages",
]


def test_the_families_others_rely_on_exist() -> None:
    assert set(PROMISED) <= {family.exported for family in m.FAMILIES}


@pytest.mark.parametrize("family", m.FAMILIES, ids=lambda family: family.name)
def test_a_family_follows_the_conventions(family: m.Family) -> None:
    assert re.fullmatch(r"gateway_[a-z_]+", family.name)
    assert not family.name.endswith("_total"), "the client library adds it"
    assert family.help.endswith(".")
    assert set(family.labels) <= CONFIGURED_OR_CLOSED, "labels come from the configuration or a closed set"
    assert family.exported.endswith("_total") == (family.kind is m.MetricType.COUNTER)
    assert list(family.buckets) == sorted(set(family.buckets))


def test_the_page_has_the_table_as_the_code_makes_it() -> None:
    assert m.table() in docs.text("metrics"), "paste the output of `gateway metrics` into gateway/docs/metrics.md"


CLOSED = {
    # call: (position of the word among its arguments, the closed set it comes from)
    "dropped": (1, set(m.DROPS)),
    "dead_lettered": (1, set(m.DEAD_LETTERS)),
    "refused_connection": (1, set(m.CONNECTION_REFUSALS)),
    "_on_refusal": (0, set(m.CONNECTION_REFUSALS)),
    "limit_hit": (1, {*m.LIMITS, m.CACHE_LIMIT, m.PROXY_LIMIT}),
    "gauge": (0, set(m.GAUGES)),
}


def words() -> Iterator[tuple[str, str, str]]:
    """(where, call, word) of every call of the recorder that names its word literally."""
    for path in sorted(Path("gateway").rglob("*.py")):
        text = path.read_text()
        if not any(f".{call}(" in text for call in CLOSED):
            continue  # to parse all modules takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOSED:
                position = CLOSED[node.func.attr][0]
                if len(node.args) > position:
                    argument = node.args[position]
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield f"{path}:{node.lineno}", node.func.attr, argument.value


def test_every_word_that_is_recorded_was_zero_before() -> None:
    """A series that appears with its first event has no rate; every reason has to be in its closed set."""
    found = list(words())
    assert len(found) > 10
    assert [entry for entry in found if entry[2] not in CLOSED[entry[1]][1]] == []
