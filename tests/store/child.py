"""A process that serves a store, to be killed and traced by tests: `python -m tests.store.child PATH load|DURABILITY COUNT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from gateway.store.interface import Durability, Put, Store
from gateway.store.sqlite import open_store
from tests.store.kit import append, create, unit

PRODUCERS = 8


async def produce(store: Store, name: str) -> None:
    """Append without end; say what was acknowledged, and only then. Mostly by the journal, and now and then by the database, which
    takes along what is in that: with a row, or with much at once.
    """
    number = 0
    while True:
        number += 1
        values = [f"{name}-{number}-{index}".encode() for index in range(number % 5 + 1)]
        puts = [Put("last", name.encode(), values[0])] if number % 9 == 0 else []
        large = [append("large", bytes(100_000))] if number % 23 == 0 else []
        placements = await store.submit(unit(append("a", *values), append("b", *values), *large, puts=puts)).wait()
        lines = [
            f"{topic} {placement.base_offset} {values[0].decode()} {len(values)}\n"
            for topic, placement in zip("ab", placements, strict=False)
        ]
        os.write(1, "".join(lines).encode())


async def load(path: Path, name: str) -> None:
    async with open_store(path) as store, trio.open_nursery() as nursery:
        await create(store, "a", "b", "large")
        for number in range(PRODUCERS):
            nursery.start_soon(produce, store, f"{name}.{number}")


async def count(path: Path, durability: Durability, commits: int) -> None:
    """So many units, one after the other; the numbers of commits and of synced ones before and after are printed."""
    async with open_store(path) as store:
        await create(store, "a", durability=durability, interval=0.2)
        writer = store.committer.writer
        before = writer.number
        print("begin", flush=True)
        for _ in range(commits):
            await store.submit(unit(append("a", b"x"))).wait()
        print("end", writer.number - before, flush=True)


if __name__ == "__main__":
    where, what, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if what == "load":
        trio.run(load, where, how)
    else:
        trio.run(count, where, Durability(what), int(how))
