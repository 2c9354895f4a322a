"""The archive as a Delta or an Iceberg table, where their packages are installed.

Both formats commit whole. How far each partition is goes into the same commit as its records (Delta: an application
transaction, Iceberg: a property of the table), so what is in the table and what is said to be in it cannot differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.columns import batches
from gateway.arrow.schema import SCHEMA
from gateway.errors import InvalidRequest, StoreInUse, Unsupported
from gateway.pipeline.archive import Archived, Place, missing_in
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import HistoryGone, Range, cut, records
from gateway.pipeline.source import Source, open_log

RECORDS_PER_COMMIT = 250_000
TABLE_SCHEMA = SCHEMA.append(pa.field("epoch", pa.int64())).append(pa.field("day", pa.string()))
"""A message, which life of its topic it is from, and the day (UTC) by which the table is partitioned, after the topic."""
PARTITIONED_BY = ("topic", "day")
PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg[sql-sqlite,pyarrow]"}


class Table(Protocol):
    """A table that is added to."""

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Up to where the table has these partitions; those that it has nothing of are left out."""
        ...

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        """Add rows, and say in the same commit that the partition is there up to `end`."""
        ...


def archive_to_table(
    source: Source,
    to: Path | str,
    form: str,
    *,
    topics: TopicSelection | None = None,
    records_per_commit: int = RECORDS_PER_COMMIT,
    accept_gaps: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to a table what a log has and it has not. Raises Unsupported where the package is missing."""
    options = ReadOptions(source, topics or TopicSelection())
    with _locked(Path(to)), open_log(source) as log:
        table = table_at(Path(to), form)
        places = [(topic.name, topic.epoch, one.number) for topic in log.topics().values() for one in topic.partitions]
        missing, gaps = missing_in(table.done(places), log, options)
        if gaps and not accept_gaps:
            raise HistoryGone(
                f"{'; '.join(map(str, gaps))}: removed before it was archived. --accept-gaps goes on behind them"
            )
        total = sum(one.count for one in missing)
        done = 0
        for one in cut(missing, records_per_commit):
            rows = pa.Table.from_batches(list(batches(records(log, one), SCHEMA)), SCHEMA)
            table.append(_with_place(rows, one), (one.topic, one.epoch, one.partition), one.end)
            done += rows.num_rows
            progress(done, total)
    return Archived(done, gaps=tuple(map(str, gaps)))


def _with_place(rows: pa.Table, what: Range) -> pa.Table:
    epoch = pa.repeat(pa.scalar(what.epoch, pa.int64()), rows.num_rows)
    day = pc.strftime(rows["timestamp"], format="%Y-%m-%d")
    return rows.append_column("epoch", epoch).append_column("day", day).cast(TABLE_SCHEMA)


def table_at(directory: Path, form: str) -> Table:
    """A table in a directory, made if there is none. Raises Unsupported, InvalidRequest."""
    makers: Mapping[str, Callable[[Path], Table]] = {"delta": DeltaLake, "iceberg": Iceberg}
    if form not in makers:
        raise InvalidRequest(f"a table is {' or '.join(makers)}, not {form!r}")
    try:
        return makers[form](directory)
    except ImportError as error:
        raise Unsupported(
            f"the format {form} needs the package {PACKAGES[form]}: pip install '{PACKAGES[form]}'"
        ) from error


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreInUse(f"another process adds to the table {directory}") from None
    try:
        yield
    finally:
        os.close(lock)


class DeltaLake:
    def __init__(self, directory: Path) -> None:
        import deltalake  # type: ignore[import-not-found,unused-ignore]  # optional

        self._library: Any = deltalake
        self._path = str(directory)

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """From the table's application transactions."""
        if not self._library.DeltaTable.is_deltatable(self._path):
            return {}
        table = self._library.DeltaTable(self._path)
        found = {place: table.transaction_version(_name(place)) for place in places}
        return {place: end for place, end in found.items() if end is not None}

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        said = self._library.CommitProperties(app_transactions=[self._library.Transaction(_name(place), end)])
        self._library.write_deltalake(
            self._path, rows, mode="append", partition_by=list(PARTITIONED_BY), commit_properties=said
        )


class Iceberg:
    """An Iceberg table `gateway.messages`, with its catalogue in SQLite beside it."""

    def __init__(self, directory: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog  # type: ignore[import-not-found,unused-ignore]  # optional

        where = directory.absolute()
        catalog: Any = SqlCatalog("gateway", uri=f"sqlite:///{where}/catalog.sqlite", warehouse=f"file://{where}")
        catalog.create_namespace_if_not_exists("gateway")
        self._table: Any = catalog.create_table_if_not_exists("gateway.messages", schema=TABLE_SCHEMA)
        if not self._table.spec().fields:
            with self._table.update_spec() as spec:
                for column in PARTITIONED_BY:
                    spec.add_identity(column)

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        said = self._table.properties
        return {place: int(said[_name(place)]) for place in places if _name(place) in said}

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        with self._table.transaction() as transaction:
            transaction.append(rows)
            transaction.set_properties({_name(place): str(end)})


def _name(place: Place) -> str:
    topic, epoch, partition = place
    return f"gateway/{epoch}/{partition}/{topic}"
