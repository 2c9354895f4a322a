"""An archive's directory, and what makes it exactly once.

    topic=NAME/day=YYYY-MM-DD/*.parquet    the records; every other name begins with `_`. Of a name that is too long for a
                                           directory the first part is there, and behind a backslash a digest of the whole
    _manifests/00000001.json ...           which files there are, with their offsets and checksums; written once, in order
    _staging/                              files that are being written
    _sources.json                          the stores it was made from, for those who ask where its records come from
    _lock                                  held by the one process that adds to the archive

A file is written to `_staging`, then named by a manifest, then moved to its place. The manifest's appearance (a rename) is
the commit: what dies before it leaves only files that the next run removes, what dies after it is moved on by the next run.
A manifest may also name files that its own take the place of; they are removed last. And it names the gaps that were accepted, so
that they stay so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import attrs
import google_crc32c

from gateway.errors import NotAStore, StoreDamaged, StoreInUse

VERSION = 1
SOURCES = "_sources.json"
BACKSLASH, DIGEST = "%5C", 16
LONGEST_NAME = 255
"""Bytes of a file's name that file systems take."""
_SPECIAL = re.compile(r'[\x00-\x1f"#%\'*/:=?\\{}\[\]^\x7f]')
"""What Spark (as Hive before it) writes as %XX in the name of a partition's directory."""


@attrs.frozen
class ArchiveFile:
    """Consecutive records of one partition and one day."""

    name: str
    """The file's name, the same in `_staging` and in its place."""
    topic: str
    epoch: int
    partition: int
    day: str
    start: int
    end: int
    size: int
    crc32c: int

    @property
    def path(self) -> str:
        return f"{topic_directory(self.topic)}/day={self.day}/{self.name}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


@attrs.frozen
class Gap:
    """Records [start, end) of a partition that an archive has not got, and why."""

    topic: str
    epoch: int
    partition: int
    start: int
    end: int
    why: str = "removed before it was archived"

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


NUMBERS = frozenset({"epoch", "partition", "start", "end", "size", "crc32c"})


def _makes_sense(one: ArchiveFile | Gap) -> bool:
    # whether what came out of a manifest has the types that it should have
    return all(type(value) is (int if name in NUMBERS else str) for name, value in attrs.asdict(one).items())


@attrs.frozen
class _Manifest:
    """What one of them says."""

    files: Sequence[ArchiveFile]
    replaces: frozenset[str]
    accepted: Sequence[Gap]


def _manifest_name(number: int) -> str:
    return f"{number:08d}.json"


def topic_directory(topic: str) -> str:
    """The directory of a topic. No topic has a backslash in its name, so one that is cut is like no other."""
    name = "topic=" + _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", topic)
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()[:DIGEST]
    room = LONGEST_NAME - len(BACKSLASH) - DIGEST
    while len(name.encode()) > room:
        name = name[:-1]
    return f"{re.sub('%.?$', '', name)}{BACKSLASH}{digest}"


def named_topic(topic: str) -> str:
    """What a reader of the directories takes for the topic's name."""
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), topic_directory(topic).removeprefix("topic="))


