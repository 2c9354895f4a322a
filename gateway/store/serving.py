"""At which addresses a store is being served, noted beside it, so that nobody feeds a gateway from itself unawares."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path

from gateway.files import PRIVATE, write_whole
from gateway.store.database import StoreFiles

Address = tuple[str, int]
"""Host as it was bound (0.0.0.0 and :: are every address of the machine), and port."""


def note(directory: Path, addresses: Sequence[Address]) -> None:
    """Called by the process that serves the store."""
    write_whole(StoreFiles(directory).serving, json.dumps(list(addresses)).encode(), PRIVATE, synced=False)


def served_at(directory: Path) -> Sequence[Address]:
    """The addresses of the process that serves a store at this moment; none where there is no such process."""
    if not _locked(StoreFiles(directory).lock):
        return ()
    try:
        return [(str(host), int(port)) for host, port in json.loads(StoreFiles(directory).serving.read_text())]
    except (FileNotFoundError, ValueError):
        return ()  # it is only just starting


def _locked(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # shared, so that two who ask do not take each other for a gateway
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
