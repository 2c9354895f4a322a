"""When commits are made in a store that runs in an event loop, and what is done between them.

A commit begins when a connection has handed in all that one read brought (`hold`, `release`). It runs in a thread, or here and
now when it is small and need not be synced: the hop costs more than such a write. What goes to the thread waits for the next pass
of the loop if several are at it: then one commit takes what they all have, and those who came while the last was written, and are
fewer, wait for those who are answered to come back. Who goes on alone, one small unit after the other, on
a disk that is quick, has synced ones here too: nobody else is there to wait for them, and the first who comes ends it. What the
thread has done is finished as soon as it says so, and the next thing begins there: no task has to be woken for any of it. The
task keeps the time.

What is small and does nothing but append, or writes rows along that nobody reads before a start, goes the short way, to the
journal. What that holds is posted to the database by a thread of its own, while the short way goes on; nothing else is done
with the database meanwhile. Only readers in other processes are served from there, so that it may take a while, unless there is
one (`gateway.store.onlookers`).
"""

from __future__ import annotations

import _thread
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import outcome
import trio

from gateway.errors import ShuttingDown, StoreError
from gateway.store.catalogue import Catalogue
from gateway.store.committer import Committer, CommitUnderWay, Job
from gateway.store.interface import Ticket
from gateway.store.onlookers import Onlookers
from gateway.store.plan import lone, plain, small
from gateway.store.posting import Posting
from gateway.store.ration import DiskTrust, Lately
from gateway.store.syncer import Syncer
from gateway.store.writer import CHECKPOINT_PAGES, REST_PAGES

ALONE_FOR = 16
"""Commits in a row, each of one unit that one connection has waited for, after which it is taken to go on like that."""
QUICK_COMMIT = 0.0004
"""Seconds. On a disk where a small synced commit takes no longer, the hop to the thread and back takes as long again; and so long
the event loop may wait for somebody who is alone.
"""
SLOW_COMMIT = 0.002
"""Seconds. From the thread it looks longer than it takes: that one has to win back the interpreter."""
SLOW_FOR, SOON_AGAIN = 256, 16
"""Commits that go to the thread when those in the loop have not been quick; and when nearly all were."""
JOIN_PASSES = 2
"""Passes of the loop until those who are answered in one have been read again: the first may be the one that reads them."""
COMMITS_PER_JOB = 8
"""While units wait, so many commits go before each step of maintenance."""
HASTY_PAGES = 32
"""The same while somebody is quiet beside others who have much: to copy 4 MiB takes a processor as long as ten small commits."""
LOG_PAGES = 8 * CHECKPOINT_PAGES
"""The write-ahead log is carried over beside commits, piece by piece. It begins anew only when it is as long as this: the rest of
it is carried over between two commits, and the second waits for that.
"""
POST_AFTER, POST_BYTES, POST_CHUNKS = 1.0, 1 << 20, 512
"""Seconds that something is in the journal, bytes and chunks, before it is posted to the database: a transaction costs several
messages, and of two a second nobody is to notice.
"""
POST_SOON, LOOKED_FOR = 0.05, 5.0
"""The same while somebody in another process reads, who waits for it; and how long it is taken that he does, after a look."""
POST_AGAIN = 1.0
"""Seconds after which it is tried again when the database has refused it."""
MOST_PAGES = 16 * CHECKPOINT_PAGES
"""Then what commits wrote meanwhile is carried over once more, and so on, until there is little left. Commits that are quicker
than that wait when it has become so long.
"""

T = TypeVar("T")


