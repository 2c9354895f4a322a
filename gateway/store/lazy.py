"""A column of a chunk that stays as it is stored until somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


RawColumn = tuple[int, bytes, bytes, bytes]
"""Where the first cell begins; where each one ends (u32 each, counted alike); a byte each for "it is there" (empty: all
are); the bytes of the cells."""


class LazyColumn(Sequence[T], Generic[T]):
    """A column that is decoded where it is looked at: fetching one record of a big chunk must not decode the others."""

    __slots__ = ("_decode", "_loaded", "_raw", "_start", "_stop")

    def __init__(
        self,
        decode: Callable[[int, int], list[T]],
        start: int,
        stop: int,
        raw: Callable[[int, int], RawColumn] | None = None,
    ) -> None:
        self._decode = decode
        self._raw = raw
        self._start = start
        self._stop = stop
        self._loaded: list[T] | None = None

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if self._loaded is None and step == 1:
                return LazyColumn(self._decode, self._start + start, self._start + max(start, stop), self._raw)
            return self._load()[index]
        if self._loaded is not None:
            return self._loaded[index]
        position = index if index >= 0 else index + len(self)
        if not 0 <= position < len(self):
            raise IndexError(index)
        return self._decode(self._start + position, self._start + position + 1)[0]

    def __iter__(self) -> Iterator[T]:
        return iter(self._load())

    def raw(self) -> RawColumn | None:
        """The column as it is stored, for those who work on whole columns; None where it has no such form."""
        return self._raw(self._start, self._stop) if self._raw is not None else None

    def _load(self) -> list[T]:
        if self._loaded is None:
            self._loaded = self._decode(self._start, self._stop)
        return self._loaded
