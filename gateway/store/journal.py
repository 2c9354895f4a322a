"""The short way to the disk: units that only append are written behind each other in a file, and posted to the database later.

Data flow:

    plain, small units ──► one frame ──► one write (and one sync) ──► acknowledged; in memory until posted (`Log.unposted`)
                                                   │ after a second, or 1 MiB, or when somebody reads it
                                                   ▼
                    `Writer.post`: all of a partition as one chunk, all partitions in one transaction, with the last number
    everything else ──► the same transaction: first what the journal holds, then itself

Frames and transactions have one row of numbers, and a transaction has all frames before it. So the database is at every moment
what there was after some commit, and what it lacks are the frames with a higher number than its own: who starts after a crash
posts these, once.

There are two files, used in turns: one begins anew when the database has all of the other, synced. Of a frame:

    0  8  the file's salt, by which frames are found and told from what a peer has sent
    8  4  bytes of the body          12  4  chunks in it        16  8  number of the commit
    24 8  the last commit that was on the disk for certain      32  4  CRC32C of all but itself
    36    for each chunk its key (slot and offset, u64) and size (u32) · the chunks

A file begins with its magic, its version and the salt. All integers are little-endian. Importable without trio.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import google_crc32c
import msgspec

from gateway.errors import CommitFailed, OutcomeUnknown, StoreError
from gateway.files import open_private

JOURNAL_BYTES = 2 << 20
"""A file begins anew behind this."""
PREPARED = 256 << 10
"""So far ahead a file is filled with zeros: to sync what lies within it takes a fraction of the time that it takes when the file
grows, since nothing has to be noted about that.
"""
HEAD = struct.Struct("<4sI8s")
MAGIC = b"GWJL"
VERSION = 1
FRAME = struct.Struct("<8sIIQQI")
_HEAD = struct.Struct("<8sIIQQ")
"""The same without its checksum."""
_PIECE = struct.Struct("<QI")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""After these a write has left nothing whole behind."""
Piece = tuple[int, bytes]
"""A chunk with its key."""


class JournalFrame(msgspec.Struct, frozen=True):
    number: int
    synced: int
    """The last commit that was on the disk when this one was written."""
    pieces: Sequence[Piece]


def encode_frame(salt: bytes, number: int, synced: int, pieces: Sequence[Piece]) -> bytes:
    if len(pieces) == 1:
        key, blob = pieces[0]
        index, size = _PIECE.pack(key, len(blob)), _PIECE.size + len(blob)
    else:
        index = b"".join([_PIECE.pack(key, len(blob)) for key, blob in pieces])
        blob = b"".join([blob for _key, blob in pieces])
        size = len(index) + len(blob)
    head = _HEAD.pack(salt, size, len(pieces), number, synced)
    checksum = google_crc32c.extend(google_crc32c.value(head + index), blob)
    return b"".join((head, checksum.to_bytes(4, "little"), index, blob))


def decode_frame(data: bytes, at: int, salt: bytes) -> tuple[JournalFrame, int] | None:
    """The frame at a place, and where it ends; None if there is no whole one."""
    if at + FRAME.size > len(data):
        return None
    found, length, count, number, synced, checksum = FRAME.unpack_from(data, at)
    end = at + FRAME.size + length
    if found != salt or end > len(data) or not count or count * _PIECE.size > length:
        return None
    body = data[at + FRAME.size : end]
    if google_crc32c.extend(google_crc32c.value(data[at : at + _HEAD.size]), body) != checksum:
        return None
    pieces: list[Piece] = []
    begin = count * _PIECE.size
    for key, size in _PIECE.iter_unpack(body[:begin]):
        pieces.append((key, body[begin : begin + size]))
        begin += size
    return (JournalFrame(number, synced, pieces), end) if begin == length else None


def frames(data: bytes, salt: bytes, at: int, last: int) -> Iterator[tuple[JournalFrame, int]]:
    """The frames that follow each other from a place on, and where each ends. What a file held before it began anew has lower
    numbers, and ends it.
    """
    while (found := decode_frame(data, at, salt)) is not None and found[0].number > last:
        yield found
        last, at = found[0].number, found[1]


# --- writing ---


class JournalFile:
    def __init__(self, path: Path) -> None:
        self.salt = os.urandom(8)
        self.last = 0
        """The number of the last frame in it."""
        self.synced = 0
        """So far it is on the disk."""
        self.prepared = HEAD.size
        """Bytes it has, with those that are only there to be written over."""
        path.unlink(missing_ok=True)  # who reads the old one goes on with that
        self.handle = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.pwrite(self.handle, HEAD.pack(MAGIC, VERSION, self.salt), 0)

    def prepare(self, end: int) -> None:
        """Fill it with zeros up to there. Where the disk is full, the frames that come say so."""
        start, self.prepared = self.prepared, end
        with suppress(OSError):
            os.pwrite(self.handle, bytes(end - start), start)

    def close(self) -> None:
        os.close(self.handle)


