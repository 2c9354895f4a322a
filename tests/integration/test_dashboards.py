"""Every panel of every dashboard shows something: its expressions run in the real Prometheus, against a real gateway under
traffic. A metric that is renamed, a label that is dropped, a query that divides by nothing, fail here.
"""

from __future__ import annotations

import json
import math
import random
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio
import yaml

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.protocols.registry import protocol
from gateway.requests import Fetch, Publish, Settle, Subscribe, Subscribed, Take, Taken
from gateway.transport.client import connect
from gateway.wire.session import Credentials
from tests.integration.faults import TcpNetwork
from tests.integration.prometheus import eventually_listening, tool
from tests.integration.running import process, serving

CONFIG = """
version: 1
listeners:
  blipmq:  {protocol: blipmq, bind: "127.0.0.1:0", auth: {api_keys: [key]}}
  rustlog: {protocol: rustlog, bind: "127.0.0.1:%(rustlog)d"}
admin:   {bind: "127.0.0.1:0"}
storage: {path: "%(data)s"}
metrics: {groups: [readers]}
upstreams:
  itself:
    protocol: rustlog
    address: "127.0.0.1:%(network)d"
    ingest: [{from: "copy-of-eu", into: "pulled"}]
routes:
  - name: orders
    match: {topic: "orders.*"}
    to:
      - store:   {topic: "orders.{1}"}
      - forward: {upstream: itself, address: "copy-of-{1}", accept_loss: all}
      - mirror:  {upstream: itself, address: "shadow-of-{1}", compare: [ack, payload, latency]}
  - name: asked
    match: {topic: "ask"}
    to: [{proxy: {upstream: itself, address: "answered"}}]
  - name: everything-else
    match: {}
    to: [{store: {topic: "{topic}"}}]
"""

SCRAPE = """
global: {scrape_interval: 500ms, scrape_timeout: 500ms}
scrape_configs:
  - job_name: gateway
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""

WINDOW = "10s"
DEADLINE = 90.0


@attrs.frozen
class Query:
    """What a panel asks, with the variables filled in as "All"."""

    where: str
    expression: str


def queries() -> Sequence[Query]:
    found = []
    for path in sorted(Path("grafana/dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        variables = [variable["name"] for variable in board["templating"]["list"]]
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", WINDOW)
                for name in variables:
                    expression = expression.replace(f"${name}", ".*")
                assert "$" not in expression, f"{path.name}: {panel['title']}: a variable that does not exist"
                found.append(Query(f"{path.name}: {panel['title']}", expression))
        for variable in board["templating"]["list"]:
            values = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert values is not None
            found.append(Query(f"{path.name}: ${variable['name']}", f"count by ({values[2]}) ({values[1]})"))
    return found


async def traffic(port: dict[str, int]) -> None:
    """Publish, read, acknowledge and be refused, in two protocols, until cancelled."""
    credentials = Credentials(api_key="key")
    async with (
        connect(protocol("blipmq"), "127.0.0.1", port["blipmq"], credentials=credentials) as blipmq,
        connect(protocol("rustlog"), "127.0.0.1", port["rustlog"]) as rustlog,
    ):
        subscribed = await blipmq.request(Subscribe(0, "orders.eu", acknowledge=True))
        assert isinstance(subscribed, Subscribed)
        while True:
            for connection in (blipmq, rustlog):
                for address in ("orders.eu", "other", "ask"):
                    await connection.request(Publish(0, Batch(address, Columns.of([b"x" * 100] * 10))))
                with suppress(GatewayError):
                    await connection.request(Publish(0, Batch("__ours", Columns.of([b"refused"]))))
            await rustlog.request(Fetch(0, "orders.eu", 0, 0, 100, 1 << 20))
            taken = await blipmq.request(Take(0, subscribed.subscription, 50, hold_until=trio.current_time() + 1))
            assert isinstance(taken, Taken)
            for delivered in taken.deliveries:
                tags = range(delivered.first_tag, delivered.first_tag + delivered.run.count)
                await blipmq.request(Settle(0, subscribed.subscription, tags))
            await trio.sleep(0.05)


def shows(result: Sequence[dict[str, Any]]) -> bool:
    """Whether there is something to draw: a value that is a number."""
    return any(math.isfinite(float(series["value"][1])) for series in result)


async def test_every_expression_returns_data(tmp_path: Path) -> None:
    prometheus = await trio.to_thread.run_sync(tool, "prometheus")
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        own, rustlog = first.getsockname()[1], second.getsockname()[1]
    # between the gateway and itself: an upstream that is one of its own listeners would be refused
    network = TcpNetwork(lambda: rustlog, random.Random(1))
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as between:
            await between.start(network.run)
            ports = {"rustlog": rustlog, "network": network.port}
            async with serving(tmp_path, CONFIG % {"data": tmp_path / "data", **ports}) as port:
                await shown(tmp_path, prometheus, own, port)
            between.cancel_scope.cancel()


async def shown(tmp_path: Path, prometheus: Path, own: int, port: Mapping[str, int]) -> None:
    (tmp_path / "prometheus.yml").write_text(SCRAPE % port["admin"])
    command = [
        str(prometheus),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    async with process(command), trio.open_nursery() as nursery:
        nursery.start_soon(traffic, port)
        await eventually_listening(own)
        async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{own}", trust_env=False) as client:
            await every_query_shows(client)
            await no_alarm_rings(client)
        nursery.cancel_scope.cancel()


async def ask(client: httpx.AsyncClient, expression: str, where: str) -> Sequence[dict[str, Any]]:
    answer = (await client.get("/api/v1/query", params={"query": expression})).json()
    assert answer["status"] == "success", f"{where}: {answer.get('error')}: {expression}"
    result: Sequence[dict[str, Any]] = answer["data"]["result"]
    return result


async def every_query_shows(client: httpx.AsyncClient) -> None:
    waiting = list(queries())
    assert len(waiting) > 50
    with trio.move_on_after(DEADLINE / 2):
        while waiting:
            waiting = [query for query in waiting if not shows(await ask(client, query.expression, query.where))]
            await trio.sleep(0.2)
    assert waiting == [], "these show nothing"


async def no_alarm_rings(client: httpx.AsyncClient) -> None:
    """Under ordinary traffic, refusals at a low rate included, nobody is woken."""
    text = await trio.Path("deploy/prometheus/alerts.yml").read_text()
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    pages = [rule for rule in rules if rule["labels"]["severity"] == "page"]
    assert len(pages) >= 4
    for rule in rules:
        result = await ask(client, rule["expr"], rule["alert"])
        assert rule not in pages or result == [], rule["alert"]


async def test_the_rules_pass_prometheus_own_check() -> None:
    promtool = await trio.to_thread.run_sync(tool, "promtool")
    for arguments in (
        ["check", "rules", "deploy/prometheus/alerts.yml"],
        ["check", "config", "--syntax-only", "deploy/prometheus/prometheus.yml"],  # the token is not there,
    ):
        done = await trio.run_process(
            [str(promtool), *arguments], capture_stdout=True, capture_stderr=True, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
