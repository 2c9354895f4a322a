"""Reading from disk: a few connections, each used by one thread at a time, and what was read but not wanted yet."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import trio

from gateway.envelope import Run
from gateway.errors import StoreDamaged, StoreError
from gateway.store.catalogue import Log
from gateway.store.database import DAMAGE, StoreFiles, connect
from gateway.store.hot import run_cost

CONNECTIONS = 3
"""More would not read faster: decoding holds the interpreter lock."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@contextmanager
def reported() -> Iterator[None]:
    """Turn what SQLite says about a read into the store's own words."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        text = f"{name or type(error).__name__}: {error}"
        raise (StoreDamaged(text) if name in DAMAGE else StoreError(text)) from error


class ReadPool:
    """Runs reading functions in threads, or directly when the store has none."""

    def __init__(self, files: StoreFiles, cache: int, *, threads: bool) -> None:
        self._cache = cache // CONNECTIONS
        self._files = files
        self._threads = threads
        self._idle = [connect(files, self._cache, writer=False)]
        self._limiter = trio.CapacityLimiter(CONNECTIONS)
        self.direct = connect(files, 64 << 10, writer=False)
        """A connection for small reads, which are made in the event loop."""

    async def run(self, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        if not self._threads:
            with reported():
                return work(self.direct, *args)
        async with self._limiter:
            connection = self._idle.pop() if self._idle else connect(self._files, self._cache, writer=False)
            try:
                with reported():
                    return await trio.to_thread.run_sync(work, connection, *args)
            finally:
                self._idle.append(connection)

    def close(self) -> None:
        self.direct.close()
        for connection in self._idle:
            connection.close()


class Leftovers:
    """The rest of chunks that a read ended within, under the offset where the next read will begin.

    A reader that takes ten records at a time would otherwise have each chunk read and checked four hundred times.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._runs: OrderedDict[tuple[Log, int], tuple[Run, int]] = OrderedDict()

    def keep(self, log: Log, offset: int, run: Run) -> None:
        """The next read of this log will probably begin at `offset`, which is in this run."""
        cost = run_cost(run)
        if cost > self._limit:
            return
        self.forget(log, offset)
        self._runs[log, offset] = (run, cost)
        self._used += cost
        while self._used > self._limit:
            _key, (_run, freed) = self._runs.popitem(last=False)
            self._used -= freed

    def get(self, log: Log, offset: int) -> Run | None:
        found = self._runs.get((log, offset))
        return None if found is None else found[0]

    def forget(self, log: Log, offset: int) -> None:
        """Drop what was kept for this offset: its reader has passed it."""
        found = self._runs.pop((log, offset), None)
        if found is not None:
            self._used -= found[1]

    def move(self, log: Log, offset: int, next_offset: int) -> None:
        """A read has gone on to another offset."""
        found = self._runs.get((log, offset))
        self.forget(log, offset)
        if found is not None and next_offset < found[0].next_offset:
            self._runs[log, next_offset] = found
            self._used += found[1]
