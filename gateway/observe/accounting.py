"""The conservation of messages, worked out from the broker's snapshot and exported: any value but 0 is an alarm.

The snapshot's two halves (`gateway.recorder`) each say where every message is, from numbers that are counted in different
places: at the door what sessions received against what the offsets advanced by, at a consumer the log's end against what
its cursor settled. A message that slips through anywhere leaves a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from gateway.errors import GatewayError
from gateway.observe import metrics as m
from gateway.recorder import GroupPosition, Recorder, Snapshot
from gateway.slices import slices
from gateway.store.interface import Store

Positions = Callable[[Container[str]], Iterable[GroupPosition]]
ENDS_SECONDS = 5.0
"""How old what is known of the ends of groups' topics may be, where others write to the log."""


@asynccontextmanager
async def knowing_ends(store: Store, groups: Sequence[str], positions: Positions) -> AsyncIterator[None]:
    """Ask, for as long as the block lasts, where the topics of these groups end: who reads and writes them may be elsewhere."""
    async with trio.open_nursery() as nursery:
        if groups and not store.capabilities.single_writer:
            nursery.start_soon(_ask_ends, store, groups, positions)
        yield
        nursery.cancel_scope.cancel()


async def _ask_ends(store: Store, groups: Sequence[str], positions: Positions) -> None:
    while True:
        with suppress(GatewayError):  # the brokers are away: what was known will do
            await store.refresh_ends({one.topic for one in positions(groups)})
        await trio.sleep(ENDS_SECONDS)


class GroupLags:
    """Exports how far behind some groups are, whenever it is called."""

    def __init__(
        self,
        recorder: Recorder,
        groups: Sequence[str],
        positions: Positions,
    ) -> None:
        self._recorder = recorder
        self._groups = groups
        self._positions = positions

    def __call__(self) -> None:
        """Work the gauges out now."""
        lags: Counter[str] = Counter(dict.fromkeys(self._groups, 0))
        for one in self._positions(lags):
            lags[one.group] += one.lag
        for group, lag in lags.items():
            self._recorder.gauge(m.GROUP_LAG.name, lag, group=group)


class Accounting:
    """Exports a snapshot whenever it is asked to; remembers what was exported, so that what is gone falls to 0."""

    def __init__(self, recorder: Recorder, snapshot: Callable[[], Snapshot]) -> None:
        self._recorder = recorder
        self._snapshot = snapshot
        self._forwards: set[str] = set()

    async def take(self) -> None:
        """Work the gauges out now."""
        snapshot = self._snapshot()
        for door in snapshot.doors:
            self._recorder.gauge(m.UNACCOUNTED.name, door.unaccounted, route=door.route or m.NO_ROUTE)
        lost: Counter[str] = Counter(dict.fromkeys(m.CONSUMER_KINDS, 0))
        backlog: Counter[str] = Counter(dict.fromkeys(m.CONSUMER_KINDS, 0))
        forwards: Counter[str] = Counter(dict.fromkeys(self._forwards, 0))
        async for consumers in slices(snapshot.consumers):
            for consumer in consumers:
                # absolute values: one consumer that lost a message must not be hidden by another that counted one twice
                lost[consumer.kind] += abs(consumer.unaccounted)
                backlog[consumer.kind] += consumer.backlog
                if consumer.kind == "forward":
                    forwards[consumer.name] += consumer.backlog
        for kind, messages in lost.items():
            self._recorder.gauge(m.CONSUMER_UNACCOUNTED.name, messages, kind=kind)
        for kind, messages in backlog.items():
            self._recorder.gauge(m.CONSUMER_BACKLOG.name, messages, kind=kind)
        for name, messages in forwards.items():
            self._recorder.gauge(m.FORWARD_BACKLOG.name, messages, forward=name)
        self._forwards = set(forwards)
