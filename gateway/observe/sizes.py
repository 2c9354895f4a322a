"""How large things are: looked up when somebody asks for the metrics, and at no other time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from gateway.observe import metrics as m
from gateway.recorder import Recorder


class Sizes:
    """Sets the gauges of the store's files, its disk, its topics and the memory budget, for the recorder's `on_scrape`."""

    def __init__(
        self,
        recorder: Recorder,
        directory: Path,
        *,
        topics: Callable[[], int],
        budget_used: Callable[[], int],
        budget_limit: int,
    ) -> None:
        self._recorder = recorder
        self._directory = directory
        self._topics = topics
        self._budget_used = budget_used
        recorder.gauge(m.BUDGET_LIMIT.name, budget_limit)

    def __call__(self) -> None:
        sizes = {"database": 0, "wal": 0, "other": 0}
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # SQLite makes and removes files as it goes
                    if entry.is_file(follow_symlinks=False):
                        sizes[_kind(entry.name)] += entry.stat(follow_symlinks=False).st_size
        for kind, size in sizes.items():
            self._recorder.gauge(m.STORE_SIZE.name, size, file=kind)
        disk = os.statvfs(self._directory)
        self._recorder.gauge(m.STORE_FREE.name, disk.f_bavail * disk.f_frsize)
        self._recorder.gauge(m.STORE_TOPICS.name, self._topics())
        self._recorder.gauge(m.BUDGET_USED.name, self._budget_used())


def _kind(name: str) -> str:
    if name.endswith("-wal"):
        return "wal"
    return "database" if name.endswith((".db", ".sqlite", ".sqlite3")) else "other"
