"""A share of a route's traffic, sent to a second target and never waited for.

A mirror reads what was stored from memory at the moment it becomes visible, chooses by key (or by the message's id, without
one), and keeps what it chose in a bounded buffer. It has no durable cursor, holds no retention and tries nothing twice: what
does not fit or is not taken is counted, and that is what a mirror is for. Where several gateways serve a log, one of them has a
partition to mirror: it follows that, and asks the log for what came before it did.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs

from gateway.bridges.lanes import LaneEntry, Sending
from gateway.bridges.pool import UpstreamPool
from gateway.broker.letters import SUFFIX
from gateway.broker.ownership import OwnedJobs, Owners
from gateway.broker.service import Clock
from gateway.broker.timers import Pump
from gateway.envelope import PREFIX, Run
from gateway.errors import GatewayError, OffsetOutOfRange, RequestError, TargetRefused
from gateway.model import Compare, Mirror
from gateway.recorder import MirrorPlace, Recorder
from gateway.requests import Fetch, Fetched, Outcome, Publish, Published
from gateway.routing.address import is_reserved
from gateway.routing.table import RemoteRule
from gateway.store.interface import ReadResult, Store

BUFFER_MESSAGES = 4_096
BUFFER_BYTES = 4 << 20
"""What a mirror keeps of one partition, sent and not yet answered included; what is chosen beyond is dropped."""
REQUEST_MESSAGES = 256
REQUESTS = 4
"""Requests of one partition that are under way at once."""
READ_MESSAGES = 4_096
READ_BYTES = 4 << 20
"""Bounds of one read of the log. What it reads is chosen from, so that it may be more than a request."""
COMPARED = 64
"""Messages of a request that are read back to compare them, at most."""

TAKEN, REFUSED, LOST, DROPPED, SAME, DIFFERENT, UNKNOWN = (
    "taken", "refused", "lost", "dropped", "same", "different", "unknown",
)  # fmt: skip


def chosen(run: Run, index: int, percent: float) -> bool:
    """Whether a message belongs to the share: the same for all of a key, and for a message each time it is asked."""
    key = run.columns.key(index)
    if key is None:
        meta, inner = run.meta_of(index)
        key = meta.id + inner.to_bytes(4, "big")
    return zlib.crc32(key) % 10_000 < percent * 100


def mirror_job(rule: RemoteRule, topic: str, partition: int) -> str:
    """The name under which one gateway at a time owns it."""
    return f"mirror {rule.route} {rule.target.upstream} {topic} {partition}"


@attrs.frozen(eq=False)
class MirrorContext:
    store: Store
    pump: Pump
    clock: Clock
    recorder: Recorder
    owners: Owners
    start_soon: Callable[[Callable[[], Awaitable[None]]], None]


class PartitionMirror:
    def __init__(
        self,
        context: MirrorContext,
        rule: RemoteRule,
        pool: UpstreamPool,
        topic: str,
        epoch: int,
        partition: int,
        begin: int | None,
    ) -> None:
        """`begin`: without one it chooses of what comes from now on."""
        target = rule.target
        assert isinstance(target, Mirror)
        self.epoch = epoch
        self._context = context
        self._rule = rule
        self._target = target
        self.pool = pool
        self.topic = topic
        self.partition = partition
        state, name = context.store.topics[topic], f"mirror {rule.route} {target.upstream}"
        self._sending = Sending.to(pool, context.store, rule, name, state, partition)
        self.next = state.partitions[partition].end if begin is None else begin
        """From where it chooses: earlier than the log's end if the topic is new, or somebody else was there before."""
        self._alone = context.store.capabilities.single_writer
        self._loaded: ReadResult | None = None
        self._reading = False
        self._buffer: deque[tuple[LaneEntry, float]] = deque()
        self._messages = 0
        self._bytes = 0
        self._requests = 0
        self._stopped = False
        context.store.watch(topic)
        if begin is None and not self._alone:  # others have written what this gateway has not heard of
            self._reading = True
            context.start_soon(self._find_end)

    def does(self, rule: RemoteRule, pool: UpstreamPool) -> bool:
        return self.pool is pool and self._rule.meaning == rule.meaning

    def mirrors(self, rule: RemoteRule) -> bool:
        """Whether a rule's route goes to this upstream by it, in whatever way."""
        return self._rule.route == rule.route and self._rule.target.upstream == rule.target.upstream

    def place(self) -> MirrorPlace | None:
        """How far it is; None if what it mirrors is gone."""
        state = self._context.store.topics.get(self.topic)
        if state is None or state.epoch != self.epoch:
            return None
        end = state.partitions[self.partition].end
        return MirrorPlace(self._rule.route, self.pool.name, self.topic, self.partition, self.next, end, self._messages)

    @property
    def job(self) -> str:
        return mirror_job(self._rule, self.topic, self.partition)

    def stop(self) -> None:
        """Choose and send nothing more. What was sent is still counted."""
        if not self._stopped:
            self._context.store.unwatch(self.topic)
        self._stopped = True
        if self._buffer:
            self._count(DROPPED, len(self._buffer))
            self._buffer.clear()

    def grown(self) -> None:
        # there is more in the log: choose of it while it is in memory, and send in the next pass
        self._context.pump.soon(self, self._turn)

    # --- choosing ---

    def _turn(self) -> None:
        state = self._context.store.topics.get(self.topic)
        if self._stopped or state is None or state.epoch != self.epoch:
            return
        end = state.partitions[self.partition].end
        while self.next < end and not self._reading:
            result, self._loaded = self._loaded, None
            if result is None:
                result = self._context.store.read_cached(
                    self.topic, self.partition, self.next, READ_MESSAGES, READ_BYTES, self._context.clock.now_ms()
                )
            if result is None and not self._alone:  # it begins, or has just lost what it follows
                self._reading = True
                self._context.start_soon(self._load)
                break
            if result is None:  # not in memory any more: a mirror does not make anybody wait for the disk
                self._pass_over(end)
                break
            now = self._context.clock.now()
            for run in result.runs:
                self._choose(run, now)
            self.next = result.next_offset
        self._send()

    def _pass_over(self, end: int) -> None:
        if self.next < end:  # at most so many: a log need not have a record at each offset
            self._count(DROPPED, end - self.next)
            self.next = end

    async def _find_end(self) -> None:
        store = self._context.store
        with suppress(GatewayError):  # then it is where it was known to be
            await store.refresh(self.topic)
        state = store.topics.get(self.topic)
        if state is not None and state.epoch == self.epoch:
            self.next = max(self.next, state.partitions[self.partition].end)
        self._reading = False
        self.grown()

    async def _load(self) -> None:
        context, state = self._context, self._context.store.topics.get(self.topic)
        try:
            self._loaded = await context.store.read(
                self.topic, self.partition, self.next, READ_MESSAGES, READ_BYTES, context.clock.now_ms()
            )
        except OffsetOutOfRange as error:
            self._pass_over(error.first)
        except GatewayError:
            if state is not None:
                self._pass_over(state.partitions[self.partition].end)
        self._reading = False
        self.grown()

    def _choose(self, run: Run, now: float) -> None:
        percent, limits = self._target.percent, self.pool.carries
        for number, (first, _inner, meta) in enumerate(run.batches):
            if meta.route != self._rule.route:
                continue
            end = run.batches[number + 1][0] if number + 1 < len(run.batches) else run.count
            for index in range(first, end):
                if percent < 100 and not chosen(run, index, percent):
                    continue
                entry = LaneEntry(run, index)
                fits = limits.holds(entry.size - PREFIX)
                if not fits or self._messages >= BUFFER_MESSAGES or self._bytes + entry.size > BUFFER_BYTES:
                    self._count(DROPPED, 1)
                    continue
                if percent < 100:
                    entry.detach()  # or one message of a megabyte would keep all of it, thousands of times
                self._messages += 1
                self._bytes += entry.size
                self._buffer.append((entry, now))

    # --- sending ---

    def _send(self) -> None:
        while self._buffer and self._requests < REQUESTS and self.pool.ready:
            taken = [self._buffer.popleft() for _ in range(min(REQUEST_MESSAGES, len(self._buffer)))]
            entries, since = [entry for entry, _ in taken], taken[0][1]
            batch = self._sending.batch(entries)
            self._buffer.extendleft(reversed(taken[batch.columns.count :]))
            entries = entries[: batch.columns.count]
            self._requests += 1
            self.pool.submit(
                lambda number, batch=batch: Publish(number, batch),  # type: ignore[misc]
                lambda outcome, entries=entries, since=since: self._ended(entries, since, outcome),  # type: ignore[misc]
            )

    def _ended(self, entries: Sequence[LaneEntry], since: float, outcome: Outcome) -> None:
        self._requests -= 1
        self._messages -= len(entries)
        self._bytes -= sum(entry.size for entry in entries)
        refused = len(outcome.refused) if isinstance(outcome, Published) else 0
        taken = len(entries) - refused
        if isinstance(outcome, GatewayError):
            taken = 0
            refused = len(entries) if isinstance(outcome, TargetRefused | RequestError) else 0
        for what, messages in ((TAKEN, taken), (REFUSED, refused), (LOST, len(entries) - taken - refused)):
            if messages:
                self._count(what, messages)
        self._compare(entries, since, outcome, taken, refused)
        self._context.pump.soon(self, self._turn)

    def _count(self, outcome: str, messages: int) -> None:
        self._context.recorder.mirrored(self._rule.route, self.pool.name, outcome, messages)

    # --- comparing ---

    def _compare(self, entries: Sequence[LaneEntry], since: float, outcome: Outcome, taken: int, refused: int) -> None:
        compare, recorder, route, name = self._target.compare, self._context.recorder, self._rule.route, self.pool.name
        if Compare.ACK in compare:  # the first has acknowledged them all: they are stored
            unknown = len(entries) - taken - refused
            for result, messages in ((SAME, taken), (DIFFERENT, refused), (UNKNOWN, unknown)):
                recorder.mirror_compared(route, name, Compare.ACK.value, result, messages)
        if Compare.LATENCY in compare and taken:
            recorder.mirror_latency(route, name, self._context.clock.now() - since)
        if Compare.PAYLOAD in compare and taken:
            self._read_back(entries, outcome)

    def _read_back(self, entries: Sequence[LaneEntry], outcome: Outcome) -> None:
        # ask the second for what it has stored, where it says where that is
        assert isinstance(outcome, Published)
        sent = [(outcome.position(i), entry) for i, entry in enumerate(entries) if i not in outcome.refused][:COMPARED]
        (partition, first), _ = sent[0]
        side_by_side = [
            entry for index, (place, entry) in enumerate(sent) if place == (partition, first + index)
        ]  # others may publish there, too
        if not self.pool.carries.offset or not self.pool.ready:
            self._compared(UNKNOWN, len(side_by_side))
            return
        self.pool.submit(
            lambda number: Fetch(number, self._sending.address, partition, first, len(side_by_side), READ_BYTES),
            lambda reply: self._was_read_back(side_by_side, first, reply),
        )

    def _was_read_back(self, entries: Sequence[LaneEntry], first: int, reply: Outcome) -> None:
        found: dict[int, bytes] = {}
        if isinstance(reply, Fetched):
            for run in reply.runs:
                found |= {run.base_offset + index: run.columns.value(index) for index in range(run.count)}
        results = [
            UNKNOWN if offset not in found else SAME if found[offset] == _value(entry) else DIFFERENT
            for offset, entry in enumerate(entries, first)
        ]
        for result in (SAME, DIFFERENT, UNKNOWN):
            self._compared(result, results.count(result))

    def _compared(self, result: str, messages: int) -> None:
        self._context.recorder.mirror_compared(
            self._rule.route, self.pool.name, Compare.PAYLOAD.value, result, messages
        )


