"""What a consumer that settles messages one by one has settled: everything below `low`, and some ranges above it.

BlipMQ subscriptions, Fujin readers and forwarding all keep one of these per partition, in a table row, as

    u8 layout version · u64 low · u32 ranges · u32 attempts · (u32 gap, u32 length) each · (u32 offset - low, u32 tries) each

all little-endian, gaps counted from the end of the range before (the first from `low`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gateway.errors import StoreDamaged, Throttled

LAYOUT_VERSION = 1
MAX_SPAN = 1 << 16
"""How far above `low` a message may be handed out, unless the window was made otherwise. It bounds the window's size."""

_HEAD = struct.Struct("<BQII")
_PAIR = struct.Struct("<II")


class AckWindow:
    """The state of one consumer of one partition."""

    __slots__ = ("_attempts", "_ends", "_high", "_low", "_starts", "max_span")

    def __init__(self, low: int = 0, max_span: int = MAX_SPAN) -> None:
        self.max_span = max_span
        self._low = low
        self._high = low
        # settled ranges above low: apart from it and from each other. Most windows never have one, and there are many of them
        self._starts: list[int] | tuple[()] = ()
        self._ends: list[int] | tuple[()] = ()
        self._attempts: dict[int, int] = {}

    @property
    def low(self) -> int:
        """The low water: every offset below it is settled."""
        return self._low

    @property
    def high(self) -> int:
        """From this offset on nothing was handed out or settled."""
        return self._high

    @property
    def span(self) -> int:
        """How many offsets there are between the two."""
        return self._high - self._low

    @property
    def settled_above(self) -> int:
        """How many offsets above `low` are settled."""
        return sum(self._ends) - sum(self._starts)

    @property
    def settled_ranges(self) -> Sequence[tuple[int, int]]:
        """What is settled above `low`."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def room(self) -> int:
        """How many more offsets in a row may be handed out."""
        return self.max_span - self.span

    @property
    def outstanding(self) -> Mapping[int, int]:
        """What was handed out and not settled, and how often it was handed out."""
        return MappingProxyType(self._attempts)

    def hand_out(self, offset: int) -> int:
        """Note that a message goes to the consumer; returns which attempt this is, 0 if it is settled already.

        Raises Throttled beyond `max_span`: the consumer must settle older ones first.
        """
        if self.is_settled(offset):
            return 0
        if offset - self._low >= self.max_span:
            raise Throttled(f"more than {self.max_span} messages are between the oldest unsettled one and this")
        attempt = self._attempts[offset] = self._attempts.get(offset, 0) + 1
        self._high = max(self._high, offset + 1)
        return attempt

    def is_settled(self, offset: int) -> bool:
        """Whether nothing is to be done about it any more."""
        return self.first_unsettled(offset) != offset

    def first_unsettled(self, offset: int) -> int:
        offset = max(offset, self._low)
        position = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[position]) if position >= 0 else offset

    def settle(self, offset: int) -> bool:
        """It is done with, for good; False if it was before."""
        return self.settle_range(offset, offset + 1) == 1

    def settle_range(self, first: int, next_offset: int) -> int:
        """Settle [first, next_offset); returns how many were not settled before."""
        first = max(first, self._low)
        if next_offset <= first:
            return 0
        if self._attempts:
            self._forget_attempts(first, next_offset)
        self._high = max(self._high, next_offset)
        if first == self._low and not self._starts:  # in order, as nearly always
            self._low = next_offset
            return next_offset - first
        if isinstance(self._starts, tuple) or isinstance(self._ends, tuple):
            self._starts, self._ends = [], []
        starts, ends = self._starts, self._ends
        # the ranges that overlap or touch become one with it
        left = bisect_right(ends, first - 1)
        right = bisect_right(starts, next_offset)
        settled_before = sum(
            min(end, next_offset) - max(start, first)
            for start, end in zip(starts[left:right], ends[left:right], strict=True)
        )
        start = min(first, starts[left]) if left < right else first
        end = max(next_offset, ends[right - 1]) if left < right else next_offset
        if start == self._low:
            self._low = end
            del starts[left:right], ends[left:right]
        else:
            starts[left:right] = [start]
            ends[left:right] = [end]
        return next_offset - first - settled_before

    def _forget_attempts(self, first: int, next_offset: int) -> None:
        attempts = self._attempts
        if next_offset - first <= len(attempts):
            for offset in range(first, next_offset):
                attempts.pop(offset, None)
        else:
            for offset in [offset for offset in attempts if first <= offset < next_offset]:
                del attempts[offset]

    def forget_from(self, end: int) -> bool:
        """The log has lost what it had from this offset on, and what comes there is new: neither settled nor handed out. False
        if nothing of it was.
        """
        if self._high <= end:
            return False
        left = bisect_left(self._starts, end)
        self._starts, self._ends = list(self._starts[:left]), [min(one, end) for one in self._ends[:left]]
        self._attempts = {offset: tries for offset, tries in self._attempts.items() if offset < end}
        self._low, self._high = min(self._low, end), end
        return True

    def to_bytes(self) -> bytes:
        parts = [_HEAD.pack(LAYOUT_VERSION, self._low, len(self._starts), len(self._attempts))]
        before = self._low
        for start, end in zip(self._starts, self._ends, strict=True):
            parts.append(_PAIR.pack(start - before, end - start))
            before = end
        parts += [_PAIR.pack(offset - self._low, tries) for offset, tries in sorted(self._attempts.items())]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes, max_span: int = MAX_SPAN) -> AckWindow:
        """Read a table row. Raises StoreDamaged if it is not one."""
        try:
            version, low, ranges, attempts = _HEAD.unpack_from(data)
        except struct.error:
            raise StoreDamaged("an ack window is cut off") from None
        if version != LAYOUT_VERSION or len(data) != _HEAD.size + _PAIR.size * (ranges + attempts):
            raise StoreDamaged("an ack window has an impossible size")
        window = cls(low, max_span)
        pairs = list(_PAIR.iter_unpack(data[_HEAD.size :]))
        before = low
        starts: list[int] = []
        ends: list[int] = []
        for gap, length in pairs[:ranges]:
            if not gap or not length:
                raise StoreDamaged("an ack window has an empty range")
            starts.append(before + gap)
            before += gap + length
            ends.append(before)
        if starts:
            window._starts, window._ends = starts, ends
        window._attempts = {low + distance: tries for distance, tries in pairs[ranges:]}
        window._high = max(before, max(window._attempts, default=low - 1) + 1)
        return window
