"""Group commit: takes what is pending, writes it in one transaction, finishes exactly that.

`take`, `write` and `finish` are the whole of it. `gateway.store.loop` calls them when the store runs in an event loop,
`write` in a thread where that pays; the inline mode calls the three from `submit`.
"""

from __future__ import annotations

import enum
import functools
import sqlite3
import struct
import time
from collections.abc import Callable, Sequence

import msgspec
import trio

from gateway.envelope import PREFIX, Run
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
from gateway.store.interface import Placement, StoreHealth, Ticket
from gateway.store.plan import COMMIT_BYTES, CommitPlan, Lone, Result, unit_bytes
from gateway.store.posting import Posting, WrittenChunk
from gateway.store.ration import LEAST, LITTLE, SHARED_FOR, CommitPace, Turns, passes
from gateway.store.rows_at_hand import RowsAtHand
from gateway.store.visible import Visible
from gateway.store.writer import Writer

PROBE_FIRST = 0.1
PROBE_LONGEST = 5.0
"""Seconds between attempts to write again after a failure."""


class Mode(enum.Enum):
    """Who makes the commits."""

    THREAD = "thread"  # the store's loop, in a thread where that pays
    INLINE = "inline"  # `submit` itself, before it returns
    STEPWISE = "stepwise"  # whoever calls `step`


