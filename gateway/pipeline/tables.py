"""The archive as a Delta or an Iceberg table, where their packages are installed.

Both formats commit whole. How far each partition is goes into the same commit as its records (Delta: an application
transaction, Iceberg: a property of the table), so what is in the table and what is said to be in it cannot differ. Of two
processes that add the same, wherever the table lies, one commits; the other is told that the table has changed. Where its records
come from, and what was accepted as lost, are properties of the table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from gateway.arrow.schema import SCHEMA
from gateway.errors import InvalidRequest, NotAStore, StoreDamaged, StoreError, StoreInUse, Unsupported
from gateway.pipeline.archive import GROUP_ROWS, Archived, Place, Planned, missing_in, readable
from gateway.pipeline.layout import ArchiveLayout, values_of
from gateway.pipeline.manifest import Archive, Gap, gap_of, gap_value
from gateway.pipeline.merge import LARGE, Merged
from gateway.pipeline.options import ReadOptions, TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone, Range, cut, selected
from gateway.pipeline.schemas import DATA, TopicSchema
from gateway.pipeline.shelves import DirectoryShelf, is_remote, shelf_at
from gateway.pipeline.source import Source, identified, open_log
from gateway.pipeline.table_columns import TypedColumns, plain_type
from gateway.pipeline.table_rows import TableVersion, Term, delta_options, iceberg_filter, iceberg_settings
from gateway.store.reader import ReadableLog

RECORDS_PER_COMMIT = 250_000
BYTES_PER_COMMIT = 256 << 20
SOURCES, ACCEPTED = "gateway.sources", "gateway.accepted"
"""Properties of a table, in JSON: the logs that it was made from, and what was accepted as lost."""
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

    def said(self, name: str) -> Sequence[Any]:
        """A property of the table that is a list in JSON."""
        ...

    def say(self, name: str, what: Sequence[Any]) -> None: ...

    def type_of(self, column: str) -> pa.DataType | None:
        """None: it has no such column."""
        ...

    def widen(self, fields: Sequence[pa.Field]) -> None:
        """Let it have these columns, or have more in them. Delta's does when they come."""
        ...

    def version(self) -> TableVersion:
        """As it is now, to be read."""
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
    typed: TopicSchema | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Archived:
    """Add to a table what a log has and it has not, with the values as columns as well if they have a schema.

    Raises Unsupported where the package is missing, HistoryGone and Damaged as `archive`, and StoreInUse.
    """
    options = ReadOptions(source, topics or TopicSelection())
    layout = layout or ArchiveLayout()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open_log(source))
        meant = selected(log.topics(), options)  # a mistake in what is asked for leaves nothing behind
        stack.enter_context(_held(to))
        table = table_at(to, form, tuple(layout.by), catalog)
        there = table.type_of(DATA)
        if there is not None and typed is None:
            raise InvalidRequest(f"{to} has values as columns: say by which schema (--typed)")
        columns = TypedColumns(typed, there) if typed is not None else None
        if columns is not None:
            table.widen(columns.fields)
        places = [(topic.name, topic.epoch, one.number) for topic in meant for one in topic.partitions]
        missing, gaps = missing_in(_done(table, places), log, options)
        if accept_gaps:
            _accept(table, gaps)
        # nothing goes behind a gap that nobody accepted; but all that has none does
        stuck = {_place(gap): f"{gap}: {gap.why}" for gap in gaps if not accept_gaps}
        tasks = [one for one in cut(missing, records_per_commit) if _place(one) not in stuck]
        if tasks and identified(source) not in table.said(SOURCES):
            table.say(SOURCES, [*table.said(SOURCES), identified(source)])
        damage: list[Gap] = []
        total = sum(one.count for one in tasks)
        done = 0
        for one in tasks:
            if _place(one) in stuck:
                continue
            done += _add(table, log, one, _Widening(layout, columns), damage, accept_gaps=accept_gaps)
            if not accept_gaps:
                stuck |= {_place(gap): gap.why for gap in damage}
            progress(done, total)
    if stuck:
        kind = Damaged if damage else HistoryGone
        raise kind(f"{'; '.join(stuck.values())}. All else is archived; --accept-gaps goes on behind it")
    return Archived(done, gaps=(*map(str, gaps), *(one.why for one in damage)))


