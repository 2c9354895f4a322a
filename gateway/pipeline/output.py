"""A directory, or a prefix of an object store, that appears whole or not at all, whatever dies at whatever moment.

An object store has no rename. There a run writes below `_staging`, and its commit is a numbered manifest in `_outputs`, put if
there is none of that number: of two that write at once the later one hears it. Then the files are copied to where they are to be,
those of the run before are removed, and `_SUCCESS` is put, which is away in between: whoever waits for it sees the whole of one
run. A run that died behind its commit is finished by the next.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import attrs

from gateway.errors import AlreadyExists, GatewayError, StoreDamaged, StoreInUse
from gateway.files import held, sync
from gateway.pipeline.shelves import STAGING, Shelf, is_remote, shelf_at

OUTPUTS = "_outputs"
SUCCESS = "_SUCCESS"


@attrs.frozen
class FreshOutput:
    """Where a run writes to."""

    where: str
    """As Spark writes it."""

    def files(self) -> list[str]:
        """What there is of it, without what readers pass over."""
        return _shown(shelf_at(self.where))


def _shown(shelf: Shelf, under: str = "") -> list[str]:
    names = (name.removeprefix(f"{under}/") for name in shelf.files(under))
    return sorted(name for name in names if not any(part.startswith(("_", ".")) for part in name.split("/")))


@contextlib.contextmanager
def appearing(target: Path | str, *, overwrite: bool = False) -> Iterator[FreshOutput]:
    """A place beside the target to write to; when the block ends well, it takes the target's.

    Whoever dies at whatever moment leaves the old or the new, and what the next run removes. Raises AlreadyExists, or StoreInUse
    where another process writes the same target.
    """
    way = _in_store(shelf_at(target), overwrite) if is_remote(target) else _in_directory(Path(target), overwrite)
    with way as fresh:
        yield fresh


def _refused(target: object) -> AlreadyExists:
    return AlreadyExists(f"{target} is not empty: give --overwrite to replace it, or another directory")


@contextlib.contextmanager
def _in_directory(target: Path, overwrite: bool) -> Iterator[FreshOutput]:
    target = target.absolute()
    fresh, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with held(target.with_name(f".{target.name}.lock"), StoreInUse(f"another process writes {target}")):
        if old.exists() and not target.exists():
            old.rename(target)  # it died between taking the old one away and putting the new one there
        if target.exists() and not overwrite and any(target.iterdir()):
            raise _refused(target)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        yield FreshOutput(str(fresh))
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _in_store(shelf: Shelf, overwrite: bool) -> Iterator[FreshOutput]:
    last = _finished(shelf)
    if _shown(shelf) and not overwrite:
        raise _refused(shelf.place)
    run = uuid4().hex
    fresh = FreshOutput(f"{shelf.place}/{STAGING}/{run}")
    committed = False
    try:
        yield fresh
        contents = {"run": run, "files": fresh.files(), "replaces": _shown(shelf)}
        committed = shelf.create(_numbered(last + 1), json.dumps(contents, indent=1).encode())
        if not committed:
            raise _overtaken(shelf)
    except GatewayError as error:
        if not committed and shelf.has(_numbered(last + 1)):
            raise _overtaken(shelf) from error  # and what this one was writing has been removed
        raise
    finally:
        if not committed:
            for name in shelf.files(f"{STAGING}/{run}"):
                shelf.remove(name)
    _finished(shelf)
    for name in shelf.files(STAGING):  # of those who died before they committed, and of Spark
        shelf.remove(name)


def _overtaken(shelf: Shelf) -> StoreInUse:
    return StoreInUse(f"another process has written {shelf.place} meanwhile")


def _numbered(number: int) -> str:
    return f"{OUTPUTS}/{number:08d}.json"


def _finished(shelf: Shelf) -> int:
    # do what a run that committed has not done yet; the number of the last one
    names = sorted(shelf.files(OUTPUTS))
    if not names:
        return 0
    name = names[-1]
    try:
        said = json.loads(shelf.read([name])[0])
        run, files, replaced = str(said["run"]), _texts(said["files"]), _texts(said["replaces"])
        number = int(name.removeprefix(f"{OUTPUTS}/").removesuffix(".json"))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"{shelf.place}/{name} is no manifest: {error!r}") from error
    if shelf.files(f"{STAGING}/{run}") or not shelf.has(SUCCESS):
        shelf.remove(SUCCESS)
        for one in files:
            shelf.settle(f"{run}/{one}", one)
        for one in set(replaced) - set(files):
            shelf.remove(one)
        shelf.replace(SUCCESS, b"")
    return number


def _texts(value: object) -> Sequence[str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return [str(one) for one in value]
