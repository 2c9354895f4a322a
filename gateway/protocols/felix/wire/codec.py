"""The JSON messages (Felix document, Message Types; Felix wire 2.3 and 2.4), fields in the order they are sent.

`bytes` fields are base64 with the standard alphabet and mandatory padding.
"""

from __future__ import annotations

from typing import Literal, NoReturn

import msgspec

from gateway.errors import WireError
from gateway.protocols.felix.wire.frames import frame

U64_MAX = (1 << 64) - 1

Id = int | str
"""Stock peers send integers, the document has strings."""

AckMode = Literal["none", "per_message", "per_batch"]
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class Message(msgspec.Struct, tag_field="type", omit_defaults=True):
    """Root of all messages."""


# --- client to server ---


class Publish(Message, tag="publish"):
    tenant_id: str
    namespace: str
    stream: str
    payload: bytes
    request_id: Id | None = None
    ack: AckMode | None = None


class PublishBatch(Message, tag="publish_batch"):
    tenant_id: str
    namespace: str
    stream: str
    payloads: list[bytes]
    request_id: Id | None = None
    ack: AckMode | None = None


class At(msgspec.Struct, frozen=True):
    offset: int


class Subscribe(Message, tag="subscribe"):
    tenant_id: str
    namespace: str
    stream: str
    subscription_id: Id | None = None
    start: Literal["latest", "earliest"] | At | None = None


class CachePut(Message, tag="cache_put"):
    """Keep a value. Scope and cache may be absent (document)."""

    key: str
    value: bytes
    tenant_id: str | None = None
    namespace: str | None = None
    cache: str | None = None
    request_id: Id | None = None
    ttl_ms: int | None = None


class CacheGet(Message, tag="cache_get"):
    key: str
    tenant_id: str | None = None
    namespace: str | None = None
    cache: str | None = None
    request_id: Id | None = None


class Auth(Message, tag="auth"):
    """Log in, and name the flags that are understood."""

    tenant_id: str
    token: str
    client_flags: int | None = None


ClientMessage = Publish | PublishBatch | Subscribe | CachePut | CacheGet | Auth


# --- server to client ---


class Subscribed(Message, tag="subscribed"):
    subscription_id: Id


class Hello(Message, tag="event_stream_hello"):
    """First frame of an event stream."""

    subscription_id: Id


class Event(Message, tag="event"):
    tenant_id: str
    namespace: str
    stream: str
    payload: bytes
    offset: int | None = None


class EventBatch(Message, tag="event_batch"):
    tenant_id: str
    namespace: str
    stream: str
    payloads: list[bytes]
    base_offset: int | None = None


class CacheValue(Message, tag="cache_value", omit_defaults=False):
    """A value; null when there is none."""

    tenant_id: str
    namespace: str
    cache: str
    key: str
    value: bytes | None
    request_id: Id | Unset = UNSET


class DocumentCacheValue(Message, tag="cache_value", omit_defaults=False):
    """The same in the document's shape."""

    request_id: Id | Unset
    key: str
    value: bytes | None


class CacheOk(Message, tag="cache_ok"):
    request_id: Id


class PublishOk(Message, tag="publish_ok"):
    request_id: Id


class PublishError(Message, tag="publish_error"):
    request_id: Id
    message: str


class Ok(Message, tag="ok"):
    request_id: Id | None = None


class Error(Message, tag="error"):
    message: str
    request_id: Id | None = None


class DocumentError(Message, tag="error"):
    """The same in the document's order."""

    request_id: Id | Unset
    message: str


class AuthOk(Message, tag="auth_ok"):
    """Logged in; the flags the server understands."""

    server_flags: int


class CursorError(Message, tag="subscribe_cursor_error"):
    """The offset asked for is not there."""

    reason: str
    requested: int
    available: int


ServerMessage = (
    Subscribed
    | Hello
    | Event
    | EventBatch
    | CacheValue
    | CacheOk
    | PublishOk
    | PublishError
    | Ok
    | Error
    | AuthOk
    | CursorError
)


