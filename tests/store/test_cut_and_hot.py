"""The parts readers are served from, against naive models: cutting runs to limits, and queues that share a budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.envelope import Columns, Run
from gateway.store.cut import gather
from gateway.store.hot import CacheBudget, RunQueue
from tests.store.kit import META

records = st.lists(st.tuples(st.integers(1, 12), st.sampled_from([0, 0, 5, 50])), min_size=1, max_size=8)


def run_of(base: int, content: list[tuple[int, int]]) -> Run:
    values = [bytes([base % 256]) * size for size, _expiry in content]
    expires = [expiry for _size, expiry in content]
    columns = Columns.of(values, expires=expires if any(expires) else None)
    return Run("t", 0, base, columns, [1] * len(values), [(0, 0, META)])


def naive(runs: list[Run], offset: int, messages: int, size: int, now: int) -> tuple[list[int], set[int]]:
    """One record at a time: what is taken, and all that has expired."""
    taken: list[int] = []
    expired: set[int] = set()
    full = False
    for run in runs:
        for index in range(run.count):
            at = run.base_offset + index
            expiry = run.columns.expires[index] if run.columns.expires is not None else 0
            if 0 < expiry <= now:
                expired.add(at)
            elif at >= offset and not full:
                length = len(run.columns.value(index))
                full = len(taken) >= messages or (length > size and bool(taken))
                if not full:
                    taken.append(at)
                    size -= length
    return taken, expired


@settings(max_examples=300)
@given(
    st.lists(records, min_size=1, max_size=5),
    st.integers(0, 7),
    st.integers(1, 30),
    st.integers(0, 80),
    st.sampled_from([0, 5, 60]),
)
def test_cutting_agrees_with_taking_one_at_a_time(contents, start: int, messages: int, size: int, now: int) -> None:
    runs: list[Run] = []
    base = 100
    for content in contents:
        runs.append(run_of(base, content))
        base += len(content)
    offset = 100 + min(start, runs[0].count - 1)
    result = gather(runs, offset, messages, size, now)
    taken, expired = naive(runs, offset, messages, size, now)
    got = [run.base_offset + index for run in result.runs for index in range(run.count)]
    assert got == taken
    passed = set(range(offset, result.next_offset)) - set(taken)
    assert passed <= expired  # nothing that is alive is skipped
    assert result.expired == len(passed)
    assert offset < result.next_offset <= runs[-1].next_offset
    assert not taken or result.next_offset > taken[-1]


class Sharing(RuleBasedStateMachine):
    """Queues of one budget; the model is one list of (queue, base) in the order they came."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[tuple[int, int]] = []
        self.budget = CacheBudget(
            1000, lambda queue, run: self.evicted.append((self.queues.index(queue), run.base_offset))
        )
        self.queues = [RunQueue() for _ in range(3)]
        self.ends = [0, 0, 0]
        self.model: list[tuple[int, int, int]] = []

    @rule(which=st.integers(0, 2), cost=st.integers(1, 400))
    def add(self, which: int, cost: int) -> None:
        base = self.ends[which]
        self.ends[which] += 1
        self.budget.add(self.queues[which], run_of(base, [(1, 0)]), cost)
        self.model.append((which, base, cost))
        gone = []
        while sum(entry[2] for entry in self.model) > 1000 and len(self.model) > 1:
            which, base, _cost = self.model.pop(0)
            gone.append((which, base))
        assert self.evicted == gone
        self.evicted.clear()

    @rule(which=st.integers(0, 2), back=st.integers(0, 5))
    def forget(self, which: int, back: int) -> None:
        below = self.ends[which] - back
        self.budget.forget(self.queues[which], below)
        self.model = [entry for entry in self.model if entry[0] != which or entry[1] >= below]

    @rule(which=st.integers(0, 2))
    def leave_a_gap(self, which: int) -> None:
        """What does not follow starts the queue anew."""
        if len(self.queues[which]):
            self.ends[which] += 5
            base = self.ends[which]
            self.ends[which] += 1
            self.model = [entry for entry in self.model if entry[0] != which] + [(which, base, 1)]
            self.budget.add(self.queues[which], run_of(base, [(1, 0)]), 1)

    @rule()
    def tidy(self) -> None:
        self.budget._tidy()

    @invariant()
    def agrees(self) -> None:
        assert self.budget.used == sum(cost for _which, _base, cost in self.model)
        for which, queue in enumerate(self.queues):
            bases = [base for owner, base, _cost in self.model if owner == which]
            assert len(queue) == len(bases)
            assert queue.cost == sum(cost for owner, _base, cost in self.model if owner == which)
            for offset in range(self.ends[which] + 1):
                found = queue.since(offset)
                assert (found is None) == (offset not in bases)
                if found is not None:
                    assert [run.base_offset for run in found] == [base for base in bases if base >= offset]


test_sharing = Sharing.TestCase
