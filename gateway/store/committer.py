"""Group commit: takes what is pending, writes it in one transaction, finishes exactly that.

`take`, `write` and `finish` are the whole of it. The task calls `write` in a thread, or directly when what is pending is
small and need not be synced: a thread hop costs more than such a write. The inline mode calls the three from `submit`.
"""

from __future__ import annotations

import enum
import functools
import sqlite3
import struct
import time
from collections.abc import Callable, Sequence

import attrs
import trio

from gateway.errors import (
    CommitFailed,
    GatewayError,
    InvalidRequest,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
)
from gateway.recorder import Recorder
from gateway.store.hop import WriterThread
from gateway.store.interface import StoreHealth, Ticket
from gateway.store.plan import Plan, small
from gateway.store.visible import Visible
from gateway.store.writer import Writer, Written

PROBE_FIRST = 0.1
PROBE_LONGEST = 5.0
"""Seconds between attempts to write again after a failure."""
COMMITS_PER_JOB = 8
"""While units wait, so many commits go before each step of maintenance."""
SYNC_MARGIN = 0.002
"""A sync of an `interval` topic begins this much before it is due."""


class Mode(enum.Enum):
    """Who makes the commits."""

    THREAD = "thread"  # the committer's task, in a thread where that pays
    INLINE = "inline"  # `submit` itself, before it returns
    STEPWISE = "stepwise"  # whoever calls `step`


@attrs.define(eq=False)
class Commit:
    """One commit on its way: the units it has taken, and what became of them."""

    tickets: Sequence[Ticket]
    plan: Plan
    written: Sequence[Written] = ()
    error: StoreError | None = None
    seconds: float = 0.0
    """What the transaction took."""


class Job:
    """A step of maintenance: writes in the writer's turn, then applies in the event loop."""

    def write(self, writer: Writer) -> None:
        """Runs where commits run. Raises StoreError when the disk does not want it."""
        raise NotImplementedError

    def apply(self) -> None:
        """Runs in the event loop after `write` has succeeded."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Runs in the event loop after `write` has failed: not to be offered again at once."""
        raise NotImplementedError


