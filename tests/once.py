"""What is dear to make and the same in every run is made once for a checkout, by the first that asks for it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

KEPT = Path(__file__).parents[1] / ".deps/tests"


def made(name: str, make: Callable[[Path], None]) -> Path:
    """The file or directory of this name, which says what it was made of. Whoever asks while it is being made waits: several
    workers at the same work would all be as late, and slow down the others.
    """
    path = KEPT / name
    if path.exists():
        return path
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            fresh = KEPT / f"{name}.fresh"
            if fresh.is_dir():  # of a run that was ended
                shutil.rmtree(fresh)
            fresh.unlink(missing_ok=True)
            make(fresh)
            fresh.rename(path)
    return path