def _add(
    table: Table, log: ReadableLog, what: Range, widening: _Widening, damage: list[Gap], *, accept_gaps: bool
) -> int:
    # A range, in one commit if it is not too large; up to what is damaged, or without it. How many records that were.
    held: list[pa.RecordBatch] = []
    done = 0

    def commit(end: int) -> int:
        rows = pa.Table.from_batches(held, SCHEMA)
        table.append(widening.of(rows, what), _place(what), end)
        held.clear()
        count: int = rows.num_rows
        return count

    for one in readable(log, what, SCHEMA, accept_gaps=accept_gaps, rows=min(GROUP_ROWS, RECORDS_PER_COMMIT)):
        if isinstance(one, Gap):
            if held:
                done += commit(one.start)
            damage.append(one)
            if not accept_gaps:
                return done
            _accept(table, [one])
            continue
        held.append(one)
        if sum(batch.nbytes for batch in held) >= BYTES_PER_COMMIT:
            done += commit(one.column("offset")[-1].as_py() + 1)
    return done + commit(what.end)


def _done(table: Table, places: Sequence[Place]) -> Mapping[Place, int]:
    done = dict(table.done(places))
    for gap in accepted_in(table):
        done[_place(gap)] = max(done.get(_place(gap), 0), gap.end)
    return done


def _place(what: Range | Gap) -> Place:
    return what.topic, what.epoch, what.partition


def _accept(table: Table, gaps: Sequence[Gap]) -> None:
    known = accepted_in(table)
    fresh = [gap for gap in gaps if gap not in known]
    if fresh:
        table.say(ACCEPTED, [gap_value(gap) for gap in (*known, *fresh)])


def accepted_in(table: Table) -> list[Gap]:
    """What was accepted as lost when the table was added to. Raises StoreDamaged where that makes no sense."""
    return [gap_of(one, ACCEPTED) for one in table.said(ACCEPTED)]


def planned_for_table(
    source: Source, to: Path | str, form: str, *, topics: TopicSelection | None = None, catalog: str = ""
) -> Planned:
    """What `archive_to_table` would add."""
    options = ReadOptions(source, topics or TopicSelection())
    with open_log(source) as log:
        places = [
            (one.name, one.epoch, part.number) for one in selected(log.topics(), options) for part in one.partitions
        ]
        try:
            done = _done(table_at(to, form, None, catalog, make=False), places)
        except NotAStore:
            done = {}
        missing, gaps = missing_in(done, log, options)
    return Planned(sum(one.count for one in missing), tuple(map(str, missing)), tuple(map(str, gaps)))


def optimize(to: Path | str, form: str, *, catalog: str = "", small: int = LARGE) -> Merged:
    """What `merge` is for files: fewer and larger ones, for both formats. Raises NotAStore, StoreInUse."""
    with _held(to):
        return table_at(to, form, None, catalog, make=False).optimize(small)


@attrs.frozen
class _Widening:
    """What a table has beside the columns of a message."""

    layout: ArchiveLayout
    typed: TypedColumns | None

    def of(self, rows: pa.Table, what: Range) -> pa.Table:
        epoch = pa.repeat(pa.scalar(what.epoch, pa.int64()), rows.num_rows)
        day = pc.strftime(rows["timestamp"], format="%Y-%m-%d")
        made = rows.append_column("epoch", epoch).append_column("day", day).cast(TABLE_SCHEMA)
        for name, values in values_of(self.layout.expressions(), rows).items():
            made = made.append_column(name, pa.array(values, pa.string()))
        if self.typed is not None:
            cells = self.typed.of(rows)
            for field in self.typed.fields:
                made = made.append_column(field, cells[field.name])
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
    there = Archive(place)
    if make and (there.is_there() or (there.table_form() or form).lower() != form):
        raise InvalidRequest(f"{place} is an archive in another format than {form}: archive into another place")
    try:
        return makers[form](TablePlace(str(place), by, catalog, make))
    except ImportError as error:
        raise Unsupported(f"the format {form} needs a package that is missing: pip install 'gateway[lake]'") from error


