"""The archive as a table of another format, in a directory and in an object store: exactly once, whoever is at it as well."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from gateway.errors import InvalidRequest, NotAStore, StoreInUse, Unsupported
from gateway.pipeline.audit import audit
from gateway.pipeline.frames import messages_at
from gateway.pipeline.layout import ArchiveLayout
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.tables import PARTITIONED_BY, TABLE_SCHEMA, archive_to_table, optimize, table_at
from tests.pipeline.s3 import ObjectStore, object_store
from tests.pipeline.stored import Log, filled


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
    for look in (lambda: audit(store, made.place), lambda: messages_at(made.place).spans(TopicSelection())):
        with pytest.raises(
            Unsupported, match=r"is a table of (Delta|Iceberg): audits and jobs read archives of Parquet"
        ):
            look()