def _value(entry: LaneEntry) -> bytes:
    return entry.run.columns.value(entry.index)


class Mirrors(OwnedJobs[PartitionMirror]):
    """All mirrors of a configuration, over every topic they read."""

    def __init__(self, context: MirrorContext) -> None:
        super().__init__(context.owners)
        self._context = context
        self._rules: Sequence[RemoteRule] = ()
        self._pools: Mapping[str, UpstreamPool] = {}
        self._running: dict[tuple[str, int], list[PartitionMirror]] = {}
        self._listening = False

    def become(self, rules: Sequence[RemoteRule], pools: Mapping[str, UpstreamPool]) -> None:
        """From now on there are these. Those that do what they did go on; what a route mirrors otherwise than before is
        mirrored from where it was.
        """
        for name, pool in pools.items():
            if self._pools.get(name) is not pool:
                pool.on_change.append(partial(self._changed, pool))
        self._rules, self._pools = rules, pools
        before, self._running = self._running, {}
        if rules and not self._listening:
            self._listening = True
            self._context.store.on_visible(self._grown)
        for state in self._context.store.topics.values() if rules or before else ():
            for partition in range(len(state.partitions)):
                self._look_at(state.name, partition, before.get((state.name, partition), ()))
        staying = {one for mirrors in self._running.values() for one in mirrors}
        for one in {one for mirrors in before.values() for one in mirrors} - staying:
            one.stop()

    def jobs(self) -> Iterable[tuple[str, PartitionMirror]]:
        return ((one.job, one) for mirrors in self._running.values() for one in mirrors)

    def take(self) -> None:
        for (topic, partition), before in list(self._running.items()):
            if topic in self._context.store.topics:
                self._look_at(topic, partition, before)

    def leave(self, job: PartitionMirror) -> None:
        job.stop()
        self._running[job.topic, job.partition].remove(job)

    async def drain(self) -> None:
        # nobody waits for a mirror: what it has not sent is counted as dropped
        self._rules = ()
        for _name, one in self.jobs():
            one.stop()

    def places(self) -> Iterator[MirrorPlace]:
        """How far each is, partition by partition; one without a topic is there, too."""
        running = [one for mirrors in self._running.values() for one in mirrors]
        for rule in self._rules:
            if not any(one.mirrors(rule) for one in running):
                yield MirrorPlace(rule.route, rule.target.upstream, "", 0, 0, 0, 0)
        yield from filter(None, (one.place() for one in running))

    def _changed(self, pool: UpstreamPool) -> None:
        for mirrors in self._running.values():
            for one in mirrors:
                if one.pool is pool:
                    one.grown()

    def _grown(self, pairs: Iterable[tuple[str, int]]) -> None:
        for topic, partition in pairs:
            state = self._context.store.topics.get(topic)
            if state is None:
                for one in self._running.pop((topic, partition), ()):
                    one.stop()
                continue
            running = self._running.get((topic, partition))
            if running is None or (running and running[0].epoch != state.epoch):
                for one in running or ():
                    one.stop()
                # what is new is mirrored from its beginning
                running = self._look_at(topic, partition, begin=state.partitions[partition].start)
            for one in running:
                one.grown()

    def _look_at(
        self, topic: str, partition: int, before: Iterable[PartitionMirror] = (), begin: int | None = None
    ) -> list[PartitionMirror]:
        state = self._context.store.topics[topic]
        running: list[PartitionMirror] = []
        self._running[topic, partition] = running
        known = [one for one in before if one.epoch == state.epoch]
        for rule in self._rules:
            if is_reserved(topic) or topic.endswith(SUFFIX) or rule.remote_address(topic) is None:
                continue
            if not self._owners.owns(mirror_job(rule, topic, partition)):
                continue
            pool = self._pools[rule.target.upstream]
            same = next((one for one in known if one.does(rule, pool)), None)
            if same is None:
                was = next((one.next for one in known if one.mirrors(rule)), begin)
                same = PartitionMirror(self._context, rule, pool, topic, state.epoch, partition, was)
            running.append(same)
        return running
