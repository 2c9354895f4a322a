"""What ingests hold: answers that have come from elsewhere and are not stored yet, counted in the gateway's one budget.

    remote ──answer──► ahead ──► storing ──► stored: given back
                         └ forgotten: given back, it comes again

All ingests together may have half of the budget, each remote address an equal part of that half, and what is asked for is cut
to that part. So one whose target is away for days holds its own part, and neither the others nor the listeners go without. A
remote that answers with more than it was asked for is counted all the same: then nothing more is asked for until there is
room. What is held needs no more of the budget in order to be stored, so it always comes free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.requests import Delivered
from gateway.store.hot import run_cost
from gateway.transport.limits import Budget

TAKE_MESSAGES = 1_000
TAKE_BYTES = 1 << 20
"""The most that one answer is asked for, and so the most that comes twice after a crash."""
LEAST_BYTES = 16 << 10
"""What is asked for however many remote addresses there are."""
USUAL_MESSAGE = 1 << 10
"""Bytes of a message, until an answer shows what they are. Some remotes count messages alone."""


class IngestMemory:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._most = budget.limit // 2
        self._held = 0
        self._parts: set[RemoteMemory] = set()
        self._waiting: dict[RemoteMemory, Callable[[], None]] = {}

    def part(self, wake: Callable[[], None]) -> RemoteMemory:
        """The part of another remote address; `wake` is called when there is room again."""
        part = RemoteMemory(self, wake)
        self._parts.add(part)
        return part

    def room(self, part: RemoteMemory, wake: Callable[[], None]) -> int:
        """How much a part may ask for now. 0: nothing, and it is woken."""
        if self._budget.spent(writer=True):  # what comes is written: the readers' reserve is not for it
            self._budget.wait(part, wake, writer=True)
            return 0
        if self._held >= self._most:
            self._waiting[part] = wake
            return 0
        return min(TAKE_BYTES, max(LEAST_BYTES, self._most // (2 * len(self._parts))))  # one is stored, one is ahead

    def change(self, amount: int) -> None:
        """Take (or give back, negative) bytes."""
        self._held += amount
        self._budget.change(amount)
        if amount < 0 and self._waiting and self._held < self._most:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting.values():
                wake()

    def leave(self, part: RemoteMemory) -> None:
        self._parts.discard(part)
        self._waiting.pop(part, None)
        self._budget.forget(part)


class RemoteMemory:
    def __init__(self, memory: IngestMemory, wake: Callable[[], None]) -> None:
        self._memory = memory
        self._wake = wake
        self._ahead = 0
        self._storing = 0
        self._message = USUAL_MESSAGE

    def ask(self) -> tuple[int, int]:
        """How many messages and bytes may be asked for now. None of either: not now, and it is woken."""
        size = self._memory.room(self, self._wake)
        return (max(1, min(TAKE_MESSAGES, size // self._message)), size) if size else (0, 0)

    def arrived(self, deliveries: Iterable[Delivered]) -> None:
        size = messages = 0
        for one in deliveries:
            size += run_cost(one.run)
            messages += one.run.count
        if messages:
            self._message = max(1, size // messages)
            self._ahead += size
            self._memory.change(size)

    def storing(self) -> None:
        self._storing += self._ahead
        self._ahead = 0

    def stored(self) -> None:
        size, self._storing = self._storing, 0
        self._memory.change(-size)

    def forget(self) -> None:
        """What has come is not stored: it comes again."""
        size, self._ahead = self._ahead, 0
        self._memory.change(-size)

    def close(self) -> None:
        """The address is given up: what it holds is free for others."""
        self.forget()
        self.stored()
        self._memory.leave(self)
