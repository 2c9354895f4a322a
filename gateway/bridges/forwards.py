"""Every forward of a configuration, over every topic it reads: who is woken, where each one begins, what holds retention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from gateway.bridges.forward import ForwardContext, PartitionForward, job_of
from gateway.bridges.forward_rows import cursor_row, known_row, read_cursor, row_key
from gateway.bridges.pool import UpstreamPool
from gateway.broker.consume.consumer import ConsumerPlace, Tally, knows_ends
from gateway.broker.consume.reset import PATIENCE, targets_of, topic_of
from gateway.broker.identity import TABLE, new_identity
from gateway.broker.letters import SUFFIX
from gateway.broker.ownership import OwnedJobs
from gateway.errors import ConditionFailed, Conflict, GatewayError, NotFound
from gateway.model import Forward, ForwardStart
from gateway.recorder import ConsumerCounts, UnderWay
from gateway.requests import ConsumerMove, ConsumerReset
from gateway.routing.address import is_reserved
from gateway.routing.table import RemoteRule
from gateway.store.ack_window import MAX_SPAN, AckWindow
from gateway.store.interface import Put, Require, Store, TopicState, Unit

STOP_SECONDS = 2.0
"""How long going down waits for what is under way: what it does not wait for is sent again."""


class Forwards(OwnedJobs[PartitionForward]):
    def __init__(self, context: ForwardContext) -> None:
        super().__init__(context.owners)
        self._context = context
        self._store: Store = context.store
        self._rules: Sequence[RemoteRule] = ()
        self._pools: Mapping[str, UpstreamPool] = {}
        self._running: dict[str, Sequence[PartitionForward]] = {}
        """By topic, those that stop and are not done included; a topic that no forward reads has none. What holds retention
        reads this from another thread: what is in it is replaced, never changed.
        """
        self._partitions: dict[str, tuple[int, int]] = {}
        """Epoch and number of partitions of the topics that were looked at."""
        self._letters: frozenset[str] = frozenset()
        """Where dead letters of topics that were looked at go."""
        self._placeless: dict[tuple[str, str, int], str] = {}
        """Forward, topic and partition where a cursor may have been lost, and what is said about it."""
        self.pass_on: Callable[[str, ConsumerReset], Awaitable[Sequence[ConsumerMove]]] | None = None
        """Asks the gateway that has a job, where there are several."""
        self._closing = False
        self._listening = False
        """To what is stored: from the first rule on, since every commit would say so."""

    async def prepare(self, rules: Sequence[RemoteRule]) -> None:
        """Find or make the cursors that these rules need and nobody has; what is made is on disk when this returns, and
        means nothing to anybody else. A GatewayError if it cannot be written.
        """
        while True:
            try:
                await self._prepare(rules)
            except ConditionFailed:  # another gateway prepares the same
                continue
            return

    async def _prepare(self, rules: Sequence[RemoteRule]) -> None:
        puts = new_identity(self._store)
        known = self._store.table(TABLE)
        unknown = {_target(rule).name for rule in rules if _target(rule).name.encode() not in known}
        new = {name for name in unknown if self._store.lost.found(TABLE, name.encode()) is None}
        puts += [known_row(name) for name in sorted(unknown)]
        letters = self._letters_of(rules)
        for state in list(self._store.topics.values()):
            for rule, partition in _lacking(state, rules, letters, self._running.get(state.name, ())):
                if not self._lost_its_place(_target(rule), state, partition):
                    self._begin(_target(rule), state, partition, puts, existing=_target(rule).name in new)
        if puts:
            seen = [Require(put.table, put.key, self._store.table(put.table).get(put.key)) for put in puts]
            await self._store.submit(Unit(puts=puts, requires=seen, synced=True)).wait()

    def jobs(self) -> Iterable[tuple[str, PartitionForward]]:
        return ((forward.job, forward) for forward in self._all())

    def take(self) -> None:
        for state in list(self._store.topics.values()):
            self._look_at(state)

    def leave(self, job: PartitionForward) -> None:
        job.drop()
        self._running[job.topic] = [forward for forward in self._running[job.topic] if forward is not job]

    def become(self, rules: Sequence[RemoteRule], pools: Mapping[str, UpstreamPool]) -> None:
        """From now on there are these. Those that do what they did go on; all others stop, and who has the same name begins
        where they end (`handed_over`).
        """
        for name, pool in pools.items():
            if self._pools.get(name) is not pool:
                pool.on_change.append(partial(self._changed, pool))
        self._rules, self._pools = rules, pools
        if rules and not self._listening:
            self._listening = True
            self._store.on_visible(self._grown)
        self._letters = self._letters_of(rules)
        for forward in self._all():
            if not self._goes_on(forward):
                forward.stop()
        self.take()

    async def handed_over(self) -> Mapping[str, int]:
        """Until all that was stopped has settled what was under way and written how far it is, and who follows has begun.
        By name, the messages that nobody has delivered and nobody will: their cursors stay where they are.
        """
        left: Counter[str] = Counter()
        while stopping := [forward for forward in self._all() if forward.stopping and not self._closing]:
            for topic in dict.fromkeys(forward.topic for forward in stopping if forward.idle):
                left += self._replace(topic)
            await self._context.pump.moment()
        return left

    async def reset(self, asked: ConsumerReset) -> Sequence[ConsumerMove]:
        """Put a forward elsewhere, whichever gateways have its partitions; with `dry_run` only say where it would be. It sends
        nothing meanwhile, and what it had under way has ended.
        """
        pass_on = self.pass_on
        if pass_on is not None:
            await self._store.refresh(asked.topic)  # nobody may follow it here
        # what is wrong with it is said before anything is changed
        targets = await targets_of(self._store, topic_of(self._store, asked), asked)
        jobs = {number: job_of(asked.name, asked.topic, number) for number in targets}
        if pass_on is None or all(map(self._owners.owns, jobs.values())):
            return await self.reset_here(asked)
        moves: list[ConsumerMove] = []
        for number, job in jobs.items():
            moves += await pass_on(job, replace(asked, partition=number, dry_run=True))
        if asked.dry_run:
            return moves
        done: list[ConsumerMove] = []
        for number, job in jobs.items():
            try:
                done += await pass_on(job, replace(asked, partition=number))
            except GatewayError as error:
                if not done:
                    raise
                there = ", ".join(str(one.partition) for one in done)
                raise Conflict(f"partition {number}: {error.message}. Put elsewhere already: {there}") from error
        return done

    async def reset_here(self, asked: ConsumerReset) -> Sequence[ConsumerMove]:
        """The same, on the partitions that are this gateway's."""
        state = topic_of(self._store, asked)
        targets = await targets_of(self._store, state, asked)
        chosen = [
            one
            for one in self._running.get(asked.topic, ())
            if one.target.name == asked.name and one.partition in targets and one.epoch == state.epoch
        ]
        if not chosen:
            raise NotFound(f"there is no forward {asked.name} of {asked.topic} here")
        if asked.dry_run:
            return [one.moved(state, targets[one.partition]).shown for one in chosen]
        if self._closing or any(one.held or one.stopping for one in chosen):
            raise Conflict(f"forward {asked.name} is being changed: try again")
        for forward in chosen:
            forward.hold()
        try:
            with trio.CancelScope(shield=True):  # who asked may go: what is written is also where it goes on
                moves = await self._put_elsewhere(chosen, targets)
        finally:
            for forward in chosen:
                forward.go_on()
        running, after = self._running.get(asked.topic, ()), self._store.topics.get(asked.topic)
        # one that stops has a successor, which begins where the rows say
        begin_anew = [one for one in chosen if one in running and not one.stopping]
        if begin_anew and after is not None:
            self._running[asked.topic] = [one for one in running if one not in begin_anew]
            for forward in begin_anew:
                forward.drop()
            self._look_at(after)
        return moves

    async def _put_elsewhere(
        self, chosen: Sequence[PartitionForward], targets: Mapping[int, int]
    ) -> Sequence[ConsumerMove]:
        if not await self._context.pump.until(lambda: all(one.at_rest for one in chosen), PATIENCE):
            unwritable = next((one.unwritable for one in chosen if one.unwritable), "")
            under_way = sum(one.in_flight for one in chosen)
            raise Conflict(unwritable or f"{under_way} messages are under way to {chosen[0].pool.name}: try again")
        state = chosen[0].state
        if state is None or any(one not in self._running.get(state.name, ()) for one in chosen):
            raise Conflict("the forward was changed meanwhile: nothing is put elsewhere")
        moves = [one.moved(state, targets[one.partition]) for one in chosen]
        pairs = list(zip(chosen, moves, strict=True))
        puts = [row for forward, one in pairs for row in forward.rows(one.place.window, one.place.tally)]
        requires = [one for forward in chosen for one in forward.guard()]
        try:
            await self._store.submit(Unit(puts=puts, requires=requires, synced=True)).wait()
        except ConditionFailed:
            raise Conflict("another gateway has taken this forward: nothing is changed") from None
        for forward, one in pairs:
            forward.leave(one)
        return [one.shown for one in moves]

    async def drain(self) -> None:
        self._closing = True
        for forward in self._all():
            forward.stop()
        with trio.move_on_after(STOP_SECONDS):
            while not all(forward.idle for forward in self._all()):
                await self._context.pump.moment()

    # --- what others ask ---

    def objection(self, topic: str) -> str | None:
        """Why a topic must not be deleted."""
        for forward in self._running.get(topic, ()):
            if left := forward.backlog:
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
        if self._placeless and any(one[1:] == (topic, partition) for one in self._placeless):
            return 0  # what it has left to send is among what is there
        running = self._running.get(topic, ())
        return min((one.on_disk for one in running if one.partition == partition), default=None)

    def consumers(self) -> Iterator[ConsumerCounts]:
        for forward in self._all():
            account = forward.account()
            if account is not None:
                yield account

    def under_way(self, most: int) -> Sequence[UnderWay]:
        found: list[UnderWay] = []
        for forward in self._all():
            found += forward.under_way(most - len(found))
            if len(found) >= most:
                break
        return found

    def backlog(self, pool: UpstreamPool) -> int:
        return sum(forward.backlog for forward in self._all() if forward.pool is pool)

    def uses(self, pool: UpstreamPool) -> bool:
        """Whether one of them sends over these connections, or waits for an answer there."""
        return any(forward.pool is pool for forward in self._all())

    @property
    def names(self) -> Sequence[str]:
        return [_target(rule).name for rule in self._rules]

    def problem(self, name: str) -> str:
        """Why a forward does not go on; empty while it does."""
        for (lost, _topic, _partition), text in self._placeless.items():
            if lost == name:
                return text
        for forward in self._all():
            if forward.target.name == name and (text := forward.stopped or forward.unwritable):
                return text
        return ""

    # --- inside ---

    def _all(self) -> Sequence[PartitionForward]:
        # as they are now: what is done with one may bring a topic, and others with it
        return [forward for forwards in self._running.values() for forward in forwards]

    def _changed(self, pool: UpstreamPool) -> None:
        for forward in self._all():
            if forward.pool is pool:
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

    def _replace(self, topic: str) -> Counter[str]:
        # Those of a topic that are done go, and those that take their places begin. What is left to nobody, by name.
        done = [one for one in self._running[topic] if one.stopping and one.idle]
        for forward in done:
            forward.drop()
        state = self._store.topics.get(topic)
        left: Counter[str] = Counter()
        if state is None or state.epoch != done[0].epoch:
            self.deleted(topic)
            return left
        self._look_at(state, without=done)
        places = {one.place for one in self._running[topic]}
        for forward in done:
            if forward.place not in places:
                left[forward.target.name] += forward.backlog
        return left

    def _look_at(self, state: TopicState, without: Container[PartitionForward] = ()) -> None:
        # a topic is new, was made again, or has more partitions; or the rules are others
        before = self._partitions.get(state.name)
        if before is not None and before[0] != state.epoch:
            self.deleted(state.name)
        if self._closing:
            return
        self._partitions[state.name] = state.epoch, len(state.partitions)
        self._letters |= {rule.dead_letter(state.name) for rule in self._rules}
        staying = [one for one in self._running.get(state.name, ()) if one not in without]
        puts: list[Put] = []
        begun: list[PartitionForward] = []
        for rule, partition in _lacking(state, self._rules, self._letters, staying):
            target = _target(rule)
            if not self._owners.owns(job_of(target.name, state.name, partition)):
                continue
            if self._lost_its_place(target, state, partition):
                continue
            place = self._begin(target, state, partition, puts, existing=False)
            begun.append(PartitionForward(self._context, rule, self._pools[target.upstream], place))
        self._running[state.name] = [*staying, *begun]
        for forward in begun:
            forward.wake()
        if puts:
            requires = [one for made in begun for one in made.guard()]
            self._store.submit(Unit(puts=puts, requires=requires, synced=False))

    def _lost_its_place(self, target: Forward, state: TopicState, partition: int) -> bool:
        # whether its cursor may be gone with a damaged page: it would send again what is there, or leave out what is not
        key = row_key(target.name, state.name, partition)
        what = f"the place of the forward {target.name} in {state.name}/{partition}"
        lost = self._store.lost.found(TABLE, key, what, state.epoch)
        if lost is None or key in self._store.table(TABLE):
            return False
        self._placeless[target.name, state.name, partition] = lost.message
        return True

    def _goes_on(self, forward: PartitionForward) -> bool:
        return any(
            forward.rule.meaning == rule.meaning
            and forward.pool is self._pools[_target(rule).upstream]
            and _reads(rule, forward.topic, self._letters)
            for rule in self._rules
        )

    def _letters_of(self, rules: Sequence[RemoteRule]) -> frozenset[str]:
        return frozenset(rule.dead_letter(topic) for rule in rules for topic in self._store.topics)

    def _begin(
        self, target: Forward, state: TopicState, partition: int, puts: list[Put], *, existing: bool
    ) -> ConsumerPlace:
        # Where a cursor is, and how it came there; what makes it, if it is new, is added to `puts`. `existing`: the topic
        # was there before the forward was.
        span = max(MAX_SPAN, 8 * target.window)
        kept = self._store.table(TABLE).get(row_key(target.name, state.name, partition))
        bounds = state.partitions[partition]
        if kept is not None:
            epoch, window, tally = read_cursor(kept, span)
            if epoch == state.epoch:
                if knows_ends(self._store) and window.forget_from(bounds.end):
                    # as for subscriptions: the log has lost its end, and its offsets are given out again
                    tally = Tally(window.low, acknowledged=window.settled_above)
                    puts.append(cursor_row(target.name, state.name, partition, epoch, window, tally))
                return ConsumerPlace(state, partition, window, tally)
            self._context.recorder.dropped("", "epoch_changed", 1)
        now = kept is None and existing and target.start is ForwardStart.NOW
        window = AckWindow(bounds.end if now else bounds.start, span)
        puts.append(cursor_row(target.name, state.name, partition, state.epoch, window, tally := Tally(window.low)))
        return ConsumerPlace(state, partition, window, tally)


def _reads(rule: RemoteRule, topic: str, letters: Container[str]) -> bool:
    # dead letters keep the route they came by; forwarding them again would be a circle
    if is_reserved(topic) or topic.endswith(SUFFIX) or topic in letters:
        return False
    return rule.remote_address(topic) is not None


def _lacking(
    state: TopicState, rules: Sequence[RemoteRule], letters: Container[str], running: Iterable[PartitionForward]
) -> Iterator[tuple[RemoteRule, int]]:
    # the partitions of a topic that a rule reads and nobody of its name does
    there = {one.place for one in running if one.epoch == state.epoch}
    for rule in rules:
        if _reads(rule, state.name, letters):
            for partition in range(len(state.partitions)):
                if (_target(rule).name, partition) not in there:
                    yield rule, partition


def _target(rule: RemoteRule) -> Forward:
    assert isinstance(rule.target, Forward)
    return rule.target
