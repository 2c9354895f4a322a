"""Checks that take long: in a thread, while others go on; in order; with the same verdicts as the quick ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import model
from gateway import requests as r
from gateway.broker import assembly
from gateway.broker.administration import schemas
from gateway.broker.offload import NurseryOffload, T
from gateway.errors import GatewayError, InvalidRequest, SchemaViolation, Throttled
from tests.unit.broker.house import Client, opened, publish

ORDER = json.dumps({"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}).encode()
LONG = json.dumps({"id": "x" * schemas.QUICK_BYTES}).encode()
LONG_BAD = json.dumps({"no": "x" * schemas.QUICK_BYTES}).encode()
STRICT = {"strict.*": model.TopicSettings(schema="order")}


class Gated(NurseryOffload):
    """Threads that start when the test says so."""

    held: list[Callable[[], None]]

    def __init__(self, threads: int = 2, pending: int = 256) -> None:
        super().__init__(threads, pending)
        self.held = []

    def thread(self, work: Callable[[], T], done: Callable[[T | GatewayError], None]) -> None:
        start = super().thread
        self.held.append(lambda: start(work, done))


@asynccontextmanager
async def gated(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Client, Client, Gated]]:
    """Two connections to a house whose long checks wait for the test."""
    made: list[Gated] = []

    def make(threads: int = 2, pending: int = 256) -> NurseryOffload:
        if threads != 1:
            return NurseryOffload(threads, pending)
        made.append(Gated(threads, pending))
        return made[0]

    monkeypatch.setattr(assembly, "NurseryOffload", make)
    async with opened(path, topics=STRICT) as house:
        client = house.client()
        assert isinstance(await client.ask(r.RegisterSchema(0, "order", "json", ORDER)), r.Schemas)
        yield client, house.client(), made[0]


async def stored(client: Client, topic: str) -> list[bytes]:
    fetched = await client.ask(r.Fetch(0, topic, 0, 0, 1000, 1 << 20))
    return [value for run in fetched.runs for value in run.columns.values()] if isinstance(fetched, r.Fetched) else []


async def test_others_go_on_while_one_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch) as (client, other, offload):
        (slow,) = client.start(publish("strict.a", LONG))
        (behind, read) = client.start(publish("plain", b"behind"), r.DescribeTopics(0))
        published = await other.publish("strict.a", b'{"id":"quick"}')
        assert (published.base_offset, len(offload.held)) == (0, 1)
        assert await stored(other, "plain") == []  # one connection's writes keep their order
        assert not any(map(client.ended, (slow, behind, read)))
        offload.held.pop()()
        assert (await client.outcome(slow)).base_offset == 1
        assert (await client.outcome(behind)).base_offset == 0
        topics = await client.outcome(read)  # and what is read behind them sees them
        assert {topic.address for topic in topics.topics} == {"strict.a", "plain"}
        assert client.order[-3:] == [slow, behind, read]
        assert offload.held == []


async def test_a_batch_is_refused_message_by_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch) as (client, other, offload):
        batches = [publish("strict.b", LONG, LONG_BAD, b'{"id":"z"}'), publish("strict.b", LONG_BAD)]
        mixed, bad = client.start(*batches)
        offload.held.pop()()
        outcome = await client.outcome(mixed)
        assert {index: type(error) for index, error in outcome.refused.items()} == {1: SchemaViolation}
        offload.held.pop()()
        assert isinstance(await client.outcome(bad), SchemaViolation)
        assert await stored(other, "strict.b") == [LONG, b'{"id":"z"}']


async def test_a_transaction_ends_behind_what_was_published_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch) as (client, other, offload):
        begun = await client.ask(r.Begin(0))
        inside = publish("strict.c", LONG, transaction=begun.transaction)
        _, ended = client.start(inside, r.Commit(0, begun.transaction))
        offload.held.pop()()
        assert await client.outcome(ended) == r.DONE
        assert await stored(other, "strict.c") == [LONG]


async def test_a_schema_named_by_the_producer_and_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch) as (client, other, offload):
        good, bad = client.start(publish("free", LONG, schema="order"), publish("free", LONG_BAD, schema="order"))
        offload.held.pop()()
        await client.outcome(good)
        offload.held.pop()()
        assert isinstance(await client.outcome(bad), SchemaViolation)
        assert await stored(other, "free") == [LONG]
        validation = await client.ask(r.ValidateSchema(0, "order", LONG_BAD))
        assert list(validation.problems) == ["missing required field: id"]
        assert list((await client.ask(r.ValidateSchema(0, "order", LONG))).problems) == []
        assert isinstance(await client.publish("free", LONG, schema="nobody's"), GatewayError)


async def test_too_many_checks_are_refused_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch) as (client, _, offload):
        monkeypatch.setattr(offload, "_pending", 0)
        numbers = client.start(*[publish("strict.d", LONG) for _ in range(600)], publish("strict.d", b"no"))
        while offload.held:
            offload.held.pop()()
        assert {type(await client.outcome(number)) for number in numbers[:-1]} == {Throttled}
        assert isinstance(await client.outcome(numbers[-1]), SchemaViolation)


async def test_a_schema_that_is_costly_for_short_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternatives that double: a few steps are spent in the event loop, the rest elsewhere, and there they end as well."""
    costly: dict[str, Any] = {"type": "integer"}
    for _ in range(6):
        costly = {"anyOf": [{"properties": {"a": costly}, "required": ["b"]}, {"properties": {"a": costly}}]}
    deep: Any = "x"
    for _ in range(6):
        deep = {"a": deep}
    async with gated(tmp_path, monkeypatch) as (client, _, offload):
        registered = await client.ask(r.RegisterSchema(0, "costly", "json", json.dumps(costly).encode()))
        assert isinstance(registered, r.Schemas)
        (number,) = client.start(publish("free", *[json.dumps(deep).encode()] * 20, schema="costly"))
        assert len(offload.held) == 1
        offload.held.pop()()
        outcome = await client.outcome(number)
        assert isinstance(outcome, (SchemaViolation, r.Published))
        bomb = b'{"anyOf":[' * 5000 + b"{}" + b"]}" * 5000
        assert isinstance(await client.ask(r.RegisterSchema(0, "bomb", "json", bomb)), InvalidRequest)


async def test_after_a_restart_a_schema_is_compiled_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch):
        pass
    async with gated(tmp_path, monkeypatch) as (client, other, offload):
        (number,) = client.start(publish("strict.e", b'{"id":"first"}'))
        assert len(offload.held) == 1
        offload.held.pop()()
        assert isinstance(await client.outcome(number), r.Published)
        assert isinstance(await client.publish("strict.e", b'{"id":"second"}'), r.Published)
        assert offload.held == []
        assert len(await stored(other, "strict.e")) == 2
