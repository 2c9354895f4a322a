"""The archive as a table of another format: said clearly where the package is missing, exactly once where it is there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest, StoreInUse, Unsupported
from gateway.pipeline.tables import archive_to_table, table_at
from tests.pipeline.stored import Log, filled

FORMATS = {"delta": "deltalake", "iceberg": "pyiceberg"}
PRESENT = [form for form, package in FORMATS.items() if importlib.util.find_spec(package)]
ABSENT = [form for form in FORMATS if form not in PRESENT]


async def orders(log: Log) -> None:
    await log.create("orders/eu", partitions=2)
    for _ in range(4):
        await log.append("orders/eu", [b"a", b"", b"c"], 0, [b"k", None, b""], [(("h", b"1"),), (), ()])
        await log.append("orders/eu", [b"d"], 1)
        log.clock.ms += 43_200_000


async def more(log: Log) -> None:
    await log.append("orders/eu", [b"later"], 1)


@pytest.mark.parametrize("form", ABSENT)
def test_a_package_that_is_missing_is_named(form: str, tmp_path: Path) -> None:
    filled(tmp_path / "store", orders)
    with pytest.raises(Unsupported, match=rf"the format {form} needs the package {FORMATS[form]}.*: pip install"):
        archive_to_table(str(tmp_path / "store"), tmp_path / "table", form)


def test_a_format_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="a table is delta or iceberg, not 'orc'"):
        table_at(tmp_path, "orc")


def rows(form: str, path: Path) -> list[tuple[Any, ...]]:
    if form == "delta":
        import deltalake

        found = deltalake.DeltaTable(str(path)).to_pyarrow_table()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("gateway", uri=f"sqlite:///{path}/catalog.sqlite", warehouse=f"file://{path}")
        found = catalog.load_table("gateway.messages").scan().to_arrow()
    return sorted((one["partition"], one["offset"], one["value"], one["day"]) for one in found.to_pylist())


@pytest.mark.parametrize("form", PRESENT)
def test_exactly_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, out = str(tmp_path / "store"), tmp_path / "table"
    filled(tmp_path / "store", orders)
    seen: list[tuple[int, int]] = []

    class Stopped(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 5:
            raise Stopped

    with pytest.raises(Stopped):
        archive_to_table(store, out, form, records_per_commit=5, progress=stop)
    assert archive_to_table(store, out, form, records_per_commit=5).records == 11
    assert len(rows(form, out)) == len(set(rows(form, out))) == 16
    filled(tmp_path / "store", more)
    assert archive_to_table(store, out, form).records == 1
    assert archive_to_table(store, out, form).records == 0
    assert (1, 4, b"later", "2023-11-16") in rows(form, out)
    assert {row[3] for row in rows(form, out)} == {"2023-11-14", "2023-11-15", "2023-11-16"}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    from gateway.pipeline.manifest import ArchiveWriter

    filled(tmp_path / "store", orders)
    with ArchiveWriter(tmp_path / "table"), pytest.raises(StoreInUse, match="another process adds to the table"):
        archive_to_table(str(tmp_path / "store"), tmp_path / "table", "delta")
