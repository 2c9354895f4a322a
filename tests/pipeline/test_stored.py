"""What a store and a running gateway give of it as it lies on disk: the same rows for any range, damage at the same place."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from gateway.arrow.columns import record_batch
from gateway.arrow.schema import SCHEMA, chosen
from gateway.pipeline.ranges import Damaged, HistoryGone, Range, record_batches
from gateway.pipeline.source import Source, open_log
from gateway.store.interface import Durability
from tests.pipeline.served import gateway
from tests.pipeline.stored import Log, filled

CHUNKS = 7
EACH = 3


async def mixed(log: Log) -> None:
    """Chunks of three records, each of another shape, and a topic in memory that is gone when it is closed."""
    await log.create("t")
    for number in range(CHUNKS):
        values = [b"%d" % number * (index + number % 2) for index in range(EACH)]
        keys = [b"k", None, b"kk"] if number % 2 else None
        headers = [(("a", b"%d" % number),), (), ()] if number % 3 == 1 else None
        expires = [0, log.clock.ms + 5, 0] if number % 3 == 2 else None
        await log.append("t", values, keys=keys, headers=headers, expires=expires)
        log.clock.ms += 10


def table(source: Source, start: int, end: int, **options: Any) -> pa.Table:
    with open_log(source) as log:
        what = Range("t", 0, start, end, log.topic("t").epoch)
        return pa.Table.from_batches(list(record_batches(log, what, SCHEMA, **options)), SCHEMA)


def one_by_one(source: Source, start: int, end: int) -> pa.Table:
    with open_log(source) as log:
        return pa.Table.from_batches([record_batch(list(log.read_chunks("t", 0, start, end)))])


def test_any_range_is_the_same_from_a_store_and_from_its_gateway(tmp_path: Path) -> None:
    filled(tmp_path, mixed)
    whole = one_by_one(tmp_path, 0, CHUNKS * EACH)
    with gateway(tmp_path) as served:
        assert one_by_one(served.endpoint, 0, CHUNKS * EACH).equals(whole)
        for start, end in ((0, CHUNKS * EACH), (4, 5), (4, 9), (3, 8), (10, 18)):
            wanted = whole.slice(start, end - start)
            for source in (tmp_path, served.endpoint):
                assert table(source, start, end).equals(wanted)
                assert one_by_one(source, start, end).equals(wanted)
        packed = attrs.evolve(served.endpoint, gzip=True)
        assert one_by_one(packed, 0, CHUNKS * EACH).equals(whole)
        assert table(packed, 4, 9).equals(whole.slice(4, 5))
        small = {"rows": 4, "size": 1 << 20}
        for source in (tmp_path, served.endpoint):
            assert table(source, 1, 17, **small).equals(whole.slice(1, 16))


def test_a_chunk_that_is_damaged_or_gone_is_named_by_both(tmp_path: Path) -> None:
    filled(tmp_path, mixed)
    good = table(tmp_path, 0, 9)
    with sqlite3.connect(tmp_path / "log.sqlite") as connection:
        (blob,) = connection.execute("SELECT data FROM chunks WHERE id & 255 = 9").fetchone()
        connection.execute("UPDATE chunks SET data = ? WHERE id & 255 = 9", (blob[:70] + b"\xff" + blob[71:],))
        connection.execute("DELETE FROM chunks WHERE id & 255 = 15")
    connection.close()
    with gateway(tmp_path) as served:
        for source in (tmp_path, served.endpoint):
            assert table(source, 0, 9).equals(good)
            with open_log(source) as log:
                epoch = log.topic("t").epoch
                found = record_batches(log, Range("t", 0, 2, 18, epoch), chosen(["offset"]))
                assert next(found).column("offset").to_pylist() == list(range(2, 9))
                with pytest.raises(Damaged, match=r"topic=t partition=0 offsets=\[9, 12\)"):
                    next(found)
                with pytest.raises(Damaged, match=r"offsets=\[15, 18\)"):
                    list(record_batches(log, Range("t", 0, 12, 18, epoch), SCHEMA))
                with pytest.raises(HistoryGone, match="deleted and made again"):
                    list(record_batches(log, Range("t", 0, 0, 1, epoch + 1), SCHEMA))


def test_what_is_only_in_memory_comes_by_endpoint(tmp_path: Path) -> None:
    filled(tmp_path, mixed)
    with gateway(tmp_path) as served:

        async def publish() -> None:
            log = Log(served.store, None)  # type: ignore[arg-type]
            await log.create("m", durability=Durability.MEMORY)
            await log.append("m", [b"a", b"b", b"c"])

        served.inside(publish)
        with open_log(served.endpoint) as log:
            what = Range("m", 0, 1, 3, log.topic("m").epoch)
            (batch,) = record_batches(log, what, chosen(["offset", "value"]))
            assert batch.to_pydict() == {"offset": [1, 2], "value": [b"b", b"c"]}
