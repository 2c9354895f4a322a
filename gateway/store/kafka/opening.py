"""Opening a store on Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from gateway.errors import GatewayError
from gateway.recorder import Recorder
from gateway.store.kafka.engine import KafkaStore
from gateway.store.kafka.options import KafkaOptions
from gateway.store.sqlite import wall_clock


@asynccontextmanager
async def open_kafka_store(
    options: KafkaOptions,
    *,
    now_ms: Callable[[], int] = wall_clock,
    recorder: Recorder | None = None,
) -> AsyncIterator[KafkaStore]:
    """Serve the log on a cluster, with any number of others that do so too. Raises StoreReadOnly if it cannot be reached.

    What is pending when the block ends is committed first.
    """
    problem: GatewayError | None = None
    async with trio.open_nursery() as nursery:
        store = KafkaStore(options, now_ms, recorder or Recorder(), nursery)
        try:
            try:
                await store.start()
            except GatewayError as error:
                problem = error
            else:
                nursery.start_soon(store.run)
                yield store
        finally:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(options.timeout):
                    await store.finish()
                nursery.cancel_scope.cancel()
                await trio.to_thread.run_sync(store.close)
    if problem is not None:
        raise problem