class CachePutOut(Message, tag="cache_put", omit_defaults=False):
    """A cache_put as it is sent: ttl_ms is always there."""

    tenant_id: str
    namespace: str
    cache: str
    key: str
    value: bytes
    request_id: Id | Unset = UNSET
    ttl_ms: int | None = None


class CacheGetOut(Message, tag="cache_get"):
    tenant_id: str
    namespace: str
    cache: str
    key: str
    request_id: Id | Unset = UNSET


class SubscribeOut(Message, tag="subscribe"):
    tenant_id: str
    namespace: str
    stream: str
    subscription_id: Id | None = None
    start: str | At | None = None


class BadMessage(WireError):
    """A JSON payload that is no message."""


class UnexpectedMessage(BadMessage):
    """unexpected message type"""


class ErrorFromClient(BadMessage):
    """A client that says `error` is told nothing (Felix wire 2.10)."""


class _Probe(msgspec.Struct):
    type: str


_CLIENT = msgspec.json.Decoder(ClientMessage)
_SERVER = msgspec.json.Decoder(ServerMessage)
_PROBE = msgspec.json.Decoder(_Probe)
_FAILURES = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

SERVER_TYPES = frozenset(
    {"subscribed", "event_stream_hello", "event", "event_batch", "cache_value", "cache_ok", "publish_ok"}
    | {"publish_error", "ok", "error", "auth_ok", "subscribe_cursor_error"}
)
CLIENT_TYPES = frozenset({"publish", "publish_batch", "subscribe", "cache_put", "cache_get", "auth"})

_BROKEN_START = b'{"type":"publish_batch"'
_BROKEN = b']","request_id":'
_WHOLE = b'],"request_id":'


def decode_client(payload: bytes, *, repair: bool = False) -> ClientMessage:
    """A client's message. `repair` mends the acked batches of released clients (Felix wire 2.9), after parsing failed."""
    try:
        message: ClientMessage = _CLIENT.decode(payload)
    except _FAILURES as error:
        if repair and payload.startswith(_BROKEN_START) and _BROKEN in payload:
            return decode_client(payload.replace(_BROKEN, _WHOLE, 1))
        _refuse(payload, error)
    _check_numbers(message)
    return message


def decode_server(payload: bytes) -> ServerMessage:
    try:
        message: ServerMessage = _SERVER.decode(payload)
    except _FAILURES as error:
        raise BadMessage(str(error)) from None
    return message


def encode(message: Message) -> bytes:
    return frame(msgspec.json.encode(message))


def _refuse(payload: bytes, error: Exception) -> NoReturn:
    # say what is wrong with a payload that is no client's message
    try:
        kind = _PROBE.decode(payload).type
    except _FAILURES:
        raise BadMessage(f"invalid message: {error}") from None
    if kind == "error":
        raise ErrorFromClient from None
    if kind in SERVER_TYPES:
        raise UnexpectedMessage from None
    if kind not in CLIENT_TYPES:
        raise BadMessage(f"unknown message type: {kind[:64]}") from None
    raise BadMessage(f"invalid message: {error}") from None


def _check_numbers(message: ClientMessage) -> None:
    # integers are u64, and client_flags a u16 (Felix wire 2.3)
    most = U64_MAX
    numbers: list[Id | None]
    match message:
        case Publish() | PublishBatch() | CacheGet():  # by far the most are one of these
            numbers = [message.request_id]
        case CachePut():
            numbers = [message.request_id, message.ttl_ms]
        case Subscribe():
            start = message.start
            numbers = [message.subscription_id, start.offset if isinstance(start, At) else None]
        case Auth():
            numbers, most = [message.client_flags], 0xFFFF
    for number in numbers:
        if isinstance(number, int) and not 0 <= number <= most:
            raise BadMessage(f"invalid message: {number} is out of range")


def document_shape(message: ClientMessage) -> bool:
    """Whether a message has what only the document allows: string ids, a cache without its scope."""
    match message:
        case Subscribe(subscription_id=str()):
            return True
        case CachePut() | CacheGet():
            scope = (message.tenant_id, message.namespace, message.cache)
            return isinstance(message.request_id, str) or None in scope
        case Publish() | PublishBatch():
            return isinstance(message.request_id, str)
    return False
