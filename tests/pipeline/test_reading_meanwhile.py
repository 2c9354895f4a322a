"""What happens to a topic between two steps of one read. The store merges small chunks: whoever reads goes on where it was, and
repeats nothing. It is deleted and made again: none of the new one is taken for the old one's.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.arrow.columns import batches
from gateway.arrow.schema import SCHEMA
from gateway.bulk import ranges as bulk
from gateway.bulk import wire
from gateway.errors import UnknownTopic
from gateway.pipeline import archive
from gateway.pipeline.layout import ArchiveLayout
from gateway.pipeline.ranges import HistoryGone, Range, record_batches, records
from gateway.pipeline.shelves import shelf_at
from gateway.store import reader as stored
from gateway.store.chunk import decode
from gateway.store.interface import DropTopic, Durability, Unit
from gateway.store.reader import LogReader
from tests.pipeline.stored import Log, log

CHUNKS, RECORDS = 1500, 100
EVERY = np.arange(CHUNKS * RECORDS)
FIRST = 12_345
"""Within a chunk, and later within a merged one."""

Read = Callable[[Path, Range], Iterator[Any]]


@asynccontextmanager
async def many_small_chunks(path: Path) -> AsyncIterator[Log]:
    async with log(path) as opened:
        await opened.create("t", durability=Durability.NONE)
        for number in range(CHUNKS):
            await opened.append("t", [struct.pack(">I", number * RECORDS + index) for index in range(RECORDS)])
        yield opened


@pytest.fixture(autouse=True)
def merging_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.visible.MERGE_AFTER", CHUNKS + 1)


def merge(opened: Log) -> None:
    store = opened.store
    store._visible.mergeable.add(store.topics["t"].logs[0])
    store.maintain()
    assert store._pool.direct.execute("SELECT count(*) FROM chunks").fetchone()[0] < CHUNKS


def by_runs(path: Path, what: Range) -> Iterator[Any]:
    with LogReader(path) as reader:
        for run in reader.read_chunks("t", 0, what.start, what.end):
            yield np.arange(run.base_offset, run.next_offset), run.columns.values()


def by_range(path: Path, what: Range) -> Iterator[Any]:
    with LogReader(path) as reader:
        for batch in batches(records(reader, what), rows=1000):
            yield offsets(batch)


def by_blocks(path: Path, what: Range) -> Iterator[Any]:
    with LogReader(path) as reader:
        for batch in record_batches(reader, what, SCHEMA, rows=5050):
            yield offsets(batch)


def offsets(batch: Any) -> tuple[Any, list[bytes]]:
    return batch.column("offset").to_numpy(), batch.column("value").to_pylist()


def is_whole(found: list[tuple[Any, list[bytes]]], start: int = FIRST) -> None:
    assert np.array_equal(np.concatenate([one for one, _values in found]), EVERY[start:])
    values = b"".join([value for _offsets, some in found for value in some])
    assert np.array_equal(np.frombuffer(values, ">u4"), EVERY[start:])


READERS = pytest.mark.parametrize("read", [by_runs, by_range, by_blocks])
FORMS = pytest.mark.parametrize("form", ["chunks", "arrow"])


@READERS
async def test_a_reader_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setattr(stored, "READ_CHUNKS_BYTES", 10_000)
    async with many_small_chunks(tmp_path) as opened:
        what = Range("t", 0, FIRST, len(EVERY), opened.store.topics["t"].epoch)
        reading = read(tmp_path, what)
        found = [next(reading) for _ in range(3)]
        merge(opened)
        found += reading
    is_whole(found)


async def test_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "GROUP_ROWS", 5050)
    async with many_small_chunks(tmp_path / "store") as opened:
        taken = archive._StretchFiles.add

        def add(self: Any, batch: Any) -> None:
            merge(opened)
            taken(self, batch)

        monkeypatch.setattr(archive._StretchFiles, "add", add)
        what = Range("t", 0, FIRST, len(EVERY), opened.store.topics["t"].epoch)
        shelf = shelf_at(tmp_path / "out")
        shelf.prepared()
        (file,) = archive.write_range(tmp_path / "store", shelf, ArchiveLayout(), what).files
    assert (file.start, file.end) == (FIRST, len(EVERY))
    (staged,) = (tmp_path / "out").rglob("*.parquet")
    is_whole([offsets(batch) for batch in pq.ParquetFile(staged).iter_batches()])


@FORMS
async def test_the_bulk_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(bulk, "READ_BYTES", 10_000)
    async with many_small_chunks(tmp_path) as opened:
        body = b""
        async for part in getattr(bulk.Ranges(opened.store), form)(bulk.RangeAsked("t", 0, FIRST)):
            if body:
                merge(opened)
            body += part
    is_whole(decoded(body) if form == "chunks" else [offsets(one) for one in pa.ipc.open_stream(body)])


def decoded(body: bytes) -> list[tuple[Any, list[bytes]]]:
    found, at = [], 0
    while True:
        size, kind = wire.FRAME.unpack_from(body, at)
        payload = body[at + wire.FRAME.size : at + wire.FRAME.size + size]
        at += wire.FRAME.size + size
        if kind == wire.END_FRAME:
            assert (at, payload) == (len(body), wire.NEXT.pack(len(EVERY)))
            return found
        assert kind == wire.CHUNK_FRAME
        base, count = wire.PLACE.unpack_from(payload)
        run = decode(payload[wire.PLACE.size :], "t", 0, base, count)
        found.append((np.arange(base, base + count), run.columns.values()))


async def test_the_serving_process_itself(tmp_path: Path) -> None:
    async with many_small_chunks(tmp_path) as opened:
        found, offset = [], FIRST
        while offset < len(EVERY):
            result = await opened.store.read("t", 0, offset, 730, 1 << 20, 0)
            found += [(np.arange(run.base_offset, run.next_offset), run.columns.values()) for run in result.runs]
            offset = result.next_offset
            merge(opened)
    is_whole(found)


async def made_again(opened: Log) -> None:
    """In the place of the one that there was: its slots are used again."""
    store = opened.store
    await store.submit(Unit(deletes=[DropTopic("t")])).wait()
    store.maintain()
    store._visible.catalogue._slot = 0  # as after a restart
    await opened.create("t", durability=Durability.NONE)
    for _ in range(CHUNKS):
        await opened.append("t", [b"new!"] * RECORDS)


@READERS
async def test_a_topic_made_again_is_another_one_to_a_reader_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    monkeypatch.setattr(stored, "READ_CHUNKS_BYTES", 10_000)
    async with many_small_chunks(tmp_path) as opened:
        reading = read(tmp_path, Range("t", 0, FIRST, len(EVERY), opened.store.topics["t"].epoch))
        found = [next(reading)]
        await made_again(opened)
        with pytest.raises((HistoryGone, UnknownTopic), match="was deleted"):
            found.extend(reading)
    assert b"new!" not in [value for _offsets, some in found for value in some]


@FORMS
async def test_a_topic_made_again_is_another_one_to_the_bulk_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(bulk, "READ_BYTES", 10_000)
    async with many_small_chunks(tmp_path) as opened:
        ranges = bulk.Ranges(opened.store)
        epoch = opened.store.topics["t"].epoch
        reading = getattr(ranges, form)(bulk.RangeAsked("t", 0, FIRST))
        body = await anext(reading) + await anext(reading)
        await made_again(opened)
        if form == "arrow":
            with pytest.raises(UnknownTopic, match="was deleted and made again"):
                await anext(reading)
        else:
            assert b"was deleted and made again" in [part async for part in reading][-1]
        with pytest.raises(UnknownTopic, match="was deleted and made again"):
            ranges.find(bulk.RangeAsked("t", 0, FIRST, epoch=epoch))
    assert b"new!" not in body
