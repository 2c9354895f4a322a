"""The files of a store are their owner's alone, whatever the umask was and whoever made them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.salvage import salvage
from gateway.store.serving import note
from gateway.transport.quic.certificates import CERTIFICATE_NAME, KEY_NAME, self_signed
from tests.store.kit import append, open_stepwise, unit
from tests.store.test_damage import NEW


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in directory.iterdir()}


def show(directory: Path) -> None:
    """To everybody, as an earlier version did."""
    for path in directory.iterdir():
        path.chmod(0o644)
    directory.chmod(0o755)


async def open_and_look(path: Path) -> dict[str, int]:
    async with open_stepwise(path) as store:
        store.submit(unit(append("t", b"secret"), creates=NEW))
        store.committer.step()
        note(path, [("127.0.0.1", 1)])
        return modes(path)


@pytest.mark.usefixtures("umask")
async def test_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "to" / "data"
    self_signed(path)
    seen = await open_and_look(path)
    assert seen.keys() >= {
        "log.sqlite",
        "log.sqlite-wal",
        "log.sqlite-shm",
        "lock",
        "committed",
        "serving.json",
        KEY_NAME,
    }
    assert {name for name, found in seen.items() if found != 0o600} == {CERTIFICATE_NAME}
    assert mode(path) == mode(path.parent) == 0o700


async def test_a_store_from_before(tmp_path: Path) -> None:
    await open_and_look(tmp_path)
    show(tmp_path)
    assert set((await open_and_look(tmp_path)).values()) == {0o600}
    assert mode(tmp_path) == 0o755  # it was there, and may be shared on purpose


@pytest.mark.usefixtures("umask")
async def test_a_salvaged_store(tmp_path: Path) -> None:
    await open_and_look(tmp_path)
    file = tmp_path / "log.sqlite"
    data = bytearray(file.read_bytes())
    data[100] = 0x77
    file.write_bytes(data)
    assert salvage(tmp_path, accept_loss=True).rebuilt
    assert set(modes(tmp_path).values()) == {0o600}
