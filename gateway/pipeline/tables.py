"""The archive as a Delta or an Iceberg table, where their packages are installed.

Both formats commit whole. How far each partition is goes into the same commit as its records (Delta: an application
transaction, Iceberg: a property of the table), so what is in the table and what is said to be in it cannot differ. Of two
processes that add the same, wherever the table lies, one commits; the other is told that the table has changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.columns import batches
from gateway.arrow.schema import SCHEMA
from gateway.errors import InvalidRequest, NotAStore, StoreError, StoreInUse, Unsupported
from gateway.pipeline.archive import Archived, Place, missing_in
from gateway.pipeline.layout import ArchiveLayout, values_of
from gateway.pipeline.merge import LARGE, Merged
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import HistoryGone, Range, cut, records
from gateway.pipeline.shelves import DirectoryShelf, is_remote, shelf_at
from gateway.pipeline.source import Source, open_log

RECORDS_PER_COMMIT = 250_000
TABLE_SCHEMA = SCHEMA.append(pa.field("epoch", pa.int64())).append(pa.field("day", pa.string()))
"""A message, which life of its topic it is from, and the day (UTC) by which the table is partitioned, after the topic."""
PARTITIONED_BY = ("topic", "day")
NAME = "gateway.messages"
"""What an Iceberg table is called in its catalogue."""


class Table(Protocol):
    """A table that is added to."""

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Up to where the table has these partitions; those that it has nothing of are left out."""
        ...

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        """Add rows, and say in the same commit that the partition is there up to `end`. Raises StoreInUse."""
        ...

    def optimize(self, small: int) -> Merged:
        """Put the rows of small files into larger ones; older versions of the table keep theirs."""
        ...


def archive_to_table(
    source: Source,
    to: Path | str,
    form: str,
    *,
    topics: TopicSelection | None = None,
    records_per_commit: int = RECORDS_PER_COMMIT,
    accept_gaps: bool = False,
    layout: ArchiveLayout | None = None,
    catalog: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to a table what a log has and it has not. Raises Unsupported where the package is missing."""
    options = ReadOptions(source, topics or TopicSelection())
    layout = layout or ArchiveLayout()
    with _held(to), open_log(source) as log:
        table = table_at(to, form, tuple(layout.by), catalog)
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
            table.append(_widened(rows, one, layout), (one.topic, one.epoch, one.partition), one.end)
            done += rows.num_rows
            progress(done, total)
    return Archived(done, gaps=tuple(map(str, gaps)))


def optimize(to: Path | str, form: str, *, catalog: str = "", small: int = LARGE) -> Merged:
    """What `merge` is for files: fewer and larger ones, for both formats. Raises NotAStore, StoreInUse."""
    with _held(to):
        return table_at(to, form, None, catalog, make=False).optimize(small)


def _widened(rows: pa.Table, what: Range, layout: ArchiveLayout) -> pa.Table:
    epoch = pa.repeat(pa.scalar(what.epoch, pa.int64()), rows.num_rows)
    day = pc.strftime(rows["timestamp"], format="%Y-%m-%d")
    made = rows.append_column("epoch", epoch).append_column("day", day).cast(TABLE_SCHEMA)
    for name, values in values_of(layout.expressions(), rows).items():
        made = made.append_column(name, pa.array(values, pa.string()))
    return made


def table_at(
    place: Path | str, form: str, by: tuple[str, ...] | None = (), catalog: str = "", *, make: bool = True
) -> Table:
    """A table in a directory or an object store, made if there is none; `by` are columns it is partitioned by as well, where
    that matters. Raises Unsupported, InvalidRequest, and NotAStore where none is to be made.
    """
    makers: Mapping[str, Callable[[TablePlace], Table]] = {"delta": DeltaLake, "iceberg": Iceberg}
    if form not in makers:
        raise InvalidRequest(f"a table is {' or '.join(makers)}, not {form!r}")
    try:
        return makers[form](TablePlace(str(place), by, catalog, make))
    except ImportError as error:
        raise Unsupported(f"the format {form} needs a package that is missing: pip install 'gateway[lake]'") from error


@attrs.frozen
class TablePlace:
    place: str
    by: tuple[str, ...] | None
    catalog: str
    make: bool

    def refuse(self, there: Sequence[str]) -> None:
        """Raise InvalidRequest where a table is divided otherwise than is asked for."""
        if self.by is not None and tuple(there) != (*PARTITIONED_BY, *self.by):
            raise InvalidRequest(
                f"{self.place} is partitioned by {', '.join(there)}: say so (--by), or take another place"
            )


def _held(place: Path | str) -> contextlib.AbstractContextManager[None]:
    # in a directory one process at a time; elsewhere the table's own commits tell who comes too late
    shelf = shelf_at(place)
    if isinstance(shelf, DirectoryShelf):
        shelf.directory.mkdir(parents=True, exist_ok=True)
    return shelf.held()


class DeltaLake:
    def __init__(self, where: TablePlace) -> None:
        import deltalake

        self._library: Any = deltalake
        self._where = where
        options = {"allow_http": "true"} if _plain_endpoint() else {}
        with self._told():
            if not deltalake.DeltaTable.is_deltatable(where.place, options):
                if not where.make:
                    raise NotAStore(f"there is no Delta table at {where.place}")
                by = where.by or ()
                deltalake.DeltaTable.create(
                    where.place,
                    schema=pa.schema([*TABLE_SCHEMA, *(pa.field(name, pa.string()) for name in by)]),
                    mode="ignore",
                    partition_by=[*PARTITIONED_BY, *by],
                    storage_options=options,
                )
            self._table: Any = deltalake.DeltaTable(where.place, storage_options=options)
        where.refuse(self._table.metadata().partition_columns)
        self._known: dict[Place, int | None] = {}
        """How far partitions were when somebody asked, and what was added since."""

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """From the table's application transactions."""
        self._known = {place: self._table.transaction_version(_name(place)) for place in places}
        return {place: end for place, end in self._known.items() if end is not None}

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        """A commit fails if another one says how far this partition is since the version of the table that is known here; each
        commit makes a later one known, so what that says is looked at before.
        """
        if self._table.transaction_version(_name(place)) != self._known.get(place):
            raise StoreInUse(f"another process has changed the table {self._where.place}")
        said = self._library.CommitProperties(app_transactions=[self._library.Transaction(_name(place), end)])
        with self._told():
            self._library.write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge",  # a table that an older version began gets the columns that are new
                writer_properties=self._library.WriterProperties(compression="ZSTD"),
                commit_properties=said,
            )
        self._known[place] = end

    def optimize(self, small: int) -> Merged:
        """Its OPTIMIZE."""
        with self._told():
            done = self._table.optimize.compact(target_size=small)
        return Merged(done["numFilesRemoved"], done["numFilesAdded"])

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._library.exceptions.CommitFailedError as error:
            raise StoreInUse(
                f"another process has changed the table {self._where.place}: {_first_line(error)}"
            ) from error
        except self._library.exceptions.DeltaError as error:
            raise StoreError(f"{self._where.place}: {_first_line(error)}") from error


