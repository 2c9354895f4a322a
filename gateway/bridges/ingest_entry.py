"""The last step of an ingest: a batch from a remote address through the broker's entry, as often as it takes.

What the broker refuses for now (a full disk, a target that is away) is tried again, in order, until it is stored. What it
refuses for good (no schema that fits, a transformation that fails) goes to the dead letters of its topic: one bad message
must not stand in the way of those behind it, and must not vanish. Where it is another gateway that pulls from here on, nothing
more is written: what was not stored comes to that one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import attrs
from msgspec.structs import replace

from gateway.bridges.breaker import BACKOFF, jittered
from gateway.bridges.lanes import is_final
from gateway.broker.broker import Broker
from gateway.broker.letters import Letters
from gateway.broker.service import Along, Clock, Guard, ListenerInfo
from gateway.broker.timers import Pump
from gateway.envelope import Batch, BatchIds, BatchMeta, Columns, Origin
from gateway.errors import ConditionFailed, GatewayError
from gateway.model import AuthNone
from gateway.recorder import Recorder
from gateway.requests import Completion, Delivered, Outcome, Publish, Published
from gateway.routing.address import complaint
from gateway.store.interface import Store, Unit

REFUSED = "refused"


@attrs.define(eq=False)
class Stored:
    """What became of deliveries; each of them is in the log or in the dead letters."""

    messages: int = 0
    errors: list[GatewayError] = attrs.Factory(list)
    """What was refused before it was stored."""
    fenced: bool = False
    """Not all of them: another gateway does this now."""


@attrs.frozen(eq=False)
class EntryContext:
    broker: Broker
    store: Store
    pump: Pump
    clock: Clock
    recorder: Recorder
    dead_letters: Letters
    chance: random.Random
    ids: BatchIds


@attrs.define(eq=False)
class _Task:
    """A batch, or what is left to be stored of one."""

    batch: Batch
    done: Callable[[], None]
    stored: Stored
    along: Along
    attempts: int = 0


class IngestEntry:
    """A connection to the broker, for one remote address: its messages come in under the upstream's name."""

    def __init__(
        self,
        context: EntryContext,
        upstream: str,
        protocol: str,
        peer: str,
        address: str,
        guard: Guard,
        *,
        rows: bool,
    ) -> None:
        """`rows`: some are written with what is stored."""
        self._context = context
        self._guard = guard
        self.address = address
        self._origin = Origin(protocol, upstream, "", peer)
        along = self._along if rows or guard() else None
        self._side = context.broker.attach(ListenerInfo(upstream, protocol, AuthNone()), peer, self._completed, along)
        self._ids = itertools.count(1)
        self._task: _Task | None = None
        self._cancel: Callable[[], None] | None = None
        self.stuck = False
        """What is stored was refused for now: it is tried again, and nothing else is."""

    def close(self) -> None:
        self._task = None
        if self._cancel is not None:
            self._cancel()
        self._side.detach()

    def store(self, deliveries: Sequence[Delivered], along: Along, done: Callable[[Stored], None]) -> None:
        """Store them all, in order, the last ones with rows; call back when those are."""
        stored = Stored()
        batches = [
            Batch(self.address, Columns.concat([one.run.columns for one in group]), delivery)
            for delivery, group in itertools.groupby(deliveries, key=lambda one: one.run.batches[0][2].delivery)
        ]

        def following() -> None:
            if not batches or stored.fenced:
                done(stored)
                return
            batch = batches.pop(0)
            # one id for all attempts: it names the messages for good
            batch = replace(batch, id=self._context.ids.next(self._context.clock.now_ms()))
            self._task = _Task(batch, following, stored, along if not batches else Along(requires=along.requires))
            self._try()

        following()

    # --- inside ---

    def _along(self) -> Along:
        task = self._task
        if task is None:
            return Along(requires=self._guard())
        return Along(task.along.puts, (*self._guard(), *task.along.requires))

    def _try(self) -> None:
        self._cancel = None
        task = self._task
        if task is not None:
            task.attempts += 1
            self._completed(self._side.submit([Publish(next(self._ids), task.batch)]))

    def _completed(self, completions: Sequence[Completion]) -> None:
        for _number, outcome in completions:
            if self._task is not None:
                self._ended(self._task, outcome)

    def _ended(self, task: _Task, outcome: Outcome) -> None:
        columns = task.batch.columns
        if isinstance(outcome, ConditionFailed):
            self._give_up(task)
        elif isinstance(outcome, GatewayError):
            task.stored.errors.append(outcome)
            if not is_final(outcome):
                self._again(task)
                return
            self._bury(task, columns, dict.fromkeys(range(columns.count), outcome), {})
        elif isinstance(outcome, Published) and outcome.refused:
            task.stored.errors.extend(list(outcome.refused.values())[:1])
            task.stored.messages += columns.count - len(outcome.refused)
            final = {index: error for index, error in outcome.refused.items() if is_final(error)}
            later = {index: error for index, error in outcome.refused.items() if index not in final}
            self._bury(task, columns, final, later)
        else:
            task.stored.messages += columns.count
            self._finish(task)

    def _bury(
        self,
        task: _Task,
        columns: Columns,
        final: Mapping[int, GatewayError],
        later: Mapping[int, GatewayError],
    ) -> None:
        # the final ones into the dead letters; then the others once more
        rest = columns.pick(sorted(later)) if later else None

        def go_on() -> None:
            if rest is not None:
                task.batch = replace(task.batch, columns=rest, id=b"")
                self._again(task)
            else:
                self._finish(task)

        if not final:
            go_on()
            return
        unit = self._letters(task, columns, final, last=rest is None)

        def write() -> None:
            self._cancel = None
            self._context.store.submit(unit).on_done(lambda ticket: written(ticket.error))

        def written(error: GatewayError | None) -> None:
            if self._task is not task:
                return
            if isinstance(error, ConditionFailed):
                self._give_up(task)
                return
            if error is not None:
                task.stored.errors.append(error)
                self._later(task, write)
                return
            self._context.recorder.dead_lettered("", REFUSED, len(final))
            task.stored.messages += len(final)
            go_on()

        write()

    def _letters(self, task: _Task, columns: Columns, final: Mapping[int, GatewayError], *, last: bool) -> Unit:
        topic = self.address if not complaint(self.address) else self._origin.listener
        meta = BatchMeta(task.batch.id, self._origin, "", task.batch.delivery)
        letters = self._context.dead_letters
        creates, append = letters.of_refused(topic, columns, meta, final, REFUSED, task.attempts)
        along = self._along()
        return Unit([append], along.puts if last else (), along.requires, creates)

    def _give_up(self, task: _Task) -> None:
        task.stored.fenced = True
        self._finish(task)

    def _again(self, task: _Task) -> None:
        self._later(task, self._try)

    def _later(self, task: _Task, callback: Callable[[], None]) -> None:
        self.stuck = True
        now = self._context.clock.now()
        delay = jittered(BACKOFF.delay(task.attempts), self._context.chance)
        self._cancel = self._context.pump.call_at(now + delay, callback)

    def _finish(self, task: _Task) -> None:
        self._task = None
        self.stuck = False
        task.done()
