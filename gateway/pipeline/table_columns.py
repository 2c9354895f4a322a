"""Typed columns of a table: `data` by the schema that is registered for the topic, `problem` where a value does not fit it.

The columns grow with the schema: what a later version has more is added, what it has no longer stays, and is null. Apart from
`tables`, which is about commits: this knows no format.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gateway.errors import InvalidRequest
from gateway.pipeline.schemas import DATA, PROBLEM, TopicSchema, ValueReader


class TypedColumns:
    def __init__(self, schema: TopicSchema, there: pa.DataType | None) -> None:
        """`there` is the type that a table has already. Raises InvalidRequest where one cannot become the other."""
        wanted = schema.arrow
        self._type = wanted if there is None else _grown(DATA, plain_type(there), wanted)
        self._reader = ValueReader(schema, self._type)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(DATA, self._type), pa.field(PROBLEM, pa.string())]

    def of(self, rows: pa.Table) -> Mapping[str, pa.Array]:
        data, problems = self._reader.column(rows["value"].to_pylist())
        return {DATA: data, PROBLEM: problems}


def _grown(name: str, there: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in there}
        both = [
            pa.field(
                one.name, _grown(f"{name}.{one.name}", known[one.name], one.type) if one.name in known else one.type
            )
            for one in wanted
        ]
        names = {field.name for field in wanted}
        return pa.struct([*(field for field in there if field.name not in names), *both])
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        return pa.list_(_grown(f"{name}[]", there.value_type, wanted.value_type))
    if pa.types.is_map(there) and pa.types.is_map(wanted):
        return pa.map_(wanted.key_type, _grown(f"{name}[]", there.item_type, wanted.item_type))
    if there != wanted:
        raise InvalidRequest(
            f"the column {name} of the table is {there}, and by the schema it is {wanted} now: archive into another table"
        )
    return wanted


def plain_type(kind: pa.DataType) -> pa.DataType:
    """As schemas have it: the formats' packages have large strings, and lists with names of their own."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
