"""Where a job puts what it makes: a directory that appears whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import AlreadyExists, StoreInUse


@contextmanager
def appearing(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A path beside the target to write a directory to; when the block ends well, it takes the target's name.

    Whoever dies at whatever moment leaves the old directory or the new one, and hidden neighbours that the next run
    removes. Raises AlreadyExists, or StoreInUse while another process writes the same target.
    """
    target = target.absolute()
    fresh, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUse(f"another process writes {target}") from None
        if old.exists() and not target.exists():
            old.rename(target)  # it died between taking the old one away and putting the new one there
        if target.exists() and not overwrite and any(target.iterdir()):
            raise AlreadyExists(f"{target} is not empty: give --overwrite to replace it, or another directory")
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        yield fresh
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        _sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(lock)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
