"""Opening the embedded store: checks that it may be served, wires the parts, runs the committer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import attrs
import trio

from gateway.errors import StoreDamaged, StoreReadOnly
from gateway.files import make_private, make_private_directory
from gateway.recorder import NullRecorder, Recorder
from gateway.store.catalogue import Catalogue
from gateway.store.committer import Committer, Mode
from gateway.store.database import WAY_ON, Lock, Mark, StoreFiles, connect_read_only, create, meta_number
from gateway.store.engine import Engine
from gateway.store.loop import CommitLoop
from gateway.store.maintenance import Maintenance
from gateway.store.memory import MemoryTopics
from gateway.store.mend import mend_meta, mend_rows
from gateway.store.pool import Leftovers, ReadPool
from gateway.store.visible import Visible
from gateway.store.writer import Writer

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


def _load(files: StoreFiles) -> tuple[Catalogue, int]:
    # Read the catalogue and refuse a store that is behind its mark.
    #
    # On a read-only connection: one that may write would carry over a damaged write-ahead log when it closes, and with it
    # what could still be found in it.
    with closing(connect_read_only(files)) as connection, closing(Mark(files.mark)) as mark:
        try:
            catalogue = Catalogue(meta_number(connection, "boot") + 1)
            number = catalogue.load(connection, meta_number(connection, "commit"))
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(f"{files.database}: {error}. {WAY_ON}") from error
        if any(log.sealed for log in catalogue.logs()):
            number = max(number, mark.read())  # the last commits may be in what is damaged, which is refused by name
        missing = mark.read() - number
    if missing > 0:
        raise StoreDamaged(
            f"{files.directory} has lost its last {missing} commits (it ends with commit {number}); "
            f"they were acknowledged. To go on without them: gateway store salvage --path {files.directory} --accept-loss"
        )
    return catalogue, number


def _count_start(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'boot'")


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
            stack.enter_context(Lock(files.lock))
            create(files)
            make_private(files.all)
            mend_meta(files)
            catalogue, number = _load(files)
        except OSError as error:
            raise StoreReadOnly(f"the store in {files.directory} cannot be opened: {error}") from error
        writer = Writer(files, options.page_cache // 2, options.free_space_floor)
        stack.callback(writer.close)
        writer.number = number
        catalogue.lost = mend_rows(files, writer)
        writer.transact(_count_start, synced=True)
        pool = stack.enter_context(closing(ReadPool(files, options.page_cache // 4, threads=mode is Mode.THREAD)))
        memory = MemoryTopics(catalogue, options.memory_topics, now_ms)
        visible = Visible(catalogue, options.tail_cache, memory)
        recorder = recorder or NullRecorder()
        recorder.rows_lost(catalogue.lost.texts)
        maintenance = Maintenance(visible, now_ms, recorder)
        committer = Committer(visible, writer, mode, now_ms, maintenance.next_job, recorder)
        loop = CommitLoop(committer, catalogue) if mode is Mode.THREAD else None
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
