"""What the admin API says of brokers elsewhere that are there, and go away: latency, circuit, and how far everything is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.integration.inside import gateway, publish
from tests.unit.admin.api import ApiClient, serving_api

FAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:{port}"}}
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0", token: root, tokens: {{grafana: {{token: look, role: read}}}}}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
upstreams:
  far: {{protocol: flymq, address: "127.0.0.1:{flymq}", timeout: 1s}}
  second: {{protocol: flymq, address: "127.0.0.1:{flymq}"}}
  queue: {{protocol: flymq, address: "127.0.0.1:{flymq}", ingest: [{{from: "jobs", into: "queued.jobs", group: near}}]}}
  feed:
    protocol: felix
    address: "localhost:{felix}"
    tls: {{ca: "{ca}"}}
    ingest: [{{from: "jobs", into: "fed.jobs", group: near}}, {{from: "none.**", into: "none.{{1}}", group: near}}]
routes:
  - name: sent
    match: {{topic: "sent.*"}}
    to:
      - store:   {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", accept_loss: all}}
      - mirror:  {{upstream: second, address: "copy.{{topic}}"}}
  - name: rest
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""


async def until(ask: Callable[[], Awaitable[Any]], good: Callable[[Any], bool]) -> Any:
    with trio.fail_after(90):
        while not good(found := await ask()):  # noqa: ASYNC110  # it is on the other side of a socket
            await trio.sleep(0.02)
    return found


@asynccontextmanager
async def both(directory: Path) -> AsyncIterator[tuple[Mapping[str, int], Mapping[str, int], ApiClient]]:
    """A gateway that has others as upstreams; its ports and theirs."""
    near, data = directory / "near", directory / "far"
    near.mkdir()
    async with gateway(FAR.format(port=0, data=data)) as far:
        text = NEAR.format(
            data=near / "data", flymq=far.ports["flymq"], felix=far.ports["felix"], ca=data / "self-signed.crt"
        )
        async with serving_api(near, text) as (served, client):
            yield served.ports, far.ports, client


async def test_upstreams_that_answer_say_how_long_that_takes(tmp_path: Path) -> None:
    async with both(tmp_path) as (ports, _far, client):

        async def upstreams() -> Mapping[str, Any]:
            return {one["name"]: one for one in (await client("upstreams"))["upstreams"]}

        await client("pulse")  # who looks wants to know
        await until(upstreams, lambda found: found["far"]["connected"] and found["second"]["connected"])
        assert (await upstreams())["far"]["latency"] is None
        await publish(ports["flymq"], [b"1", b"2"], "sent.a")
        found = await until(upstreams, lambda found: None not in (found["far"]["latency"], found["second"]["latency"]))
        for name in ("far", "second"):
            assert 0 < found[name]["latency"] < 60
            assert found[name]["circuit"] == "closed"
            assert not found[name]["problem"]
        pulse = {one["name"]: one for one in (await client("pulse"))["upstreams"]}
        assert pulse["far"]["latency"] > 0


async def test_positions_of_whatever_reads_on(tmp_path: Path) -> None:
    async with both(tmp_path) as (ports, far, client):
        await publish(far["flymq"], [b"1", b"2", b"3"], "jobs")
        await publish(ports["flymq"], [b"1", b"2"], "sent.a")

        async def consumers() -> Any:
            return await client("consumers")

        def there(found: Any) -> bool:
            forwards = {one["topic"]: one for one in found["consumers"]}
            places = {(one["upstream"], one["source"]): one for one in found["ingests"]}
            mirrors = [one for one in found["mirrors"] if one["topic"] == "sent.a"]
            return (
                forwards.get("sent.a", {}).get("position") == 2
                and places["feed", "jobs"]["position"] == 3
                and places["queue", "jobs"]["state"] == "running"
                and [(one["position"], one["end"], one["waiting"]) for one in mirrors] == [(2, 2, 0)]
            )

        found = await until(consumers, there)
        places = {(one["upstream"], one["source"]): one for one in found["ingests"]}
        assert places["queue", "jobs"]["position"] is None  # the broker there remembers it
        assert places["feed", "none.**"]["address"] == ""  # nothing is there yet that it is about
        (forward,) = [one for one in found["consumers"] if one["topic"] == "sent.a"]
        assert (forward["kind"], forward["backlog"], forward["end"]) == ("forward", 0, 2)
        found = await client("consumers", search="queue")
        assert [one["upstream"] for one in found["ingests"]] == ["queue"]
        assert found["mirrors"] == []


async def test_a_circuit_over_time(tmp_path: Path) -> None:
    """An upstream that takes what it is sent and never answers: its circuit opens, and the history shows when."""
    near = tmp_path / "near"
    near.mkdir()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    text = f"""
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0", token: root, tokens: {{grafana: {{token: look, role: read}}}}}}
storage: {{path: "{near / "data"}", free_space_floor: 1, durability: memory}}
upstreams:
  silent: {{protocol: flymq, address: "127.0.0.1:{port}", timeout: 20ms}}
routes:
  - name: sent
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}, {{forward: {{upstream: silent, address: "{{topic}}", accept_loss: all}}}}]
"""

    async def take(stream: trio.SocketStream) -> None:
        async for _data in stream:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, take, [listener])
        async with serving_api(near, text) as (served, client):
            await publish(served.ports["flymq"], [b"1"], "a")
            async with client.events("events") as events:
                with trio.fail_after(90):
                    while True:
                        (one,) = (await events.next("pulse"))["upstreams"]
                        if not one["connected"] and one["problem"]:
                            break

                async def past() -> Any:
                    return (await client("history"))["upstreams"]

                found = await until(past, lambda found: bool(found) and False in found[0]["connected"])
        nursery.cancel_scope.cancel()
    (silent,) = found
    assert len(silent["circuit"]) == len(silent["connected"])
    assert silent["problems"]
