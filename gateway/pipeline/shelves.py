"""Where the files of an archive lie: a directory, or a prefix of an object store (`s3a://`, `gs://`, `abfs://`).

A directory has renames and locks, an object store has neither. What an archive needs of them is one thing: of two processes that
write the same manifest one must hear that it came too late. There that is a conditional put (`If-None-Match`), which S3, Google's
and Azure's stores have; a file is "moved" by a copy inside the store, which may be done twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import attrs
import pyarrow as pa

from gateway.errors import InvalidRequest, StoreError, StoreInUse, Unsupported
from gateway.files import held, sync, write_whole

STAGING = "_staging"
PACKAGE = "obstore"
SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss")
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_")
"""What an object store is reached by is in the environment, by the names that every client of it knows."""
AT_ONCE = 16
"""Small objects that are fetched at a time."""
_REMOTE = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)", re.IGNORECASE)


class Shelf(Protocol):
    """A place for files with names like `topic=a/day=2026-01-31/x.parquet`."""

    @property
    def place(self) -> str:
        """As people, and Spark, write it."""
        ...

    @property
    def lockable(self) -> bool:
        """Whether `held` keeps others out; where not, the one that comes later goes first."""
        ...

    def prepared(self, *directories: str) -> None:
        """Make what has to be there before anything is written."""
        ...

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Keep others from writing, where that is possible. Raises StoreInUse."""
        ...

    def files(self, under: str = "") -> Mapping[str, str]:
        """The names of all files below a directory, each with what changes when it is written again (empty: nobody knows)."""
        ...

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Small files, whole. Raises FileNotFoundError."""
        ...

    def has(self, name: str) -> bool: ...

    def opened(self, name: str) -> pa.NativeFile:
        """One to read anywhere in it. Raises FileNotFoundError."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Put a file in place, whole and for good; False where there is another of the name."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put a file in place, whole."""
        ...

    def staged(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """A local path to write a file to, which then is in `_staging`, for good."""
        ...

    def settle(self, name: str, place: str) -> None:
        """Move a file out of `_staging`, unless that has been done already."""
        ...

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        ...


def is_remote(place: Path | str) -> bool:
    return _REMOTE.fullmatch(str(place)) is not None


def shelf_at(place: Path | str) -> Shelf:
    """A directory, or a place like s3a://BUCKET/PREFIX. Raises InvalidRequest, Unsupported."""
    text = str(place)
    found = _REMOTE.fullmatch(text)
    if found is None:
        return DirectoryShelf(Path(text))
    if found[1].lower() not in SCHEMES:
        schemes = ", ".join(f"{one}://" for one in SCHEMES)
        raise InvalidRequest(f"{text}: files can be put into a directory, or at {schemes}, not {found[1]}://")
    return ObjectShelf(text.rstrip("/"))


@attrs.frozen
class DirectoryShelf:
    directory: Path
    lockable = True

    @property
    def place(self) -> str:
        return str(self.directory)

    def prepared(self, *directories: str) -> None:
        for one in ("", STAGING, *directories):
            (self.directory / one).mkdir(parents=True, exist_ok=True)

    def held(self) -> contextlib.AbstractContextManager[None]:
        return held(self.directory / "_lock", StoreInUse(f"another process adds to {self.directory}"))

    def files(self, under: str = "") -> Mapping[str, str]:
        found = (self.directory / under).rglob("*")
        return {path.relative_to(self.directory).as_posix(): "" for path in found if path.is_file()}

    def read(self, names: Sequence[str]) -> list[bytes]:
        return [(self.directory / name).read_bytes() for name in names]

    def has(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def opened(self, name: str) -> pa.NativeFile:
        return pa.memory_map(str(self.directory / name))

    def create(self, name: str, data: bytes) -> bool:
        """Whoever holds the lock is the only one that writes."""
        self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        write_whole(self.directory / name, data)

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        path = self.directory / STAGING / name
        yield path
        sync(path)

    def settle(self, name: str, place: str) -> None:
        staged = self.directory / STAGING / name
        if staged.exists():
            target = self.directory / place
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(target)
            sync(target.parent)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)


