"""The database page by page, without SQLite: to say what is gone from a damaged file, and to save the rest.

SQLite stops at the first damaged page. This goes on behind it: from each tree come its rows, in order, and between them
the stretches of keys that are lost. The layout is the one documented at sqlite.org/fileformat2.html; pages that the
write-ahead log holds are taken from there.
"""

from __future__ import annotations

import bisect
import operator
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs

from gateway.store.database import PAGE_SIZE
from gateway.store.interface import Durability

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
INTERIOR_INDEX, INTERIOR_TABLE, LEAF_INDEX, LEAF_TABLE = 2, 5, 10, 13
TABLE, INDEX = (INTERIOR_TABLE, LEAF_TABLE), (INTERIOR_INDEX, LEAF_INDEX)
Kinds = tuple[int, ...]
_HEADER = 100
"""Bytes of page 1 before what every page has."""
_DEEPEST = 40
_SECTOR = 4096
"""What a disk writes, or does not write, at once."""
_PAGE = struct.Struct(">BHHHB")
_U32 = struct.Struct(">I")
_WAL_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_LOG_INDEX = struct.Struct("=16xI")
"""The begin of the index beside the log, in the byte order of the machine: the last of it says how many frames there are."""
_WAL_MAGIC = 0x377F0682
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_REAL, _ZERO, _ONE, _BLOB, _TEXT = 7, 8, 9, 12, 13


TOPIC_INDEX = "sqlite_autoindex_topics_1"
COLUMNS: Mapping[str, Sequence[type | tuple[type, ...]]] = {
    "meta": (str, object),
    "topics": (object, str, int, str, (int, float), object, object, str),
    TOPIC_INDEX: (str, int),
    "partitions": (object, (int, type(None)), int, int, int, int, int),
    "chunks": (object, int, int, int, int, int, int, int, bytes),
    "rows": (str, bytes, bytes),
}
"""Of each tree, what kind of values its rows have; the first of a table is its key, which SQLite keeps elsewhere."""


