"""Bounds over all connections: how many there are, and how many bytes they hold."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs


class Occupancy:
    """How many there are, in all and per address, against two bounds."""

    __slots__ = ("_bound", "_by_address", "_per_address", "total")

    def __init__(self, bound: float = math.inf, per_address: float = math.inf) -> None:
        self._bound = bound
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self.total = 0

    def refusal(self, address: str) -> str | None:
        """Which bound keeps one more out."""
        if self.total >= self._bound:
            return "connections"
        if self._by_address[address] >= self._per_address:
            return "per_address"
        return None

    def enter(self, address: str) -> None:
        self.total += 1
        self._by_address[address] += 1

    def leave(self, address: str) -> None:
        self.total -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]


QUEUE = 2 << 20
"""Bytes of publishes under way, of all connections: so much may stand before somebody who publishes one message. It keeps a
disk of several hundred MB/s busy, since the next commit is gathered while one is written.
"""
LEAST_SHARE = 128 << 10
"""A read. With more writers than that makes of the queue it grows."""

PATIENCE = 10.0
"""Seconds that a frame may be on its way, or an answer not be taken, while others wait for the room it holds: a third of what
stock clients wait for an answer.
"""
SLOWEST = 60.0
"""Seconds in which an answer would be taken, at the pace so far, by who is left alone: as slow as that others get on with what
such peers give back.
"""
ROOM_AT_ONCE = 8
"""So much of the budget, as a fraction, is made room for those who wait to read, since looking for who holds it takes a while."""


@attrs.define(eq=False)
class Holder:
    """A connection that holds what only its peer can have it give back: the beginning of a frame, or answers."""

    size: int
    since: float
    """When the frame began to come, or rather when the one before it was whole: nothing else sets it anew. For answers: when it
    was first looked at, or last found to be taken fast enough.
    """
    evict: Callable[[], None]
    """Cut the connection; gives back what it holds before it returns."""
    waited: int = 0
    """Of answers: bytes that there were then,"""
    taken: int = 0
    """those that the peer had ever taken,"""
    took: int = 0
    """and those that it has taken since. Of a frame nothing is of use before it is whole."""

    def weight(self, now: float) -> float:
        """Who holds most for longest, and takes least of it, goes first."""
        return self.size * (now - self.since) / max(self.took, 1)


def relieve(holders: Iterable[Holder], now: float, enough: Callable[[], bool]) -> None:
    """Somebody waits: of those who had their time, cut who holds most for longest, until there is room. Who came later is who
    is kept waiting.
    """
    due = [holder for holder in holders if holder.since + PATIENCE <= now]
    for holder in sorted(due, key=lambda holder: holder.weight(now), reverse=True):
        if enough():
            return
        holder.evict()


class Owing(Protocol):
    """A connection with answers that its peer has not taken."""

    def held(self) -> tuple[int, int]:
        """How many bytes they are now, and how many the peer was ever seen to take."""
        ...

    def evict_reader(self) -> None: ...


class Budget:
    """One byte budget over everything connections hold: parsed requests, pending commits, unsent replies; and over what
    ingests have taken and not stored yet.

    A connection that finds the budget spent is not read until others have given back. Who reads and who writes cannot keep
    each other from it: a stalled disk, which makes writers hold all that they may, leaves readers their `reserve`; and however
    many answers wait for peers that read slowly, what is written has as much. Once these hold half of the budget an answer is
    a short one: who reads on comes to the same place by more of them. Short ones are given beyond the budget too, since
    who asks need not be one of those who read slowly; with twice as much it is `full`, and they wait.

    Commits and replies give back by themselves. Beginnings of frames do not: once they hold half of what writers may, and
    it is spent, nobody can finish for want of the room that the others hold, and somebody has to go. Nor do answers that nobody
    takes: once it is full of them, and somebody waits to read.
    """

    def __init__(self, limit: int, reserve: float = 0.25) -> None:
        self.limit = limit
        self._for_writers = int(limit * (1 - reserve))
        self.most_unsent = self._for_writers - int(limit * reserve)
        """Of answers, before they are short ones; more of them take nothing from writers."""
        self.full = 2 * limit
        """With so much used nothing is given to anybody who reads."""
        self.used = 0
        self.unsent = 0
        """Of that, answers."""
        self._peak = 0
        self.writers = 0
        """Connections with publishes under way."""
        self._readers: dict[object, Callable[[], None]] = {}
        """Who waits."""
        self._writers: dict[object, Callable[[], None]] = {}
        self._not_given: dict[object, Callable[[], None]] = {}
        """Answers that wait, the oldest first."""
        self._unfinished: dict[object, Holder] = {}
        """The oldest first."""
        self._in_unfinished = 0
        self.owing: dict[Owing, Holder | None] = {}
        """Who has answers unsent, and what was found there since he has. Connections enter and leave by themselves, over QUIC
        with nearly every answer.
        """

    def spent(self, *, writer: bool) -> bool:
        """Whether a connection has to wait. `writer`: nothing of what it asked for is unsent."""
        return self.used - self.unsent >= self._left_for_writers if writer else self.used >= self.limit

    @property
    def _left_for_writers(self) -> int:
        return self._for_writers - min(self.unsent, self.most_unsent)

    def peak(self) -> int:
        """The most that was used since this was last asked."""
        peak, self._peak = self._peak, self.used
        return peak

    @property
    def share(self) -> int:
        """Bytes of publishes that one connection may have under way before it is read no further. All stand in one queue, and
        reading is where it is divided: who has little in it finds little before it, however much the others would send.
        """
        return max(QUEUE // max(self.writers, 1), LEAST_SHARE)

    def wait(self, key: object, wake: Callable[[], None], *, writer: bool) -> None:
        (self._writers if writer else self._readers)[key] = wake

    def wait_while_full(self, key: object, wake: Callable[[], None]) -> None:
        self._not_given[key] = wake

    def forget(self, key: object) -> None:
        """Do not call back any more."""
        self._not_given.pop(key, None)
        self._readers.pop(key, None)
        self._writers.pop(key, None)
        self.unfinished(key, None)

    def unfinished(self, key: object, holder: Holder | None) -> None:
        """A connection holds so much of a frame now, or nothing."""
        before = self._unfinished.get(key)
        if before is not None:
            self._in_unfinished -= before.size
            if holder is None or holder.since != before.since:
                del self._unfinished[key]
        if holder is not None:
            self._unfinished[key] = holder
            self._in_unfinished += holder.size

    @property
    def relief_at(self) -> float:
        """When `relieve` will find somebody who has to go; infinity if it is commits and replies that hold the budget."""
        if not self._unfinished or self._in_unfinished < self._left_for_writers // 2:
            return math.inf
        return next(iter(self._unfinished.values())).since + PATIENCE

    def relieve_writers(self, now: float) -> None:
        """Somebody waits for room that beginnings of frames may hold."""
        relieve(self._unfinished.values(), now, lambda: not self.spent(writer=True) or self.relief_at > now)

    def relieve_readers(self, now: float) -> bool:
        """Somebody waits for room that answers hold. Whether he still does: then this is to be called again a little later."""
        if self._not_given and self.used >= self.full:
            room = self.full - self.limit // ROOM_AT_ONCE
            relieve([self._look_at(one, now) for one in list(self.owing)], now, lambda: self.used <= room)
        return bool(self._not_given)

    def _look_at(self, owing: Owing, now: float) -> Holder:
        size, taken = owing.held()
        holder = self.owing.get(owing)
        if holder is not None:
            holder.size, holder.took, age = size, taken - holder.taken, now - holder.since
            # what was there is taken, or would be soon enough: what has come since has its time from now on
            fast_enough = holder.took >= holder.waited or holder.took * SLOWEST >= holder.waited * age
            if age < PATIENCE or not fast_enough:
                return holder
        holder = Holder(size, now, owing.evict_reader, size, taken)
        if owing in self.owing:
            self.owing[owing] = holder
        return holder

    def change(self, amount: int, unsent: int = 0) -> None:
        """Take, or give back (negative), so many bytes. `unsent`: of answers, apart from that."""
        self.used += amount + unsent
        self.unsent += unsent
        self._peak = max(self._peak, self.used)
        if self._not_given and self.used < self.full:
            # so many as there is room for; where there is much, all, since some of them may have gone
            some = None if self.used < self.limit else (self.full - self.used) // LEAST_SHARE + 1
            for key in list(itertools.islice(self._not_given, some)):
                self._not_given.pop(key)()
        if self._readers and self.used < self._for_writers:
            readers, self._readers = self._readers, {}
            for wake in readers.values():
                wake()
        if self._writers and not self.spent(writer=True):
            writers, self._writers = self._writers, {}
            for wake in writers.values():
                wake()
