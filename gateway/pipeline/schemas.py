"""Values as typed columns, by the schema that is registered for their topic: JSON, Avro or Protobuf.

    orders = schema_of("./data", "orders.eu")            # or schema="order", version=3
    orders.spark                                         # a StructType
    found = decoded(frame, orders)                       # of a batch or of a stream
    found.good.select("offset", "data.*")                # typed columns
    found.aside                                          # what does not fit: all its columns, the value, and the problem

A value is read by the newest version of the schema under which it is whole, and has the columns of the newest of them: what an
older one does not say is null. What Spark has no type for (a union of several types, a type that contains itself, any JSON) is
its JSON as a string.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import fastavro
import msgspec
import pyarrow as pa

from gateway.arrow.schema import TIME
from gateway.errors import InvalidRequest
from gateway.pipeline.decoding import Definition, Undecodable, definitions
from gateway.schemas.avro import AvroSchema
from gateway.store.reader import LogReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

DATA, PROBLEM, VALUE = "data", "problem", "value"
DEEPEST = 20
"""Levels of columns; what is deeper is a string."""
WIDEST_DECIMAL = 38
LARGEST = 1 << 63


@attrs.frozen
class TopicSchema:
    """The versions of a schema, the newest first. A value that may be pickled."""

    versions: Sequence[Definition]

    @property
    def name(self) -> str:
        return self.versions[0].name

    @property
    def arrow(self) -> pa.StructType:
        made = _reader_of(self.versions[0]).type
        return made if pa.types.is_struct(made) else pa.struct([pa.field(VALUE, made)])

    @property
    def spark(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.schema(list(self.arrow)))


@attrs.frozen
class Decoded:
    everything: DataFrame
    """The columns of the frame, `data`, and `problem`, of which one is null in every row. It is read once where it is cached."""
    good: DataFrame
    """What fits, with `data` instead of the value."""
    aside: DataFrame
    """The rows whose values do not fit, with the problem."""


def schema_of(store: str, topic: str = "", *, schema: str = "", version: int | None = None) -> TopicSchema:
    """A topic's own schema, or one by its name, from the registry of a store. Raises UnknownTopic, NotFound, InvalidRequest."""
    if not schema:
        if not topic:
            raise InvalidRequest("whose schema? name a topic or a schema")
        with LogReader(store) as reader:
            schema = reader.topic(topic).config.schema
        if not schema:
            raise InvalidRequest(f"the topic {topic} has no schema: say which by schema=")
    found = TopicSchema(definitions(store, schema, version))
    assert found.arrow is not None  # what cannot be columns is said here, not in a task
    return found


def decoded(frame: DataFrame, schema: TopicSchema) -> Decoded:
    """Read the values of a frame, which may be a stream. Raises InvalidRequest for a frame without the column `value`."""
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    if VALUE not in frame.columns or DATA in frame.columns or PROBLEM in frame.columns:
        raise InvalidRequest(
            f"a frame with a column {VALUE} and without columns {DATA} and {PROBLEM}, not {frame.columns}"
        )
    kept = [name for name in frame.columns if name != VALUE]
    more = [StructField(VALUE, BinaryType()), StructField(DATA, schema.spark), StructField(PROBLEM, StringType())]
    made = StructType([*[frame.schema[name] for name in kept], *more])
    everything = frame.select(*kept, VALUE).mapInArrow(_decoder(schema, kept), made)
    good = everything.where(f"{PROBLEM} is null").select(*kept, DATA)
    return Decoded(everything, good, everything.where(f"{PROBLEM} is not null").select(*kept, VALUE, PROBLEM))


