"""A topic that somebody deletes from Kafka under the clients of two gateways: others' lose nothing, and its own go on in a new one."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.integration.flymq_raw import read_all
from tests.integration.gateways import gateways
from tests.kafka.fixtures import Log
from tests.kafka.foreign import everything
from tests.kafka.node import Kafka
from tests.kafka.test_disk_and_network import publish
from tests.kafka.test_log_faults import Ledger, until

PATIENCE = 240


def values(kafka: Kafka, topic: str) -> list[bytes]:
    return [message.value() for message in everything(kafka, topic)]


async def test_a_topic_is_deleted_under_its_publishers(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Its route makes it again. What was acknowledged from the first message of the new one on is there, once told, in order."""
    goes, stays = Ledger(), Ledger()
    refusals: set[str] = set()
    with gateways(Log(kafka, topics), tmp_path, "one", "two") as (one, two), trio.fail_after(PATIENCE):

        async def twenty_more() -> None:
            reached = [len(ledger.acknowledged) + 20 for ledger in (goes, stays)]
            await until(lambda: len(goes.acknowledged) > reached[0] and len(stays.acknowledged) > reached[1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, goes, "127.0.0.1", one.ports["flymq"], refusals, "goes")
            nursery.start_soon(publish, stays, "127.0.0.1", two.ports["flymq"], refusals, "stays")
            for _ in range(2):
                await twenty_more()
                (deleted,) = kafka.admin.delete_topics([f"{topics}goes"]).values()
                await trio.to_thread.run_sync(deleted.result, PATIENCE)
                await twenty_more()
            # nothing is under way any more that could be stored between two looks
            goes.enough = stays.enough = True
        stored = await trio.to_thread.run_sync(values, kafka, f"{topics}goes")
        assert await read_all(two.ports["flymq"], "goes") == stored
    stays.judge(await trio.to_thread.run_sync(values, kafka, f"{topics}stays"))
    assert stays.acknowledged[0] == stays.issued[0]
    found = list(dict.fromkeys(stored))
    assert set(found) <= set(goes.issued)
    assert found == sorted(found)
    assert found[0] > goes.issued[0]
    assert {value for value in goes.acknowledged if value >= found[0]} <= set(found)
