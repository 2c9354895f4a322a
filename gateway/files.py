"""Files and directories that nobody but their owner may read, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
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
