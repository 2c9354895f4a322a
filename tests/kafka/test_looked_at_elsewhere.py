"""What one gateway has stored, as the admin address of another shows it at once, though nobody reads it there."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gateway.bulk import wire
from tests.integration.flymq_raw import commit, flymq, i32, produce
from tests.integration.gateways import gateways, until
from tests.integration.raw import s16
from tests.integration.running import Served
from tests.kafka.fixtures import Log
from tests.kafka.looking import ADMIN
from tests.kafka.node import Kafka

PATIENCE = 120
METRICS = 'metrics: {groups: ["g"]}\n'


def answers_of(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.ports['admin']}", timeout=PATIENCE)


async def asked(admin: httpx.AsyncClient, path: str, **query: Any) -> Mapping[str, Any]:
    answer = await admin.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: Mapping[str, Any] = answer.json()
    return found


def letter(name: str, payload: bytes) -> bytes:
    """As a client of FlyMQ writes one itself."""
    return json.dumps({"id": name, "payload": b64encode(payload).decode(), "original_topic": "t"}).encode()


async def test_letters_that_another_gateway_wrote_are_fetched_and_replayed(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    with gateways(Log(kafka, topics), tmp_path, "one", "two") as (one, two), trio.fail_after(PATIENCE):
        async with flymq(one.ports["flymq"]) as here, flymq(two.ports["flymq"]) as there:
            await here.ask(1, produce("t", b"first"))
            for number in range(2):
                await here.ask(1, produce("t.dlq", letter(f"letter {number}", b"")))
                assert (await there.ask(0x20, s16("t") + i32(10)))[:4] == i32(number + 1)
            await here.ask(1, produce("t.dlq", letter("last letter", b"last")))
            assert await there.ask(0x21, s16("t") + s16("last letter")) == b"\1" + s16("OK")
            assert await here.values("t") == [b"first", b"last"]


async def test_the_admin_address_tells_what_another_gateway_has_stored(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    with (
        gateways(Log(kafka, topics), tmp_path, "one", "two", more=ADMIN + METRICS) as (one, two),
        trio.fail_after(PATIENCE),
    ):
        async with flymq(one.ports["flymq"]) as client, answers_of(two) as admin:
            for number in range(3):
                await client.ask(1, produce("t", b"%d" % number))
            await client.ask(1, produce("t.dlq", b"letter"))
            await client.ask(6, commit("t", "g", 1))
            (topic,) = (await asked(admin, wire.TOPICS, name="t"))["topics"]
            assert [part["end"] for part in topic["partitions"]] == [3]
            for number in range(3, 5):
                await client.ask(1, produce("t", b"%d" % number))
            ends = {one["name"]: one["partitions"][0]["end"] for one in (await asked(admin, wire.TOPICS))["topics"]}
            assert (ends["t"], ends["t.dlq"]) == (5, 1)
            await client.ask(1, produce("t", b"5"))
            shown = (await asked(admin, "/v1/records", topic="t", offset=5))["records"]
            assert [one["offset"] for one in shown] == [5]

            async def group_is_known() -> bool:
                return bool((await asked(admin, wire.GROUPS))["positions"])

            await until(group_is_known)
            await client.ask(1, produce("t", b"6"))
            (group,) = (await asked(admin, wire.GROUPS))["positions"]
            assert (group["committed"], group["end"], group["lag"]) == (1, 7, 6)
            await client.ask(1, produce("t", b"7"))
            read = await admin.get(
                wire.LOG, params={"topic": "t", "start": 7, "partition": 0}, headers={"accept": wire.CHUNKS}
            )
            assert wire.NEXT.unpack(read.content[-wire.NEXT.size :]) == (8,)
            (letters,) = (await asked(admin, "/v1/letters"))["topics"]
            assert [one["letters"] for one in letters["groups"]] == [1]
            await client.ask(1, produce("t.dlq", b"another"))
            assert len((await asked(admin, "/v1/letters/list", topic="t.dlq"))["letters"]) == 2

            async def lag_is_told() -> bool:
                return 'gateway_group_lag_messages{group="g"} 7.0\n' in (await admin.get("/metrics")).text

            await until(lag_is_told)


@pytest.mark.kafka
async def test_while_the_brokers_are_away_what_is_known_is_told(tmp_path: Path) -> None:
    with (
        Kafka(tmp_path / "kafka") as kafka,
        gateways(Log(kafka, "t."), tmp_path, "one", more=ADMIN) as (one,),
        trio.fail_after(PATIENCE),
    ):
        async with flymq(one.ports["flymq"]) as client, answers_of(one) as admin:
            await client.ask(1, produce("t", b"0"))
            await client.ask(6, commit("t", "g", 0))
            await trio.to_thread.run_sync(kafka.nodes[0].kill)
            (topic,) = (await asked(admin, wire.TOPICS, name="t"))["topics"]
            assert [part["end"] for part in topic["partitions"]] == [1]
            (group,) = (await asked(admin, wire.GROUPS))["positions"]
            assert group["lag"] == 1
