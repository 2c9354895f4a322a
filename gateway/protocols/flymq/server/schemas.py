"""Schemas and publishing with one (FlyMQ document, 0x10 to 0x15; FlyMQ wire 2.2)."""

from __future__ import annotations

from gateway.envelope import Batch, Columns
from gateway.errors import InvalidRequest, NotFound
from gateway.protocols.flymq.server.operations import Call, Operation, Operations, Steps, expect
from gateway.protocols.flymq.wire.codec import (
    REQUESTS,
    SCHEMA_LIST,
    SCHEMA_REST,
    SCHEMA_STOCK,
    read_optional_name,
    read_produce_with_schema,
)
from gateway.protocols.flymq.wire.frames import Op, frame
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import (
    DeleteSchema,
    GetSchemas,
    Publish,
    Published,
    RegisterSchema,
    SchemaInfo,
    Schemas,
    ValidateSchema,
    Validation,
)
from gateway.settings import Dialect

KINDS = {"json": "json", "avro": "avro", "protobuf": "protobuf", "proto": "protobuf"}


def schema_id(info: SchemaInfo) -> str:
    """What the lists call a version (FlyMQ wire 2.2, LIST_SCHEMAS)."""
    return f"{info.name}-v{info.version}"


def register(call: Call, payload: bytes) -> Steps:
    name, kind, definition = REQUESTS[call.op].decode(payload)
    if kind not in KINDS:
        raise InvalidRequest(f"unsupported schema type: {kind}")
    schemas = expect(Schemas, (yield RegisterSchema(call.id(), name, KINDS[kind], definition)))
    made = schemas.schemas[0]
    return call.answer(made.name, made.kind.value, made.version)


def get(call: Call, payload: bytes) -> Steps:
    """One version, 0 meaning the latest. The document's dialect gets the shipped server's layout; the others that of
    LIST_SCHEMAS with the rest behind it, which the one shipped client that asks can read (FlyMQ wire 2.3).
    """
    name, version = REQUESTS[call.op].decode(payload)
    missing = f"schema not found: {name} v{version}" if version else f"no schema found for topic: {name}"
    if not name:  # to the broker an empty name means all
        raise NotFound(missing)
    try:
        schemas = expect(Schemas, (yield GetSchemas(call.id(), name, version))).schemas
    except NotFound:
        raise NotFound(missing) from None
    if not schemas:
        raise NotFound(missing)
    found = schemas[0]
    if call.speech.dialect is Dialect.DOCUMENT:
        return frame(
            call.op,
            SCHEMA_STOCK.encode(
                schema_id(found), found.name, found.version, found.kind.value, found.definition, found.compatibility
            ),
        )
    listed = SCHEMA_LIST.encode([(found.name, found.kind.value, found.version)])
    return frame(call.op, listed + SCHEMA_REST.encode(schema_id(found), found.definition, found.compatibility))


def list_all(call: Call, payload: bytes) -> Steps:
    schemas = expect(Schemas, (yield GetSchemas(call.id(), read_optional_name(payload)))).schemas
    return call.answer([(schema_id(info), info.kind.value, info.version) for info in schemas])


def validate(call: Call, payload: bytes) -> Steps:
    name, value = REQUESTS[call.op].decode(payload)
    checked = expect(Validation, (yield ValidateSchema(call.id(), name, value)))
    return call.answer(not checked.problems, checked.problems)


def delete(call: Call, payload: bytes) -> Steps:
    """One version, or with 0 all of them, which is what the Go client means by it."""
    name, version = REQUESTS[call.op].decode(payload)
    try:
        yield DeleteSchema(call.id(), name, version)
    except NotFound:
        raise NotFound(f"failed to delete schema: schema not found: {name} v{version}") from None
    return call.answer(True, "OK")


def produce(call: Call, payload: bytes) -> Steps:
    """PRODUCE that is refused unless the message fits the schema named."""
    topic, schema, data = read_produce_with_schema(payload)
    call.subject = Subject(topic)
    batch = Batch(topic, Columns.of([data]), round_robin=True)
    published = expect(Published, (yield Publish(call.id(), batch, schema=schema)))
    return recorded(call, topic, published, data)


def recorded(call: Call, topic: str, published: Published, data: bytes, *more: object) -> bytes:
    """RecordMetadata of a publish of one message without a key (FlyMQ document, PRODUCE)."""
    if 0 in published.refused:
        raise published.refused[0]
    partition, offset = published.position(0)
    return call.answer(topic, partition, offset, published.timestamp_ms, -1, len(data), *more)


OPERATIONS: Operations = {
    Op.REGISTER_SCHEMA: Operation(register),
    Op.GET_SCHEMA: Operation(get),
    Op.LIST_SCHEMAS: Operation(list_all),
    Op.VALIDATE_SCHEMA: Operation(validate),
    Op.PRODUCE_WITH_SCHEMA: Operation(produce),
    Op.DELETE_SCHEMA: Operation(delete),
}