class Journal:
    """Both files of a store that is served. One writes at a time; another may sync meanwhile."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [JournalFile(path) for path in paths]
        self.active = self._files[0]
        self.position = HEAD.size
        """Where the next frame goes in that."""
        self.limit = JOURNAL_BYTES
        self.usable = True
        """False once a sync has failed: what the disk has of the files nobody knows, and what they say later is not believed."""

    @property
    def last(self) -> int:
        """The number of the last frame."""
        return max(file.last for file in self._files)

    @property
    def half_full(self) -> bool:
        """Whether the database is to be synced when it gets the next frames, so that a file can begin anew in time."""
        return self.position >= self.limit // 2

    def begin_anew(self, posted: int) -> bool:
        """Go on in the other file; False if that is needed still. `posted`: the commit up to which the database has everything,
        on the disk.
        """
        other = next(file for file in self._files if file is not self.active)
        if other.last > posted:
            return False
        self.active, self.position = other, HEAD.size
        return True

    def append(self, number: int, synced: int, pieces: Sequence[Piece]) -> None:
        """Raises CommitFailed if nothing is stored, OutcomeUnknown if it may be."""
        active = self.active
        frame = encode_frame(active.salt, number, synced, pieces)
        end = self.position + len(frame)
        if end > active.prepared:
            active.prepare(max(end, min(end + PREPARED, self.limit)))
        try:
            written = os.pwrite(active.handle, frame, self.position)
        except OSError as error:
            text = f"the journal cannot be written: {error}"
            raise (CommitFailed if error.errno in _NO_ROOM else OutcomeUnknown)(text) from error
        if written < len(frame):
            raise CommitFailed(f"the journal cannot be written: {written} of {len(frame)} bytes, the disk is full")
        self.position = end
        active.last = number

    def sync(self) -> None:
        """Raises OutcomeUnknown, and is not usable any more."""
        for file in self._files:
            if file.last > file.synced:
                last = file.last
                try:
                    os.fdatasync(file.handle)
                except OSError as error:
                    # the kernel may take what it could not write for written from here on
                    self.usable = False
                    raise OutcomeUnknown(f"the journal cannot be synced: {error}") from error
                file.synced = max(file.synced, last)

    def close(self) -> None:
        for file in self._files:
            file.close()


# --- reading ---


@attrs.frozen
class JournalRest:
    """What the files have beyond what the database has."""

    frames: Sequence[JournalFrame] = ()
    """One behind the other."""
    damage: str = ""
    """What follows them and was acknowledged is not to be had: why."""
    highest: int = 0
    """The highest number there is a trace of. No other commit may have it, or one below: it would be what these count on."""


def read_rest(paths: Sequence[Path], posted: int) -> JournalRest:
    """What is to be posted to a database that has everything up to a commit.

    A file may end in the midst of a frame, or have a frame and not the one before it: when the power failed, nobody had been told
    that those are on the disk. If somebody had, a later frame says so, and it is damage.
    """
    found: dict[int, JournalFrame] = {}
    notes: list[str] = []
    for path in paths:
        try:
            found.update({frame.number: frame for frame in _all(path) if frame.number > posted})
        except StoreError as error:
            notes.append(error.message)
    whole: list[JournalFrame] = []
    for number in sorted(found):
        if number != posted + len(whole) + 1:
            break
        whole.append(found[number])
    following = posted + len(whole) + 1
    told = max((frame.synced for frame in found.values()), default=0)
    if told >= following:
        behind = sum(number > following for number in found)
        notes.append(
            f"commit {following} is damaged or missing, and so are those up to {told}; {behind} behind it are there"
        )
    damage = "; ".join(notes) and f"the journal beside the database is damaged: {'; '.join(notes)}"
    return JournalRest(whole, damage, max(found, default=posted))


def _all(path: Path) -> Iterator[JournalFrame]:
    # every frame that is whole, wherever it lies
    data = _bytes(path)
    salt = _salt(path, data)
    at = HEAD.size if salt else -1
    while at >= 0:
        for frame, end in frames(data, salt, at, -1):
            yield frame
            at = end
        at = data.find(salt, at + 1)


def _salt(path: Path, data: bytes) -> bytes:
    # empty where no frame has reached the disk
    head = data[: HEAD.size]
    if data.count(0, HEAD.size) == max(len(data) - HEAD.size, 0):
        return b""
    magic, version, salt = HEAD.unpack(head)
    if magic != MAGIC or version != VERSION:
        raise StoreError(f"the head of {path.name} is {head[:8]!r}")
    return bytes(salt)


def _bytes(path: Path, at: int = 0, most: int = -1) -> bytes:
    # of a file that is not there, none
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(most)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(f"the journal cannot be read: {error}") from error


class JournalTail:
    """How far the journal goes, for a reader in another process, who looks again and again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._known: dict[Path, tuple[bytes, int, int]] = {}
        """How a file begins, where its last frame ends, and the number of that."""

    def last(self) -> int:
        """The number of the last frame; 0 if there is none."""
        return max(self._last(path) for path in self._paths)

    def _last(self, path: Path) -> int:
        begins = _bytes(path, 0, HEAD.size + FRAME.size)
        if len(begins) < HEAD.size + FRAME.size:
            return 0
        salt = _salt(path, begins)
        known, at, last = self._known.get(path, (b"", 0, 0))
        if begins != known:  # it has begun anew
            at, last = HEAD.size, 0
        data, base = _bytes(path, at), at
        for frame, end in frames(data, salt, 0, last):
            at, last = base + end, frame.number
        self._known[path] = begins, at, last
        return last