def _decoder(
    schema: TopicSchema, kept: Sequence[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = ValueReader(schema)
        for batch in batches:
            data, problems = read.column(batch.column(VALUE).to_pylist())
            columns = [batch.column(name) for name in (*kept, VALUE)]
            yield pa.RecordBatch.from_arrays([*columns, data, problems], [*kept, VALUE, DATA, PROBLEM])

    return decode


class ValueReader:
    """Reads values by a schema, as its type or a wider one. Made where it is used: a compiled schema does not travel."""

    def __init__(self, schema: TopicSchema, to: pa.StructType | None = None) -> None:
        self._type = to or schema.arrow
        self._versions = [(one, _reader_of(one)) for one in schema.versions]
        self._whole = pa.types.is_struct(self._versions[0][1].type)

    def column(self, values: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
        """The values as structs, null where one does not fit; and why."""
        rows: list[Any] = []
        problems: list[str | None] = []
        for value in values:
            try:
                rows.append(self.row(value))
                problems.append(None)
            except Undecodable as error:
                rows.append(None)
                problems.append(error.message)
        return pa.array(rows, self._type), pa.array(problems, pa.string())

    def row(self, value: bytes) -> Any:
        """One value. Raises Undecodable."""
        problems: list[str] = []
        for one, reader in self._versions:
            try:
                found = reader.read(value)
                return _fitted(found if self._whole else {VALUE: found}, self._type)
            except Undecodable as error:
                problems.append(f"version {one.version}: {error.message}")
        raise Undecodable(f"not {self._versions[0][0].name}: {'; '.join(problems[:3])}")


class _FormatReader(Protocol):
    type: pa.DataType

    def read(self, value: bytes) -> Any: ...


def _reader_of(one: Definition) -> _FormatReader:
    readers: Mapping[str, Callable[[Definition], _FormatReader]] = {"avro": _Avro, "json": _Json, "protobuf": _Protobuf}
    return readers[one.kind](one)


def _fitted(value: Any, to: pa.DataType) -> Any:
    # A value as Arrow takes it for a type. Raises Undecodable.
    if value is None:
        return None
    if pa.types.is_struct(to):
        if not isinstance(value, Mapping):
            raise Undecodable(f"{_short(value)} is no object")
        return {field.name: _fitted(value.get(field.name), field.type) for field in to}
    if pa.types.is_list(to):
        if not isinstance(value, list):
            raise Undecodable(f"{_short(value)} is no array")
        return [_fitted(one, to.value_type) for one in value]
    if pa.types.is_map(to):
        if not isinstance(value, Mapping):
            raise Undecodable(f"{_short(value)} is no object")
        return [(key, _fitted(one, to.item_type)) for key, one in value.items()]
    if pa.types.is_string(to):
        return value if isinstance(value, str) else _json_text(value)
    if pa.types.is_floating(to) and isinstance(value, int):
        return float(value)
    if pa.types.is_integer(to) and isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise Undecodable(f"{_short(value)} is too large for 64 bits")
    try:
        pa.scalar(value, to)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise Undecodable(f"{_short(value)} is no {to}") from None
    return value


def _json_text(value: Any) -> str:
    if isinstance(value, dt.time | dt.date | dt.datetime):
        return value.isoformat()
    plain = isinstance(value, Mapping | list | int | float | bool)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain) if plain else str(_plain(value))


def _plain(value: object) -> object:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


# --- Avro ---

_AVRO_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": TIME,
    "timestamp-micros": TIME,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "uuid": pa.string(),
}


class _Avro:
    """Read twice: by the guarded schema, which has no logical types, and then with them."""

    def __init__(self, one: Definition) -> None:
        self._checked = AvroSchema(one.text)
        try:
            schema = json.loads(one.text)
        except ValueError:
            schema = one.text.decode("ascii", "replace").strip()
        named: dict[str, Any] = {}
        self._schema = fastavro.parse_schema(schema, named_schemas=named)
        self.type = _avro_type(self._schema, named, ())

    def read(self, value: bytes) -> Any:
        wrong = self._checked.problems(value)
        if wrong:
            raise Undecodable(wrong[0])
        try:
            return fastavro.schemaless_reader(io.BytesIO(value), self._schema, None)
        except (ValueError, OverflowError, ArithmeticError) as error:  # a date that there is not
            raise Undecodable(str(error)) from None


def _avro_type(schema: Any, named: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        return _avro_type(others[0], named, inside) if len(others) == 1 else pa.string()
    if not isinstance(schema, dict):
        return _AVRO_TYPES[schema]
    kind, logical = schema["type"], schema.get("logicalType", "")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "decimal" and schema["precision"] <= WIDEST_DECIMAL:
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], named, inside))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], named, inside))
    if kind in {"record", "error"}:
        name = schema["name"]
        if name in inside or len(inside) >= DEEPEST or not schema["fields"]:
            return pa.string()
        fields = [(one["name"], _avro_type(one["type"], named, (*inside, name))) for one in schema["fields"]]
        return pa.struct([pa.field(name, made) for name, made in fields])
    return _AVRO_TYPES[kind] if isinstance(kind, str) and kind in _AVRO_TYPES else _avro_type(kind, named, inside)


# --- JSON ---

_JSON_TYPES: Mapping[str, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}


class _Json:
    def __init__(self, one: Definition) -> None:
        from gateway.schemas.json_schema import JsonSchema

        self._checked = JsonSchema(one.text)
        root = json.loads(one.text)
        self.type = _json_type(root, root, 0)

    def read(self, value: bytes) -> Any:
        wrong = self._checked.problems(value)
        if wrong:
            raise Undecodable(wrong[0])
        return _whole_numbers(msgspec.json.decode(value), self.type)