class CommitUnderWay(msgspec.Struct, eq=False):
    """One commit on its way: the units it has taken, and what became of them."""

    tickets: Sequence[Ticket]
    plan: CommitPlan | Lone
    written: Sequence[WrittenChunk] = ()
    posted: Sequence[Posting] = ()
    """What was in the journal before it and went along."""
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
        self.writer = writer
        self.at_hand = RowsAtHand()
        self.next_job = next_job
        """The step of maintenance that is due, if there is one."""
        self.pending: list[Ticket] = []
        self.closing = False
        self.submitted: Callable[[], None] = lambda: None
        """Called when a unit has been queued."""
        self._now_ms = now_ms
        self._recorder = recorder
        self._draining = False
        self.pace = CommitPace()
        self._turns = Turns()
        self._source = 0
        """Who has handed in the last unit."""
        self._shared = 0
        """Commits for which it is taken to be one of several."""
        self._singles = 0
        """So many units are to be committed one by one, to find the one that cannot be stored."""
        self.around: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """Called before and after the tickets of a commit are finished, so that replies can leave together."""
        self.sync_within: Callable[[float], None] = lambda _interval: None
        """Called when something is written that is to be synced within so many seconds."""
        self.rests_until = 0.0
        """So long those who have much leave the disk to those who have little; 0 when they do not."""
        self.probe_at = float("inf")
        """When to try whether the disk takes writes again."""
        self._probe_delay = PROBE_FIRST
        recorder.writable(True)

    # --- the queue ---

    def submit(self, ticket: Ticket) -> None:
        """Queue a unit behind all others, or refuse it at once."""
        if self.closing:
            ticket.finish(error=ShuttingDown("the store is closing"))
            return
        if not self.health.writable:
            ticket.finish(error=StoreReadOnly(self.health.reason))
            return
        self.pending.append(ticket)
        if ticket.unit.source != self._source:
            self._source, self._shared = ticket.unit.source, SHARED_FOR
        if self.mode is Mode.INLINE:
            self.drain()
        else:
            self.submitted()

    @property
    def favours_little(self) -> bool:
        """Whether the next commit is of those alone who have little, beside others who have much."""
        return not self._singles and self._turns.favours_little(self.pending)

    @property
    def resting(self) -> bool:
        """Whether only those who have little are committed now. What keeps its place in the line ends the rest: whoever comes
        behind it waits for it, however little he has.
        """
        over = self.closing or self._singles or trio.current_time() >= self.rests_until
        if over or not all(passes(ticket.unit) for ticket in self.pending):
            self.rests_until = 0.0
        return self.rests_until > 0

    def better_joined(self, answered: Sequence[Ticket]) -> bool:
        """Whether the next commit had better wait for those who are answered by the last one. Where each waits for his answers
        they come back at once. Those who have come meanwhile would be another group, and the two would go on to take turns: a
        sync for each, and the thread at the interpreter's lock just when the loop answers and reads the others.
        """
        pending = self.pending
        waiting = {ticket.unit.source for ticket in pending}
        coming = {ticket.unit.source for ticket in answered}
        if not waiting or 0 in waiting or len(waiting) >= len(coming - {0}) or not waiting.isdisjoint(coming):
            return False
        if self._singles or self.favours_little:
            return False
        return sum([unit_bytes(ticket.unit) for ticket in (*pending, *answered)]) <= self.pace.room

    def take(self) -> list[Ticket]:
        """All that is pending now, or as much of it as a commit may have. What is submitted from here on belongs to the next."""
        shared = self._shared
        if shared:
            self._shared = shared - 1
        if len(self.pending) == 1:
            taken, self.pending = self.pending, []
        elif self._singles:
            taken, self.pending = self.pending[:1], self.pending[1:]
        else:
            taken, self.pending = self._turns.take(self.pending, self.pace.room if shared else COMMIT_BYTES)
            self.pace.hasty = self._turns.hasty
        if self._singles:
            self._singles -= 1
        return taken

    def take_little(self) -> list[Ticket]:
        """Of that, what those have handed in who have little; nothing while units are committed one by one."""
        if self._singles:
            return []
        taken, self.pending = self._turns.take_little(self.pending)
        return taken

    def write(self, tickets: Sequence[Ticket], synced: bool = False, *, short: bool = False) -> CommitUnderWay:
        """Write units in one transaction, or by the short way; needs no event loop. Units that do not fit stay out of it."""
        writer = self.writer
        database = None if short else writer.connection
        plan = CommitPlan(self._visible.catalogue, database, self.at_hand, writer.number + 1, self._now_ms())
        taken = 0
        for ticket in tickets:
            taken += 1
            if not plan.admit(ticket):
                break
        plan.synced |= synced
        commit = CommitUnderWay(tickets[:taken], plan)
        began = time.perf_counter()
        try:
            commit.written, commit.posted = writer.write(plan, short=short)
            commit.seconds = time.perf_counter() - began
        except StoreError as error:
            commit.error = error
        except (ValueError, OverflowError, struct.error) as error:
            # A value no chunk can hold. Alone it fails; in company nothing is known about the others yet.
            if not short:  # then there is no transaction, but somebody else's
                writer.rollback()
            if taken > 1:
                commit.tickets, self._singles = (), taken
                plan.results.clear()
            else:
                plan.results[:] = [(ticket, InvalidRequest(f"cannot be stored: {error}")) for ticket in commit.tickets]
            commit.plan = CommitPlan(
                plan.catalogue, plan.connection, plan.at_hand, plan.number, plan.now_ms, plan.results
            )
        return commit

    def write_lone(self, ticket: Ticket, lone: Lone, *, short: bool = False) -> CommitUnderWay:
        """The same for a unit of which nothing has to be planned."""
        append, log = lone.append, lone.log
        state, columns = log.state, append.columns
        now, last = self._now_ms(), state.last_time_ms
        # tuples, as of what is kept: those of numbers the collector of cycles forgets about
        times = (max(last, now),) * columns.count
        run = Run(append.topic, log.number, state.end, columns, times, ((0, append.first_index, append.meta),))
        commit = CommitUnderWay((ticket,), lone)
        write = self.writer.append_short if short else self.writer.append
        began = time.perf_counter()
        try:
            commit.written = (write(log, run, lone.synced),)
        except StoreError as error:
            commit.error = error
        except (ValueError, OverflowError, struct.error):
            return self.write((ticket,), short=short)  # which says what of it no chunk can hold
        commit.seconds = time.perf_counter() - began
        return commit

    def finish(self, taken: Sequence[Ticket], commit: CommitUnderWay) -> None:
        self.settle(self.apply(taken, commit))

    def apply(self, taken: Sequence[Ticket], commit: CommitUnderWay) -> Sequence[tuple[Ticket, Result]]:
        """Make a commit visible; what it left out goes back to the front. Returns how its tickets end, for `settle`."""
        # in front, so that units that touch the same topic still end in the order in which they were submitted
        self.pending[:0] = taken[len(commit.tickets) :]
        if commit.error is not None:
            return self._fail(commit, commit.error)
        if commit.posted:
            self._visible.posted(commit.posted)
        elif commit.written and commit.written[0].number:
            self.writer.journalled(commit.written)
        plan = commit.plan
        if plan.writes:
            records = size = 0
            for chunk in commit.written:
                columns = chunk.run.columns
                records += columns.count
                size += len(columns.packed) - PREFIX * columns.count
            self._recorder.committed(records, size, commit.seconds, plan.synced)
            if plan.synced or size > LEAST:
                self.pace.note(size, commit.seconds, plan.synced)
            if self._turns.hasty:
                self._in_haste(size, commit.seconds)
        if plan.interval is not None and not plan.synced:
            self.sync_within(plan.interval)
        if isinstance(plan, Lone):
            (chunk,) = commit.written
            self._visible.grown(chunk)
            return ((commit.tickets[0], [Placement(chunk.run.base_offset, chunk.run.times[0])]),)
        if plan.puts:
            self.at_hand.wrote(plan.puts, plan.kept, plan.number, self.writer.stored)
        return self._visible.apply(plan, commit.written)

    def _in_haste(self, size: int, seconds: float) -> None:
        # such a commit was made: after one of those who have much they rest
        if size > LITTLE and self.mode is Mode.THREAD:
            rest = self.pace.rest(seconds)
            self.rests_until = trio.current_time() + rest
            seconds += rest
        self._turns.spent(seconds)
        self.pace.hasty = self._turns.hasty

    def settle(self, results: Sequence[tuple[Ticket, Result]]) -> None:
        for ticket, result in results:
            if isinstance(result, GatewayError):
                ticket.finish(error=result)
            elif result is not None:
                ticket.finish(result)

    def _fail(self, commit: CommitUnderWay, error: StoreError) -> Sequence[tuple[Ticket, Result]]:
        # they were submitted believing that those before them are stored: none of them may apply when these are not
        behind, self.pending = self.pending, []
        self._singles = 0
        self._refuse_writes(error)
        results: list[tuple[Ticket, Result]] = [(ticket, error) for ticket in commit.tickets]
        return results + [(ticket, CommitFailed(f"a commit before it failed: {error.message}")) for ticket in behind]

    def refuse_pending(self, error: GatewayError) -> None:
        refused, self.pending = self.pending, []
        for ticket in refused:
            ticket.finish(error=error)

    def _refuse_writes(self, error: StoreError) -> None:
        if self.health.writable:
            self._probe_delay = PROBE_FIRST
            self._recorder.writable(False, error.message)
        else:
            # a disk that stays full is asked ever more rarely: each probe is a synced write
            self._probe_delay = min(2 * self._probe_delay, PROBE_LONGEST)
        self.health = StoreHealth(writable=False, reason=error.message)
        if self.mode is Mode.THREAD:
            self.probe_at = trio.current_time() + self._probe_delay

    def _healed(self) -> None:
        self.health = StoreHealth(writable=True)
        self.probe_at = float("inf")
        self._recorder.writable(True)

    # --- without a task ---

    def step(self) -> bool:
        """One commit here and now; False if nothing was pending."""
        if not self.pending:
            return False
        taken = self.take()
        self.finish(taken, self.write(taken))
        return True

    def drain(self) -> None:
        """Commit until nothing is pending. Units submitted by callbacks are committed after those that called."""
        # a callback has submitted more: the outermost call commits it when those that it was called among have all ended
        if self._draining:
            return
        self._draining = True
        try:
            while self.step():
                pass
        finally:
            self._draining = False

    def maintain(self) -> None:
        """Do what the task does between commits: heal, sync, check-point, every job that is due."""
        if not self.health.writable:
            self._try(self.writer.probe)
        for job in iter(self.next_job, None):
            if not self._try(functools.partial(job.write, self.writer)):
                job.give_up()
                return
            job.apply()
        self.finish_up()
        self.writer.checkpoint()

    def _try(self, work: Callable[[], None]) -> bool:
        return self.note(self.attempt(work))

    def attempt(self, work: Callable[[], None]) -> StoreError | None:
        """Do something with the writer; what went wrong, if anything. Needs no event loop."""
        try:
            work()
        except StoreError as error:
            return error
        except sqlite3.Error as error:
            return self.writer.undo(error)
        return None

    def note(self, error: StoreError | None) -> bool:
        """Draw the consequences of an attempt; True if it succeeded."""
        if error is None:
            if not self.health.writable:
                self._healed()
        elif not isinstance(error, StoreDamaged):  # damage is told to whoever reads it; writing goes on
            self._refuse_writes(error)
        return error is None

    def posted(self, posted: Sequence[Posting]) -> None:
        """The database has what the journal had."""
        self.writer.dropped(posted)
        self._visible.posted(posted)

    def retire_journal(self) -> None:
        """Leave everything in the database. Where the disk does not want that, the journal stays, and the next start goes on
        with it.
        """
        writer = self.writer
        if self.health.writable and writer.unposted:
            self._try(lambda: self.posted(writer.post(len(writer.unposted), synced=True)))
        if self.health.writable and not writer.unposted:
            self._try(writer.retire_journal)

    def finish_up(self) -> None:
        """Put on disk what is only written."""
        if self.health.writable and not self.writer.unposted and self.writer.synced != self.writer.number:
            self._try(self.writer.sync)
