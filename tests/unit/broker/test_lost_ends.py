"""A log that has lost its end gives its offsets out again: whoever had been further goes on with what is new, and misses none of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from trio.testing import MockClock

from gateway.requests import Start
from gateway.store.database import PAGE_SIZE
from gateway.store.salvage import salvage
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening
from tests.unit.broker.house import opened, tags, values

BEFORE = [b"%02d" % number + bytes(9000) for number in range(12)]
"""Each longer than half a page, so that each is in pages of its own."""
LOST = 5
"""From which one on they are lost."""


def lose_the_end(path: Path) -> int:
    """Damage the pages of the last messages, and accept that they are lost; returns where the log ends now."""
    file = path / "log.sqlite"
    data = bytearray(file.read_bytes())
    for value in BEFORE[LOST:]:
        while (at := data.find(value)) >= 0:
            data[at // PAGE_SIZE * PAGE_SIZE] = 0x77
            data[at : at + 2] = b"--"
    file.write_bytes(data)
    (damaged,) = [one for one in salvage(path, accept_loss=True).damaged if one.topic == "t"]
    assert damaged.next_offset is None
    with closing(sqlite3.connect(file)) as connection:
        (first,) = connection.execute("SELECT max(base + count) FROM log WHERE topic = 't'").fetchone()
    assert first <= LOST
    return first


READER = {"name": "reader", "acknowledge": True, "start": Start.EARLIEST}


async def test_a_reader_misses_nothing_new(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        reader = await client.subscribe("t", **READER)
        for value in BEFORE:
            await client.publish("t", value)
            await client.settle(reader, *tags(await client.take(reader, 1)))
    end = lose_the_end(tmp_path)
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        reader = await client.subscribe("t", **READER)
        assert all(one.unaccounted == 0 for one in gateway.house.snapshot().consumers)
        placed = await client.publish("t", b"new", b"newer")
        assert placed.base_offset == end
    async with opened(tmp_path) as gateway:  # nor if it is stopped before anybody takes them
        client = gateway.client()
        reader = await client.subscribe("t", **READER)
        for _ in BEFORE:
            await client.publish("t", b"newest")
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        reader = await client.subscribe("t", **READER)
        assert values(await client.take(reader, 100)) == [b"new", b"newer", *[b"newest"] * len(BEFORE)]
        assert all(one.unaccounted == 0 for one in gateway.house.snapshot().consumers)


async def test_a_forward_misses_nothing_new(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        config = [upstream(peer.port)], route(forward())
        async with bridged(tmp_path, *config) as gateway:
            for value in BEFORE:
                await gateway.client().publish("t", value)
            await gateway.delivered()
        lose_the_end(tmp_path)
        async with bridged(tmp_path, *config) as gateway:
            gateway.check_accounts()
            await gateway.client().publish("t", b"new", b"newer")
            await gateway.delivered()
        assert peer.values() == [*BEFORE, b"new", b"newer"]