def credentials() -> Mapping[str, str]:
    """What the environment says of object stores."""
    return {name: value for name, value in os.environ.items() if name.startswith(CREDENTIALS)}


@attrs.define(slots=False)
class ObjectShelf:
    """A prefix of an object store. It travels to executors with what it is reached by."""

    place: str
    environment: Mapping[str, str] = attrs.field(factory=credentials, repr=False, eq=False)
    lockable = False

    @functools.cached_property
    def _store(self) -> Any:
        try:
            import obstore
            from obstore.store import from_url
        except ModuleNotFoundError:
            raise Unsupported(
                f"{self.place}: an object store needs the package {PACKAGE}: pip install 'gateway[lake]'"
            ) from None
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        plain = self.environment.get("AWS_ENDPOINT_URL", "").startswith("http://")
        try:
            return from_url(self.place, client_options={"allow_http": plain}, retry_config={"max_retries": 5})
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise InvalidRequest(f"{self.place}: {_first_line(error)}") from None

    def __getstate__(self) -> tuple[str, Mapping[str, str]]:
        return self.place, self.environment

    def __setstate__(self, state: tuple[str, Mapping[str, str]]) -> None:
        self.place, self.environment = state

    def prepared(self, *directories: str) -> None:
        del directories  # a store has none

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        yield

    def files(self, under: str = "") -> Mapping[str, str]:
        with self._told():
            pages = self._store.list(under or None)
            return {one["path"]: one["e_tag"] or "" for page in pages for one in page}

    def read(self, names: Sequence[str]) -> list[bytes]:
        if not names:
            return []
        with self._told(looking=True), ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
            return list(pool.map(lambda name: bytes(self._store.get(name).bytes()), names))

    def has(self, name: str) -> bool:
        try:
            with self._told(looking=True):
                self._store.head(name)
        except FileNotFoundError:
            return False
        return True

    def opened(self, name: str) -> pa.NativeFile:
        """All of it: files are about as large as `--roll-size` says, and are read whole where they are checked."""
        with self._told(looking=True):
            return pa.BufferReader(self._store.get(name).bytes())

    def create(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._told():
            try:
                self._store.put(name, data, mode="create")
            except AlreadyExistsError:
                # or it is our own, and the answer to it was lost: no two write the same
                return bytes(self._store.get(name).bytes()) == data
        return True

    def replace(self, name: str, data: bytes) -> None:
        with self._told():
            self._store.put(name, data)

    def marked(self, name: str) -> tuple[bytes, str]:
        """A small file, and what tells it from a later one of the name. Raises FileNotFoundError."""
        with self._told(looking=True):
            found = self._store.get(name)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def swap(self, name: str, data: bytes, mark: str) -> bool:
        """Put a file in place of the one with this mark; False where there is another one by now."""
        from obstore.exceptions import PreconditionError

        with self._told():
            try:
                self._store.put(name, data, mode={"e_tag": mark})
            except PreconditionError:
                return False
        return True

    @contextlib.contextmanager
    def staged(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="gateway-archive-") as scratch:
            path = Path(scratch) / name
            yield path
            with self._told():
                self._store.put(f"{STAGING}/{name}", path)

    def settle(self, name: str, place: str) -> None:
        """Two may be at it: who finds nothing to copy looks whether it is there."""
        staged = f"{STAGING}/{name}"
        with self._told():
            try:
                self._store.copy(staged, place)
            except FileNotFoundError:
                return
            self._store.delete(staged)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._told(looking=True):
            self._store.delete(name)

    @contextlib.contextmanager
    def _told(self, *, looking: bool = False) -> Iterator[None]:
        # What the store says, in a line. Raises StoreError; and FileNotFoundError for what is not there, if somebody looks.
        self._store  # noqa: B018  # what is wrong with the address is said before anything is asked
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            if looking and isinstance(error, FileNotFoundError):
                raise
            raise StoreError(f"{self.place}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    text = str(error)
    code = re.search(r"<Code>(\w+)</Code>", text)
    line = text.split("\n", maxsplit=1)[0].split(": <?xml", maxsplit=1)[0]
    return f"{line} ({code[1]})" if code else line
