"""The metrics of several processes as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe import metrics
from gateway.observe.health import Health, ProcessPhase
from gateway.observe.http import bind_http_here, serve_http
from gateway.observe.metrics import FAMILIES
from gateway.observe.prometheus import PrometheusRecorder
from gateway.observe.workers import JOINED, Others


def recorder() -> PrometheusRecorder:
    return PrometheusRecorder(routes=["r"], listeners={"l": "flymq"}, targets=["far"], version="1")


def values(text: str) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_what_each_has_is_added_up_and_how_it_is_is_not(tmp_path: Path) -> None:
    from gateway.admin.app import metrics_app

    one, two = recorder(), recorder()
    for number, each in ((1, one), (2, two)):
        each.received("r", "l", 10 * number, 100)
        each.publish_latency("r", 0.001)
        each.connections("l", number)
        each.gauge("gateway_store_writable", float(number == 1))
        each.gauge("gateway_upstream_login_refused", float(number == 1), upstream="far")
        each.gauge("gateway_store_topics", 7)
    health = Health(two)
    stop = trio.Event()
    others = Others({number: tmp_path / f"metrics-{number}" for number in (1, 2)})
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve_http(metrics_app(two, health), bind_http_here(tmp_path / "metrics-1"), stop=stop, task_status=task_status))  # fmt: skip
        found = values(generate_latest(await others.joined(one.registry.collect)).decode())
        problems = await others.problems()
        health.enter(ProcessPhase.READY)
        after = await others.problems()
        stop.set()
    labels = (("listener", "l"), ("route", "r"))
    assert found["gateway_route_received_messages_total", labels] == 30
    assert found["gateway_connections", (("listener", "l"), ("protocol", "flymq"))] == 3
    assert found["gateway_publish_latency_seconds_count", (("route", "r"),)] == 2
    assert found["gateway_publish_latency_seconds_bucket", (("le", "+Inf"), ("route", "r"))] == 2
    assert found["gateway_store_writable", ()] == 0
    assert found["gateway_upstream_login_refused", (("upstream", "far"),)] == 1
    assert found["gateway_store_topics", ()] == 7
    (build,) = [value for (name, _), value in found.items() if name == "gateway_build_info"]
    assert build == 1
    mine = values(one.text())
    assert found.keys() >= mine.keys()
    assert any(one.startswith("worker 1: ") for one in problems)
    assert "worker 2: does not answer" in problems
    assert after == ["worker 2: does not answer"]
    # one that is gone keeps what it had counted, until another one is in its place
    found = values(generate_latest(await others.joined(one.registry.collect)).decode())
    assert found["gateway_route_received_messages_total", labels] == 30


def test_what_does_not_add_up_is_what_there_is() -> None:
    gauges = {family.name for family in FAMILIES if family.kind is metrics.MetricType.GAUGE}
    assert {name for name in JOINED if name.startswith("gateway_")} <= gauges


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nno!"]
)
async def test_an_answer_that_is_none_is_passed_over(tmp_path: Path, answer: bytes) -> None:
    async def say(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            if answer:
                await stream.send_all(answer)

    sock = trio.socket.from_stdlib_socket(bind_http_here(tmp_path / "metrics-1"))
    others = Others({1: tmp_path / "metrics-1"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, say, [trio.SocketListener(sock)])
        assert await others.problems() == ["worker 1: does not answer"]
        nursery.cancel_scope.cancel()