class WriterThread:
    """Runs functions one after the other; who gives it one sees to it that the one before is done.

    One thread for one job at a time needs none of the bookkeeping of `trio.to_thread`: a hop there and back costs a quarter,
    which is what a producer that sends one record at a time waits for beside the disk.
    """

    def __init__(self, name: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._work: Callable[[], Any] | None = None
        self._done: Callable[[outcome.Outcome[Any]], None] = lambda _result: None
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._thread = threading.Thread(target=self._loop, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._work = None
        self._wake.release()
        self._thread.join()

    def start(self, work: Callable[[], T], done: Callable[[outcome.Outcome[T]], None]) -> None:
        """Call `work` in the thread, and `done` with what became of it in the event loop. `done` must not raise."""
        self._work, self._done = work, done
        self._wake.release()

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            work = self._work
            if work is None:
                return
            self._token.run_sync_soon(self._done, outcome.capture(work))
            del work  # what it was about may be large, and the next job may be long in coming


class CommitLoop:
    def __init__(self, committer: Committer, catalogue: Catalogue, onlookers: Onlookers) -> None:
        self.closed = trio.Event()
        self._onlookers = onlookers
        self._committer = committer
        self._writer = committer.writer
        self._catalogue = catalogue
        self._thread: WriterThread | None = None
        self._syncer: Syncer | None = None
        self._carrier: WriterThread | None = None
        self._poster: WriterThread | None = None
        self._busy = False
        """A commit or a step of maintenance is under way."""
        self._working = False
        """The writer thread is at work on that commit or step."""
        self._direct = False
        """It uses the database."""
        self._posting = False
        """The database gets what the journal has."""
        self._post_at = math.inf
        self._job: Job | None = None
        """A step of maintenance that waits for that."""
        self._looked_until = -math.inf
        """So long somebody in another process is taken to read."""
        self._carrying = False
        self._carried_pages = 0
        """Of the write-ahead log, as long as there is a rest."""
        self._pages_until = CHECKPOINT_PAGES
        """With so many more something is to be done about it."""
        self._rest_due = False
        """The rest of it is to be carried over before the next commit."""
        self._held = 0
        self._last = 0
        """The connection that handed in the last units: if it comes again it is alone, and its commit waits for nobody. Who only
        reads has nothing that could share it.
        """
        self._last_heard = 0
        """The connection that asked for something last, units or not."""
        self._alone = 0
        """How often in a row that one, and nobody else, has handed in one unit and waited for it."""
        self._lately = Lately()
        """What synced commits in the loop take."""
        self._trust = DiskTrust(SLOW_FOR, SOON_AGAIN)
        self._joining = 0
        """Passes of the loop before the next commit, in which those who were answered come back."""
        self._patience = 0
        """Commits that still go before a step of maintenance."""
        self._scope: trio.CancelScope | None = None
        self._woken = False
        self._closing = False
        self._failure: outcome.Error | None = None
        committer.submitted = self._submitted

    # --- what tells it that there is something to do ---

    def hold(self) -> None:
        """Units are coming: begin no commit before the `release` that goes with this."""
        self._held += 1

    def release(self, by: int) -> None:
        """They are all there. `by`: the connection that hands them in. Who is alone gets a commit at once, and so does what is
        made here, as that costs less than to come back for it; for a sync, or for much, several wait for the next pass of the
        loop, which has something of all of them.
        """
        self._held -= 1
        if self._held:
            return
        if by != self._last_heard:
            self._last_heard = by
            self._alone = min(self._alone, 0)
        pending = self._committer.pending
        if not pending:
            return
        alone, self._last = by == self._last, by
        if self._thread is not None and (alone or small(pending, self._catalogue)):
            self._advance(together=False)
        else:
            self.wake()

    def _submitted(self) -> None:
        if not self._held:
            self.wake()

    def wake(self) -> None:
        scope = self._scope
        if scope is None:
            self._woken = True
        elif scope.deadline != -math.inf:  # to set it is dear, and fifty connections say so in one pass
            scope.deadline = -math.inf

    def close(self) -> None:
        self._closing = self._committer.closing = True
        self.wake()

    # --- one thing after the other ---

    def _advance(self, *, together: bool = True) -> None:
        # begin what is next, unless something is under way; go on until something is, or nothing is left
        committer, writer = self._committer, self._writer
        while not (self._busy or self._joining) and self._failure is None:
            due = self._rest_due or not self._patience or writer.pages >= self._pages_until
            if due and len(committer.pending) > 1 and committer.favours_little:
                # before what is to be done for the log: that waits for no more than this one, as the next is of all
                if not self._commit_next(together=together):
                    break
            elif self._rest_due and not self._posting:
                self._rest_due, self._direct = False, True
                self._start(writer.checkpoint, lambda _nothing: None)
            elif writer.pages >= self._pages_until and not self._posting and self._log_is_full():
                # who has little adds next to nothing to it
                if not committer.pending or not self._commit(committer.take_little(), together=together):
                    break
            elif committer.pending and committer.rests_until and not self._posting and committer.resting:
                if not self._commit(committer.take_little(), together=together):
                    break
            elif committer.pending and (self._patience or self._closing) and (self._job is None or self._posting):
                self._patience -= 1
                if not self._commit_next(together=together):
                    break
            elif not self._closing and self._maintain():
                self._patience = COMMITS_PER_JOB
            elif committer.pending:
                self._patience = COMMITS_PER_JOB
                if not self._commit_next(together=together):
                    break
            else:
                break
        if self._post_at == -math.inf and committer.health.writable:
            self._post()
        scope = self._scope
        if scope is not None:
            deadline = scope.deadline
            if committer.probe_at < deadline or self._post_at < deadline or 0 < committer.rests_until < deadline:
                scope.deadline = min(self._deadline(), deadline)

    def _commit_next(self, *, together: bool) -> bool:
        # begin one; False if it has to wait until the database is free
        if self._posting and not self._is_short(self._committer.pending):  # then nothing else may be done
            return False
        return self._commit(self._committer.take(), together=together)

    def _commit(self, taken: list[Ticket], *, together: bool) -> bool:
        # begin it; False if there is nothing in it
        if not taken:
            return False
        committer, writer = self._committer, self._writer
        short = self._posting
        single = lone(taken, self._catalogue)
        synced: bool | None = None
        if single is not None:
            short = short or (single.short and writer.takes_short)
        elif short or writer.takes_short:
            synced = plain(taken, self._catalogue, committer.at_hand)
            short = synced is not None
        self._direct = not short
        if single is not None and (short or not writer.unposted):
            work: Callable[[], CommitUnderWay] = functools.partial(committer.write_lone, taken[0], single, short=short)
            here = single.small and (not single.synced or (not together and self._alone >= ALONE_FOR))
        else:
            work = functools.partial(committer.write, taken, short=short)
            here = small(taken, self._catalogue) if synced is None else not synced
        self._alone = self._alone + 1 if single is not None and not together else min(self._alone, 0)
        if here:
            self._busy = True
            self._ended(outcome.capture(self._write_here, taken, work, together))
        else:
            self._start(work, functools.partial(self._written, taken))
        return True

    def _write_here(self, taken: list[Ticket], work: Callable[[], CommitUnderWay], together: bool) -> None:
        commit = work()
        if commit.plan.synced:
            self._lately.note(commit.seconds)
            if self._lately.within(QUICK_COMMIT):
                self._trust.quick()
            else:
                self._alone, self._lately = -self._trust.slow(), Lately()
        self._written(taken, commit, together=together)

    def _written(self, taken: list[Ticket], commit: CommitUnderWay, *, together: bool = True) -> None:
        # From inside a connection's own call, other connections hear of the commit in the next pass, as of anything.
        committer = self._committer
        if commit.seconds > SLOW_COMMIT:
            self._alone = min(self._alone, 0)
        around = committer.around if together else ()
        for before, _after in around:
            before()
        results = committer.apply(taken, commit)
        writer = self._writer
        if self._post_at == math.inf or writer.unposted_bytes >= POST_BYTES or len(writer.unposted) >= POST_CHUNKS:
            self._note_unposted()
        if together:
            self._begin_early(taken)
        committer.settle(results)
        for _before, after in around:
            after()

    def _begin_early(self, answered: Sequence[Ticket]) -> None:
        # The disk need not wait while the replies to the last commit leave. This one's cannot overtake them: what the thread
        # has done is heard of when that is over.
        committer = self._committer
        if not committer.pending or not self._patience or self._rest_due:
            return
        if self._writer.pages >= self._pages_until and not self._posting and self._log_is_full():
            return
        if not small(committer.pending, self._catalogue):
            short = self._posting
            if self._job is not None or (short and not self._is_short(committer.pending)):
                return
            if committer.rests_until and committer.resting:
                return
            if committer.better_joined(answered):
                self._joining = JOIN_PASSES
                self.wake()
                return
            self._patience -= 1
            taken = committer.take()
            short = short or self._is_short(taken)
            self._direct = not short
            work = functools.partial(committer.write, taken, short=short)
            self._start(work, functools.partial(self._written, taken))

    # --- from the journal to the database ---

    def _is_short(self, tickets: list[Ticket]) -> bool:
        return self._writer.takes_short and plain(tickets, self._catalogue, self._committer.at_hand) is not None

    def looked(self) -> None:
        """Somebody in another process reads."""
        self._looked_until = trio.current_time() + LOOKED_FOR
        if self._writer.unposted and self._committer.health.writable and not self._closing:
            self._post_at = -math.inf
            self._post()

    def _note_unposted(self) -> None:
        writer = self._writer
        if writer.unposted_bytes >= POST_BYTES or len(writer.unposted) >= POST_CHUNKS:
            self._post_at = -math.inf  # as soon as the database is free
        elif writer.unposted and self._post_at == math.inf:
            now = trio.current_time()
            looked = now < self._looked_until or not self._onlookers.told
            self._post_at = now + (POST_SOON if looked else POST_AFTER)

    def _post(self) -> None:
        # begin to post what the journal has, unless something else uses the database
        if self._posting or (self._busy and self._direct):
            return
        self._post_at = math.inf
        writer = self._writer
        count = len(writer.unposted)
        if not count:
            return
        assert self._poster is not None
        self._posting = True
        self._poster.start(functools.partial(self._posted_in_thread, count, writer.must_sync), self._posted)

    def _posted_in_thread(self, count: int, synced: bool) -> Sequence[Posting] | StoreError:
        try:
            return self._writer.post(count, synced=synced)
        except StoreError as error:
            return error

    def _posted(self, result: outcome.Outcome[Sequence[Posting] | StoreError]) -> None:
        self._posting = False
        committer = self._committer
        if isinstance(result, outcome.Error):
            self._failure = result
            self.wake()
            return
        found = result.unwrap()
        if isinstance(found, StoreError):
            committer.note(found)
            self._post_at = trio.current_time() + POST_AGAIN
            if self._job is not None:
                self._job.give_up()
                self._job = None
        else:
            committer.posted(found)
            self._note_unposted()
        if self._closing or not committer.health.writable:
            self.wake()
        else:
            self._advance()

    def _log_is_full(self) -> bool:
        # The write-ahead log has grown by what was allowed. Begin to carry it over; True: that is under way, and no more is
        # to come before it is done.
        if self._carrying:
            return True
        assert self._carrier is not None
        writer = self._writer
        self._carried_pages += writer.pages
        self._pages_until = MOST_PAGES - self._carried_pages
        writer.prepare_to_carry()
        self._carrying = True
        # it has a thread of its own: to put down 4 MiB takes as long as a few commits
        self._carrier.start(writer.carry_over, self._carried)
        return self._pages_until <= 0

    def _carried(self, result: outcome.Outcome[bool]) -> None:
        self._carrying = False
        pages = self._writer.pages
        self._pages_until = HASTY_PAGES if self._committer.pace.hasty else CHECKPOINT_PAGES
        if isinstance(result, outcome.Error):
            self._failure = result
        elif not result.unwrap():
            self._carried_pages = 0  # a reader needs what is there: another time
        elif self._carried_pages + pages >= LOG_PAGES:
            if pages <= REST_PAGES or self._carried_pages >= MOST_PAGES:
                self._carried_pages, self._rest_due = 0, True
            else:
                # where as much as may be was written while it was carried over, once more, and meanwhile by those alone who have
                # little: else all of that would be the rest, for which everybody waits
                self._pages_until = REST_PAGES
        self.wake()

    def _maintain(self) -> bool:
        # begin one thing that is due beside commits; False if nothing is
        committer = self._committer
        if not committer.health.writable:
            if self._posting or trio.current_time() < committer.probe_at:
                return False
            if self._writer.unposted:  # that goes first, and shows as well what the disk takes
                self._post()
                return False
            self._direct = True
            self._start(functools.partial(committer.attempt, self._writer.probe), self._noted)
            return True
        if self._posting:
            return False
        job = self._job or committer.next_job()
        self._job = None
        if job is None:
            return False
        if self._writer.unposted:
            self._job = job
            self._post()
            return False
        self._direct = True
        work = functools.partial(job.write, self._writer)
        self._start(functools.partial(committer.attempt, work), functools.partial(self._maintained, job))
        return True

    def _noted(self, error: StoreError | None) -> None:
        self._committer.note(error)

    def _maintained(self, job: Job, error: StoreError | None) -> None:
        if self._committer.note(error):
            job.apply()
        else:
            job.give_up()

    def _start(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        assert self._thread is not None
        self._working = self._busy = True
        self._thread.start(work, functools.partial(self._finished, then))

    def _finished(self, then: Callable[[T], None], result: outcome.Outcome[T]) -> None:
        # the thread is done: in the event loop, but in no task of ours
        self._working = False
        self._ended(outcome.capture(lambda: then(result.unwrap())))
        self._advance()
        if self._closing:
            self.wake()

    def _ended(self, how: outcome.Outcome[None]) -> None:
        # What was under way is over. A mistake in it is the task's to raise: it ends the gateway, not who happened to ask.
        self._busy = self._working
        if type(how) is outcome.Error:
            self._failure = how
            self.wake()

    # --- the task ---

    async def run(self) -> None:
        with (
            WriterThread("store-writer") as self._thread,
            WriterThread("store-carry") as self._carrier,
            WriterThread("store-post") as self._poster,
            Syncer(self._sync, self._sync_failed) as self._syncer,
        ):
            self._committer.sync_within = self._syncer.ask
            try:
                while not (self._closing and not self._busy and not self._committer.pending):
                    self._post_if_due()
                    if self._joining:
                        self._joining -= 1
                        self._woken |= self._joining > 0
                    self._advance()
                    await self._park()
                    if self._failure is not None:
                        self._failure.unwrap()
            finally:
                await self._end()

    async def _end(self) -> None:
        self._closing = self._committer.closing = True
        self._committer.refuse_pending(ShuttingDown("the store is closing"))
        with trio.CancelScope(shield=True):  # what a commit has begun is to be known
            assert self._syncer is not None
            stopped = trio.Event()
            self._syncer.stop(stopped.set)
            await stopped.wait()
            while self._busy or self._carrying or self._posting:
                await self._park()
        self._committer.retire_journal()
        self._committer.finish_up()
        self.closed.set()

    async def _park(self) -> None:
        if self._woken:
            self._woken = False
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope(deadline=self._deadline()) as scope:
            self._scope = scope
            try:
                await trio.sleep(math.inf)
            finally:
                self._scope = None

    def _deadline(self) -> float:
        committer = self._committer
        if not committer.health.writable:
            return math.inf if self._busy or self._posting else committer.probe_at
        # what could not be begun yet is begun by what ends
        post_at = math.inf if self._posting or self._post_at == -math.inf else self._post_at
        if committer.rests_until and committer.pending and trio.current_time() < committer.rests_until:
            return min(post_at, committer.rests_until)
        return post_at

    def _post_if_due(self) -> None:
        if self._committer.health.writable and trio.current_time() >= self._post_at:
            self._post_at = -math.inf
            self._post()

    def _sync(self) -> StoreError | None:
        # in the syncer's thread. While nothing is written, what is there is told to be lost or is synced by the probe.
        committer = self._committer
        return committer.attempt(self._writer.sync_log) if committer.health.writable else None

    def _sync_failed(self, result: outcome.Outcome[object]) -> None:
        if isinstance(result, outcome.Error):
            self._failure = result
        elif isinstance(error := result.unwrap(), StoreError):
            self._committer.note(error)
        self.wake()
