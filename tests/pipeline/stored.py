"""Stores for the pipeline's tests: written by the real store, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from gateway.envelope import BatchMeta, Columns, Headers, Origin
from gateway.store.committer import Mode
from gateway.store.interface import Append, MakeTopic, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions, open_store
from tests.store.kit import Clock

SMALL = StoreOptions(tail_cache=0, page_cache=1 << 20, free_space_floor=0)
META = BatchMeta(b"batch-0123456789", Origin("flymq", "here", "ann", "c1"), "orders")


class Log:
    """A store that is open."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    async def create(self, topic: str, **config: Any) -> None:
        await self.store.submit(Unit(creates=[MakeTopic(topic, TopicConfig(**config))])).wait()

    async def append(
        self,
        topic: str,
        values: Sequence[bytes],
        partition: int = 0,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        expires: Sequence[int] | None = None,
    ) -> None:
        columns = Columns.of(values, keys, headers, expires)
        await self.store.submit(Unit(appends=[Append(topic, partition, columns, META)])).wait()


@asynccontextmanager
async def log(path: Path) -> AsyncIterator[Log]:
    clock = Clock()
    async with open_store(path, SMALL, mode=Mode.INLINE, now_ms=clock) as store:
        yield Log(store, clock)


def filled(path: Path, fill: Callable[[Log], Any]) -> None:
    """Open, fill and close a store: Spark's own calls block, so most tests are not async."""

    async def run() -> None:
        async with log(path) as opened:
            await fill(opened)

    trio.run(run)


async def before_retention(log: Log) -> None:
    """Two records of a topic that keeps them for ten seconds."""
    await log.create("t", retention_seconds=10.0)
    await log.append("t", [b"a", b"b"])


async def after_retention(log: Log) -> None:
    """Three more are gone before anybody has archived them; one behind them is there, and all of another topic."""
    await log.append("t", [b"never archived"] * 3)
    log.clock.ms += 20_000
    await log.append("t", [b"kept"])
    log.store.maintain()
    await log.create("u")
    await log.append("u", [b"all is there"])
