"""Which rows of the small tables are gone with a damaged page, as the stretches of keys that they lay in: pure.

Who finds nothing where something may have been must not take it for nothing: a group that committed would begin anew. So
whoever decides by the absence of a row asks here first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from gateway.errors import RowLost

LOST = "lost"
"""The table in which it is written down."""
ROWS = "the table of cursors, groups, accounts and schemas"
META = "the table of the layout and the last commit"
FREE_LIST = "the list of free pages"
Place = tuple[str, bytes]
"""A table and a key: rows lie in this order."""
_SHOWN = 120


@attrs.frozen
class LostRange:
    """Whatever lay between two rows; None: before the first there was, or behind the last."""

    low: Place | None
    high: Place | None
    since: int = 1 << 62
    """Topics of this epoch or a later one were made when it was gone already."""

    def holds(self, place: Place, epoch: int = 0) -> bool:
        return (
            epoch < self.since and (self.low is None or self.low < place) and (self.high is None or place < self.high)
        )

    def touches(self, table: str) -> bool:
        """Whether rows of this table may be among it."""
        return (self.low is None or self.low[0] <= table) and (self.high is None or table <= self.high[0])

    @property
    def all(self) -> bool:
        return self.low is None and self.high is None

    def __str__(self) -> str:
        if self.all:
            return "everything"
        parts = (("behind", self.low), ("before", self.high))
        return " and ".join(f"{word} {place[0]} {_shown(place[1])}" for word, place in parts if place is not None)


def _shown(key: bytes) -> str:
    text = repr(key)[1:]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@attrs.frozen
class LostRows:
    """All of it, since somebody accepted it the last time."""

    ranges: Sequence[LostRange] = ()
    way_on: str = ""
    meta: bool = False
    """The table of the layout and the last commit was made anew."""
    catalogue: Sequence[str] = ()
    """What of topics, partitions and the places where they end is damaged, in words."""

    @property
    def texts(self) -> Sequence[str]:
        """What is to be told to people, a line each."""
        found = [f"{META} was damaged: it was made anew from the others"] if self.meta else []
        found += self.catalogue
        return [*found, *(f"{ROWS} has lost {'' if one.all else 'what lay '}{one}" for one in self.ranges)]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def touches(self, table: str) -> bool:
        """Whether any row of this table may be gone."""
        return any(one.touches(table) for one in self.ranges)

    def found(self, table: str, key: bytes, what: str = "", epoch: int = 0) -> RowLost | None:
        """For a row that is not there: what to say if it may have been. `what`: what it would have said; `epoch`: of the topic
        that it would have been about.
        """
        if any(one.holds((table, key), epoch) for one in self.ranges):
            return RowLost(f"{what} may be among what the store has lost with a damaged page. {self.way_on}")
        return None

    def check(self, table: str, key: bytes, what: str, epoch: int = 0) -> None:
        """Raise what `found` finds: the row may be gone, and must not count as one that never was."""
        if (lost := self.found(table, key, what, epoch)) is not None:
            raise lost

    def check_around(self, table: str, first: bytes, last: bytes, what: str) -> None:
        """The same for rows from the first key to the last, of which some may be there."""
        for one in self.ranges:
            if (one.low is None or one.low < (table, last)) and (one.high is None or one.high > (table, first)):
                raise RowLost(f"{what} may be among what the store has lost with a damaged page. {self.way_on}")

    def check_table(self, table: str, what: str) -> None:
        """The same for a row whose key nobody knows."""
        if self.touches(table):
            raise RowLost(f"{what} may be among what the store has lost with a damaged page. {self.way_on}")


NOTHING_LOST = LostRows()


def lost_rows(rows: Iterable[Sequence[Any]], way_on: str = "") -> LostRows:
    """From what is written down: low name and key, high name and key, since when, of which table."""
    ranges: list[LostRange] = []
    meta = False
    for low_name, low_key, high_name, high_key, since, what in rows:
        if what == "rows":
            ranges.append(LostRange(_place(low_name, low_key), _place(high_name, high_key), since))
        meta |= what == "meta"
    return LostRows(tuple(ranges), way_on, meta)


def _place(name: str | None, key: bytes | None) -> Place | None:
    return None if name is None or key is None else (name, key)