def table_there(place: Path | str, catalog: str = "") -> Table | None:
    """The table at a place, whichever it is; None where there is none. Raises Unsupported, InvalidRequest."""
    form = "Iceberg" if catalog else Archive(place).table_form()
    return None if form is None else table_at(place, form.lower(), None, catalog, make=False)


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
        options = delta_options()
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

    def said(self, name: str) -> Sequence[Any]:
        return _list_of(self._table.metadata().configuration.get(name), name, self._where)

    def say(self, name: str, what: Sequence[Any]) -> None:
        with self._told():
            self._table.alter.set_table_properties({name: json.dumps(what)}, raise_if_not_exists=False)

    def type_of(self, column: str) -> pa.DataType | None:
        return _type_in(pa.schema(self._table.schema().to_arrow()), column)

    def widen(self, fields: Sequence[pa.Field]) -> None:
        """Each append may bring columns."""

    def version(self) -> TableVersion:
        return TableVersion("delta", self._where.place, str(self._table.version()))

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

    def said(self, name: str) -> Sequence[Any]:
        return _list_of(self._table.properties.get(name), name, self._where)

    def say(self, name: str, what: Sequence[Any]) -> None:
        self._first_try()
        with self._told(), self._table.transaction() as transaction:
            transaction.set_properties({name: json.dumps(what)})

    def type_of(self, column: str) -> pa.DataType | None:
        return _type_in(self._table.schema().as_arrow(), column)

    def widen(self, fields: Sequence[pa.Field]) -> None:
        there = [self.type_of(field.name) for field in fields]
        if any(one is None or plain_type(one) != field.type for one, field in zip(there, fields, strict=True)):
            with self._told(), self._table.update_schema() as change:
                change.union_by_name(pa.schema(fields))

    def version(self) -> TableVersion:
        return TableVersion("iceberg", self._where.place, self._table.metadata_location)

    def optimize(self, small: int) -> Merged:
        """Partition by partition: small files whose offsets follow each other become one, in a commit of its own."""
        files = self._table.inspect.files().to_pylist()
        parts: dict[tuple[tuple[str, Any], ...], list[FileRow]] = {}
        for file in files:
            parts.setdefault(tuple(file["partition"].items()), []).append(file)
        before = rows = 0
        for part, there in parts.items():
            for few, narrower in _bins(there, small):
                whole = iceberg_filter((*((name, "=", value) for name, value in part), *narrower))
                found = self._table.scan(row_filter=whole).to_arrow()
                self._first_try()
                with self._told():
                    self._table.overwrite(found, overwrite_filter=whole)
                before, rows = before + few, rows + found.num_rows
        gone = len(files) - self._table.inspect.files().num_rows if before else 0
        return Merged(before, before - gone, rows)

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


FileRow = Mapping[str, Any]
"""What an Iceberg table says of one of its files."""


def _bins(files: Sequence[FileRow], small: int) -> Iterator[tuple[int, Sequence[Term]]]:
    # Of the files of a day those that are to become one: how many, and what beside the day tells their rows from others. All of
    # them where they are small together; else those of one partition of the log that follow each other.
    if len(files) > 1 and _size(files) <= small:
        yield len(files), ()
        return
    lives: dict[tuple[int, int], list[FileRow]] = {}
    for file in files:
        lower, upper = (tuple(_bound(file, name, end) for name in ("epoch", "partition")) for end in ("lower", "upper"))
        if lower == upper and None not in lower and file["file_size_in_bytes"] < small:
            lives.setdefault(lower, []).append(file)
    for (epoch, partition), of_life in lives.items():
        for some in _packed(sorted(of_life, key=lambda one: int(_bound(one, "offset", "lower"))), small):
            first, last = _bound(some[0], "offset", "lower"), max(_bound(one, "offset", "upper") for one in some)
            life: Sequence[Term] = [("epoch", "=", epoch), ("partition", "=", partition)]
            yield len(some), (*life, ("offset", ">=", first), ("offset", "<", last + 1))


def _packed(files: Iterable[FileRow], small: int) -> Iterator[list[FileRow]]:
    # neighbours that are small together, where there are several
    held: list[FileRow] = []
    for file in files:
        if _size([*held, file]) > small:
            if len(held) > 1:
                yield held
            held = []
        held = [*held, file]
    if len(held) > 1:
        yield held


def _size(files: Iterable[FileRow]) -> int:
    return sum(one["file_size_in_bytes"] for one in files)


def _bound(file: FileRow, column: str, end: str) -> Any:
    return file["readable_metrics"][column][f"{end}_bound"]


def _catalog(where: TablePlace) -> Any:
    from pyiceberg.catalog import load_catalog

    settings = iceberg_settings()
    if not is_remote(where.place):
        directory = Path(where.place).absolute()
        if not where.make and not where.catalog and not (directory / "catalog.sqlite").exists():
            raise NotAStore(f"there is no Iceberg table {NAME} at {where.place}")
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


def _type_in(schema: pa.Schema, column: str) -> pa.DataType | None:
    return schema.field(column).type if column in schema.names else None


def _list_of(text: str | None, name: str, where: TablePlace) -> Sequence[Any]:
    try:
        found = json.loads(text or "[]")
    except ValueError as error:
        raise StoreDamaged(f"{where.place}: the property {name} is not JSON: {error}") from error
    if not isinstance(found, list):
        raise StoreDamaged(f"{where.place}: the property {name} is no list")
    return found


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


def _name(place: Place) -> str:
    topic, epoch, partition = place
    return f"gateway/{epoch}/{partition}/{topic}"
