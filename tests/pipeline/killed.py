"""Run by a test: a process at work on an archive is ended before each of its steps on the disk in turn, and run again.

Or on an object store, before each of its requests that change something. Prints, for each step, what the second run and an audit found.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from gateway.pipeline.archive import archive
from gateway.pipeline.audit import audit
from gateway.pipeline.manifest import Archive
from gateway.pipeline.merge import merge
from gateway.pipeline.shelves import is_remote, shelf_at

STEPS = {"os.rename", "os.mkdir", "os.remove"}


def child(work: Callable[[], None]) -> int:
    """Do it in a process of its own; its exit code."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def archiving(store: str, target: str) -> None:
    archive(store, target)


def merging(_store: str, target: str) -> None:
    merge(target)


JOBS = {"archive": archiving, "merge": merging}


REQUESTS = ("put", "copy", "delete")
"""What changes something in an object store; a copy and the removal of what was copied are two."""


def dying(job: str, store: str, target: str, step: int) -> None:
    left = step

    def another() -> None:
        nonlocal left
        if not left:
            os._exit(9)
        left -= 1

    def hook(event: str, args: tuple[object, ...]) -> None:
        written = event == "open" and isinstance(args[1], str) and "w" in args[1]
        if (written or event in STEPS) and target in str(args):
            another()

    if is_remote(target):
        import obstore.store

        class Counted:
            """An object store that somebody counts the requests of."""

            def __init__(self, store: Any) -> None:
                self._store = store

            def __getattr__(self, name: str) -> Any:
                if name in REQUESTS:
                    another()
                return getattr(self._store, name)

        made = obstore.store.from_url
        obstore.store.from_url = lambda *args, **more: Counted(made(*args, **more))  # type: ignore[assignment]
    else:
        sys.addaudithook(hook)
    JOBS[job](store, target)


def whole(job: str, store: str, target: str) -> None:
    JOBS[job](store, target)
    found = audit(store, target)
    print(json.dumps({"compared": found.compared, "findings": found.findings}), flush=True)


def copied(begin: str, target: str) -> None:
    if not is_remote(target):
        shutil.copytree(begin, target)
        return
    old, new = Archive(begin).shelf, shelf_at(target)
    for name in old.files():
        new.replace(name, old.read([name])[0])


def main(job: str, store: str, work: str, begin: str = "") -> None:
    importlib.import_module("pandas")  # or each child loads it anew, which takes far longer than what it has to do
    for step in range(200):
        target = f"{work}/archive-{step}"
        if begin:
            assert child(lambda target=target: copied(begin, target)) == 0  # type: ignore[misc]
        code = child(lambda target=target, step=step: dying(job, store, target, step))  # type: ignore[misc]
        assert child(lambda target=target: whole(job, store, target)) == 0  # type: ignore[misc]
        if code == 0:
            return
        assert code == 9


if __name__ == "__main__":
    main(*sys.argv[1:])