class Iceberg:
    """An Iceberg table `gateway.messages`. Its catalogue is in SQLite beside it, or wherever one is said to be."""

    def __init__(self, where: TablePlace) -> None:
        from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError

        self._conflict = CommitFailedException
        self._where = where
        catalog = _catalog(where)
        try:
            self._table: Any = catalog.load_table(NAME)
        except (NoSuchTableError, NoSuchNamespaceError):
            if not where.make:
                raise NotAStore(f"there is no Iceberg table {NAME} at {where.place}") from None
            catalog.create_namespace_if_not_exists(NAME.partition(".")[0])
            self._table = catalog.create_table(NAME, schema=self._schema())
        if where.make:
            self._evolve()

    def _schema(self) -> pa.Schema:
        return pa.schema([*TABLE_SCHEMA, *(pa.field(name, pa.string()) for name in self._where.by or ())])

    def _evolve(self) -> None:
        # a table that an older version began, or that was divided by less, gets what is new; what is there stays as it is
        wanted = self._schema()
        there = {field.name for field in self._table.schema().fields}
        if not there.issuperset(wanted.names):
            with self._table.update_schema() as change:
                change.union_by_name(wanted)
        names = {field.field_id: field.name for field in self._table.schema().fields}
        parts = [names[field.source_id] for field in self._table.spec().fields]
        missing = [name for name in (*PARTITIONED_BY, *(self._where.by or ())) if name not in parts]
        if missing:
            with self._table.update_spec() as spec:
                for column in missing:
                    spec.add_identity(column)
        else:
            self._where.refuse(parts)

    def done(self, places: Sequence[Place]) -> Mapping[Place, int]:
        said = self._table.properties
        return {place: int(said[_name(place)]) for place in places if _name(place) in said}

    def append(self, rows: pa.Table, place: Place, end: int) -> None:
        self._first_try()
        with self._told(), self._table.transaction() as transaction:
            transaction.append(rows)
            transaction.set_properties({_name(place): str(end)})

    def optimize(self, small: int) -> Merged:
        """Partition by partition: those with several small files are written anew, each in a commit of its own."""
        import pyiceberg.expressions

        terms: Any = pyiceberg.expressions

        parts: dict[tuple[tuple[str, Any], ...], list[int]] = {}
        for file in self._table.inspect.files().to_pylist():
            parts.setdefault(tuple(file["partition"].items()), []).append(file["file_size_in_bytes"])
        before = after = rows = 0
        for part, sizes in parts.items():
            if len(sizes) < 2 or sum(sizes) > small:
                continue
            whole = terms.AlwaysTrue()
            for name, value in part:
                whole = terms.And(whole, terms.IsNull(name) if value is None else terms.EqualTo(name, value))
            found = self._table.scan(row_filter=whole).to_arrow()
            self._first_try()
            with self._told():
                self._table.overwrite(found, overwrite_filter=whole)
            before, after, rows = before + len(sizes), after + 1, rows + found.num_rows
        return Merged(before, after, rows)

    def _first_try(self) -> None:
        # Let a commit fail where the table has changed: tried again, it would add what the other one may have added, too.
        # This is said to the library here alone, not to the table.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._conflict as error:
            raise StoreInUse(
                f"another process has changed the table {self._where.place}: {_first_line(error)}"
            ) from error


def _catalog(where: TablePlace) -> Any:
    from pyiceberg.catalog import load_catalog

    settings: dict[str, str] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        settings = {"s3.endpoint": endpoint, "s3.region": region}
    if not is_remote(where.place):
        directory = Path(where.place).absolute()
        uri = where.catalog or f"sqlite:///{directory}/catalog.sqlite"
        settings["warehouse"] = f"file://{directory}"
    elif not where.catalog:
        raise InvalidRequest(
            f"{where.place}: an Iceberg table in an object store has a catalogue: say which (--catalog)"
        )
    else:
        uri, settings["warehouse"] = where.catalog, where.place
    if "://" not in uri:  # a name in the configuration of pyiceberg
        return load_catalog(uri, **settings)
    kind = "rest" if uri.startswith(("http://", "https://")) else "sql"
    return load_catalog("gateway", type=kind, uri=uri, **settings)


def _plain_endpoint() -> bool:
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


def _name(place: Place) -> str:
    topic, epoch, partition = place
    return f"gateway/{epoch}/{partition}/{topic}"
