"""Recent runs in memory: the tail cache of stored topics, and all there is of memory topics."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator

from gateway.envelope import Columns, Run

RUN_OVERHEAD = 640
"""What a run, its columns and its place in a queue take beside their content (measured with `sys.getsizeof`)."""
_COMPACT_AT = 64
_GONE = Run("", 0, 0, Columns.of([]), (), ())


def run_cost(run: Run) -> int:
    """About how many bytes a run keeps alive."""
    columns = run.columns
    cost = RUN_OVERHEAD + len(columns.packed) + 12 * columns.count
    if columns.keys is not None:
        cost += sum([40 + len(key) for key in columns.keys if key is not None]) + 8 * columns.count
    if columns.headers is not None:
        cost += sum([160 + len(name) + len(value) for pairs in columns.headers for name, value in pairs])
    return cost + 100 * (len(run.batches) - 1)


class RunQueue:
    """Consecutive runs of one partition, the oldest first to go."""

    __slots__ = ("_bases", "_costs", "_head", "_runs", "cost", "stale")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._bases: list[int] = []
        self._costs: list[int] = []
        self._head = 0  # what is before it has been taken off; cut away in bulk, since a list's front is dear
        self.cost = 0
        self.stale = 0
        """How many of this queue's entries in a budget's order stand for runs that are gone already."""

    def __len__(self) -> int:
        return len(self._runs) - self._head

    @property
    def first(self) -> Run | None:
        return self._runs[self._head] if self._head < len(self._runs) else None

    def append(self, run: Run, cost: int) -> None:
        """Add the run that follows; one that does not follow starts the queue anew."""
        base = run.base_offset
        if self._runs:
            last = self._runs[-1]
            if last.base_offset + last.columns.count != base:
                self.stale += len(self._runs) - self._head
                self.clear()
        self._runs.append(run)
        self._bases.append(base)
        self._costs.append(cost)
        self.cost += cost

    def popleft(self) -> tuple[Run, int]:
        """Take off the oldest run; also what it cost."""
        head = self._head
        run, cost = self._runs[head], self._costs[head]
        # a list is not shortened from the front for each: that would move all the others
        self._runs[head] = _GONE
        self._head = head = head + 1
        self.cost -= cost
        if head >= _COMPACT_AT and 2 * head >= len(self._runs):
            del self._runs[:head], self._bases[:head], self._costs[:head]
            self._head = 0
        elif head == len(self._runs):
            self.clear()
        return run, cost

    def clear(self) -> None:
        self._runs.clear()
        self._bases.clear()
        self._costs.clear()
        self._head = 0
        self.cost = 0

    def since(self, offset: int) -> Iterator[Run] | None:
        """The runs from the one that holds `offset` on, or None if none does."""
        position = bisect_right(self._bases, offset, self._head) - 1
        if position < self._head:
            return None
        runs = self._runs
        found = runs[position]
        if found.base_offset + found.columns.count <= offset:
            return None
        return map(runs.__getitem__, range(position, len(runs)))  # a generator would be a call for each of them

    def position_of_time(self, timestamp_ms: int) -> Run | None:
        """The first run whose last record is not older than a time."""
        low, high = self._head, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            if self._runs[middle].times[-1] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self._runs[low] if low < len(self._runs) else None


class CacheBudget:
    """Bytes shared by many queues: the oldest run of all goes first."""

    def __init__(self, limit: int, evicted: Callable[[RunQueue, Run], None] | None = None) -> None:
        self.limit = limit
        self.used = 0
        self._order: deque[RunQueue] = deque()
        self._runs = 0
        self._evicted = evicted

    def add(self, queue: RunQueue, run: Run, cost: int) -> None:
        """Put a run at the end of its queue, and make room."""
        stale, used = queue.stale, queue.cost
        queue.append(run, cost)
        self._runs += 1 - (queue.stale - stale)  # what does not follow has made all before it stale
        self.used += queue.cost - used
        self._order.append(queue)
        if self.used > self.limit:
            self._make_room()
        elif len(self._order) > 2 * self._runs + 1024:
            self._tidy()

    def forget(self, queue: RunQueue, below: int | None = None) -> None:
        """Drop the runs that end at or before an offset (all when None)."""
        while (run := queue.first) is not None and (below is None or run.next_offset <= below):
            self.drop_first(queue)

    def drop_first(self, queue: RunQueue) -> Run:
        run, cost = queue.popleft()
        self.used -= cost
        self._runs -= 1
        queue.stale += 1
        return run

    def _make_room(self) -> None:
        while self.used > self.limit and self._runs > 1:  # the newest stays whatever its size
            queue = self._order.popleft()
            if queue.stale:
                queue.stale -= 1
                continue
            run, cost = queue.popleft()
            self.used -= cost
            self._runs -= 1
            if self._evicted is not None:
                self._evicted(queue, run)

    def _tidy(self) -> None:
        # without this, entries of queues that are trimmed otherwise would pile up behind one that is idle
        kept: deque[RunQueue] = deque()
        for queue in self._order:
            if queue.stale:
                queue.stale -= 1
            else:
                kept.append(queue)
        self._order = kept
