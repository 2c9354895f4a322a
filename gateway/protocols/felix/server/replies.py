"""How each publish and cache request is answered, by what its sender showed (Felix wire 2.12, rows 1 to 8)."""

from __future__ import annotations

import enum

import msgspec

from gateway.errors import GatewayError, OffsetOutOfRange
from gateway.protocols.felix.wire.binary import Names, encode_ack
from gateway.protocols.felix.wire.codec import (
    UNSET,
    At,
    CacheOk,
    CacheValue,
    CursorError,
    DocumentCacheValue,
    DocumentError,
    Error,
    Id,
    Ok,
    PublishError,
    PublishOk,
    Subscribe,
    Subscribed,
    encode,
)
from gateway.protocols.felix.wire.mapping import stream_not_found, text_of
from gateway.requests import Outcome, Published


def error_in(outcome: Outcome, first: int, count: int) -> GatewayError | None:
    """What went wrong with messages [first, first + count) of a batch."""
    if isinstance(outcome, GatewayError):
        return outcome
    if isinstance(outcome, Published) and outcome.refused:
        return next((outcome.refused[i] for i in range(first, first + count) if i in outcome.refused), None)
    return None


def to_subscribe(message: Subscribe, names: Names, result: GatewayError | Id, *, document: bool) -> bytes:
    """The reply to a subscribe: the id it is known by, or why there is none (Felix wire 2.6)."""
    if isinstance(result, OffsetOutOfRange) and isinstance(message.start, At):
        asked = message.start.offset
        too_old = asked < result.first
        available = result.first if too_old else result.next_offset
        return encode(CursorError("too_old" if too_old else "in_future", asked, available))
    if isinstance(result, GatewayError):
        return error(text_of(result, stream_not_found(names), document=document), document=document)
    return encode(Ok()) if document else encode(Subscribed(result))


class Answering(enum.Enum):
    """The ways to answer a publish."""

    SILENT = "not at all"
    PLAIN = "ok or error"
    STOCK = "publish_ok or publish_error, with the id"
    BINARY = "a binary acknowledgement"


SILENT, PLAIN, STOCK, BINARY = Answering
"""Asked for with each publish: to look a member up in its class costs as much as a call."""


class PublishSender(msgspec.Struct, frozen=True):
    """How the sender of one publish is answered."""

    answering: Answering
    request_id: Id | None = None


UNANSWERED = PublishSender(SILENT)


def sender_of(request_id: Id | None, *, acked: bool, document: bool) -> PublishSender:
    """Integer ids are the stock clients', string ids the document's; without an id there is `ok` alone."""
    if not acked:
        return UNANSWERED
    stock = isinstance(request_id, int) and not document
    return PublishSender(STOCK if stock else PLAIN, request_id)


def success(sender: PublishSender) -> bytes:
    answering, request_id = sender.answering, sender.request_id
    if answering is BINARY and isinstance(request_id, int):
        return encode_ack(request_id)
    if answering is STOCK and request_id is not None:
        return encode(PublishOk(request_id))
    return encode(Ok(request_id)) if answering is PLAIN else b""


def failure(sender: PublishSender, text: str, *, document: bool) -> bytes:
    """A whole frame, or nothing. The document answers a publish that nobody wants acknowledged when it fails."""
    match sender.answering, sender.request_id:
        case Answering.STOCK, request_id if request_id is not None:
            return encode(PublishError(request_id, text))
        case Answering.BINARY, int(request_id):
            return encode_ack(request_id, text)
        case Answering.SILENT, _ if not document:
            return b""
        case _, request_id:
            return error(text, request_id, document=document)


def error(text: str, request_id: Id | None = None, *, document: bool = False) -> bytes:
    if document:
        return encode(DocumentError(UNSET if request_id is None else request_id, text))
    return encode(Error(text, request_id))


def cache_ok(request_id: Id | None, *, document: bool) -> bytes:
    if isinstance(request_id, int) and not document:
        return encode(CacheOk(request_id))
    return encode(Ok(request_id))


def cache_error(text: str, request_id: Id | None, *, document: bool) -> bytes:
    """A whole frame. Stock brokers leave their integer ids out here (Felix wire 2.7)."""
    shown = request_id if document or isinstance(request_id, str) else None
    return error(text, shown, document=document)


def cache_value(
    tenant: str, namespace: str, cache: str, key: str, value: bytes | None, request_id: Id | None, *, document: bool
) -> bytes:
    """A whole frame: everything stock clients require, or the document's fields."""
    shown = UNSET if request_id is None else request_id
    if document:
        return encode(DocumentCacheValue(shown, key, value))
    return encode(CacheValue(tenant, namespace, cache, key, value, shown))
