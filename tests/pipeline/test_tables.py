"""The archive as a table of another format, in a directory and in an object store: exactly once, whoever is at it as well."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gateway.arrow.schema import SCHEMA
from gateway.broker.administration.schemas import SchemaRow
from gateway.errors import InvalidRequest, NotAStore, StoreInUse, UnknownTopic, Unsupported
from gateway.pipeline.archive import Archived, Planned, archive
from gateway.pipeline.audit import audit
from gateway.pipeline.compact import compact
from gateway.pipeline.comparing import Audited
from gateway.pipeline.frames import messages_at
from gateway.pipeline.layout import ArchiveLayout
from gateway.pipeline.merge import merge
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.ranges import Damaged, HistoryGone, Range, record_batches
from gateway.pipeline.schemas import schema_of
from gateway.pipeline.shelves import shelf_at
from gateway.pipeline.source import open_log
from gateway.pipeline.tables import (
    PARTITIONED_BY,
    TABLE_SCHEMA,
    archive_to_table,
    optimize,
    planned_for_table,
    table_at,
)
from gateway.requests import SchemaKind
from gateway.store.interface import Put, Unit
from tests.pipeline.s3 import ObjectStore, object_store
from tests.pipeline.stored import Log, after_retention, before_retention, filled


async def orders(log: Log) -> None:
    await log.create("orders/eu", partitions=2)
    for _ in range(4):
        await log.append("orders/eu", [b"a", b"", b"c"], 0, [b"k", None, b""], [(("h", b"1"),), (), ()])
        await log.append("orders/eu", [b"d"], 1)
        log.clock.ms += 43_200_000


async def more(log: Log) -> None:
    await log.append("orders/eu", [b"later"], 1)


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def at_s3() -> dict[str, str]:
    return {"s3.region": "us-east-1", "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL", "http://127.0.0.1:1")}


@attrs.frozen
class Made:
    """Where a table is to be."""

    form: str
    place: str
    catalog: str = ""

    @property
    def where(self) -> dict[str, str]:
        return {"form": self.form, "catalog": self.catalog}

    def library(self) -> Any:
        """As somebody else's program reads it."""
        if self.form == "delta":
            import deltalake

            return deltalake.DeltaTable(self.place, storage_options={"allow_http": "true"})
        from pyiceberg.catalog.sql import SqlCatalog

        uri = self.catalog or f"sqlite:///{self.place}/catalog.sqlite"
        return SqlCatalog("gateway", uri=uri, **at_s3()).load_table("gateway.messages")

    def whole(self) -> pa.Table:
        table = self.library()
        found: pa.Table = table.to_pyarrow_table() if self.form == "delta" else table.scan().to_arrow()
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        names = ("partition", "offset", "value", "day")
        return sorted(tuple(one[name] for name in names) for one in self.whole().to_pylist())

    def files(self) -> int:
        table = self.library()
        return len(table.file_uris()) if self.form == "delta" else table.inspect.files().num_rows


