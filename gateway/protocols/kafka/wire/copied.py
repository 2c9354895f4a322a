"""Which messages of another log a Kafka has: their offsets there, as ranges, small enough to stand beside a group's offset.

What a forward sends is not dense: it passes over other routes' messages, and keys that wait. So the ranges above the lowest are
all kept, the newest first; what is forgotten at the other end lies further back than a forward ever goes again, and would be
sent again if it did.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Iterable, Sequence

from gateway.errors import InvalidRequest

MOST_TEXT = 3_500
"""Characters that Kafka keeps beside an offset (`offset.metadata.max.bytes` is 4 096 unless somebody changed it)."""
MOST_RANGES = 1_024


class CopiedRanges:
    """Ranges of offsets, ascending, none touching the next."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: (first, behind the last), ascending."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self._append(start, stop)

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        return list(zip(self._starts, self._stops, strict=True))

    @property
    def next_offset(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __contains__(self, offset: int) -> bool:
        at = bisect.bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._stops[at]

    def and_these(self, offsets: Iterable[int]) -> CopiedRanges:
        """With more of them, without the oldest if they are too many."""
        more = [(offset, offset + 1) for offset in offsets]
        joined = CopiedRanges(sorted([*self.ranges, *more]))
        del joined._starts[:-MOST_RANGES], joined._stops[:-MOST_RANGES]
        return joined

    def to_text(self) -> str:
        """Distances downwards from the highest, as varints in base64."""
        packed = bytearray()
        above = self.next_offset
        for start, stop in reversed(self.ranges):
            more = _varint(above - stop) + _varint(stop - start)
            if (len(packed) + len(more)) * 4 > MOST_TEXT * 3:
                break
            packed += more
            above = start
        return base64.b64encode(bytes(packed)).decode()

    @classmethod
    def from_text(cls, next_offset: int, text: str) -> CopiedRanges:
        """Raises InvalidRequest if it is not ours."""
        try:
            packed = base64.b64decode(text, validate=True)
        except ValueError:
            raise InvalidRequest("what was copied cannot be read") from None
        ranges: list[tuple[int, int]] = []
        above, position = next_offset, 0
        while position < len(packed):
            gap, position = _read_varint(packed, position)
            length, position = _read_varint(packed, position)
            stop = above - gap
            above = stop - length
            if above < 0 or not length or len(ranges) >= MOST_RANGES:
                raise InvalidRequest("what was copied cannot be read")
            ranges.append((above, stop))
        return cls(reversed(ranges))

    def _append(self, start: int, stop: int) -> None:
        if self._stops and start <= self._stops[-1]:
            self._stops[-1] = max(self._stops[-1], stop)
        else:
            self._starts.append(start)
            self._stops.append(stop)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise InvalidRequest("what was copied cannot be read")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
