"""The bulk API on a log some of whose offsets have no record: who asks for a range gets what is in it, and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
import trio

from gateway.bulk import wire
from gateway.bulk.ranges import RangeAsked, Ranges
from gateway.store.chunk import decode
from gateway.store.interface import Put, Store
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from tests.kafka.node import Kafka
from tests.store.kit import append, create, everything, unit

PATIENCE = 120
TOPIC = "gaps"


async def written(store: Store) -> list[tuple[int, bytes]]:
    """Records one by one, and some by transactions, of which each leaves an offset without one. Where they are."""
    await create(store, TOPIC)
    for number, alone in enumerate([True, False, False, True, True, False, True, False, False]):
        puts = [] if alone else [Put("counts", b"n", b"%d" % number)]
        await store.submit(unit(append(TOPIC, b"%d" % number), puts=puts)).wait()
    assert len(await everything(store, TOPIC)) == 9
    result = await store.read(TOPIC, 0, 0, 100, 1 << 20, 0)
    return [(one.offset, one.value) for run in result.runs for one in run.envelopes()]


def of_frames(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """The records, and where it says to go on."""
    found: list[tuple[int, bytes]] = []
    while data:
        size, kind = wire.FRAME.unpack_from(data)
        payload, data = data[wire.FRAME.size : wire.FRAME.size + size], data[wire.FRAME.size + size :]
        if kind == wire.END_FRAME:
            assert not data
            return found, wire.NEXT.unpack(payload)[0]
        assert kind == wire.CHUNK_FRAME, payload
        base, count = wire.PLACE.unpack_from(payload)
        run = decode(payload[wire.PLACE.size :], TOPIC, 0, base, count)
        found += [(one.offset, one.value) for one in run.envelopes()]
    raise AssertionError("it has no end")


def of_arrow(data: bytes) -> list[tuple[int, bytes]]:
    table: Any = pa.ipc.open_stream(data).read_all()
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.mark.kafka(shared=True)
async def test_every_range_has_what_is_in_it(kafka: Kafka, topics: str) -> None:
    with trio.fail_after(PATIENCE):
        async with open_kafka_store(KafkaOptions([kafka.brokers], prefix=topics)) as store:
            there = await written(store)
            end = store.topics[TOPIC].partitions[0].end
            assert there[-1][0] < end - 1
            assert {after - before for (before, _), (after, _) in itertools.pairwise(there)} == {1, 2}
            ranges = Ranges(store)
            for start, stop in itertools.combinations(range(end + 1), 2):
                asked = RangeAsked(TOPIC, 0, start, stop)
                wanted = [one for one in there if start <= one[0] < stop]
                found, following = of_frames(b"".join([part async for part in ranges.chunks(asked)]))
                assert found == wanted
                assert start <= following <= stop
                assert of_arrow(b"".join([part async for part in ranges.arrow(asked)])) == wanted
