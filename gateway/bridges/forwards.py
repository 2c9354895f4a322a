"""Every forward of a configuration, over every topic it reads: who is woken, where each one begins, what holds retention."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import trio

from gateway.bridges.forward import ForwardContext, PartitionForward
from gateway.bridges.pool import UpstreamPool
from gateway.bridges.progress import IDENTITY, TABLE, Tally, cursor_row, known_row, read_cursor, row_key
from gateway.broker.dead_letters import SUFFIX
from gateway.config.model import Forward, ForwardStart
from gateway.errors import GatewayError
from gateway.recorder import ConsumerCounts
from gateway.routing.address import is_reserved
from gateway.routing.table import RemoteRule
from gateway.store.ack_window import MAX_SPAN, AckWindow
from gateway.store.interface import Put, Store, TopicState, Unit

STOP_SECONDS = 2.0
"""How long going down waits for what is under way: what it does not wait for is sent again."""


class Forwards:
    """All of them."""

    def __init__(self, context: ForwardContext, rules: Sequence[RemoteRule], pools: Mapping[str, UpstreamPool]) -> None:
        self._context = context
        self._store: Store = context.store
        self._rules = rules
        self._pools = pools
        self._running: dict[str, list[PartitionForward]] = {}
        """By topic; a topic that no forward reads has an empty list."""
        self._partitions: dict[str, tuple[int, int]] = {}
        """Epoch and number of partitions of the topics that were looked at."""
        self._letters: set[str] = set()
        self._closing = False
        for name, pool in pools.items():
            pool.on_change.append(lambda error, name=name: self._changed(name, error))  # type: ignore[misc]

    async def start(self) -> None:
        """Find or make every cursor; what is made is on disk before anything is served."""
        puts: list[Put] = []
        if IDENTITY not in self._store.table(TABLE):
            await self._store.submit(Unit(puts=[Put(TABLE, IDENTITY, os.urandom(16))], synced=True)).wait()
        known = self._store.table(TABLE)
        new = {_target(rule).name for rule in self._rules if _target(rule).name.encode() not in known}
        puts += [known_row(name) for name in sorted(new)]
        for state in list(self._store.topics.values()):
            puts += self._adopt(state, new)
        if puts:
            await self._store.submit(Unit(puts=puts, synced=True)).wait()
        self._store.on_visible(self._grown)
        for forward in self._all():
            forward.wake()

    async def close(self) -> None:
        """Send nothing more, wait for what is under way, write every cursor."""
        self._closing = True
        for forward in self._all():
            forward.stop()
        with trio.move_on_after(STOP_SECONDS):
            while not all(forward.idle for forward in self._all()):
                changed = trio.Event()
                self._context.pump.call_at(self._context.clock.now() + 0.01, changed.set)
                await changed.wait()

    # --- what others ask ---

    def objection(self, topic: str) -> str | None:
        """Why a topic must not be deleted."""
        state = self._store.topics.get(topic)
        for forward in self._running.get(topic, ()):
            if state is not None and (left := forward.backlog(state.partitions[forward.partition])):
                return f"forward {forward.target.name} has not delivered {left} messages of {topic}"
        return None

    def deleted(self, topic: str) -> None:
        """A topic is gone, and the cursors with it."""
        gone = self._running.pop(topic, [])
        self._partitions.pop(topic, None)
        for forward in gone:
            forward.drop()
        rows = [Put(TABLE, row_key(one.target.name, topic, one.partition), None) for one in gone]
        if rows:
            self._store.submit(Unit(puts=rows, synced=False))

    def floor(self, topic: str, partition: int) -> int | None:
        """How far retention may go. Asked from the store's thread, too: reads only."""
        lows = [forward.progress.on_disk for forward in self._running.get(topic, ()) if forward.partition == partition]
        return min(lows, default=None)

    def consumers(self) -> Iterator[ConsumerCounts]:
        """Where each one is."""
        for topic, forwards in self._running.items():
            state = self._store.topics.get(topic)
            if state is not None:
                for forward in forwards:
                    if forward.epoch == state.epoch:
                        yield forward.counts(state.partitions[forward.partition])

    def problem(self, name: str) -> str:
        """Why a forward does not go on; empty while it does."""
        for forward in self._all():
            if forward.target.name == name and (text := forward.stopped or forward.progress.error):
                return text
        return ""

    # --- inside ---

    def _all(self) -> Sequence[PartitionForward]:
        """As they are now: what is done with one may bring a topic, and others with it."""
        return [forward for forwards in self._running.values() for forward in forwards]

    def _changed(self, upstream: str, error: GatewayError | None) -> None:
        for forward in self._all():
            if forward.target.upstream != upstream:
                continue
            if error is not None and not self._pools[upstream].connected:
                forward.unreachable(error)
            else:
                forward.wake()

    def _grown(self, pairs: Iterable[tuple[str, int]]) -> None:
        for topic, partition in pairs:
            state = self._store.topics.get(topic)
            if state is None:
                if topic in self._partitions:
                    self.deleted(topic)
                continue
            if self._partitions.get(topic) != (state.epoch, len(state.partitions)):
                self._look_at(state)
            for forward in self._running.get(topic, ()):
                if forward.partition == partition:
                    forward.wake()

    def _look_at(self, state: TopicState) -> None:
        """A topic is new, was made again, or has more partitions."""
        before = self._partitions.get(state.name)
        if before is not None and before[0] != state.epoch:
            self.deleted(state.name)
        if self._closing:
            return
        puts = self._adopt(state, frozenset())
        if puts:
            self._store.submit(Unit(puts=puts, synced=False))

    def _adopt(self, state: TopicState, new: Iterable[str]) -> list[Put]:
        puts: list[Put] = []
        running = self._running.setdefault(state.name, [])
        self._partitions[state.name] = state.epoch, len(state.partitions)
        for rule in self._rules:
            if not self._reads(rule, state.name):
                continue
            target = _target(rule)
            self._letters.add(rule.dead_letter(state.name))
            for partition in range(len(state.partitions)):
                if any(one.partition == partition and one.target.name == target.name for one in running):
                    continue
                window, tally, fresh = self._begin(target, state, partition, existing=target.name in new)
                if fresh:
                    puts.append(cursor_row(target.name, state.name, partition, state.epoch, window, tally))
                pool = self._pools[target.upstream]
                running.append(PartitionForward(self._context, rule, pool, state, partition, window, tally))
        return puts

    def _reads(self, rule: RemoteRule, topic: str) -> bool:
        """Dead letters keep the route they came by; forwarding them again would be a circle."""
        if is_reserved(topic) or topic.endswith(SUFFIX) or topic in self._letters:
            return False
        return rule.remote_address(topic) is not None

    def _begin(
        self, target: Forward, state: TopicState, partition: int, *, existing: bool
    ) -> tuple[AckWindow, Tally, bool]:
        """Where a cursor is, how it came there, and whether it is new. `existing`: the topic was there before the forward was."""
        span = max(MAX_SPAN, 8 * target.window)
        kept = self._store.table(TABLE).get(row_key(target.name, state.name, partition))
        bounds = state.partitions[partition]
        if kept is not None:
            epoch, window, tally = read_cursor(kept, span)
            if epoch == state.epoch:
                return window, tally, False
            self._context.recorder.dropped("", "epoch_changed", 1)
        elif existing and target.start is ForwardStart.NOW:
            return AckWindow(bounds.end, span), Tally(bounds.end), True
        return AckWindow(bounds.start, span), Tally(bounds.start), True


def _target(rule: RemoteRule) -> Forward:
    assert isinstance(rule.target, Forward)
    return rule.target
