"""A gateway that pulls is killed again and again: what it acknowledged to the broker elsewhere is in its log each time."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio

from gateway.errors import NotFound
from gateway.store.reader import LogReader
from tests.integration.running import Served
from tests.unit.bridges.blip import Blip, blipping

NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {{protocol: blipmq, address: "127.0.0.1:{port}", auth: {{api_key: key}}, ingest: [{{from: orders, into: orders}}]}}
"""
VALUES = [b"%05d" % number for number in range(4_000)]


def stored(data: Path) -> list[bytes]:
    """What the log holds, whoever may be serving it."""
    with LogReader(data) as log:
        try:
            return [value for run in log.read_chunks("orders", 0) for value in run.columns.values()]
        except NotFound:
            return []


async def until_metric(gateway: Served, line: str) -> None:
    """Until the exposition has this line, whatever the order of its labels."""
    name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
    wanted = sorted(labels.split(","))
    async with httpx.AsyncClient(
        timeout=60, trust_env=False, base_url=f"http://127.0.0.1:{gateway.ports['admin']}"
    ) as client:
        with trio.fail_after(60):
            while True:
                for shown in (await client.get("/metrics")).text.splitlines():
                    found = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", shown)
                    if found and found[1] == name and sorted(found[2].split(",")) == wanted and found[3] == value:
                        return
                await trio.sleep(0.02)


async def feed(blip: Blip) -> None:
    for start in range(0, len(VALUES), 20):
        blip.deliver(b"orders", *VALUES[start : start + 20])
        await trio.sleep(0.005)  # a stream, so that the kill finds something at every stage of its way


@asynccontextmanager
async def pulling(directory: Path) -> AsyncIterator[tuple[Served, Blip]]:
    """A gateway that pulls from a scripted broker, once it has asked for messages."""
    blip = Blip()
    async with blipping(blip):
        near = Served(directory, NEAR.format(port=blip.port, data=directory / "data"))
        near.start()
        try:
            await blip.until(lambda: bool(blip.queues) and blip.queues[7].polls)
            yield near, blip
        finally:
            if near.running:
                near.end(signal.SIGKILL)


async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path):
    async with pulling(tmp_path) as (near, blip):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed, blip)
            await blip.until(lambda: len(blip.acknowledged) >= 500)
            near.end(signal.SIGKILL)
            acknowledged = list(blip.acknowledged)
            assert set(acknowledged) <= set(stored(tmp_path / "data"))
            assert len(acknowledged) < len(VALUES), "the kill came in the middle"
            near.start()
        await blip.until(lambda: set(VALUES) <= set(blip.acknowledged))
        near.end(signal.SIGKILL)
        found = stored(tmp_path / "data")
        assert set(found) == set(VALUES)
        assert list(dict.fromkeys(found)) == VALUES
        assert len(found) - len(VALUES) <= 2 * 256, "at most what was taken and not acknowledged came twice"


async def test_while_the_disk_is_full_nothing_is_acknowledged_and_it_goes_on_by_itself(tmp_path: Path):
    async with pulling(tmp_path) as (near, blip):
        for number in range(100):  # a frame each, so that the journal's next one is behind what may be written, too
            blip.deliver(b"orders", VALUES[number])
            await blip.until(lambda many=number + 1: len(blip.acknowledged) == many)
        resource.prlimit(near.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        blip.deliver(b"orders", *VALUES[100:1_000])
        await blip.until(lambda: any(one["event"] == "the store takes no writes" for one in near.logged()))
        await until_metric(near, 'gateway_ingest_state{source="orders",state="waiting",upstream="far"} 1.0')
        assert blip.acknowledged == VALUES[:100]
        resource.prlimit(near.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await blip.until(lambda: set(blip.acknowledged) == set(VALUES[:1_000]))
        await until_metric(near, 'gateway_ingest_state{source="orders",state="running",upstream="far"} 1.0')
    assert list(dict.fromkeys(stored(tmp_path / "data"))) == VALUES[:1_000]
