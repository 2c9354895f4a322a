"""Opening the embedded store: checks that it may be served, wires the parts, runs the committer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import attrs
import trio

from gateway.errors import CommitFailed, OutcomeUnknown, StoreInUse, StoreReadOnly
from gateway.files import make_private, make_private_directory
from gateway.recorder import Recorder
from gateway.store.committer import Committer, Mode
from gateway.store.database import (
    JOURNALLED,
    Lock,
    StoreFiles,
    create,
    set_layout,
)
from gateway.store.engine import Engine
from gateway.store.loop import CommitLoop
from gateway.store.maintenance import Maintenance
from gateway.store.memory import MemoryTopics
from gateway.store.mend import mend_meta, mend_rows
from gateway.store.onlookers import Onlookers
from gateway.store.pool import Leftovers, ReadPool
from gateway.store.recovery import load_store, post_rest
from gateway.store.visible import Visible
from gateway.store.writer import Writer

READER_SECONDS = 0.3
"""How long a start waits for the lock."""
SWEEP_SECONDS = 1.0
"""How often records are looked at for being too old."""


@attrs.frozen
class StoreOptions:
    """Sizes in bytes."""

    tail_cache: int = 64 << 20
    """Recent records of stored topics in memory."""
    page_cache: int = 32 << 20
    """Pages of the database: half for the writer, a quarter for the readers, a quarter for chunks half read."""
    free_space_floor: int = 1 << 30
    """Writes are refused below this, or below a twentieth of the volume, if that is less."""
    memory_topics: int = 64 << 20
    """What memory topics without `retention_bytes` may keep, all together; the oldest records go first."""


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def _locked(files: StoreFiles) -> Lock:
    # a reader may have it for a moment: it brings in what a gateway that was killed has left (`gateway.store.recovery`)
    with trio.move_on_after(READER_SECONDS):
        while True:
            try:
                return Lock(files.lock)
            except StoreInUse:
                await trio.sleep(READER_SECONDS / 20)
    return Lock(files.lock)


def _count_start(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'boot'")


def _start_journal(connection: sqlite3.Connection) -> None:
    _count_start(connection)
    set_layout(JOURNALLED, connection)


@asynccontextmanager
async def open_store(
    path: Path | str,
    options: StoreOptions | None = None,
    *,
    mode: Mode = Mode.THREAD,
    now_ms: Callable[[], int] = wall_clock,
    recorder: Recorder | None = None,
) -> AsyncIterator[Engine]:
    """Serve the store in a directory, which is made if need be.

    Raises StoreInUse if another process serves it and StoreDamaged if it must not be served. What is pending when the
    block ends is committed first.
    """
    options = options or StoreOptions()
    files = StoreFiles(Path(path))
    with ExitStack() as stack:
        try:
            make_private_directory(files.directory)
            stack.enter_context(await _locked(files))
            create(files)
            make_private(files.all)
            mend_meta(files)
            catalogue, number, rest = load_store(files)
        except OSError as error:
            raise StoreReadOnly(f"the store in {files.directory} cannot be opened: {error}") from error
        writer = Writer(files, options.page_cache // 2, options.free_space_floor)
        stack.callback(writer.close)
        writer.number = number
        try:
            if rest:
                catalogue, writer.number = post_rest(files, writer, catalogue, rest)
            catalogue.lost = attrs.evolve(mend_rows(files, writer), catalogue=catalogue.notes())
            writer.transact(_start_journal if mode is Mode.THREAD else _count_start, synced=True)
            if mode is Mode.THREAD:
                writer.open_journal()
        except (StoreReadOnly, CommitFailed, OutcomeUnknown) as error:
            raise StoreReadOnly(f"the store in {files.directory} takes no writes: {error.message}") from error
        pool = stack.enter_context(closing(ReadPool(files, options.page_cache // 4, threads=mode is Mode.THREAD)))
        memory = MemoryTopics(catalogue, options.memory_topics, now_ms)
        visible = Visible(catalogue, options.tail_cache, memory)
        recorder = recorder or Recorder()
        recorder.rows_lost(catalogue.lost.texts)
        maintenance = Maintenance(visible, now_ms, recorder)
        committer = Committer(visible, writer, mode, now_ms, maintenance.next_job, recorder)
        onlookers = stack.enter_context(closing(Onlookers(files.journals if mode is Mode.THREAD else ())))
        loop = CommitLoop(committer, catalogue, onlookers) if mode is Mode.THREAD else None
        engine = Engine(visible, committer, maintenance, pool, Leftovers(options.page_cache // 4), recorder, loop)
        if loop is None:
            try:
                yield engine
            finally:
                committer.drain()
                committer.finish_up()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run)
            nursery.start_soon(onlookers.heed, loop.looked)
            nursery.start_soon(_sweep, engine)
            try:
                yield engine
            finally:
                loop.close()
                with trio.CancelScope(shield=True):
                    await loop.closed.wait()
                nursery.cancel_scope.cancel()


async def _sweep(engine: Engine) -> None:
    while True:
        await trio.sleep(SWEEP_SECONDS)
        engine.sweep()
