"""An archive's directory, and what makes it exactly once.

    topic=NAME/day=YYYY-MM-DD/*.parquet    the records; every other name begins with `_`. Of a name that is too long for a
                                           directory the first part is there, and behind a backslash a digest of the whole.
                                           With a layout of its own, below the day: `NAME=VALUE/` of each expression
    _manifests/00000001.json ...           which files there are, with their offsets and checksums; written once, in order
    _staging/                              files that are being written
    _sources.json                          the stores it was made from, for those who ask where its records come from
    _layout.json                           the expressions it is divided by, where there are any
    _lock                                  held by the one process that adds to the archive

A file is written to `_staging`, then named by a manifest, then moved to its place. The manifest's appearance (a rename) is
the commit: what dies before it leaves only files that the next run removes, what dies after it is moved on by the next run.
A manifest may also name files that its own take the place of; they are removed last. And it names the gaps that were accepted, so
that they stay so.

In an object store there is no lock, and no rename. The manifest's appearance there is a put that fails if there is one of that
number. Whoever wants to write puts an empty manifest first (a claim): from then on whoever was writing before cannot commit any
more, since its next number is taken, and only behind it what lies in `_staging` is removed; so nothing is removed that could
still be committed. A store that shows a list without an object that was put before (none of the three does) would break this.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import attrs
import google_crc32c
import pyarrow as pa

from gateway.errors import InvalidRequest, NotAStore, StoreDamaged, StoreInUse, Unsupported
from gateway.pipeline.shelves import STAGING, shelf_at

VERSION = 1
SOURCES = "_sources.json"
LAYOUT = "_layout.json"
SPARSE_SOURCE = "kafka://"
"""How the name of a log begins that has offsets without a record (`gateway.pipeline.source`)."""
MANIFESTS = "_manifests"
TABLES = {"Delta": "_delta_log", "Iceberg": "gateway/messages/metadata"}
"""What shows that there is a table."""
TRIES = 8
"""How often a claim is tried again when others commit meanwhile."""
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
    part: str = ""
    """Directories below the day's, by the archive's layout. Then [start, end) is shared by files that have it between them."""
    records: int = -1
    """How many are in it: not all offsets of a log on Kafka have one. What older manifests name is not counted."""

    @property
    def path(self) -> str:
        return "/".join(filter(None, (topic_directory(self.topic), f"day={self.day}", self.part, self.name)))

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


def gap_value(gap: Gap) -> Mapping[str, object]:
    return attrs.asdict(gap)


def gap_of(value: Any, said_by: str) -> Gap:
    """What `gap_value` made. Raises StoreDamaged."""
    try:
        gap = Gap(**value)
    except TypeError as error:
        raise StoreDamaged(f"{said_by} names no gap: {error}") from error
    if not _makes_sense(gap):
        raise StoreDamaged(f"{said_by} names no gap: {gap!r}")
    return gap


NUMBERS = frozenset({"epoch", "partition", "start", "end", "size", "crc32c", "records"})


def _makes_sense(one: ArchiveFile | Gap) -> bool:
    # whether what came out of a manifest has the types that it should have
    return all(type(value) is (int if name in NUMBERS else str) for name, value in attrs.asdict(one).items())


@attrs.frozen
class Manifest:
    """What one manifest says."""

    name: str
    files: Sequence[ArchiveFile]
    replaces: frozenset[str]
    accepted: Sequence[Gap]


def _manifest_name(number: int) -> str:
    return f"{number:08d}.json"


def topic_directory(topic: str) -> str:
    """The directory of a topic. No topic has a backslash in its name, so one that is cut is like no other."""
    return value_directory("topic", topic)


def value_directory(column: str, value: str) -> str:
    """The directory of what has one value of a column."""
    name = f"{column}=" + _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", value)
    if len(name.encode()) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(value.encode()).hexdigest()[:DIGEST]
    room = LONGEST_NAME - len(BACKSLASH) - DIGEST
    while len(name.encode()) > room:
        name = name[:-1]
    return f"{re.sub('%.?$', '', name)}{BACKSLASH}{digest}"


def named_topic(topic: str) -> str:
    """What a reader of the directories takes for the topic's name."""
    return re.sub("%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), topic_directory(topic).removeprefix("topic="))


def checksum(file: pa.NativeFile) -> int:
    file.seek(0)
    total = 0
    while block := file.read(1 << 20):
        total = google_crc32c.extend(total, block)
    return total


class Archive:
    """An archive, wherever it lies."""

    def __init__(self, place: Path | str) -> None:
        self.shelf = shelf_at(place)

    @classmethod
    def existing(cls, place: Path | str) -> Archive:
        """One to look at. Raises NotAStore."""
        archive = cls(place)
        if not archive.is_there():
            archive.refuse_table()
            raise NotAStore(f"there is no archive at {place}")
        return archive

    def is_there(self) -> bool:
        if self.shelf.lockable:
            return (Path(self.shelf.place) / MANIFESTS).is_dir()
        return bool(self._written())

    def table_form(self) -> str | None:
        """Which format a table has that is there instead."""
        return next((form for form, sign in TABLES.items() if self.shelf.files(sign)), None)

    def refuse_table(self) -> None:
        """Raises Unsupported where there is a table of another format instead."""
        form = self.table_form()
        if form is not None:
            raise Unsupported(
                f"{self.shelf.place} is a table of {form}, and this is about archives of Parquet (merge: --format {form.lower()})"
            )

    def files(self) -> list[ArchiveFile]:
        """Every file that counts, in the order in which they came. Raises StoreDamaged where a manifest is missing."""
        self.refuse_lost()
        return self._history()[0]

    def named(self) -> list[ArchiveFile]:
        return self._history()[0]

    def accepted(self) -> list[Gap]:
        return [gap for manifest in self._manifests() for gap in manifest.accepted]

    def lost(self) -> list[str]:
        """Manifests that are missing: they are numbered from 1 on."""
        numbers = [0, *sorted(map(_number, self._written()))]
        holes = [(before + 1, after - 1) for before, after in pairwise(numbers) if after - before > 1]
        return [" to ".join(dict.fromkeys(map(_manifest_name, hole))) for hole in holes]

    def refuse_lost(self) -> None:
        """Raise StoreDamaged where a manifest is missing: nobody knows then what else there was."""
        lost = self.lost()
        if lost:
            raise StoreDamaged(
                f"{self.shelf.place}/{MANIFESTS}/{lost[0]} is missing: put it back, or archive into another directory; an "
                "audit says what it was about"
            )

    def _history(self) -> tuple[list[ArchiveFile], list[ArchiveFile]]:
        # the files that count, and those that the last manifest took out
        files: list[ArchiveFile] = []
        gone: list[ArchiveFile] = []
        for manifest in self._manifests():
            added, replaced = manifest.files, manifest.replaces
            gone = [one for one in files if one.name in replaced]
            if len(gone) != len(replaced):
                raise StoreDamaged(f"{manifest.name} replaces files that no manifest before it names")
            if gone:
                files = [one for one in files if one.name not in replaced]
            files += added
        return files, gone

    def sources(self) -> Sequence[str]:
        return [str(one) for one in self._noted(SOURCES) or ()]

    @property
    def sparse(self) -> bool:
        """Whether it is of a log that has offsets without a record."""
        return any(one.startswith(SPARSE_SOURCE) for one in self.sources())

    def layout(self) -> Mapping[str, str]:
        """Names and expressions that it is divided by, beside topic and day."""
        return {str(name): str(text) for name, text in dict(self._noted(LAYOUT) or {}).items()}

    def _noted(self, name: str) -> Any:
        try:
            (data,) = self.shelf.read([name])
        except FileNotFoundError:
            return None
        try:
            return json.loads(data)
        except ValueError as error:
            raise StoreDamaged(f"{self.shelf.place}/{name} is not JSON: {error}") from error

    def unlisted(self) -> list[str]:
        """Files that a reader of the directory would see and no manifest knows."""
        known = {one.path for one in self.named()}
        seen = {
            name
            for name in self.shelf.files()
            if not name.startswith(("_", ".")) and "/_" not in name and "/." not in name
        }
        return sorted(seen - known)

    def _written(self) -> Mapping[str, str]:
        found = self.shelf.files(MANIFESTS)
        return {name: found[name] for name in sorted(found) if name.endswith(".json")}

    def _manifests(self) -> Sequence[Manifest]:
        # All of them, in order. One in an object store is read once, since none is written twice.
        written = self._written()
        fresh = [name for name, mark in written.items() if not mark or (self.shelf.place, name, mark) not in _READ]
        made = {
            name: _manifest(f"{self.shelf.place}/{name}", data)
            for name, data in zip(fresh, self.shelf.read(fresh), strict=True)
        }
        for name in fresh:
            if written[name]:
                _READ[self.shelf.place, name, written[name]] = made[name]
        return [made[name] if name in made else _READ[self.shelf.place, name, mark] for name, mark in written.items()]


_READ: dict[tuple[str, str, str], Manifest] = {}
"""Manifests of object stores, by place, name and what changes with them."""


def _number(name: str) -> int:
    stem = name.rpartition("/")[2].removesuffix(".json")
    if not stem.isdecimal():
        raise StoreDamaged(f"{name} is no manifest: they are called 00000001.json and so on")
    return int(stem)


def _manifest(name: str, data: bytes) -> Manifest:
    try:
        manifest = json.loads(data)
        if manifest["version"] != VERSION:
            raise StoreDamaged(f"{name} has version {manifest['version']}, this program knows {VERSION}")
        files = [ArchiveFile(**one) for one in manifest["files"]]
        accepted = [Gap(**one) for one in manifest.get("accepted", ())]
        entries: list[ArchiveFile | Gap] = [*files, *accepted]
        odd = [one for one in entries if not _makes_sense(one)]
        if odd:
            raise StoreDamaged(f"{name} is no manifest: {odd[0]!r}")
        return Manifest(name, files, frozenset(manifest.get("replaces", ())), accepted)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(f"{name} is no manifest: {error!r}") from error


def together(files: Sequence[ArchiveFile]) -> list[list[ArchiveFile]]:
    """Files by stretches: those that a layout has made of the same offsets are one."""
    found: list[list[ArchiveFile]] = []
    open_to: dict[tuple[object, ...], list[ArchiveFile]] = {}
    for file in files:
        stretch = (file.topic, file.epoch, file.partition, file.day, file.start, file.end)
        known = open_to.get(stretch)
        if known is None or file.part in {one.part for one in known}:
            known = open_to[stretch] = []
            found.append(known)
        known.append(file)
    return found


class ArchiveWriter(Archive):
    """An archive that is being added to, by one process at a time: use it as a context manager."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(place)
        self._held = contextlib.ExitStack()
        self._claimed = False
        self._last = 0
        """The number of the last manifest, as far as this writer knows: the next one is its own or nobody's."""

    def __enter__(self) -> Self:
        if not self.is_there():
            self.refuse_table()
        self.shelf.prepared(MANIFESTS)
        with contextlib.ExitStack() as held:
            held.enter_context(self.shelf.held())
            self.recover()
            self._held = held.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._held.close()

    def made_from(self, store: str) -> None:
        known = self.sources()
        if store not in known:
            self.shelf.replace(SOURCES, _json([*known, store]))

    def laid_out(self, wanted: Mapping[str, str]) -> Mapping[str, str]:
        """What it is divided by, for good: what is wanted, or what was said before the first record. Raises InvalidRequest."""
        layout = self.layout()
        if wanted and not layout and not self.named() and self.shelf.create(LAYOUT, _json(dict(wanted))):
            return wanted
        layout = layout or self.layout()  # somebody may have said another one just now
        if wanted and dict(wanted) != layout:
            said = ", ".join(f"{name}={text}" for name, text in layout.items()) or "nothing but topic and day"
            raise InvalidRequest(f"{self.shelf.place} is divided by {said}: archive into another directory")
        return layout

    def recover(self) -> None:
        """Finish what the last run committed, and remove what it did not. Raises StoreDamaged where a manifest is missing."""
        self.refuse_lost()
        files, gone = self._history()
        self._last = max(map(_number, self._written()), default=0)
        staged = {name.removeprefix(f"{STAGING}/") for name in self.shelf.files(STAGING)}
        self._place([one for one in files if one.name in staged])
        self._remove(gone)
        if self.shelf.lockable or self._claimed:
            for name in staged - {one.name for one in files}:
                self.shelf.remove(f"{STAGING}/{name}")

    def claim(self) -> None:
        """Keep whoever was writing before from committing, before anything is written: once for each writer."""
        if self.shelf.lockable or self._claimed:
            return
        for _ in range(TRIES):
            if self.shelf.create(self._next(), _json(_contents(writer=uuid4().hex))):
                self._claimed = True
                self.recover()
                return
            self.recover()
        raise StoreInUse(f"other processes keep adding to the archive {self.shelf.place}")

    def commit(
        self, files: Sequence[ArchiveFile], replaces: Sequence[ArchiveFile] = (), accepted: Sequence[Gap] = ()
    ) -> None:
        """Add files that lie in `_staging`, in the place of others that hold the same records, and gaps that are to stay."""
        if not files and not accepted:
            return
        self.claim()
        if not self.shelf.create(self._next(), _json(_contents(files, replaces, accepted, uuid4().hex))):
            raise StoreInUse(f"another process has begun to add to the archive {self.shelf.place}")
        self._last += 1
        # committed: whatever dies from here on, the next run does the rest
        self._place(files)
        self._remove(replaces)

    def _next(self) -> str:
        return f"{MANIFESTS}/{_manifest_name(self._last + 1)}"

    def _remove(self, files: Sequence[ArchiveFile]) -> None:
        for one in files:
            self.shelf.remove(one.path)

    def _place(self, files: Sequence[ArchiveFile]) -> None:
        for one in files:
            self.shelf.settle(one.name, one.path)


def _contents(
    files: Sequence[ArchiveFile] = (),
    replaces: Sequence[ArchiveFile] = (),
    accepted: Sequence[Gap] = (),
    writer: str = "",
) -> object:
    return {
        "version": VERSION,
        "files": [attrs.asdict(one) for one in files],
        "replaces": [one.name for one in replaces],
        "accepted": [attrs.asdict(one) for one in accepted],
        "writer": writer,
    }


def _json(what: object) -> bytes:
    return json.dumps(what, indent=1).encode()
