"""Run by a test: a process at work on an archive is ended before each of its steps on the disk in turn, and run again.

Prints, for each step, what the second run and an audit found.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.merge import merge

STEPS = {"os.rename", "os.mkdir", "os.remove"}


def child(work: Callable[[], None]) -> int:
    """Do it in a process of its own; its exit code."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def archiving(store: Path, target: Path) -> None:
    archive(str(store), target)


def merging(_store: Path, target: Path) -> None:
    merge(target)


JOBS = {"archive": archiving, "merge": merging}


def dying(job: str, store: Path, target: Path, step: int) -> None:
    left = step

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        written = event == "open" and isinstance(args[1], str) and "w" in args[1]
        if (written or event in STEPS) and str(target) in str(args):
            if not left:
                os._exit(9)
            left -= 1

    sys.addaudithook(hook)
    JOBS[job](store, target)


def whole(job: str, store: Path, target: Path) -> None:
    JOBS[job](store, target)
    found = audit(str(store), target)
    print(json.dumps({"compared": found.compared, "findings": found.findings}), flush=True)


def main(job: str, store: Path, work: Path, begin: Path | None) -> None:
    importlib.import_module("pandas")  # or each child loads it anew, which takes far longer than what it has to do
    for step in range(200):
        target = work / f"archive-{step}"
        if begin is not None:
            shutil.copytree(begin, target)
        code = child(lambda target=target, step=step: dying(job, store, target, step))  # type: ignore[misc]
        assert child(lambda target=target: whole(job, store, target)) == 0  # type: ignore[misc]
        if code == 0:
            return
        assert code == 9


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
