"""What a mirror keeps in memory of a share of the traffic, while its target is away."""

from __future__ import annotations

from pathlib import Path

from gateway import model
from tests.unit.bridges.house import bridged, route, upstream
from tests.unit.bridges.peers import until


async def test_a_share_keeps_its_own_messages_and_not_what_they_were_read_with(tmp_path: Path) -> None:
    target = model.Mirror(upstream="far", address="{topic}", percent=10.0)
    async with bridged(tmp_path, [upstream(1)], route(target)) as gateway:
        await gateway.client().publish("orders", *[b"%d" % number for number in range(1_000)])
        (mirrors,) = gateway.bridges.mirrors._running.values()
        await until(lambda: mirrors[0].next == 1_000)
        kept = [entry for one in mirrors for entry, _since in one._buffer]
        assert 0 < len(kept) < 1_000
        assert {entry.run.count for entry in kept} == {1}
        assert all(entry.run.columns.value(0) == b"%d" % entry.offset for entry in kept)
