"""Bodies that come to the admin address are charged to the memory that everything under way shares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
import trio

from gateway.admin import operation as operations
from gateway.admin.access import Access, Role
from gateway.admin.app import admin_app
from gateway.admin.operation import Asked, Nothing, operation, operations_of
from gateway.bulk import wire
from gateway.model import Admin
from gateway.observe.health import Health
from gateway.observe.http import bind_http, serve_http
from gateway.observe.prometheus import PrometheusRecorder
from gateway.transport.limits import Budget
from tests.unit.bridges.peers import until

SIZE = 300_000


class Text(msgspec.Struct, frozen=True):
    text: str


class Held:
    """One operation, which lasts until the test says so."""

    def __init__(self) -> None:
        self.budget = Budget(1 << 20)
        self.begun = trio.Event()
        self.over = trio.Event()

    @operation("POST", "/api/v1/held", Role.READ)
    async def held(self, asked: Asked[Nothing, Text]) -> Text:
        """Wait."""
        self.begun.set()
        await self.over.wait()
        return Text(str(len(asked.body.text)))


@asynccontextmanager
async def serving(held: Held) -> AsyncIterator[httpx.AsyncClient]:
    recorder = PrometheusRecorder(routes=[], listeners={})
    access = Access(Admin(host="127.0.0.1"), now=lambda: 1_000.0)
    app = admin_app(recorder, Health(recorder), access, list(operations_of(held)), room=held.budget)
    sock = bind_http("127.0.0.1", 0)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve_http(app, sock, stop=stop, task_status=task_status))
        base = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=120) as client:
            yield client
        stop.set()


async def ask(client: httpx.AsyncClient, found: list[httpx.Response]) -> None:
    body = msgspec.json.encode(Text("x" * SIZE))
    found.append(await client.post("/api/v1/held", content=body, headers={"Content-Type": wire.JSON}))


async def test_a_body_counts_from_its_first_byte_to_the_answer() -> None:
    held = Held()
    found: list[httpx.Response] = []
    with trio.fail_after(120):
        async with serving(held) as client, trio.open_nursery() as nursery:
            nursery.start_soon(ask, client, found)
            await held.begun.wait()
            assert SIZE < held.budget.used < SIZE + 100
            held.over.set()
        assert held.budget.used == 0
    assert found[0].json() == {"text": str(SIZE)}


async def test_where_the_memory_is_spent_a_body_waits_for_room() -> None:
    held = Held()
    held.over.set()
    found: list[httpx.Response] = []
    with trio.fail_after(120):
        held.budget.change(held.budget.limit)
        async with serving(held) as client, trio.open_nursery() as nursery:
            nursery.start_soon(ask, client, found)
            await until(lambda: bool(held.budget._writers))
            assert not held.begun.is_set()
            held.budget.change(-held.budget.limit)
    assert found[0].status_code == 200
    assert held.budget.used == 0


async def test_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    found: list[httpx.Response] = []
    monkeypatch.setattr(operations, "BODY_SECONDS", 0.3)
    held.budget.change(held.budget.limit)
    with trio.fail_after(120):
        async with serving(held) as client:
            await ask(client, found)
    assert found[0].status_code == wire.HTTP[wire.error_of(wire.Problem(**found[0].json())).status]
    assert "`memory.budget` is spent" in found[0].text
    assert held.budget.used == held.budget.limit
    assert not held.budget._writers
