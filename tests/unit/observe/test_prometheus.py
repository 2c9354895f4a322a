"""What the recorder counts is what a scrape shows, and the number of series stays bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import Status
from gateway.observe import metrics as m
from gateway.observe.prometheus import DAMAGED_KEPT, PrometheusRecorder
from gateway.recorder import Recorder
from gateway.requests import Upkeep


def samples(recorder: PrometheusRecorder) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a scrape, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(recorder.text())
        for sample in family.samples
    }


def test_it_counts_all_that_there_is_to_count() -> None:
    """Of what it had no way of its own for, nothing would be counted, and nobody would hear of it."""
    told = {name for name, found in vars(Recorder).items() if callable(found)}
    own = {name for kind in PrometheusRecorder.__mro__ if kind is not Recorder for name in vars(kind)}
    assert len(told) > 20
    assert told <= own


def value(recorder: PrometheusRecorder, name: str, **labels: str) -> float:
    return samples(recorder)[name, frozenset(labels.items())]


def make(**options: int) -> PrometheusRecorder:
    return PrometheusRecorder(
        routes=["orders"],
        listeners={"front": "blipmq", "back": "rustlog"},
        targets=["legacy"],
        version="1.2.3",
        **options,
    )


CALLS: list[tuple[Callable[[Recorder], None], str, dict[str, str], float]] = [
    (lambda r: r.received("orders", "front", 3, 30), "gateway_route_received_messages_total", {"route": "orders", "listener": "front"}, 3),
    (lambda r: r.received("orders", "front", 3, 30), "gateway_route_received_bytes_total", {"route": "orders", "listener": "front"}, 30),
    (lambda r: r.stored("orders", 3, 30), "gateway_route_stored_messages_total", {"route": "orders"}, 3),
    (lambda r: r.stored("orders", 3, 30), "gateway_route_stored_bytes_total", {"route": "orders"}, 30),
    (lambda r: r.delivered("orders", "legacy", 2, 9), "gateway_route_delivered_messages_total", {"route": "orders", "target": "legacy"}, 2),
    (lambda r: r.delivered("orders", "legacy", 2, 9), "gateway_route_delivered_bytes_total", {"route": "orders", "target": "legacy"}, 9),
    (lambda r: r.acknowledged("orders", "back", 2, 9), "gateway_route_acknowledged_messages_total", {"route": "orders", "target": "back"}, 2),
    (lambda r: r.acknowledged("orders", "back", 2, 9), "gateway_route_acknowledged_bytes_total", {"route": "orders", "target": "back"}, 9),
    (lambda r: r.refused("orders", Status.SCHEMA, 4), "gateway_refused_messages_total", {"route": "orders", "reason": "schema"}, 4),
    (lambda r: r.refused("", Status.NOT_ROUTED, 4), "gateway_refused_messages_total", {"route": "__none__", "reason": "not_routed"}, 4),
    (lambda r: r.dropped("orders", "filtered", 5), "gateway_dropped_messages_total", {"route": "orders", "reason": "filtered"}, 5),
    (lambda r: r.dead_lettered("orders", "size", 6), "gateway_dead_lettered_messages_total", {"route": "orders", "reason": "size"}, 6),
    (lambda r: r.mirrored("orders", "legacy", "taken", 3), "gateway_mirror_messages_total", {"route": "orders", "target": "legacy", "outcome": "taken"}, 3),
    (lambda r: r.mirror_compared("orders", "legacy", "ack", "same", 2), "gateway_mirror_compared_messages_total", {"route": "orders", "target": "legacy", "kind": "ack", "outcome": "same"}, 2),
    (lambda r: r.mirror_latency("orders", "legacy", 0.5), "gateway_mirror_latency_seconds_sum", {"route": "orders", "target": "legacy"}, 0.5),
    (lambda r: r.connections("front", 1), "gateway_connections", {"listener": "front", "protocol": "blipmq"}, 1),
    (lambda r: r.connections("front", 1), "gateway_connections_opened_total", {"listener": "front", "protocol": "blipmq"}, 1),
    (lambda r: r.refused_connection("back", "per_address"), "gateway_refused_connections_total", {"listener": "back", "reason": "per_address"}, 1),
    (lambda r: r.limit_hit("back", "in_flight"), "gateway_limit_hits_total", {"listener": "back", "limit": "in_flight"}, 1),
    (lambda r: r.committed(7, 70, 0.001, synced=True), "gateway_store_commits_total", {"durability": "synced"}, 1),
    (lambda r: r.committed(7, 70, 0.001, synced=False), "gateway_store_committed_records_total", {}, 7),
    (lambda r: r.committed(7, 70, 0.001, synced=False), "gateway_store_committed_bytes_total", {}, 70),
    (lambda r: r.damaged("t", 0, 5, 9), "gateway_store_damaged_reads_total", {}, 1),
    (lambda r: r.gauge("gateway_store_size_bytes", 5, file="data"), "gateway_store_size_bytes", {"file": "data"}, 5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "name", "labels", "expected"), CALLS, ids=[f"{row[1]}-{i}" for i, row in enumerate(CALLS)]
)
def test_a_call_moves_its_series_and_repeats_add_up(
    call: Callable[[Recorder], None], name: str, labels: dict[str, str], expected: float
) -> None:
    recorder = make()
    call(recorder)
    assert value(recorder, name, **labels) == expected
    call(recorder)
    twice = expected if name == "gateway_store_size_bytes" else 2 * expected
    assert value(recorder, name, **labels) == twice


def test_a_damaged_range_is_one_however_often_it_is_read_and_they_are_kept_within_a_bound() -> None:
    recorder = make()
    for _ in range(3):
        recorder.damaged("t", 0, 5, 9)
    recorder.damaged("t", 1, 5, 9)
    assert value(recorder, "gateway_store_damaged_ranges") == 2
    for number in range(2000):
        recorder.damaged("t", 0, 10 * number, 10 * number + 1)
    assert value(recorder, "gateway_store_damaged_ranges") == DAMAGED_KEPT
    assert value(recorder, "gateway_store_damaged_reads_total") == 2004


def test_the_last_reload_counts_and_a_route_that_comes_starts_at_zero() -> None:
    recorder = make()
    assert value(recorder, "gateway_config_last_reload_success") == 1
    for outcome, good in (("invalid", 0), ("applied", 1), ("refused", 0)):
        assert value(recorder, "gateway_config_reloads_total", outcome=outcome) == 0
        recorder.reloaded(outcome)
        assert value(recorder, "gateway_config_reloads_total", outcome=outcome) == 1
        assert value(recorder, "gateway_config_last_reload_success") == good
    recorder.stored("orders", 3, 30)
    for upstream in ("legacy", "gone"):
        recorder.gauge("gateway_upstream_connected", 1, upstream=upstream)
    recorder.foreseen.routes(["orders", "fresh"], ["far"])
    recorder.foreseen.upstreams({"legacy"})
    assert value(recorder, "gateway_route_stored_messages_total", route="fresh") == 0
    assert value(recorder, "gateway_route_delivered_messages_total", route="fresh", target="far") == 0
    assert value(recorder, "gateway_route_stored_messages_total", route="orders") == 3
    assert value(recorder, "gateway_upstream_connected", upstream="legacy") == 1
    assert not [labels for name, labels in samples(recorder) if ("upstream", "gone") in labels]


def test_a_connection_that_goes_leaves_the_gauge_but_not_the_counter() -> None:
    recorder = make()
    recorder.connections("front", 1)
    recorder.connections("front", -1)
    assert value(recorder, "gateway_connections", listener="front", protocol="blipmq") == 0
    assert value(recorder, "gateway_connections_opened_total", listener="front", protocol="blipmq") == 1


def test_every_foreseeable_series_is_there_at_zero_before_anything_happens() -> None:
    found = samples(make())
    for reason in Status:
        assert found["gateway_refused_messages_total", frozenset({("route", "orders"), ("reason", reason.value)})] == 0
    for target in ("front", "back", "legacy"):
        assert (
            found["gateway_route_delivered_messages_total", frozenset({("route", "orders"), ("target", target)})] == 0
        )
    for reason in m.DROPS:
        assert found["gateway_dropped_messages_total", frozenset({("route", "orders"), ("reason", reason)})] == 0
    assert found["gateway_publish_latency_seconds_count", frozenset({("route", "orders")})] == 0
    assert found["gateway_route_unaccounted_messages", frozenset({("route", "orders")})] == 0


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=40))
def test_a_histogram_is_cumulative_and_its_bounds_are_inclusive(seconds: list[float]) -> None:
    recorder = PrometheusRecorder(routes=["r"])
    for value_ in seconds:
        recorder.publish_latency("r", value_)
    found = samples(recorder)
    for bound in m.LATENCY_BUCKETS:
        bucket = found["gateway_publish_latency_seconds_bucket", frozenset({("route", "r"), ("le", repr(bound))})]
        assert bucket == sum(value_ <= bound for value_ in seconds)
    assert found["gateway_publish_latency_seconds_count", frozenset({("route", "r")})] == len(seconds)
    assert found["gateway_publish_latency_seconds_sum", frozenset({("route", "r")})] == pytest.approx(sum(seconds))


def test_labels_beyond_the_bound_share_one_series_and_that_is_counted() -> None:
    recorder = PrometheusRecorder(max_series=30)
    for i in range(100):
        recorder.dropped(f"route-{i}", "filtered", 1)
        recorder.publish_latency(f"route-{i}", 0.1)
    found = samples(recorder)
    dropped = {labels: count for (name, labels), count in found.items() if name == "gateway_dropped_messages_total"}
    assert len(dropped) == 31
    assert dropped[frozenset({("route", "__other__"), ("reason", "__other__")})] == 70
    assert found["gateway_publish_latency_seconds_count", frozenset({("route", "__other__")})] == 70
    assert found["gateway_metrics_overflow_total", frozenset({("family", "gateway_dropped_messages")})] == 70


def test_a_gauge_must_be_declared_with_its_labels() -> None:
    with pytest.raises(KeyError):
        make().gauge("gateway_route_stored_messages", 1, route="orders")
    with pytest.raises(KeyError):
        make().gauge("gateway_store_size_bytes", 1, topic="orders")


def test_what_is_worked_out_is_worked_out_for_each_scrape() -> None:
    recorder = make()
    sizes = iter([1, 2])
    recorder.on_scrape(lambda: recorder.gauge("gateway_store_topics", next(sizes)))
    assert value(recorder, "gateway_store_topics") == 1
    assert value(recorder, "gateway_store_topics") == 2


def test_two_recorders_share_nothing() -> None:
    first, second = make(), make()
    first.stored("orders", 1, 1)
    assert value(second, "gateway_route_stored_messages_total", route="orders") == 0


def test_the_process_and_the_build_are_described() -> None:
    found = samples(make())
    names = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "process_open_fds", "python_gc_collections_total"} <= names
    build = next(dict(labels) for (name, labels) in found if name == "gateway_build_info")
    assert build["version"] == "1.2.3"


def test_totals_are_sums_over_all_labels() -> None:
    recorder = PrometheusRecorder(routes=["r"], listeners={"a": "blipmq", "b": "felix"})
    recorder.received("r", "a", 2, 20)
    recorder.received("", "b", 1, 5)
    recorder.delivered("r", "b", 3, 30)
    recorder.connections("a", 1)
    recorder.connections("b", 1)
    recorder.connections("b", -1)
    recorder.limit_hit("a", "output")
    recorder.limit_hit("a", "in_flight")
    recorder.refused_connection("b", "write_timeout")
    recorder.upkeep("trimmed", 3, 300)
    recorder.upkeep("trimmed", 1, 100)
    for _ in range(98):
        recorder.publish_latency("r", 0.0004)
    recorder.publish_latency("", 0.2)
    recorder.publish_latency("", 100.0)
    recorder.fetch_latency("a", 0.0009)
    meter = recorder.publish_meter("r", "a")  # what nobody has scraped yet counts as well
    meter.received_messages, meter.received_bytes = 4, 40
    totals = recorder.totals()
    assert (totals.received, totals.received_bytes, totals.delivered, totals.delivered_bytes) == (7, 65, 3, 30)
    assert recorder.totals().received == 7
    assert (totals.connections, totals.held_back, totals.cut_off, totals.damaged) == (1, 1, 1, 0)
    assert totals.upkeep["trimmed"] == Upkeep(2, 4, 400)
    assert totals.upkeep["merged"] == Upkeep()
    half, most, nearly_all = totals.publishes
    assert 0.00025 < half < most <= 0.0005
    assert 0.1 < nearly_all <= 0.25
    assert all(0.0005 < value <= 0.001 for value in totals.fetches)
    assert PrometheusRecorder().totals().publishes == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("ask", ["text", "totals", "counted"])
def test_whoever_asks_is_told_what_the_meters_have(ask: str) -> None:
    """Who counts adds to a meter of his own: each way of asking reads it off first, and once."""
    recorder = PrometheusRecorder()
    published, read = recorder.publish_meter("r", "a"), recorder.fetch_meter("r", "a")
    published.received_messages, published.received_bytes = 4, 40
    read.delivered_messages, read.delivered_bytes = 3, 30
    read.latencies += [0.0009, 0.002]
    families = m.RECEIVED_MESSAGES, m.RECEIVED_BYTES, m.DELIVERED_MESSAGES, m.DELIVERED_BYTES
    for _ in range(2):
        if ask == "text":
            names = [line.partition("{")[::2] for line in recorder.text().splitlines() if line.startswith("gateway_")]
            found = [
                float(rest.rpartition(" ")[2])
                for family in families
                for name, rest in names
                if name == family.exported and 'route="r"' in rest
            ]
        elif ask == "totals":
            totals = recorder.totals()
            found = [totals.received, totals.received_bytes, totals.delivered, totals.delivered_bytes]
        else:
            found = [values["r", "a"] for values in recorder.counted(*families)]
        assert found == [4, 40, 3, 30]
    assert value(recorder, "gateway_fetch_latency_seconds_count", listener="a") == 2
