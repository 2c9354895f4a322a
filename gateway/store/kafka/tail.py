"""The end of a partition in memory: what was read from Kafka while somebody follows it.

Apart from the engine, and the counterpart of `hot` in the other store: bytes in memory and their bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import attrs

from gateway.envelope import Run
from gateway.store.cut import gather
from gateway.store.hot import CacheBudget, RunQueue, run_cost
from gateway.store.interface import PartitionState, ReadResult, TopicState
from gateway.store.kafka.records import RunReader


class TailQueue(RunQueue):
    """Runs of one partition between which there may be offsets without a record."""

    __slots__ = ("begin", "upto")

    def __init__(self) -> None:
        super().__init__()
        self.begin = self.upto = -1
        """Everything there is in [begin, upto) is here; upto < 0: nothing is known."""

    def append(self, run: Run, cost: int) -> None:
        self._runs.append(run)
        self._bases.append(run.base_offset)
        self._costs.append(cost)
        self.cost += cost

    def popleft(self) -> tuple[Run, int]:
        gone = super().popleft()
        self.begin = max(self.begin, gone[0].next_offset)
        return gone

    def from_offset(self, offset: int) -> Sequence[Run] | None:
        """The runs from the one that holds an offset, or follows it; None if not all of them are here."""
        if not self.begin <= offset <= self.upto:
            return None
        position = max(bisect_right(self._bases, offset, self._head) - 1, self._head)
        if position < len(self._runs) and self._runs[position].next_offset <= offset:
            position += 1
        return self._runs[position : position + MOST_RUNS]


MOST_RUNS = 4_096


@attrs.define(eq=False)
class FollowedLog:
    state: PartitionState
    decoder: RunReader
    tail: TailQueue = attrs.Factory(TailQueue)
    followed: bool = False

    def grow(self, budget: CacheBudget, runs: Sequence[Run], following: int) -> bool:
        """What came from Kafka; whether there is something new."""
        tail, state = self.tail, self.state
        for run in runs:
            if run.base_offset >= tail.upto:
                budget.add(tail, run, run_cost(run))
                tail.upto = run.next_offset
                state.last_time_ms = max(state.last_time_ms, run.times[-1])
        tail.upto = max(tail.upto, following)
        grown = tail.upto > state.end
        state.end = max(state.end, tail.upto)
        return grown or bool(runs)

    def lags(self, offset: int) -> bool:
        """Whether what is at an offset is about to come by itself."""
        return self.followed and 0 <= self.tail.upto <= offset

    def forget(self, budget: CacheBudget) -> None:
        budget.forget(self.tail)
        self.tail.begin = self.tail.upto = -1
        self.followed = False

    def read(self, offset: int, messages: int, size: int, now_ms: int) -> ReadResult | None:
        runs = self.tail.from_offset(offset)
        if runs is None:
            return None
        result = gather(runs, offset, messages, size, now_ms)
        whole = not runs or (len(runs) < MOST_RUNS and result.next_offset == runs[-1].next_offset)
        if whole and result.next_offset < self.tail.upto:
            return ReadResult(result.runs, self.tail.upto, result.expired)
        return result


@attrs.define(eq=False)
class FollowedTopic(TopicState):
    kafka: str
    logs: list[FollowedLog]

    def widen(self, partitions: int) -> None:
        while len(self.logs) < partitions:
            state = PartitionState()
            self.partitions.append(state)
            self.logs.append(FollowedLog(state, RunReader(self.name, len(self.logs), self.epoch)))
        self.config = attrs.evolve(self.config, partitions=len(self.logs))
