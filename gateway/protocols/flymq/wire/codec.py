"""The payload of every operation, request and answer, as one table each (FlyMQ document; FlyMQ wire 2.2).

What a table of fields cannot say (two forms told apart by what is there) is in a function beside it. PRODUCE and FETCH,
whose answers must be fast, are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import Truncated, WireError
from gateway.protocols.flymq.wire.dialect import read_word
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import (
    BOOL,
    BYTES,
    I32,
    I64,
    NAMES,
    STR,
    STR8,
    U32,
    U64,
    Layout,
    LayoutField,
    WireWords,
    many,
)
from gateway.wire.reader import Reader

NOTHING = Layout()
WORD = LayoutField(read_word, STR8.encode, 1)
"""Written with a u8 length, read with either (FlyMQ wire 2.3)."""

NAME = Layout(STR)
AT = Layout(STR, I32, U64)
GROUP_AT = Layout(STR, STR, I32)
SOME_NAMES = many(STR, 1_000)
USER = Layout(STR, STR, STR, SOME_NAMES, BOOL)

REQUESTS: Mapping[Op, Layout] = {
    Op.PRODUCE: Layout(STR, BYTES, BYTES, I32),
    Op.CONSUME: AT,
    Op.CONSUME_ZERO_COPY: AT,
    Op.CREATE_TOPIC: Layout(STR, I32),
    Op.METADATA: NAME,
    Op.SUBSCRIBE: GROUP_AT,  # and the mode: dialect.read_mode
    Op.COMMIT: Layout(STR, STR, I32, U64),
    Op.FETCH: Layout(STR, I32, U64, I32),  # and the filter: dialect.filter_suffix
    Op.FETCH_BINARY: Layout(STR, I32, U64, I32),
    Op.LIST_TOPICS: NOTHING,
    Op.DELETE_TOPIC: NAME,
    Op.REGISTER_SCHEMA: Layout(STR, WORD, BYTES),
    Op.GET_SCHEMA: Layout(STR, U32),
    Op.LIST_SCHEMAS: NAME,  # or nothing
    Op.VALIDATE_SCHEMA: Layout(STR, BYTES),
    Op.PRODUCE_WITH_SCHEMA: Layout(STR, STR, BYTES),  # or the data first: read_produce_with_schema
    Op.DELETE_SCHEMA: Layout(STR, U32),
    Op.FETCH_DLQ: Layout(STR, I32),
    Op.REPLAY_DLQ: Layout(STR, STR),  # or an offset: read_replay
    Op.PURGE_DLQ: NAME,
    Op.PRODUCE_DELAYED: Layout(STR, BYTES, I64),
    Op.CANCEL_DELAYED: Layout(STR, STR),
    Op.PRODUCE_WITH_TTL: Layout(STR, BYTES, I64),
    Op.TXN_BEGIN: NOTHING,
    Op.TXN_COMMIT: NAME,
    Op.TXN_ROLLBACK: NAME,
    Op.TXN_PRODUCE: Layout(STR, STR, BYTES),
    Op.CLUSTER_JOIN: NAME,
    Op.CLUSTER_LEAVE: NOTHING,
    Op.CLUSTER_STATUS: NOTHING,
    Op.CLUSTER_METADATA: NAME,
    Op.GET_OFFSET: GROUP_AT,
    Op.RESET_OFFSET: Layout(STR, STR, I32, WORD),  # and the offset for mode "offset"
    Op.LIST_GROUPS: NOTHING,
    Op.DESCRIBE_GROUP: Layout(STR, STR),  # or the group alone: read_group
    Op.GET_LAG: GROUP_AT,
    Op.DELETE_GROUP: Layout(STR, STR),
    Op.SEEK_TO_TIMESTAMP: Layout(STR, STR, I32, I64),
    Op.AUTH: Layout(STR, STR),
    Op.WHOAMI: NOTHING,
    Op.USER_CREATE: USER,
    Op.USER_DELETE: NAME,
    Op.USER_UPDATE: USER,
    Op.USER_LIST: NOTHING,
    Op.USER_GET: NAME,
    Op.ACL_SET: Layout(STR, BOOL, SOME_NAMES, SOME_NAMES),
    Op.ACL_GET: NAME,
    Op.ACL_DELETE: NAME,
    Op.ACL_LIST: NOTHING,
    Op.PASSWORD_CHANGE: USER,
    Op.ROLE_LIST: NOTHING,
}

FLAG = Layout(BOOL, STR)
METADATA = Layout(STR, I32, U64, I64, I32, I32)
"""RecordMetadata: topic, partition, offset, time in ms, key size or -1, value size (FlyMQ document, PRODUCE)."""
METADATA_AND_ID = Layout(STR, I32, U64, I64, I32, I32, STR)
GROUP = Layout(STR, STR, U32, many(Layout(I32, U64)))
TRANSACTION = Layout(STR, BOOL)
USER_INFO = Layout(STR, NAMES, NAMES, BOOL, I64, I64)
PARTITION_LEADER = Layout(I32, STR, STR, U64, STR, NAMES, NAMES)
TOPIC_LED = Layout(STR, many(PARTITION_LEADER))
CLUSTER = Layout(STR, many(TOPIC_LED))
MEMBERS = Layout(many(Layout(STR, STR, BOOL, BOOL)))
"""Behind the CLUSTER layout in STATUS: id, address, healthy, whether it is the one that answers."""
SCHEMA_LIST = Layout(many(Layout(STR, STR8, U32)))
SCHEMA_REST = Layout(STR, BYTES, STR8)
SCHEMA_STOCK = Layout(STR, STR, U32, STR8, BYTES, STR8)

REPLIES: Mapping[Op, Layout] = {
    Op.PRODUCE: METADATA,
    Op.CONSUME: Layout(BYTES, BYTES),
    Op.CONSUME_ZERO_COPY: Layout(BYTES, BYTES),
    Op.CREATE_TOPIC: FLAG,
    Op.METADATA: Layout(STR, many(Layout(I32, I32, U64, U64))),
    Op.SUBSCRIBE: Layout(U64),
    Op.COMMIT: FLAG,
    Op.LIST_TOPICS: Layout(NAMES),
    Op.DELETE_TOPIC: FLAG,
    Op.REGISTER_SCHEMA: Layout(STR, STR8, U32),
    Op.LIST_SCHEMAS: SCHEMA_LIST,
    Op.VALIDATE_SCHEMA: Layout(BOOL, NAMES),
    Op.PRODUCE_WITH_SCHEMA: METADATA,
    Op.DELETE_SCHEMA: FLAG,
    Op.FETCH_DLQ: Layout(many(Layout(STR, BYTES, STR, I32))),
    Op.REPLAY_DLQ: FLAG,
    Op.PURGE_DLQ: FLAG,
    Op.PRODUCE_DELAYED: METADATA_AND_ID,
    Op.CANCEL_DELAYED: FLAG,
    Op.PRODUCE_WITH_TTL: METADATA,
    Op.TXN_BEGIN: TRANSACTION,
    Op.TXN_COMMIT: TRANSACTION,
    Op.TXN_ROLLBACK: TRANSACTION,
    Op.TXN_PRODUCE: METADATA,
    Op.CLUSTER_JOIN: FLAG,
    Op.CLUSTER_LEAVE: FLAG,
    Op.CLUSTER_STATUS: CLUSTER,
    Op.CLUSTER_METADATA: CLUSTER,
    Op.GET_OFFSET: Layout(U64),
    Op.RESET_OFFSET: FLAG,
    Op.LIST_GROUPS: Layout(many(GROUP)),
    Op.DESCRIBE_GROUP: GROUP,
    Op.GET_LAG: Layout(U64, U64, U64, U64),
    Op.DELETE_GROUP: FLAG,
    Op.SEEK_TO_TIMESTAMP: Layout(U64),
    Op.USER_CREATE: USER_INFO,
    Op.USER_DELETE: FLAG,
    Op.USER_UPDATE: FLAG,
    Op.USER_LIST: Layout(many(USER_INFO)),
    Op.USER_GET: USER_INFO,
    Op.ACL_SET: FLAG,
    Op.ACL_GET: Layout(STR, BOOL, BOOL, BOOL, NAMES, NAMES),
    Op.ACL_DELETE: FLAG,
    Op.ACL_LIST: Layout(many(Layout(STR, BOOL, BOOL, NAMES, NAMES)), BOOL),
    Op.PASSWORD_CHANGE: FLAG,
    Op.ROLE_LIST: Layout(many(Layout(STR, NAMES, STR))),
}
"""But for FETCH and FETCH_BINARY (codec_fetch), GET_SCHEMA (read_schema), AUTH and WHOAMI (dialect)."""


def read_produce_with_schema(payload: bytes) -> tuple[str, str, bytes]:
    """(topic, schema, data), in the order of the shipped server or of its Python and Java clients (FlyMQ wire 2.3)."""
    ours = REQUESTS[Op.PRODUCE_WITH_SCHEMA].exact(payload)
    if ours is not None and ours[1]:
        return ours[0], ours[1], ours[2]
    theirs = Layout(STR, BYTES, STR).exact(payload)
    if theirs is not None and theirs[2]:
        return theirs[0], theirs[2], theirs[1]
    raise WireError("invalid binary format")


def read_replay(payload: bytes) -> tuple[str, str]:
    """(topic, dead letter's id); newer clients send an offset of partition 0 instead (FlyMQ wire 1)."""
    with WireWords():
        reader = Reader(payload)
        topic = reader.text16()
        rest = payload[reader.position :]
        named = NAME.exact(rest)
        if named is None and len(rest) == 8:
            return topic, f"0:{int.from_bytes(rest, 'big')}"
        return topic, named[0] if named is not None else reader.text16()


def read_group(payload: bytes) -> tuple[str, str]:
    """(topic, group) where the topic may be missing or empty, which means any (FlyMQ wire 2.2, DESCRIBE_GROUP)."""
    alone = NAME.exact(payload)
    if alone is not None:
        return "", alone[0]
    topic, group = REQUESTS[Op.DESCRIBE_GROUP].decode(payload)
    return topic, group


def read_optional_name(payload: bytes) -> str:
    """A name, empty when the payload is (LIST_SCHEMAS, CLUSTER_METADATA)."""
    return str(NAME.decode(payload)[0]) if payload else ""


def read_reset(payload: bytes) -> tuple[str, str, int, str, int | None]:
    """(topic, group, partition, mode, offset): the offset counts with mode `offset` alone (FlyMQ wire 2.2)."""
    with WireWords():
        reader = Reader(payload)
        topic, group, partition, mode = REQUESTS[Op.RESET_OFFSET].read(reader)
        return topic, group, partition, mode, reader.u64() if mode == "offset" else None


def read_schema(payload: bytes) -> tuple[str, int, str, bytes, str]:
    """(name, version, kind, definition, compatibility) of GET_SCHEMA, in the shipped server's layout or in that of
    LIST_SCHEMAS with the rest behind it (FlyMQ wire 2.3).
    """
    stock = SCHEMA_STOCK.exact(payload)
    if stock is not None:
        _, name, version, kind, definition, compatibility = stock
        return name, version, kind, definition, compatibility
    with WireWords():
        reader = Reader(payload)
        (entries,) = SCHEMA_LIST.read(reader)
        if not entries:
            raise Truncated("buffer too small")
        name, kind, version = entries[0]
        if not reader.left:
            return name, version, kind, b"", ""
        _, definition, compatibility = SCHEMA_REST.read(reader)
        return name, version, kind, definition, compatibility


def read_reply(op: Op, payload: bytes) -> tuple[Any, ...]:
    """The fields of an answer. A flag without its text, as the shipped server sends it, is read as well."""
    layout = REPLIES[op]
    if layout is FLAG and len(payload) == 1:
        return payload[0] != 0, ""
    return layout.decode(payload)
