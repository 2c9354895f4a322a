"""The admin address over a real socket: what is served, to whom, and when it is ready."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from gateway.admin.access import Access
from gateway.admin.app import admin_app
from gateway.docs.web import docs_routes
from gateway.model import Admin as AdminConfig
from gateway.observe.health import Health, ProcessPhase
from gateway.observe.http import bind_http, serve_http
from gateway.observe.prometheus import PrometheusRecorder
from gateway.store.interface import StoreHealth
from tests.integration.inside import gateway


class Admin:
    """A running admin listener and the objects behind it."""

    def __init__(
        self, client: httpx.AsyncClient, recorder: PrometheusRecorder, health: Health, stop: trio.Event
    ) -> None:
        self.client = client
        self.recorder = recorder
        self.health = health
        self.stop = stop


@asynccontextmanager
async def admin(token: str = "", host: str = "127.0.0.1", routes: Sequence[BaseRoute] = ()) -> AsyncIterator[Admin]:
    recorder = PrometheusRecorder(routes=["orders"], listeners={"front": "blipmq"})
    health = Health(recorder)

    async def extra(_request: object) -> PlainTextResponse:
        return PlainTextResponse("extra")

    access = Access(
        AdminConfig(host=host, token=token),
        now=lambda: 1_000.0,
        failed=lambda peer: recorder.login_failed("admin", "token", peer, ""),
    )
    app = admin_app(recorder, health, access, pages=[Route("/extra", extra), *routes])
    sock = bind_http(host, 0)
    port = sock.getsockname()[1]
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve_http(app, sock, stop=stop, task_status=task_status))
        base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        async with httpx.AsyncClient(timeout=60, base_url=base, trust_env=False) as client:
            yield Admin(client, recorder, health, stop)
        stop.set()


async def test_metrics_are_served_as_text_and_as_openmetrics() -> None:
    async with admin() as it:
        it.recorder.stored("orders", 3, 30)
        plain = await it.client.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=")
        assert 'gateway_route_stored_messages_total{route="orders"} 3.0' in plain.text
        openmetrics = await it.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")


async def test_readiness_follows_the_phases_and_the_store_while_liveness_does_not() -> None:
    async with admin() as it:
        health = StoreHealth(writable=True)
        it.health.watch_store(lambda: health)

        async def ready() -> tuple[int, list[str]]:
            assert (await it.client.get("/livez")).status_code == 200
            answer = await it.client.get("/readyz")
            return answer.status_code, answer.json()["problems"]

        assert await ready() == (503, ["starting"])
        it.health.enter(ProcessPhase.READY)
        assert await ready() == (200, [])
        health = StoreHealth(writable=False, reason="disk full")
        assert await ready() == (503, ["store is read-only: disk full"])
        health = StoreHealth(writable=True)
        found = ["not connected"]
        it.health.conditions(lambda: [("legacy", text) for text in found])
        assert await ready() == (503, ["legacy: not connected"])
        found = [""]
        it.health.notices(lambda: [("upstream far", "away for 3 s: gone; 2 messages wait")])
        assert await ready() == (200, [])
        shown = (await it.client.get("/readyz")).json()["waiting"]
        assert shown == ["upstream far: away for 3 s: gone; 2 messages wait"]
        it.health.enter(ProcessPhase.DRAINING)
        assert await ready() == (503, ["draining"])


async def test_the_gauges_say_what_the_probes_say() -> None:
    recorder = PrometheusRecorder()
    health = Health(recorder, lambda: StoreHealth(writable=False))
    recorder.on_scrape(health.refresh)
    health.enter(ProcessPhase.READY)
    text = recorder.text()
    assert 'gateway_phase{phase="ready"} 1.0' in text
    assert 'gateway_phase{phase="starting"} 0.0' in text
    assert "gateway_store_writable 0.0" in text


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("", 401),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
    ],
)
async def test_a_token_guards_everything_but_the_probes(header: str, status: int) -> None:
    async with admin(token="s3cret") as it:
        headers = {"Authorization": header} if header else {}
        for path in ("/metrics", "/extra"):
            answer = await it.client.get(path, headers=headers)
            assert answer.status_code == status
        refused_unknown = await it.client.get("/nothing", headers=headers)
        assert refused_unknown.status_code == (404 if status == 200 else 401)
        assert (await it.client.get("/livez")).status_code == 200
        assert (await it.client.get("/readyz")).status_code == 503
        refused = 'gateway_failed_logins_total{listener="admin",reason="token"} 3.0'
        assert (refused in it.recorder.text()) is (status == 401)


FOREIGN = (
    {"Host": "rebound.example.org"},
    {"Origin": "http://example.org"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)
"""What a browser says of a page that is not ours."""


@pytest.mark.parametrize(
    "path", ["/metrics", "/readyz", "/docs", "/docs/index", "/openapi.json", "/v1/topics", "/extra"]
)
async def test_a_page_of_somebody_elses_reads_nothing(path: str) -> None:
    async with admin(routes=docs_routes()) as it:
        for headers in FOREIGN:
            answer = await it.client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (403, "Denied")
            assert (await it.client.get("/livez", headers=headers)).status_code == 200


async def test_it_listens_on_ipv6_too() -> None:
    async with admin(host="::1") as it:
        assert (await it.client.get("/livez")).text == "ok\n"


async def test_a_taken_port_is_an_error_at_once() -> None:
    sock = bind_http("127.0.0.1", 0)
    with sock, pytest.raises(OSError, match="in use"):
        bind_http("127.0.0.1", sock.getsockname()[1])


async def test_garbage_gets_an_answer_and_harms_nobody() -> None:
    async with admin() as it:
        port = it.client.base_url.port
        assert port is not None
        answer = b""
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"\x00\x01\x02 nonsense\r\n\r\n")
            while chunk := await stream.receive_some():
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert (await it.client.get("/livez")).status_code == 200


async def test_metrics_on_an_address_of_their_own_are_all_there_is_and_ask_for_nothing(tmp_path: Path) -> None:
    config = f"""
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
metrics: {{bind: "127.0.0.1:0"}}
storage: {{path: "{tmp_path}", free_space_floor: 1}}
"""
    async with gateway(config) as served, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        own, admin_url = (f"http://127.0.0.1:{served.ports[name]}" for name in ("metrics", "admin"))
        assert "gateway_build_info" in (await client.get(f"{own}/metrics")).text
        assert (await client.get(f"{own}/readyz")).json()["ready"]
        for path in ("/", "/v1/topics", "/openapi.json", "/docs"):
            assert (await client.get(own + path)).status_code == 404
        for path in ("/metrics", "/readyz"):
            for headers in FOREIGN:
                assert (await client.get(own + path, headers=headers)).status_code == 403
        assert (await client.get(f"{admin_url}/metrics")).status_code == 401
