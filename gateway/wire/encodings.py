"""What several connections are sent is encoded once for all of them.

A run is immutable, and so is its form in a dialect: whoever is sent the same records in the same form is sent the same bytes.
They are kept once they have been asked for twice, so a run that has one reader costs a look into a dictionary, and no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from gateway.envelope import Run

KEPT_BYTES: Final = 8 << 20
"""Of all topics together: readers who follow a topic are seldom further apart."""
REMEMBERED: Final = 1024
"""Runs, of which most were asked for once."""

Frames = Sequence[bytes]
_Place = tuple[Hashable, str, int, int, int]


class Encodings:
    """What was encoded last, for others who are sent the same; the oldest goes when there is too much."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._known: OrderedDict[_Place, tuple[bytes, Frames, int] | None] = OrderedDict()
        self.size = 0

    def of(self, run: Run, form: Hashable, encode: Callable[[Run], Frames]) -> Frames:
        """The values of a run in a form. `form` names everything beside the run that `encode` looks at."""
        packed = run.columns.packed
        place = (form, run.topic, run.partition, run.base_offset, run.count)
        known = self._known.get(place, ())
        if known and known[0] == packed:  # a topic may be made anew, and other records be where these were
            return known[1]
        made = encode(run)
        if known == ():
            self._known[place] = None
            if len(self._known) > REMEMBERED:
                self._drop()
            return made
        size = len(packed) + sum(map(len, made))
        if size <= self._kept_bytes:
            self.size += size - (known[2] if known else 0)
            self._known[place] = (packed, made, size)
            while self.size > self._kept_bytes:
                self._drop()
        return made

    def _drop(self) -> None:
        _, known = self._known.popitem(last=False)
        if known is not None:
            self.size -= known[2]


ENCODINGS: Final = Encodings()
"""Of this process."""
