"""How much goes into a commit, and whose units come first.

Apart from the committer, as it needs neither disk nor loop: numbers in, an order out.

All that is pending shares one commit as long as that takes no longer than whoever comes next should have to wait. Where it
would, sources have their turns by what they have handed in, so that who hands in little has little before it, however much the
others have; and where others have much, every other commit is of those alone who have little. Where one of these is quiet, those
who have much rest between their commits, so long that small ones are as quick as usual.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gateway.store.interface import Ticket, Unit
from gateway.store.plan import COMMIT_BYTES, unit_bytes

TARGET = 0.002
"""Seconds that the transaction of a commit should take at most."""
HASTE = 0.001
"""The same while somebody is quiet beside others who have much: whoever has just missed a commit waits for all of it."""
HASTE_FOR = 2.0
"""Seconds of their commits and rests after one that was of somebody quiet."""
TIMES_LEAST = 3
"""A disk on which even a small one takes long gets so many times that: else it would do little beside syncing."""
LEAST_REST, FIRST_REST, MOST_REST = 3.0, 10.0, 64.0
"""So many times as long as a transaction of theirs took, those who have much wait before the next, while somebody is quiet beside
them: at least, at first and at most. Whoever comes with little then finds disk and processors free three times of four, or more.
"""
LONGEST_REST = 0.05
"""Seconds. The floor of those who have much: so often at least they have a commit, whatever that does to who is quiet."""
SLOW = 3
"""Times as long as is usual: a small commit that takes longer was in somebody's way."""
_LONGER, _SHORTER = 1 / 4, 1 / 128
"""By so much a rest grows with a slow one, and becomes less with any other: in balance one of thirty is slow. Few of these are so
slow that somebody would notice; to learn from those alone would take hundreds.
"""
QUIET, LOUD = 4, 1 << 20
"""Times as much as one who is quiet, and so many bytes, somebody else has had lately and has: of equals one has always less there
than the others, and they are not to rest for each other.
"""
LATELY = 8 << 20
"""Bytes that were handed in after which earlier ones count half."""
_FORGOTTEN = 2 << 10
LEAST = 128 << 10
"""Bytes that any commit may have: a read."""
LITTLE = 32 << 10
"""Bytes that a source may have pending and not be among those who have much."""
FIRST = 1 << 20
_SMOOTH = 8
_USUAL = 16
STALL = 4
"""Times as long as is allowed: so long no single commit may have taken."""
SHARED_FOR = 1024
"""Commits after one source has followed another. Who is alone for longer than that has nobody to be in the way of, and as much as
comes together is a commit: less of it would be a sync more.
"""