class Committer:
    """The single writer's queue."""

    def __init__(
        self,
        visible: Visible,
        writer: Writer,
        mode: Mode,
        now_ms: Callable[[], int],
        next_job: Callable[[], Job | None],
        recorder: Recorder,
    ) -> None:
        self.health = StoreHealth(writable=True)
        self.mode = mode
        self._visible = visible
        self._writer = writer
        self._now_ms = now_ms
        self._next_job = next_job
        self._recorder = recorder
        self._pending: list[Ticket] = []
        self._busy = False
        self._singles = 0
        """So many units are to be committed one by one, to find the one that cannot be stored."""
        self._wake: trio.Event | None = None
        self._closing = False
        self.closed = trio.Event()
        self.around: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """Called before and after the tickets of a commit are finished, so that replies can leave together."""
        self._sync_at = float("inf")
        self._syncing = False
        self._patience = 0
        """Commits that still go before a step of maintenance."""
        self._nursery: trio.Nursery | None = None
        self._probe_at = float("inf")
        self._probe_delay = PROBE_FIRST
        recorder.gauge("gateway_store_writable", 1)

    # --- the queue ---

    @property
    def idle(self) -> bool:
        """Nothing is pending or on its way."""
        return not self._pending and not self._busy

    def submit(self, ticket: Ticket) -> None:
        """Queue a unit behind all others, or refuse it at once."""
        if self._closing:
            ticket.finish(error=ShuttingDown("the store is closing"))
            return
        if not self.health.writable:
            ticket.finish(error=StoreReadOnly(self.health.reason))
            return
        self._pending.append(ticket)
        if self.mode is Mode.INLINE:
            self.drain()
        else:
            self.wake()

    def wake(self) -> None:
        """There is something to do."""
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def take(self) -> list[Ticket]:
        """Everything that is pending now. What is submitted from here on belongs to the next commit."""
        if self._singles:
            self._singles -= 1
            taken, self._pending = self._pending[:1], self._pending[1:]
        else:
            taken, self._pending = self._pending, []
        return taken

    def write(self, tickets: Sequence[Ticket], synced: bool = False) -> Commit:
        """Write units in one transaction; needs no event loop. Units that do not fit stay out of the commit."""
        writer = self._writer
        plan = Plan(self._visible.catalogue, writer.connection, writer.number + 1, self._now_ms())
        taken = 0
        for ticket in tickets:
            taken += 1
            if not plan.admit(ticket):
                break
        plan.synced |= synced
        commit = Commit(tickets[:taken], plan)
        began = time.perf_counter()
        try:
            commit.written = writer.write(plan)
            commit.seconds = time.perf_counter() - began
        except StoreError as error:
            commit.error = error
        except (ValueError, OverflowError, struct.error) as error:
            # A value no chunk can hold. Alone it fails; in company nothing is known about the others yet.
            writer.rollback()
            if taken > 1:
                commit.tickets, self._singles = (), taken
                plan.results.clear()
            else:
                plan.results[:] = [(ticket, InvalidRequest(f"cannot be stored: {error}")) for ticket in commit.tickets]
            commit.plan = Plan(plan.catalogue, plan.connection, plan.number, plan.now_ms, plan.results)
        return commit

    def finish(self, taken: Sequence[Ticket], commit: Commit) -> None:
        """Make a commit visible and finish its tickets, in order; what it left out goes back to the front."""
        self._pending[:0] = taken[len(commit.tickets) :]
        if commit.error is not None:
            self._fail(commit, commit.error)
            return
        plan = commit.plan
        if plan.writes:
            records = sum([chunk.run.count for chunk in commit.written])
            size = sum([chunk.run.columns.value_bytes for chunk in commit.written])
            self._recorder.committed(records, size, commit.seconds, plan.synced)
        if plan.synced and plan.writes:
            self._sync_at = float("inf")
        elif plan.interval is not None and self.mode is Mode.THREAD:
            wait = max(plan.interval - SYNC_MARGIN, plan.interval / 2)
            self._sync_at = min(self._sync_at, trio.current_time() + wait)
        for ticket, result in self._visible.apply(plan, commit.written):
            if isinstance(result, GatewayError):
                ticket.finish(error=result)
            elif result is not None:
                ticket.finish(result)

    def _fail(self, commit: Commit, error: StoreError) -> None:
        behind, self._pending = self._pending, []
        self._singles = 0
        self._refuse_writes(error)
        for ticket in commit.tickets:
            ticket.finish(error=error)
        for ticket in behind:
            ticket.finish(error=CommitFailed(f"a commit before it failed: {error.message}"))

    def _refuse_writes(self, error: StoreError) -> None:
        if self.health.writable:
            self._probe_delay = PROBE_FIRST
            self._recorder.gauge("gateway_store_writable", 0)
        else:
            self._probe_delay = min(2 * self._probe_delay, PROBE_LONGEST)
        self.health = StoreHealth(writable=False, reason=error.message)
        if self.mode is Mode.THREAD:
            self._probe_at = trio.current_time() + self._probe_delay

    def _healed(self) -> None:
        self.health = StoreHealth(writable=True)
        self._probe_at = float("inf")
        self._sync_at = float("inf")
        self._recorder.gauge("gateway_store_writable", 1)

    # --- without a task ---

    def step(self) -> bool:
        """One commit here and now; False if nothing was pending."""
        if not self._pending:
            return False
        taken = self.take()
        self.finish(taken, self.write(taken))
        return True

    def drain(self) -> None:
        """Commit until nothing is pending. Units submitted by callbacks are committed after those that called."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.step():
                pass
        finally:
            self._busy = False

    def maintain(self) -> None:
        """Do what the task does between commits: heal, sync, check-point, every job that is due."""
        if not self.health.writable:
            self._try(self._writer.probe)
        for job in iter(self._next_job, None):
            if not self._try(functools.partial(job.write, self._writer)):
                job.give_up()
                return
            job.apply()
        self.finish_up()
        self._writer.checkpoint()

    def _try(self, work: Callable[[], None]) -> bool:
        return self._note(self._attempt(work))

    def _attempt(self, work: Callable[[], None]) -> StoreError | None:
        try:
            work()
        except StoreError as error:
            return error
        except sqlite3.Error as error:
            return self._writer.undo(error)
        return None

    def _note(self, error: StoreError | None) -> bool:
        if error is None:
            if not self.health.writable:
                self._healed()
        elif not isinstance(error, StoreDamaged):  # damage is told to whoever reads it; writing goes on
            self._refuse_writes(error)
        return error is None

    # --- the task ---

    async def run(self) -> None:
        """Commit until closed."""
        with WriterThread() as thread:
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._run(thread)
            finally:
                self._closing = True
                for ticket in self._pending:
                    ticket.finish(error=ShuttingDown("the store is closing"))
                self._pending = []
                self.finish_up()
                self.closed.set()

    async def _run(self, thread: WriterThread) -> None:
        while True:
            if self._pending:
                await self._commit(thread)
            elif self._closing:
                break
            if self._pending and self._patience:
                self._patience -= 1
                continue
            self._patience = COMMITS_PER_JOB
            if not await self._background(thread) and not self._pending and not self._closing:
                await self._park()

    async def _park(self) -> None:
        self._wake = wake = trio.Event()
        deadline = self._probe_at if self._syncing else min(self._sync_at, self._probe_at)
        if deadline == float("inf"):
            await wake.wait()
        else:
            with trio.move_on_at(deadline):
                await wake.wait()
        self._wake = None

    async def _commit(self, thread: WriterThread) -> None:
        taken = self.take()
        self._busy = True
        if self._writer.checkpoint_due or not small(taken, self._visible.catalogue):
            commit = await thread.run(self.write, taken)
        else:
            commit = self.write(taken)
        self._busy = False
        for before, _after in self.around:
            before()
        self.finish(taken, commit)
        for _before, after in self.around:
            after()
        if self._writer.checkpoint_due:
            await self._in_thread(thread, self._writer.checkpoint)

    async def _background(self, thread: WriterThread) -> bool:
        """One thing that is due beside commits; False if nothing is."""
        now = trio.current_time()
        if not self.health.writable:
            if now < self._probe_at:
                return False
            await self._in_thread(thread, self._writer.probe)
        elif now >= self._sync_at and not self._syncing and self._nursery is not None:
            self._sync_at = float("inf")
            self._syncing = True
            self._nursery.start_soon(self._sync_beside)
        else:
            job = self._next_job()
            if job is None:
                return False
            if await self._in_thread(thread, functools.partial(job.write, self._writer)):
                job.apply()
            else:
                job.give_up()
        return True

    async def _sync_beside(self) -> None:
        """Sync what `interval` topics have promised while commits go on: a slow disk must not hold up those that do not
        wait for it.
        """
        error = await trio.to_thread.run_sync(self._attempt, self._writer.sync_log)
        self._syncing = False
        if error is not None:
            self._note(error)
        self.wake()

    async def _in_thread(self, thread: WriterThread, work: Callable[[], None]) -> bool:
        self._busy = True
        error = await thread.run(self._attempt, work)
        self._busy = False
        return self._note(error)

    def finish_up(self) -> None:
        """Put on disk what is only written. The last thing before the files are closed."""
        if self.health.writable and self._writer.synced != self._writer.number:
            self._try(self._writer.sync)

    def close(self) -> None:
        """Commit what is pending and stop."""
        self._closing = True
        self.wake()
