"""A process to be killed: transactions over two topics, delayed messages, commits of a group, on a store that syncs. Prints
what is done.

python -m tests.unit.broker.killed DIRECTORY
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import trio

from gateway import model
from gateway.broker.assembly import open_house
from gateway.envelope import Batch, Columns
from gateway.recorder import Recorder
from gateway.requests import DONE, Begin, Begun, Commit, CommitOffset, Delayed, Outcome, Publish, Request
from gateway.routing.table import compile_table
from gateway.store.sqlite import open_store
from gateway.transport.limits import Budget
from tests.unit.broker.house import Client
from tests.unit.broker.support import OPTIONS


async def ask(client: Client, request: Request) -> Outcome:
    (number,) = client.start(request)
    return await client.outcome(number)


def batch(topic: str, number: int) -> Batch:
    return Batch(topic, Columns.of([b"%d" % number, b"%d" % -number]))


async def transactions(client: Client, worker: int) -> None:
    for number in itertools.count(worker * 1_000_000 + 1):
        begun = await ask(client, Begin(0))
        assert isinstance(begun, Begun)
        for topic in ("a", "b"):
            await ask(client, Publish(0, batch(topic, number), transaction=begun.transaction))
        assert await ask(client, Commit(0, begun.transaction)) == DONE
        print(f"committed {number}", flush=True)


async def delays(client: Client) -> None:
    for number in itertools.count(1):
        delayed = await ask(client, Publish(0, batch("later", number), delay_ms=20))
        assert isinstance(delayed, Delayed)
        print(f"delayed {number}", flush=True)
        await trio.sleep(0.002)


async def commits(client: Client) -> None:
    for number in itertools.count(1):
        assert await ask(client, CommitOffset(0, "a", "group", 0, number)) == DONE
        print(f"moved {number}", flush=True)
        await trio.sleep(0.001)


async def main(directory: Path) -> None:
    table = compile_table(model.Config(listeners={}, routes=(model.IDENTITY,)), {})
    async with (
        open_store(directory, OPTIONS) as store,
        open_house(store, table, Recorder(), Budget(256 << 20)) as house,
        trio.open_nursery() as nursery,
    ):
        for worker in range(3):
            nursery.start_soon(transactions, Client(house), worker)
        nursery.start_soon(delays, Client(house))
        nursery.start_soon(commits, Client(house))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