class BadPageError(Exception):
    """A page is not what its place in the tree says."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"page {number}: {reason}")
        self.number = number


@attrs.frozen
class Row:
    """A row of a tree: the key of a table; of an index, what orders it are its values."""

    key: int
    values: Sequence[Any]


@attrs.frozen
class Lost:
    """Whatever lies behind the row `after` and before the row that comes next. `low` and `high`: of a table, the keys (low, high]
    that it may have had.
    """

    page: int
    reason: str
    low: int
    high: int


@attrs.frozen
class Cell:
    """Where a cell lies in its page."""

    at: int
    child: int
    key: int
    size: int
    """Bytes of the payload, which begins at `at`."""


def fits(tree: str, row: Row) -> bool:
    """Whether a row may be one of this tree."""
    columns, values = COLUMNS[tree], row.values
    if len(values) != len(columns) or not all(map(isinstance, values, columns)):
        return False
    if tree == TOPIC_INDEX:
        return "\0" not in values[0]
    return tree != "topics" or (values[3] in _DURABILITIES and "\0" not in values[1])


_DURABILITIES = frozenset(one.value for one in Durability)


class Pages:
    """The pages of a database as of the last commit. Nobody may check-point meanwhile: hold the store's lock, or a read
    transaction.
    """

    def __init__(self, path: Path, *, live: bool = False) -> None:
        """`live`: SQLite has looked at the write-ahead log, so that its checksums need no second look: how much of it counts
        says the index beside it.
        """
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        head = os.pread(self._file, _HEADER, 0)
        size = int.from_bytes(head[16:18], "big")
        reserved = head[20] if size == PAGE_SIZE and len(head) == _HEADER else 0
        # nothing but a store of ours is looked at: where the header is gone, its page size is still known
        self.usable = PAGE_SIZE - reserved
        self.count = os.fstat(self._file).st_size // PAGE_SIZE
        self._log = _open_if_there(path.with_name(path.name + "-wal"))
        frames = _frames_taken(path.with_name(path.name + "-shm")) if live else HIGHEST
        self._logged = self._index_log(live, frames) if self._log is not None else {}
        self._interior: dict[int, tuple[int, list[Cell], int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._file)
        if self._log is not None:
            os.close(self._log)

    def read(self, number: int) -> bytes:
        """One page. Raises BadPageError if there is none of this number."""
        if not 1 <= number <= self.count:
            raise BadPageError(number, f"there are {self.count} pages")
        at = self._logged.get(number)
        file, place = (self._file, (number - 1) * PAGE_SIZE) if at is None else (self._log, at)
        try:
            data = os.pread(file, PAGE_SIZE, place)  # type: ignore[arg-type]  # there is a log if a page is in it
        except OSError as error:
            raise BadPageError(number, f"it cannot be read: {error.strerror}") from error
        if len(data) < PAGE_SIZE:
            raise BadPageError(number, "the file ends within it")
        return data

    def _index_log(self, live: bool, frames: int) -> dict[int, int]:
        # where the first frames of the log have pages, up to its last whole commit
        assert self._log is not None
        head = os.pread(self._log, _WAL_HEADER.size, 0)
        if len(head) < _WAL_HEADER.size:
            return {}
        magic, _version, size, _sequence, *salts, first, second = _WAL_HEADER.unpack(head)
        if magic & ~1 != _WAL_MAGIC or size != PAGE_SIZE:
            return {}
        word = struct.Struct(f"{'>' if magic & 1 else '<'}{PAGE_SIZE // 4 + 2}I")
        if not live and _summed(struct.unpack(f"{word.format[0]}6I", head[:24]), 0, 0) != (first, second):
            return {}
        found: dict[int, int] = {}
        waiting: dict[int, int] = {}
        at = _WAL_HEADER.size
        while frames > 0 and len(frame := os.pread(self._log, _FRAME.size, at)) == _FRAME.size:
            number, pages, *theirs, one, two = _FRAME.unpack(frame)
            data = b"" if live else os.pread(self._log, PAGE_SIZE, at + _FRAME.size)
            if theirs != salts or not number or (not live and len(data) < PAGE_SIZE):
                break
            if not live:
                first, second = _summed(word.unpack(frame[:8] + data), first, second)
                if (first, second) != (one, two):
                    break
            waiting[number] = at + _FRAME.size
            at += _FRAME.size + PAGE_SIZE
            frames -= 1
            if pages:
                found.update(waiting)
                waiting.clear()
                self.count = pages
        return found

    # --- trees ---

    def walk(self, root: int, kinds: Kinds, seen: set[int] | None = None) -> Iterator[Row | Lost]:
        """Every row of a tree in order, and in its place what is lost. `seen`: the pages that were met are added."""
        seen = set() if seen is None else seen
        yield from self._walk(root, kinds, LOWEST, HIGHEST, seen, 0)

    def is_index_leaf(self, number: int) -> bool:
        try:
            return self.read(number)[0] == LEAF_INDEX
        except BadPageError:
            return False

    def leaf(self, number: int) -> Iterator[Row]:
        """The rows of one page, wherever it belongs, if it is a leaf."""
        try:
            kind, cells, _last = self._page(number, (*TABLE, *INDEX))
        except BadPageError:
            return
        if kind in (LEAF_INDEX, LEAF_TABLE):
            yield from filter(None, [self._row(number, cell, kind) for cell in cells])

    def lost_around(self, root: int, key: int, *, ahead: bool = False) -> tuple[int, int]:
        """Of a table's tree, the keys (low, high] that cannot be read when the row at `key`, or the one before or behind it, is
        asked for; `ahead`: not the one before. Where no damage shows it is all of the leaf: SQLite looks more closely.
        """
        lost, low, high, first, last = self._look_near(root, key)
        if lost is None and not first and not ahead:
            lost = self._look_near(root, low)[0]
        if lost is None and not last and high < HIGHEST:
            lost = self._look_near(root, high + 1)[0]
        return lost or (low, high)

    def lost_before(self, root: int, key: int, lowest: int) -> tuple[tuple[int, int] | None, int]:
        """Of a table's tree whose keys are all above `lowest`, the keys (low, high] that are not where they belong on the way to
        the last row up to `key`, which SQLite may then miss without a word; and up to which key the answer is the same. The
        rows themselves are not looked at.
        """
        lost, low, high, first, _last = self._look_near(root, key, lowest, rows=False)
        if lost is None and not first and low > lowest:
            lost = self._look_near(root, low, lowest, rows=False)[0]
        return lost, high if lost is None else key

    def _look_near(
        self, root: int, key: int, lowest: int = LOWEST, *, rows: bool = True
    ) -> tuple[tuple[int, int] | None, int, int, bool, bool]:
        # what is lost on the way to a key, the keys (low, high] of its leaf, and whether that has a row up to the key and
        # one behind it
        number, low, high = root, lowest, HIGHEST
        kind = INTERIOR_TABLE
        try:
            for _ in range(_DEEPEST):
                kind, cells, last = self._sorted_page(number, low, high)
                if kind == LEAF_TABLE:
                    break
                place = bisect.bisect_left(cells, key, key=lambda cell: cell.key)
                low = cells[place - 1].key if place else low
                number, high = (cells[place].child, cells[place].key) if place < len(cells) else (last, high)
            else:
                raise BadPageError(number, "the tree is too deep")
        except BadPageError:
            return (low, high), low, high, False, False
        place = bisect.bisect_right(cells, key, key=lambda cell: cell.key)
        for near in range(max(0, place - 1), min(place + 1, len(cells))) if rows else ():
            if self._row(number, cells[near], kind) is None:
                end = cells[near + 1].key - 1 if near + 1 < len(cells) else high
                return (cells[near].key - 1, end), low, high, False, False
        return None, low, high, place > 0, place < len(cells)

    def _sorted_page(self, number: int, low: int, high: int) -> tuple[int, list[Cell], int]:
        # of a sector that was never written, or is another page's, there may be good cells with the wrong keys
        found = self._interior.get(number)
        if found is None:
            found = self._page(number, TABLE)
            if found[0] == INTERIOR_TABLE:  # of which there are few, on the way to many
                self._interior[number] = found
        keys = [low, *[cell.key for cell in found[1]]]
        if keys[-1] > high or any(map(operator.ge, keys, keys[1:])):
            raise BadPageError(number, "its keys are out of order")
        return found

    def free(self) -> set[int]:
        """The pages of the free list. Raises BadPageError if it is damaged."""
        found: set[int] = set()
        trunk, pages = struct.unpack_from(">II", self.read(1), 32)
        while trunk:
            if trunk in found:
                raise BadPageError(trunk, "the free list comes back to itself")
            found.add(trunk)
            data = self.read(trunk)
            following, count = struct.unpack_from(">II", data)
            if count > self.usable // 4 - 2:
                raise BadPageError(trunk, "it names more free pages than it has room for")
            found.update(struct.unpack_from(f">{count}I", data, 8))
            trunk = following
        if len(found) != pages or not all(1 < number <= self.count for number in found):
            raise BadPageError(1, f"there are to be {pages} free pages, and {len(found)} are named")
        return found

    def _walk(self, number: int, kinds: Kinds, low: int, high: int, seen: set[int], depth: int) -> Iterator[Row | Lost]:
        try:
            if number in seen:
                raise BadPageError(number, "it is in two places")
            seen.add(number)
            kind, cells, last = self._page(number, kinds)
            interior = kind in (INTERIOR_INDEX, INTERIOR_TABLE)
            if interior and depth >= _DEEPEST:
                raise BadPageError(number, "the tree is too deep")
        except BadPageError as error:
            yield Lost(error.number, str(error), low, high)
            return
        table = kind in (INTERIOR_TABLE, LEAF_TABLE)
        gap: Lost | None = None  # one for all that lie side by side
        for cell in cells:
            if table and not low < cell.key <= high:
                gap = _longer(gap, Lost(number, f"page {number}: its keys are out of order", low, high))
                continue
            if interior:
                if gap is not None:
                    yield gap
                gap = None
                yield from self._walk(cell.child, kinds, low, cell.key if table else high, seen, depth + 1)
            if kind != INTERIOR_TABLE:
                row = self._row(number, cell, kind, seen)
                if row is None:
                    keys = (cell.key - 1, cell.key) if table else (low, high)
                    gap = _longer(gap, Lost(number, f"page {number}: a row is damaged", *keys))
                else:
                    if gap is not None:
                        yield gap
                    gap = None
                    yield row
            low = cell.key if table else low
        if gap is not None:
            yield gap
        if interior:
            yield from self._walk(last, kinds, low, high, seen, depth + 1)

    def _page(self, number: int, kinds: Kinds) -> tuple[int, list[Cell], int]:
        # what kind of page it is, its cells, and its last child
        data = self.read(number)
        at = _HEADER if number == 1 else 0
        kind, _free, count, _content, _fragments = _PAGE.unpack_from(data, at)
        if kind not in kinds:
            raise BadPageError(number, f"a page of kind {kind} does not belong there")
        interior = kind in (INTERIOR_INDEX, INTERIOR_TABLE)
        last = _U32.unpack_from(data, at + 8)[0] if interior else 0
        at += 12 if interior else 8
        if at + 2 * count > self.usable:
            raise BadPageError(number, f"{count} cells do not fit")
        first = at + 2 * count
        cells: list[Cell] = []
        for place in struct.unpack_from(f">{count}H", data, at):
            if not first <= place <= self.usable - 4:
                raise BadPageError(number, "a cell is outside of it")
            cells.append(_cell(data, place, kind, number))
        return kind, cells, last

    def _row(self, number: int, cell: Cell, kind: int, seen: set[int] | None = None) -> Row | None:
        # the row in a cell; None if it is damaged
        try:
            payload = self._payload(number, cell, kind, seen)
            return Row(cell.key, _values(payload))
        except (BadPageError, IndexError, ValueError, struct.error):
            return None

    def _payload(self, number: int, cell: Cell, kind: int, seen: set[int] | None) -> bytes:
        usable, size = self.usable, cell.size
        most = usable - 35 if kind == LEAF_TABLE else (usable - 12) * 64 // 255 - 23
        least = (usable - 12) * 32 // 255 - 23
        here = size
        if size > most:
            if size > self.count * usable:
                raise BadPageError(number, "a row is longer than the database")
            here = least + (size - least) % (usable - 4)
            here = here if here <= most else least
        data = self.read(number)
        end = cell.at + here + (4 if here < size else 0)
        if end > usable:
            raise BadPageError(number, "a row is outside of it")
        if kind in INDEX and _has_zero_sector(data, cell.at, end):
            raise BadPageError(number, "a sector of it is gone")
        parts = [data[cell.at : cell.at + here]]
        following = _U32.unpack_from(data, cell.at + here)[0] if here < size else 0
        met: set[int] = set()
        while here < size:
            if following in met:
                raise BadPageError(following, "a row comes back to itself")
            met.add(following)
            data = self.read(following)
            parts.append(data[4 : min(usable, 4 + size - here)])
            here += len(parts[-1])
            (following,) = _U32.unpack_from(data)
        if seen is not None:
            seen |= met
        return b"".join(parts)


def _has_zero_sector(data: bytes, first: int, end: int) -> bool:
    # Whether bytes of these lie in a sector of zeros. In an index no row is as long as one, and none is all zeros.
    starts = range(first - first % _SECTOR, end, _SECTOR)
    return any(data.count(0, start, start + _SECTOR) == _SECTOR for start in starts)


def _longer(gap: Lost | None, more: Lost) -> Lost:
    return more if gap is None else attrs.evolve(gap, high=max(gap.high, more.high))


def _cell(data: bytes, at: int, kind: int, number: int) -> Cell:
    try:
        child = key = size = 0
        if kind in (INTERIOR_INDEX, INTERIOR_TABLE):
            (child,) = _U32.unpack_from(data, at)
            at += 4
        if kind != INTERIOR_TABLE:
            size, at = _varint(data, at)
        if kind in (INTERIOR_TABLE, LEAF_TABLE):
            key, at = _varint(data, at)
    except (IndexError, struct.error):
        raise BadPageError(number, "a cell is cut off") from None
    return Cell(at, child, key - (1 << 64) if key > HIGHEST else key, size)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _values(payload: bytes) -> Sequence[Any]:
    # The columns of a record. Raises ValueError, IndexError or struct.error for what is none.
    size, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < size:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != size:
        raise ValueError("a record's head is cut off")
    values: list[Any] = []
    for kind in kinds:
        length = _INTEGERS.get(kind, 8 if kind == _REAL else max(0, (kind - _BLOB) // 2))
        data = payload[at : at + length]
        if len(data) < length or kind in (10, 11):
            raise ValueError("a record is cut off")
        at += length
        values.append(_value(kind, data))
    return values


def _value(kind: int, data: bytes) -> Any:
    if kind >= _BLOB:
        return data if kind % 2 == 0 else data.decode()
    if kind == _REAL:
        return struct.unpack(">d", data)[0]
    if kind in (_ZERO, _ONE):
        return kind - _ZERO
    return int.from_bytes(data, "big", signed=True) if kind else None


def _summed(words: Sequence[int], first: int, second: int) -> tuple[int, int]:
    # the running checksum of a write-ahead log
    pairs = iter(words)
    for one, two in zip(pairs, pairs, strict=True):
        first = first + one + second & 0xFFFFFFFF
        second = second + two + first & 0xFFFFFFFF
    return first, second


def _frames_taken(path: Path) -> int:
    # how many frames of the log there are for SQLite
    if (file := _open_if_there(path)) is None:
        return HIGHEST
    try:
        head = os.pread(file, _LOG_INDEX.size, 0)
    finally:
        os.close(file)
    return _LOG_INDEX.unpack(head)[0] if len(head) == _LOG_INDEX.size else HIGHEST


def _open_if_there(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
