"""What a stream was given to send and the peer has not acknowledged, as it was given: it is copied once, into its packet.

Takes the place of the one growing array of aioquic's sender, of which every write and every acknowledgement moved what it
held. It is asked for no more than that array is: its length, slices, more at its end, less at its beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Self

SMALL = 2048
"""Shorter pieces are put together: an answer each would cost more to find than to copy."""
FULL = 32 << 10


class Unsent:
    __slots__ = ("_begin", "_ends", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._ends: list[int] = []
        """Of the pieces, counted from the stream's beginning."""
        self._begin = 0

    def __len__(self) -> int:
        return self._ends[-1] - self._begin if self._ends else 0

    def __iadd__(self, data: bytes | memoryview) -> Self:
        end = (self._ends[-1] if self._ends else self._begin) + len(data)
        if len(data) < SMALL:
            last = self._pieces[-1] if self._pieces else None
            if type(last) is bytearray and len(last) < FULL:
                last += data
                self._ends[-1] = end
                return self
            self._pieces.append(bytearray(data))
        else:
            self._pieces.append(data)
        self._ends.append(end)
        return self

    def __delitem__(self, acknowledged: slice) -> None:
        self.forget(acknowledged.stop)

    def forget(self, count: int) -> None:
        """So many bytes at the beginning were acknowledged."""
        ends = self._ends
        begin = self._begin = self._begin + count
        if ends and ends[0] <= begin:
            gone = bisect_right(ends, begin)
            del ends[:gone], self._pieces[:gone]

    def __getitem__(self, wanted: slice) -> bytes:
        return b"".join(self.views(wanted.start or 0, wanted.stop))

    def views(self, start: int, stop: int) -> list[memoryview]:
        """A slice, in as many parts as it is in pieces. They are let go of before anything is added."""
        if len(self._pieces) == 1:  # of an answer that is on its way by itself
            piece = self._pieces[0]
            base = self._ends[0] - self._begin - len(piece)
            return [memoryview(piece)[start - base : stop - base]]
        start, stop = start + self._begin, stop + self._begin
        found: list[memoryview] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            piece, end = self._pieces[index], self._ends[index]
            base = end - len(piece)
            found.append(memoryview(piece)[start - base : stop - base])
            start = end
            index += 1
        return found
