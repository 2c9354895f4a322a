"""What is pulled from a broker that numbers its messages is stored once, however often the gateway is killed meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from gateway.errors import NotFound
from gateway.store.reader import LogReader
from tests.integration.inside import far_config, gateway, publish, upstream
from tests.integration.running import Served

NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {upstream}
"""
INGEST = ", ingest: [{from: orders, into: orders}]"
PATIENCE = 120
KILLS = 3


def stored(data: Path) -> list[bytes]:
    """What the log holds, whoever may be serving it."""
    try:
        with LogReader(data) as log:
            return [value for run in log.read_chunks("orders", 0) for value in run.columns.values()]
    except NotFound:
        return []


@pytest.mark.processes
@pytest.mark.parametrize("name", ["flymq", "rustlog", "felix"])
async def test_what_is_pulled_is_there_once_after_kills(tmp_path: Path, name: str) -> None:
    data = tmp_path / "near" / "data"
    (tmp_path / "near").mkdir()
    with trio.fail_after(PATIENCE):
        async with gateway(far_config(name, tmp_path / "far")) as far:
            far_end = upstream(name, far.ports["far"], tmp_path / "far", INGEST)
            published: list[bytes] = []
            over = trio.Event()

            async def feed(count: int) -> None:
                values = [b"%06d" % number for number in range(len(published), len(published) + count)]
                await publish(far.ports["flymq"], values)
                published.extend(values)

            async def keep_feeding() -> None:
                while not over.is_set():  # a stream, so that the kill finds something at every stage of its way
                    await feed(20)
                    await trio.sleep(0.005)

            async def has(count: int) -> None:
                while len(await trio.to_thread.run_sync(stored, data)) < count:  # noqa: ASYNC110
                    await trio.sleep(0.02)

            await feed(20)  # Felix begins with a stream that is there
            near = Served(tmp_path / "near", NEAR.format(data=data, upstream=far_end))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_feeding)
                for _ in range(KILLS):
                    await trio.to_thread.run_sync(near.start)
                    await has(len(await trio.to_thread.run_sync(stored, data)) + 300)
                    await trio.to_thread.run_sync(near.end, signal.SIGKILL)
                over.set()
            await feed(1)
            await trio.to_thread.run_sync(near.start)
            await has(len(published))
            assert await trio.to_thread.run_sync(near.end, signal.SIGTERM) == 0
    assert stored(data) == published
