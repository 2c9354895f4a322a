"""A Delta or an Iceberg table as it was at one moment, read by the formats' own packages: what others have deleted or moved in it
since is as they say.

Apart from `tables`, which adds: this travels to executors, with what the table is reached by and without its catalogue.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from gateway.errors import StoreDamaged
from gateway.pipeline.ranges import Range
from gateway.pipeline.shelves import credentials

Life = tuple[str, int, int]
"""(topic, epoch, partition)"""


@attrs.frozen
class TableDay:
    """What the table is partitioned by, beside expressions of somebody's own."""

    topic: str
    day: str


@attrs.frozen
class TableVersion:
    """Of a Delta table its number, of an Iceberg table where its metadata are."""

    form: str
    place: str
    at: str
    environment: Mapping[str, str] = attrs.field(factory=credentials, repr=False, eq=False)

    def days(self) -> list[TableDay]:
        found = self._opened().days()
        return [TableDay(topic, day) for topic, day in sorted(found)]

    def batches(
        self, schema: pa.Schema, which: TableDay | None = None, what: Range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows with these columns, in no order: of a day, and of a range of offsets."""
        wanted: list[Term] = []
        if which is not None:
            wanted += [("topic", "=", which.topic), ("day", "=", which.day)]
        if what is not None:
            wanted += [("topic", "=", what.topic), ("epoch", "=", what.epoch), ("partition", "=", what.partition)]
            wanted += [("offset", ">=", what.start), ("offset", "<", what.end)]
        try:
            for batch in self._opened().read(schema.names, list(dict.fromkeys(wanted))):
                cells = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
                yield pa.RecordBatch.from_arrays(cells, schema=schema)
        except (OSError, pa.ArrowException, *_problems(self.form)) as error:
            line = str(error).split("\n", maxsplit=1)[0]
            raise StoreDamaged(f"{self.place} is not to be read: {line}") from error

    def covered(self, which: TableDay | None = None) -> dict[Life, Any]:
        """The offsets that there are of each partition, ascending; one that is there twice is among them twice."""
        parts: dict[Life, list[Any]] = {}
        for batch in self.batches(_PLACES, which):
            topics = batch.column("topic").dictionary_encode()
            names = topics.dictionary.to_pylist()
            place = np.stack(
                [
                    topics.indices.to_numpy().astype(np.int64),
                    batch.column("epoch").fill_null(0).to_numpy(),
                    batch.column("partition").to_numpy().astype(np.int64),
                ]
            )
            offsets = batch.column("offset").to_numpy()
            lives, of = np.unique(place, axis=1, return_inverse=True)
            for number, (topic, epoch, partition) in enumerate(lives.T.tolist()):
                parts.setdefault((names[topic], epoch, partition), []).append(offsets[of.reshape(-1) == number])
        return {life: np.sort(np.concatenate(found)) for life, found in sorted(parts.items())}

    def _opened(self) -> _OpenTable:
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        return _OpenDelta(self.place, int(self.at)) if self.form == "delta" else _OpenIceberg(self.at)


_PLACES = pa.schema([("topic", pa.string()), ("epoch", pa.int64()), ("partition", pa.int32()), ("offset", pa.int64())])
Term = tuple[str, str, str | int | None]
"""A column, an operator, a value."""


def _problems(form: str) -> tuple[type[Exception], ...]:
    # what the package of a format raises beside errors of files and of Arrow
    if form == "delta":
        from deltalake.exceptions import DeltaError

        return (DeltaError,)
    from pyiceberg.exceptions import NoSuchTableError, ValidationError

    return NoSuchTableError, ValidationError


class _OpenDelta:
    def __init__(self, place: str, version: int) -> None:
        import deltalake

        self._table: Any = deltalake.DeltaTable(place, version=version, storage_options=delta_options())

    def days(self) -> set[tuple[str, str]]:
        return {(one["topic"], one["day"]) for one in self._table.partitions()}

    def read(self, columns: Sequence[str], wanted: Sequence[Term]) -> Iterator[pa.RecordBatch]:
        said = " AND ".join(f'"{name}" {operator} {_sql(value)}' for name, operator, value in wanted)
        yield from pa.RecordBatchReader.from_stream(self._table.scan(columns=list(columns), predicate=said or None))


def delta_options() -> dict[str, str]:
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"allow_http": "true"} if plain else {}


def _sql(value: str | int | None) -> str:
    assert value is not None
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("'", "''") + "'"


class _OpenIceberg:
    def __init__(self, metadata: str) -> None:
        from pyiceberg.table import StaticTable

        self._table: Any = StaticTable.from_metadata(metadata, iceberg_settings())

    def days(self) -> set[tuple[str, str]]:
        parts = [one["partition"] for one in self._table.inspect.partitions().to_pylist()]
        if all(one.get("topic") is not None and one.get("day") is not None for one in parts):
            return {(one["topic"], one["day"]) for one in parts}
        # some of it was written before the table was partitioned so
        return {
            (one["topic"], one["day"])
            for batch in self.read(["topic", "day"], [])
            for one in pa.Table.from_batches([batch]).group_by(["topic", "day"]).aggregate([]).to_pylist()
        }

    def read(self, columns: Sequence[str], wanted: Sequence[Term]) -> Iterator[pa.RecordBatch]:
        found = self._table.scan(row_filter=iceberg_filter(wanted), selected_fields=tuple(columns))
        yield from found.to_arrow_batch_reader()


def iceberg_filter(wanted: Sequence[Term]) -> Any:
    import pyiceberg.expressions

    terms: Any = pyiceberg.expressions
    makers = {"=": terms.EqualTo, ">=": terms.GreaterThanOrEqual, "<": terms.LessThan}
    whole = terms.AlwaysTrue()
    for name, operator, value in wanted:
        whole = terms.And(whole, terms.IsNull(name) if value is None else makers[operator](name, value))
    return whole


_OpenTable = _OpenDelta | _OpenIceberg


def iceberg_settings() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if not endpoint:
        return {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return {"s3.endpoint": endpoint, "s3.region": region}
