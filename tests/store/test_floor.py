"""The floor of free space: what is refused, before the disk refuses everything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gateway.errors import StoreReadOnly
from gateway.store.sqlite import StoreOptions
from tests.store.kit import append, create, everything, open_store, unit

VOLUME = 20 << 20
FLOOR = 1 << 20
"""What `check` says counts: a twentieth."""


@pytest.fixture
def free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """How much is, on a small volume that has nothing but the store."""

    def left() -> int:
        return VOLUME - sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file())

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(VOLUME, VOLUME - left(), left()))
    return left


@pytest.mark.parametrize("size", [900, 60_000, 400_000])
async def test_what_comes_at_once_does_not_get_below_it(tmp_path: Path, free, size: int):
    kept: list[bytes] = []
    least = VOLUME
    options = StoreOptions(tail_cache=1 << 20, page_cache=1 << 20, free_space_floor=1 << 30)
    async with open_store(tmp_path, options) as store:
        await create(store, "t")

        async def fill() -> None:
            nonlocal least
            for number in range(VOLUME // size):
                value = b"%06d" % number + bytes(size - 6)
                await store.submit(unit(append("t", value))).wait()
                kept.append(value)
                least = min(least, free())

        with pytest.raises(StoreReadOnly, match="the floor is 1 MiB"):
            await fill()
        assert await everything(store, "t") == kept
    assert min(least, free()) >= FLOOR
    assert sum(map(len, kept)) > VOLUME // 8
