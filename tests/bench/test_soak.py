"""`make soak`: minutes of full load on the real process. Memory stays flat and below what the configuration allots, and what
was acknowledged is all there.
"""

from __future__ import annotations

import os
import tempfile
import time

import pytest

from tests.bench import loads
from tests.bench.processes import gateway

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
CONFIGURED = (64 + 64 + 32) << 20
"""tail_cache, as much again for memory topics, page_cache: the defaults."""
PROCESS = 128 << 20
GROWTH = 1.10


@pytest.mark.soak
def test_memory_stays_flat_under_full_load() -> None:
    with tempfile.TemporaryDirectory() as directory, gateway(directory) as process:
        produced = 0
        sizes: list[int] = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            count, _seconds = loads.produce(process.ports["rustlog"], b"durable.soak", 100, 1000, 4, 200)
            produced += count
            loads.publish_stream(process.ports["blipmq"], b"memory.soak", 100, 200_000)
            loads.publish_and_ping(process.ports["blipmq"], b"durable.pings", 100, 20, 50, 5)
            sizes.append(process.memory())
        records, _size, _crc, _seconds = loads.fetch_all(process.ports["rustlog"], b"durable.soak")
        assert records == produced
        settled = sizes[len(sizes) // 2]
        assert max(sizes) < PROCESS + CONFIGURED, f"{max(sizes) >> 20} MiB"
        assert sizes[-1] < settled * GROWTH, f"{[size >> 20 for size in sizes[:: max(1, len(sizes) // 20)]]} MiB"