def _whole_numbers(value: Any, to: pa.DataType) -> Any:
    # 1.0 is an integer, says JSON Schema
    if pa.types.is_integer(to) and isinstance(value, float) and value.is_integer():
        return int(value)
    if pa.types.is_struct(to) and isinstance(value, dict):
        return {**value, **{one.name: _whole_numbers(value[one.name], one.type) for one in to if one.name in value}}
    if pa.types.is_list(to) and isinstance(value, list):
        return [_whole_numbers(one, to.value_type) for one in value]
    return value


def _json_type(schema: Any, root: Any, depth: int) -> pa.DataType:
    if not isinstance(schema, dict) or depth > DEEPEST:
        return pa.string()
    if "$ref" in schema:
        return _json_type(_referred(root, schema["$ref"]), root, depth + 1)
    properties = dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        if isinstance(part, dict):
            part = _referred(root, part["$ref"]) if "$ref" in part else part
            properties |= part.get("properties", {}) if isinstance(part, dict) else {}
    said = schema.get("type", "object" if properties else "")
    kinds = {one for one in (said if isinstance(said, list) else [said]) if one != "null"}
    if kinds == {"integer", "number"}:
        return pa.float64()
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind == "array":
        items = schema.get("items")
        return pa.list_(_json_type(items, root, depth + 1) if isinstance(items, dict) else pa.string())
    if kind == "object" and properties:
        return pa.struct([pa.field(name, _json_type(one, root, depth + 1)) for name, one in properties.items()])
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return pa.map_(pa.string(), _json_type(schema["additionalProperties"], root, depth + 1))
    return _JSON_TYPES.get(kind, pa.string())


def _referred(root: Any, reference: str) -> Any:
    # what stands at `#/a/b` in a schema; the registry has checked that it is there
    at = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        at = at[int(key)] if isinstance(at, list) else at.get(key, {})
    return at


# --- Protobuf ---


class _Protobuf:
    def __init__(self, one: Definition) -> None:
        from gateway.schemas.protobuf import ProtobufSchema, compile_text

        self._checked = ProtobufSchema(one.compiled or compile_text(one.text))
        self._message = self._checked.message
        self.type = _message_type(self._message.DESCRIPTOR, ())

    def read(self, value: bytes) -> Any:
        wrong = self._checked.problems(value)
        if wrong:
            raise Undecodable(wrong[0])
        return _message_value(self._message.FromString(value), self.type)


def _scalar_type(field: Any) -> pa.DataType:
    kinds: Mapping[int, pa.DataType] = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    return kinds[field.cpp_type]


def _field_type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    below = field.message_type
    if below is None:
        made = _scalar_type(field)
    elif below.GetOptions().map_entry:
        key, item = below.fields_by_name["key"], below.fields_by_name["value"]
        return pa.map_(_scalar_type(key), _field_type(item, inside))
    else:
        made = _message_type(below, inside)
    return pa.list_(made) if field.is_repeated else made


def _message_type(message: Any, inside: tuple[str, ...]) -> pa.DataType:
    name = message.full_name
    if name == "google.protobuf.Timestamp":
        return TIME
    if name in inside or len(inside) >= DEEPEST or not message.fields:
        return pa.string()
    return pa.struct([pa.field(one.name, _field_type(one, (*inside, name))) for one in message.fields])


def _message_value(message: Any, to: pa.DataType) -> Any:
    if pa.types.is_timestamp(to):
        return _time(message)
    if not pa.types.is_struct(to):
        from google.protobuf import json_format

        return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        made = to.field(field.name).type
        if not field.is_repeated and field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _field_value(field, getattr(message, field.name), made)
    return found


def _field_value(field: Any, value: Any, to: pa.DataType) -> Any:
    below = field.message_type
    if below is not None and below.GetOptions().map_entry:
        item = below.fields_by_name["value"]
        return {key: _one_value(item, one, to.item_type) for key, one in value.items()}
    if field.is_repeated:
        return [_one_value(field, one, to.value_type) for one in value]
    return _one_value(field, value, to)


def _one_value(field: Any, value: Any, to: pa.DataType) -> Any:
    if field.message_type is not None:
        return _message_value(value, to)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return decimal.Decimal(value) if pa.types.is_decimal(to) else value


def _time(stamp: Any) -> dt.datetime:
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(
            seconds=stamp.seconds, microseconds=stamp.nanos // 1000
        )
    except OverflowError:
        raise Undecodable(f"{stamp.seconds} seconds are no time") from None