@pytest.fixture(params=["delta", "iceberg", "delta-s3", "iceberg-s3"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    form, _, remote = request.param.partition("-")
    if not remote:
        return Made(form, str(tmp_path / "table"))
    prefix = request.getfixturevalue("s3").prefix()
    return Made(form, prefix, f"sqlite:///{tmp_path}/catalog.sqlite" if form == "iceberg" else "")


@pytest.fixture
def store(tmp_path: Path) -> str:
    filled(tmp_path / "store", orders)
    return str(tmp_path / "store")


@pytest.mark.parametrize(("form", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg.exceptions")])
def test_a_package_that_is_missing_is_said(
    form: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "store", orders)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        Unsupported, match=rf"the format {form} needs a package that is missing: pip install 'gateway\[lake\]'"
    ):
        archive_to_table(str(tmp_path / "store"), tmp_path / "table", form)


def test_a_format_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="a table is delta or iceberg, not 'orc'"):
        table_at(tmp_path, "orc")


def test_exactly_once(made: Made, store: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Stopped(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 5:
            raise Stopped

    with pytest.raises(Stopped):
        archive_to_table(store, made.place, **made.where, records_per_commit=5, progress=stop)
    assert archive_to_table(store, made.place, **made.where, records_per_commit=5).records == 11
    assert len(made.rows()) == len(set(made.rows())) == 16
    filled(tmp_path / "store", more)
    assert archive_to_table(store, made.place, **made.where).records == 1
    assert archive_to_table(store, made.place, **made.where).records == 0
    assert (1, 4, b"later", "2023-11-16") in made.rows()
    assert {row[3] for row in made.rows()} == {"2023-11-14", "2023-11-15", "2023-11-16"}


def test_small_files_become_large_ones(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where, records_per_commit=1)
    before, rows = made.files(), made.rows()
    done = optimize(made.place, made.form, catalog=made.catalog)
    assert made.files() < before
    assert (done.before - done.after, made.rows()) == (before - made.files(), rows)
    again = optimize(made.place, made.form, catalog=made.catalog)
    assert (again.before, again.after) == (0, 0)
    # what was archived is still known to be
    assert archive_to_table(store, made.place, **made.where).records == 0


def test_a_day_that_is_too_large_for_one_file_is_made_fewer(tmp_path: Path, store: str) -> None:
    made = Made("iceberg", str(tmp_path / "table"))
    archive_to_table(store, made.place, **made.where, records_per_commit=1)
    rows = made.rows()
    sizes = {file["file_size_in_bytes"] for file in made.library().inspect.files().to_pylist()}
    assert made.files() == 16
    done = optimize(made.place, made.form, small=2 * max(sizes) + max(sizes) // 2)
    # a day has up to three records of a partition from each append: two become one where they follow each other
    assert (made.files(), made.rows()) == (16 - done.before + done.after, rows)
    assert 0 < done.after < done.before
    assert {file["record_count"] for file in made.library().inspect.files().to_pylist()} <= {1, 2}
    assert archive_to_table(store, made.place, **made.where).records == 0
    assert audited(made, store).findings == ()


def test_of_two_that_add_the_same_one_commits(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where, records_per_commit=5)
    first, second, third = (table_at(made.place, made.form, (), made.catalog) for _ in range(3))
    rows = made.whole().select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA).slice(0, 2)
    place, other = ("orders/eu", 7, 3), ("orders/eu", 7, 4)
    assert first.done([place, other]) == second.done([place, other]) == third.done([place, other]) == {}
    second.append(rows, place, 2)
    with pytest.raises(StoreInUse, match="another process has changed the table"):
        first.append(rows, place, 2)
    if made.form == "delta":  # another partition is another matter; but then it is known what the other one has added
        third.append(rows, other, 2)
        with pytest.raises(StoreInUse, match="another process has changed the table"):
            third.append(rows, place, 2)
        second.append(rows.slice(0, 1), place, 3)
    assert len(made.rows()) == (21 if made.form == "delta" else 18)


def test_divided_by_an_expression(made: Made, store: str) -> None:
    layout = ArchiveLayout.of(["kind=headers.h"])
    assert archive_to_table(store, made.place, **made.where, layout=layout).records == 16
    assert sorted((one or "") for one in made.whole()["kind"].to_pylist()) == [""] * 12 + ["1"] * 4
    assert archive_to_table(store, made.place, **made.where, layout=layout).records == 0
    with pytest.raises(InvalidRequest, match=r"is partitioned by topic, day, kind: say so \(--by\)"):
        archive_to_table(store, made.place, **made.where)


def older(made: Made) -> None:
    """A table as a version began it that knew fewer columns."""
    schema = pa.schema([field for field in TABLE_SCHEMA if field.name not in {"delivery", "epoch"}])
    if made.form == "delta":
        import deltalake

        deltalake.DeltaTable.create(
            made.place, schema=schema, partition_by=list(PARTITIONED_BY), storage_options={"allow_http": "true"}
        )
        return
    from pyiceberg.catalog.sql import SqlCatalog

    Path(made.place).mkdir(exist_ok=True) if not made.catalog else None
    uri = made.catalog or f"sqlite:///{made.place}/catalog.sqlite"
    warehouse = made.place if made.catalog else f"file://{made.place}"
    catalog = SqlCatalog("gateway", uri=uri, warehouse=warehouse, **at_s3())
    catalog.create_namespace("gateway")
    catalog.create_table("gateway.messages", schema=schema)


def test_a_table_gets_the_columns_that_are_new(made: Made, store: str) -> None:
    older(made)
    assert archive_to_table(store, made.place, **made.where).records == 16
    assert set(TABLE_SCHEMA.names) <= set(made.whole().column_names)
    assert len(set(made.whole()["epoch"].to_pylist())) == 1


def test_no_table_is_optimized_where_there_is_none(made: Made) -> None:
    with pytest.raises(NotAStore, match=r"there is no (Delta|Iceberg) table"):
        optimize(made.place, made.form, catalog=made.catalog)


def test_an_iceberg_table_in_an_object_store_has_a_catalogue(s3: ObjectStore) -> None:
    with pytest.raises(InvalidRequest, match=r"has a catalogue: say which \(--catalog\)"):
        table_at(s3.prefix(), "iceberg")


def test_one_process_at_a_time(store: str, tmp_path: Path) -> None:
    from gateway.pipeline.manifest import ArchiveWriter

    with ArchiveWriter(tmp_path / "table"), pytest.raises(StoreInUse, match="another process adds to"):
        archive_to_table(store, tmp_path / "table", "delta")


def test_whoever_takes_a_table_for_an_archive_is_told(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where)
    with pytest.raises(Unsupported, match=r"is a table of (Delta|Iceberg).*merge: --format"):
        merge(made.place)


def test_what_would_be_archived(made: Made, store: str, tmp_path: Path) -> None:
    assert planned_for_table(store, made.place, **made.where).records == 16
    if not made.place.startswith("s3a://"):
        assert not (Path(made.place) / "_delta_log").exists()
    archive_to_table(store, made.place, **made.where)
    filled(tmp_path / "store", more)
    assert planned_for_table(store, made.place, **made.where) == Planned(1, ("orders/eu/1 [4, 5)",), ())


def test_two_formats_are_not_mixed(made: Made, store: str, tmp_path: Path) -> None:
    archive_to_table(store, made.place, **made.where)
    there = set(shelf_at(made.place).files())
    with pytest.raises(Unsupported, match="is a table of"):
        archive(store, made.place)
    other = "iceberg" if made.form == "delta" else "delta"
    with pytest.raises(InvalidRequest, match=f"in another format than {other}"):
        archive_to_table(store, made.place, other, catalog=f"sqlite:///{tmp_path}/other.sqlite")
    assert set(shelf_at(made.place).files()) == there
    archive(store, tmp_path / "plain")
    with pytest.raises(InvalidRequest, match=f"in another format than {made.form}"):
        archive_to_table(store, tmp_path / "plain", **made.where)


# --- with values as columns


def amounts(versions: list[bytes], values: list[bytes]) -> Callable[[Log], Any]:
    """Registers versions of a schema, and stores values."""

    async def fill(log: Log) -> None:
        rows = [
            Put(
                "schemas",
                b"amount\0" + struct.pack(">I", number),
                msgspec.msgpack.encode(SchemaRow(SchemaKind.JSON, text)),
            )
            for number, text in enumerate(versions, 1)
        ]
        last = Put("schemas", b"amount\0" + struct.pack(">I", 0), struct.pack(">I", len(versions)))
        await log.store.submit(Unit(puts=[*rows, last])).wait()
        if "amounts" not in log.store.topics:
            await log.create("amounts")
        await log.append("amounts", values)

    return fill


def json_schema(**properties: Any) -> bytes:
    return json.dumps({"type": "object", "properties": properties, "required": ["n"]}).encode()


FIRST = json_schema(
    n={"type": "integer"}, gone={"type": "string"}, at={"type": "object", "properties": {"x": {"type": "number"}}}
)
SECOND = json_schema(
    n={"type": "integer"},
    at={"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
    tags={"type": "array", "items": {"type": "string"}},
)
THIRD = json_schema(n={"type": "string"})


def test_values_as_columns_that_grow_with_their_schema(made: Made, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    filled(tmp_path / "store", amounts([FIRST], [b'{"n": 1, "gone": "a", "at": {"x": 1.5}}', b"other"]))
    archive_to_table(store, made.place, **made.where)  # the columns may come later
    filled(tmp_path / "store", amounts([FIRST], [b'{"n": 2, "gone": "b"}', b'{"n": "two"}']))

    def run() -> int:
        return archive_to_table(store, made.place, **made.where, typed=schema_of(store, schema="amount")).records

    assert run() == 2
    with pytest.raises(InvalidRequest, match=r"has values as columns: say by which schema \(--typed\)"):
        archive_to_table(store, made.place, **made.where)
    filled(tmp_path / "store", amounts([FIRST, SECOND], [b'{"n": 3, "at": {"x": 1, "y": 2}, "tags": ["t"]}']))
    assert (run(), run()) == (1, 0)
    rows = made.whole().sort_by("offset").select(["data", "problem"]).to_pylist()
    nothing = {"n": None, "gone": None, "at": None, "tags": None}
    assert [{**nothing, **(row["data"] or {})} for row in rows] == [
        nothing,
        nothing,
        {**nothing, "n": 2, "gone": "b"},
        nothing,
        {"n": 3, "gone": None, "at": {"x": 1.0, "y": 2.0}, "tags": ["t"]},
    ]
    assert [bool(row["problem"]) for row in rows] == [False, False, False, True, False]
    assert audited(made, store).findings == ()
    filled(tmp_path / "store", amounts([FIRST, SECOND, THIRD], [b'{"n": "4"}']))
    with pytest.raises(
        InvalidRequest, match=r"the column data\.n of the table is int64, and by the schema it is string now"
    ):
        run()
    assert made.whole().num_rows == 5


# --- audited

HERE = pytest.mark.parametrize("made", ["delta", "iceberg"], indirect=True)
"""Where it is of no matter whether it is in an object store."""


def audited(made: Made, store: str) -> Audited:
    return audit(store, made.place, catalog=made.catalog)


def test_an_audit_compares_record_by_record(made: Made, store: str, tmp_path: Path) -> None:
    archive_to_table(store, made.place, **made.where, records_per_commit=5)
    found = audited(made, store)
    assert (found.compared, found.archived, found.findings) == (16, 16, ())
    assert found.routes == {("orders/eu", 0, "orders"): 12, ("orders/eu", 1, "orders"): 4}
    optimize(made.place, made.form, catalog=made.catalog)
    filled(tmp_path / "store", more)
    found = audited(made, store)
    assert (found.compared, found.findings) == (16, ("gap: orders/eu/1 [4, 5) is not archived",))


def tampered(made: Made, rows: pa.Table) -> None:
    """What somebody else did to a table."""
    if made.form == "delta":
        import deltalake

        deltalake.write_deltalake(made.library(), rows, mode="append")
    else:
        made.library().append(rows)


def deleted(made: Made, partition: int, offset: int) -> None:
    if made.form == "delta":
        made.library().delete(f'partition = {partition} AND "offset" = {offset}')
        return
    from pyiceberg.expressions import And, EqualTo

    made.library().delete(And(EqualTo("partition", partition), EqualTo("offset", offset)))  # type: ignore[arg-type]


@HERE
def test_an_audit_finds_what_is_wrong_with_a_table(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where)
    whole = made.whole().select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)
    first = whole.filter((pc.field("partition") == 0) & (pc.field("offset") == 0))
    deleted(made, 0, 4)
    tampered(made, first)
    deleted(made, 1, 3)
    other = first.set_column(first.schema.get_field_index("value"), "value", pa.array([b"other"], pa.binary()))
    number = pa.array([1], pa.int32()), pa.array([3], pa.int64())
    for name, cells in zip(("partition", "offset"), number, strict=True):
        other = other.set_column(other.schema.get_field_index(name), TABLE_SCHEMA.field(name), cells)
    tampered(made, other.cast(TABLE_SCHEMA))
    findings = audited(made, store).findings
    assert "gap: orders/eu/0 [4, 5) is not archived" in findings
    assert "duplicate: orders/eu/0 offset 0 is in the table twice" in findings
    assert any(one.startswith("different: orders/eu/1 offset 3") for one in findings)


@HERE
def test_a_table_that_does_not_know_its_end_is_found(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where)
    rows = made.whole().select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)
    last = rows.filter((pc.field("partition") == 1) & (pc.field("offset") == 3))
    tampered(made, last.set_column(2, TABLE_SCHEMA.field("offset"), pa.array([4], pa.int64())))
    findings = audited(made, store).findings
    assert any("is there up to 5, and the table says 4" in one for one in findings)
    assert any(one.startswith("beyond: orders/eu/1 [4, 5)") for one in findings)


@HERE
def test_what_retention_took_holds_up_only_what_follows_it(made: Made, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    filled(tmp_path / "store", before_retention)
    archive_to_table(store, made.place, **made.where)
    filled(tmp_path / "store", after_retention)
    with pytest.raises(HistoryGone, match=r"t/0 \[2, 5\): removed before it was archived. All else is archived"):
        archive_to_table(store, made.place, **made.where)
    assert sorted(made.whole()["value"].to_pylist()) == [b"a", b"all is there", b"b"]
    assert audited(made, store).findings == ("gap: t/0 [5, 6) is not archived",)
    done = archive_to_table(store, made.place, **made.where, accept_gaps=True)
    assert (done.records, done.gaps) == (1, ("t/0 [2, 5)",))
    for _ in range(2):  # it stays accepted
        found = audited(made, store)
        assert (found.compared, found.archived, found.findings) == (2, 4, ())
        assert found.accepted == ("t/0 [2, 5): removed before it was archived",)
        assert archive_to_table(store, made.place, **made.where) == Archived()


@HERE
def test_what_is_damaged_holds_up_only_what_follows_it(made: Made, tmp_path: Path) -> None:
    async def fill(log: Log) -> None:
        for topic in ("bad", "good"):
            await log.create(topic)
            for number in range(6):
                await log.append(topic, [b"%d" % number] * 2)

    store = str(tmp_path / "store")
    filled(tmp_path / "store", fill)
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "log.sqlite", isolation_level=None)) as opened:
        key, whole = opened.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 2").fetchone()
        opened.execute("UPDATE chunks SET data = ? WHERE id = ?", (whole[:-1] + b"?", key))
    for _ in range(2):
        with pytest.raises(Damaged, match=r"topic=bad partition=0 offsets=\[4, 6\)\. All else is archived"):
            archive_to_table(store, made.place, **made.where, records_per_commit=3)
        assert made.whole().num_rows == 4 + 12
    done = archive_to_table(store, made.place, **made.where, records_per_commit=3, accept_gaps=True)
    assert (done.records, len(done.gaps)) == (6, 1)
    found = audited(made, store)
    assert found.findings == ()
    assert found.accepted == ("bad/0 [4, 6): damaged chunk: topic=bad partition=0 offsets=[4, 6)",)
    assert archive_to_table(store, made.place, **made.where) == Archived()


@HERE
def test_a_file_of_a_table_that_is_gone_is_a_finding(made: Made, store: str) -> None:
    archive_to_table(store, made.place, **made.where)
    gone = next(Path(made.place).rglob("*day=2023-11-15*/**/*.parquet"))
    gone.unlink()
    findings = audited(made, store).findings
    assert any(one.startswith("damaged: ") and "is not to be read" in one for one in findings), findings


@HERE
def test_a_mistake_leaves_nothing_behind(made: Made, store: str) -> None:
    with pytest.raises(UnknownTopic):
        archive_to_table(store, made.place, **made.where, topics=TopicSelection.parse("nothing"))
    assert not Path(made.place).exists()


# --- read by jobs


@pytest.mark.spark
@pytest.mark.parametrize("made", ["delta", "iceberg-s3"], indirect=True)
def test_jobs_read_a_table(spark: Any, made: Made, store: str, tmp_path: Path) -> None:
    archive_to_table(store, made.place, **made.where, layout=ArchiveLayout.of(["kind=headers.h"]))
    deleted(made, 0, 4)
    messages = messages_at(made.place, made.catalog)
    topics = TopicSelection.parse("orders/**")
    spans = messages.spans(topics)
    assert [(span.topic, span.partition, span.start, span.end) for span in spans] == [
        ("orders/eu", 0, 0, 12),
        ("orders/eu", 1, 0, 4),
    ]
    assert messages.stores() == [store]
    found = messages.frame(spark, spans).toArrow()
    with open_log(store) as log:
        epoch = log.topic("orders/eu").epoch
        stored = [
            batch
            for one in spans
            for batch in record_batches(log, Range(one.topic, one.partition, one.start, one.end, one.epoch), SCHEMA)
        ]
    wanted = pa.Table.from_batches(stored)
    wanted = wanted.filter((pc.field("partition") != 0) | (pc.field("offset") != 4))
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert found.drop(["epoch"]).sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
    assert set(found["epoch"].to_pylist()) == {epoch}
    few = [attrs.evolve(spans[0], start=2, end=5)]
    assert messages.frame(spark, few, ["offset"]).sort("offset").toArrow()["offset"].to_pylist() == [2, 3]
    assert messages.frame(spark, [], ["offset"]).count() == 0
    with pytest.raises(UnknownTopic, match="there is no topic nothing in"):
        messages.spans(TopicSelection.parse("nothing"))
    done = compact(spark, messages, tmp_path / "latest")
    assert (done.keys, done.topics) == (2, 1)
