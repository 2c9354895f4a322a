"""Files that nobody but their owner may read, whatever the umask says; and files that are there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700


def open_private(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """A descriptor of a file that is made if need be."""
    file = os.open(path, flags | os.O_CLOEXEC, PRIVATE)
    with suppress(PermissionError):  # somebody else's; they may have their reasons
        os.fchmod(file, PRIVATE)
    return file


def make_private_directory(path: Path) -> None:
    """With all that is missing above it. What exists stays as it is: it may be shared on purpose."""
    if path.is_dir():
        return
    make_private_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(PRIVATE_DIRECTORY)
        path.chmod(PRIVATE_DIRECTORY)


def make_private(paths: Iterable[Path]) -> None:
    """Take from others what they could read so far."""
    for path in paths:
        with suppress(FileNotFoundError, PermissionError):
            path.chmod(PRIVATE)


def sync(path: Path) -> None:
    """A file's content is on disk, or which files a directory has: a new one is only there after a power cut if both are."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes, mode: int | None = None, *, synced: bool = True) -> None:
    """Put a file in place at once, whoever reads it or writes the same at that moment. `mode`: whatever the umask says."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    if synced:
        sync(path.parent)  # or a power cut could forget the new name after somebody has relied on it


@contextmanager
def held(path: Path, taken: Exception) -> Iterator[None]:
    """Keep other processes from holding the same, until the block ends, or this process. Raises `taken` where one has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        yield
    finally:
        os.close(lock)
