"""Who in another process looks at a store that is served: a reader opens its journal, to see how far that goes.

He waits until the database has as much, so he is the one for whom what the journal holds is posted soon. Nothing is asked of him
for that: the kernel tells who opens a file (inotify, of Linux alone).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

_OPENED = 0x20  # IN_OPEN
_EVENTS = 4096
"""Bytes of them that are taken at once: what they say is always the same."""


class Onlookers:
    """Watches files. `told` is false where it cannot be had: then anybody may look at any time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._handle = _watch(paths)

    @property
    def told(self) -> bool:
        return self._handle >= 0

    async def heed(self, looked: Callable[[], None]) -> None:
        """Call back whenever somebody has opened one of the files."""
        while self.told:
            await trio.lowlevel.wait_readable(self._handle)
            with suppress(BlockingIOError):
                os.read(self._handle, _EVENTS)
            looked()

    def close(self) -> None:
        if self.told:
            os.close(self._handle)
            self._handle = -1


def _watch(paths: Sequence[Path]) -> int:
    # the handle; -1: the system has no such thing, or no more of them for us
    if sys.platform != "linux":
        return -1
    library = ctypes.CDLL(None, use_errno=True)
    handle: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle >= 0 and any(library.inotify_add_watch(handle, os.fsencode(path), _OPENED) < 0 for path in paths):
        os.close(handle)
        return -1
    return handle