def checksum(path: Path) -> int:
    """CRC32C of a file."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total = google_crc32c.extend(total, block)
    return total


class Archive:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.staging = directory / "_staging"
        self._manifests = directory / "_manifests"

    @classmethod
    def existing(cls, directory: Path) -> Archive:
        """One to look at. Raises NotAStore."""
        archive = cls(directory)
        if not archive._manifests.is_dir():
            raise NotAStore(f"there is no archive at {directory}")
        return archive

    def files(self) -> list[ArchiveFile]:
        """Every file that counts, in the order in which they came. Raises StoreDamaged where a manifest is missing."""
        self.refuse_lost()
        return self._history()[0]

    def named(self) -> list[ArchiveFile]:
        return self._history()[0]

    def accepted(self) -> list[Gap]:
        return [gap for path in self._written() for gap in self._load(path).accepted]

    def lost(self) -> list[str]:
        """Manifests that are missing: they are numbered from 1 on."""
        numbers = [0, *sorted(map(self._number, self._written()))]
        holes = [(before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1]
        return [" to ".join(dict.fromkeys(map(_manifest_name, hole))) for hole in holes]

    def refuse_lost(self) -> None:
        """Raise StoreDamaged where a manifest is missing: nobody knows then what else there was."""
        lost = self.lost()
        if lost:
            raise StoreDamaged(
                f"{self._manifests / lost[0]} is missing: put it back, or archive into another directory; an audit says what "
                "it was about"
            )

    def _history(self) -> tuple[list[ArchiveFile], list[ArchiveFile]]:
        # the files that count, and those that the last manifest took out
        files: list[ArchiveFile] = []
        gone: list[ArchiveFile] = []
        for path in self._written():
            manifest = self._load(path)
            added, replaced = manifest.files, manifest.replaces
            gone = [one for one in files if one.name in replaced]
            if len(gone) != len(replaced):
                raise StoreDamaged(f"{path} replaces files that no manifest before it names")
            if gone:
                files = [one for one in files if one.name not in replaced]
            files += added
        return files, gone

    def sources(self) -> Sequence[str]:
        path = self.directory / SOURCES
        try:
            return [str(one) for one in json.loads(path.read_text())] if path.exists() else []
        except ValueError as error:
            raise StoreDamaged(f"{path} is not JSON: {error}") from error

    def unlisted(self) -> list[str]:
        """Files that a reader of the directory would see and no manifest knows."""
        known = {one.path for one in self.named()}
        found = (path.relative_to(self.directory) for path in self.directory.rglob("*") if path.is_file())
        seen = {str(path) for path in found if not any(part.startswith(("_", ".")) for part in path.parts)}
        return sorted(seen - known)

    def _written(self) -> list[Path]:
        return sorted(self._manifests.glob("*.json"))

    @staticmethod
    def _number(path: Path) -> int:
        if not path.stem.isdecimal():
            raise StoreDamaged(f"{path} is no manifest: they are called 00000001.json and so on")
        return int(path.stem)

    def _load(self, path: Path) -> _Manifest:
        try:
            manifest = json.loads(path.read_text())
            if manifest["version"] != VERSION:
                raise StoreDamaged(f"{path} has version {manifest['version']}, this program knows {VERSION}")
            files = [ArchiveFile(**one) for one in manifest["files"]]
            accepted = [Gap(**one) for one in manifest.get("accepted", ())]
            entries: list[ArchiveFile | Gap] = [*files, *accepted]
            odd = [one for one in entries if not _makes_sense(one)]
            if odd:
                raise StoreDamaged(f"{path} is no manifest: {odd[0]!r}")
            return _Manifest(files, frozenset(manifest.get("replaces", ())), accepted)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{path} is no manifest: {error!r}") from error


class ArchiveWriter(Archive):
    """An archive that is being added to, by one process at a time: use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._lock = -1

    def __enter__(self) -> Self:
        for path in (self.directory, self.staging, self._manifests):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreInUse(f"another process adds to the archive {self.directory}") from None
        self.recover()
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._lock)

    def made_from(self, store: str) -> None:
        """Note a store from which records come."""
        known = self.sources()
        if store not in known:
            _write(self.directory / SOURCES, [*known, store])

    def recover(self) -> None:
        """Finish what the last run committed, and remove what it did not. Raises StoreDamaged where a manifest is missing."""
        self.refuse_lost()
        files, gone = self._history()
        self._place(files)
        self._remove(gone)
        for leftover in self.staging.iterdir():
            leftover.unlink()

    def commit(
        self, files: Sequence[ArchiveFile], replaces: Sequence[ArchiveFile] = (), accepted: Sequence[Gap] = ()
    ) -> None:
        """Add files that lie in `_staging`, in the place of others that hold the same records, and gaps that are to stay."""
        if not files and not accepted:
            return
        number = max(map(self._number, self._written()), default=0) + 1
        manifest = {
            "version": VERSION,
            "files": [attrs.asdict(one) for one in files],
            "replaces": [one.name for one in replaces],
            "accepted": [attrs.asdict(one) for one in accepted],
        }
        _write(self._manifests / _manifest_name(number), manifest)
        # committed: whatever dies from here on, the next run does the rest
        self._place(files)
        self._remove(replaces)

    def _remove(self, files: Sequence[ArchiveFile]) -> None:
        for one in files:
            (self.directory / one.path).unlink(missing_ok=True)

    def _place(self, files: Sequence[ArchiveFile]) -> None:
        for one in files:
            staged = self.staging / one.name
            if staged.exists():
                place = self.directory / one.path
                place.parent.mkdir(parents=True, exist_ok=True)
                staged.rename(place)
                _sync(place.parent)


def _write(path: Path, what: object) -> None:
    # put a file in place whole
    fresh = path.with_suffix(".new")
    with fresh.open("w") as out:
        json.dump(what, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    fresh.rename(path)
    _sync(path.parent)  # or a power cut could forget the rename after we have relied on it


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