class CommitPace:
    """How many bytes a commit may have, and how long those who have much rest after theirs, by how long the last ones took."""

    def __init__(self) -> None:
        self.room = FIRST
        self.hasty = False
        """Somebody is quiet beside others who have much."""
        self._least = 0.0
        """Seconds of a synced commit with little in it."""
        self._usual = 0.0
        """The same, as half of them are: those that were in somebody's way do not move it far."""
        self._times = FIRST_REST

    def note(self, size: int, seconds: float, synced: bool) -> None:
        if synced and size <= LITTLE:
            usual = self._usual or seconds
            if self.hasty:
                times = self._times * (1 + _LONGER if seconds > SLOW * usual else 1 - _SHORTER)
                self._times = min(max(times, LEAST_REST), MOST_REST)
            self._usual = usual + (usual if seconds > usual else -usual) / _USUAL
        if synced and size <= LEAST:
            self._least += (seconds - self._least) / _SMOOTH
        elif synced and seconds < self._least:
            # with much in it one that was quick was lucky, or the disk has become quick
            self._least += (seconds - self._least) / (_SMOOTH * _SMOOTH)
        if seconds > max(HASTE if self.hasty else TARGET, TIMES_LEAST * self._least):
            if size > LEAST // 2:
                self.room = max(self.room - self.room // 4, LEAST)
        elif size > self.room // 2:  # with less in it it says nothing of how much it could have had
            self.room = min(self.room + self.room // 8, COMMIT_BYTES)

    def rest(self, seconds: float) -> float:
        """How long those who have much wait after a transaction of theirs that took so long, while somebody is quiet."""
        return min(self._times * seconds, LONGEST_REST)


def passes(unit: Unit) -> bool:
    """Whether it may be committed before what others have handed in, or behind: it does nothing but append."""
    return bool(unit.source and unit.appends) and not (
        unit.puts or unit.requires or unit.creates or unit.alters or unit.deletes
    )


class Lately:
    """What commits take, with more weight on the last ones. With every disk one of a hundred takes several times as long: that
    alone says nothing, unless it is very long.
    """

    def __init__(self) -> None:
        self._mean = self._last = 0.0

    def note(self, seconds: float) -> None:
        self._mean += (seconds - self._mean) / _SMOOTH
        self._last = seconds

    def within(self, seconds: float) -> bool:
        """Whether they take no longer."""
        return self._mean <= seconds and self._last <= STALL * seconds


class DiskTrust:
    """For how many commits a disk is not trusted that was slow when it should not have been. Who has been quick for as many as
    `most` is forgiven in half of that, and so on: of a long row no more than one in `most` is slow that was trusted, whatever the
    disk; and one that is slow once in a thousand is trusted nearly always.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = self._next = most
        self._least = least
        self._quick = 0

    def quick(self) -> None:
        self._quick += 1
        if self._quick == self._most:
            self._quick, self._next = 0, max(self._next // 2, self._least)

    def slow(self) -> int:
        """So many commits it is not trusted now."""
        now, self._quick, self._next = self._next, 0, min(2 * self._next, self._most)
        return now


def _amounts(pending: Sequence[Ticket], sizes: Sequence[int]) -> Mapping[int, int]:
    # what each source has there
    amounts: dict[int, int] = {}
    for ticket, size in zip(pending, sizes, strict=True):
        source = ticket.unit.source
        amounts[source] = amounts.get(source, 0) + size
    return amounts


def _of_little(pending: Sequence[Ticket], sizes: Sequence[int], amounts: Mapping[int, int], room: int) -> set[int]:
    # of the sources that have little all that may pass
    chosen = set[int]()
    for index, ticket in enumerate(pending):
        if not passes(ticket.unit):
            break
        if amounts[ticket.unit.source] <= LITTLE:
            room -= sizes[index]
            if room < 0:
                break
            chosen.add(index)
    return chosen


class Turns:
    """Whose units are next. Each has its place in a line of bytes: behind what its source has there, or where the line is served
    now. Who hands in little has a place far in front. What may not pass, nothing passes.
    """

    def __init__(self) -> None:
        self._served = 0
        self._ends: dict[int, int] = {}
        """Where in the line that ends which a source has there."""
        self._places: dict[Ticket, int] = {}
        """Where each unit ends."""
        self._apart = False
        """The last commit was of those alone who have little: the next is of all."""
        self._had: dict[int, int] = {}
        """Bytes that each has had lately, of commits that somebody had to wait for."""
        self._loudest = self._all_had = 0
        """What the one has had who has had most, and all together."""
        self._haste = 0.0

    @property
    def hasty(self) -> bool:
        """Whether somebody is quiet beside others who have much, or was so just now."""
        return self._haste > 0

    def spent(self, seconds: float) -> None:
        """So long a commit of those who have much and their rest take."""
        self._haste -= seconds

    def take(self, pending: list[Ticket], room: int) -> tuple[list[Ticket], list[Ticket]]:
        """What is committed now, and what waits: both in the order in which they came."""
        sizes = [unit_bytes(ticket.unit) for ticket in pending]
        total = sum(sizes)
        chosen = self._little(pending, sizes, min(room, LEAST)) if total > LEAST and not self._apart else set()
        self._apart = bool(chosen)
        if chosen:
            self._apart_now(pending, sizes, chosen)
        else:
            if total <= room:
                if total > LEAST:
                    self._note(pending, sizes, range(len(pending)))
                if self._places or self._ends:
                    self._ends, self._places = {}, {}
                return pending, []
            for index in self._order(pending, sizes):
                if chosen and sizes[index] > room:
                    break
                chosen.add(index)
                room -= sizes[index]
            self._note(pending, sizes, chosen)
        for index in chosen:
            place = self._places.pop(pending[index], None)
            if place is not None:
                self._served = max(self._served, place - sizes[index])
        self._ends = {source: end for source, end in self._ends.items() if end > self._served}
        taken = [ticket for index, ticket in enumerate(pending) if index in chosen]
        return taken, [ticket for index, ticket in enumerate(pending) if index not in chosen]

    def take_little(self, pending: list[Ticket]) -> tuple[list[Ticket], list[Ticket]]:
        """The same, of those alone who have little, however much the others have."""
        sizes = [unit_bytes(ticket.unit) for ticket in pending]
        chosen = _of_little(pending, sizes, _amounts(pending, sizes), LEAST)
        if chosen:
            self._apart_now(pending, sizes, chosen)
        for index in chosen:
            self._places.pop(pending[index], None)
        taken = [ticket for index, ticket in enumerate(pending) if index in chosen]
        return taken, [ticket for index, ticket in enumerate(pending) if index not in chosen]

    def favours_little(self, pending: Sequence[Ticket]) -> bool:
        """Whether the next ones to be taken are of those alone who have little."""
        if self._apart:
            return False
        sizes = [unit_bytes(ticket.unit) for ticket in pending]
        return sum(sizes) > LEAST and bool(self._little(pending, sizes, LEAST))

    def _apart_now(self, pending: Sequence[Ticket], sizes: Sequence[int], chosen: Collection[int]) -> None:
        # they go, who have little; there is haste if one of them has had little, too
        had = self._had
        lately = {source: had.get(source, 0) + amount for source, amount in _amounts(pending, sizes).items()}
        loudest = max(self._loudest, *lately.values())
        if loudest >= LOUD and any(QUIET * lately[pending[index].unit.source] <= loudest for index in chosen):
            self._haste = HASTE_FOR
        self._note(pending, sizes, chosen)

    def _note(self, pending: Sequence[Ticket], sizes: Sequence[int], taken: Collection[int]) -> None:
        # who has had what
        had, loudest = self._had, self._loudest
        for index in taken:
            source = pending[index].unit.source
            had[source] = size = had.get(source, 0) + sizes[index]
            loudest = max(loudest, size)
            self._all_had += sizes[index]
        self._loudest = loudest
        if self._all_had > LATELY:
            self._had = {source: size // 2 for source, size in had.items() if size >= _FORGOTTEN}
            self._loudest, self._all_had = loudest // 2, self._all_had // 2

    def _little(self, pending: Sequence[Ticket], sizes: Sequence[int], room: int) -> set[int]:
        # if others have so much that to wait for it is worse than a sync more
        amounts = _amounts(pending, sizes)
        if sum(amount for amount in amounts.values() if amount > LITTLE) <= LEAST:
            return set()
        return _of_little(pending, sizes, amounts, room)

    def _order(self, pending: Sequence[Ticket], sizes: Sequence[int]) -> Iterator[int]:
        stretch: list[int] = []
        for index, ticket in enumerate(pending):
            if passes(ticket.unit):
                stretch.append(index)
                if ticket not in self._places:
                    source = ticket.unit.source
                    begins = max(self._served, self._ends.get(source, 0))
                    self._places[ticket] = self._ends[source] = begins + sizes[index]
            else:
                yield from self._line(pending, stretch)
                stretch = []
                yield index
        yield from self._line(pending, stretch)

    def _line(self, pending: Sequence[Ticket], stretch: Sequence[int]) -> Sequence[int]:
        return sorted(stretch, key=lambda index: self._places[pending[index]])
