"""What the store tests share: every implementation that is to pass the conformance suite, and short ways to say things."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.envelope import BatchMeta, Columns, Headers, Origin
from gateway.errors import Unsupported
from gateway.store.committer import Mode
from gateway.store.interface import (
    Append,
    Durability,
    MakeTopic,
    Placement,
    ReadResult,
    Store,
    TopicConfig,
    Unit,
)
from gateway.store.sqlite import StoreOptions, open_store

META = BatchMeta(b"batch-0123456789", Origin("test", "here", "ann", "c1"), "route")
START_MS = 1_700_000_000_000


@attrs.define
class Clock:
    """Wall time that moves when a test says so."""

    ms: int = START_MS

    def __call__(self) -> int:
        return self.ms


Opener = Callable[..., AbstractAsyncContextManager[Any]]

IMPLEMENTATIONS: dict[str, Opener] = {
    "sqlite, inline": partial(open_store, mode=Mode.INLINE),
    "sqlite, thread": partial(open_store, mode=Mode.THREAD),
}
"""A new implementation joins the suite by being named here: called with a directory, `now_ms` and `options`."""


@asynccontextmanager
async def open_on_kafka(
    brokers: str, prefix: str, *, now_ms: Callable[[], int] | None = None, options: StoreOptions | None = None
) -> AsyncIterator[Any]:
    from gateway.store.kafka.opening import open_kafka_store
    from gateway.store.kafka.options import KafkaOptions

    cache = options.tail_cache if options is not None else 1 << 20
    asked = KafkaOptions([brokers], prefix=prefix, tail_cache=cache, timeout=30.0)
    async with open_kafka_store(asked, now_ms=now_ms or Clock()) as store:
        yield store


SMALL = StoreOptions(tail_cache=1 << 20, page_cache=1 << 20, free_space_floor=0)
NO_CACHE = StoreOptions(tail_cache=0, page_cache=1 << 20, free_space_floor=0)


def open_stepwise(path: Path, clock: Clock | None = None, options: StoreOptions = SMALL) -> Any:
    """A store that commits when the test says so."""
    return open_store(path, options, mode=Mode.STEPWISE, now_ms=clock or Clock())


def append(
    topic: str,
    *values: bytes,
    partition: int = 0,
    meta: BatchMeta = META,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    expires: Sequence[int] | None = None,
    indexes: Sequence[int] | None = None,
) -> Append:
    return Append(topic, partition, Columns.of(values, keys, headers, expires), meta, indexes=indexes)


def unit(*appends: Append, **others: Any) -> Unit:
    return Unit(appends=appends, **others)


async def create(store: Store, *topics: str, **config: Any) -> None:
    await store.submit(Unit(creates=[MakeTopic(topic, TopicConfig(**config)) for topic in topics])).wait()


async def create_in_memory(store: Store, topic: str) -> bool:
    """Make a memory topic; a store that has none says so, and this is False."""
    if store.capabilities.memory_topics:
        await create(store, topic, **MEMORY)
        return True
    with pytest.raises(Unsupported):
        await create(store, topic, **MEMORY)
    return False


async def publish(store: Store, topic: str, *values: bytes, **others: Any) -> Placement:
    (placement,) = await store.submit(unit(append(topic, *values, **others))).wait()
    return placement


async def read(
    store: Store,
    topic: str,
    offset: int = 0,
    messages: int = 1 << 30,
    size: int = 1 << 40,
    now: int = 0,
    partition: int = 0,
) -> ReadResult:
    return await store.read(topic, partition, offset, messages, size, now)


async def everything(store: Store, topic: str, offset: int = 0, partition: int = 0, now: int = 0) -> list[bytes]:
    """All values of a partition from an offset on; checks on the way that offsets only grow."""
    values: list[bytes] = []
    end = store.topics[topic].partitions[partition].end
    while offset < end:
        result = await store.read(topic, partition, offset, 1 << 30, 1 << 20, now)
        assert result.next_offset > offset
        at = offset
        for run in result.runs:
            assert run.base_offset >= at
            at = run.next_offset
            values += run.columns.values()
        assert at <= result.next_offset
        offset = result.next_offset
    return values


def starting(nursery: trio.Nursery) -> Callable[..., None]:
    """Starts work for nobody in particular, as the broker does."""
    return lambda _caller, _request, work: nursery.start_soon(work)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a thread or a timer of the store does."""
    with trio.fail_after(10):
        for _ in itertools.count():
            if condition():
                return
            await trio.sleep(0.005)


MEMORY = {"durability": Durability.MEMORY}
