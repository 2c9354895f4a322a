"""The bulk API over HTTP, beside metrics and health on the admin address.

Without a token it is served to this machine alone: what reads the whole log and writes into it is not left open to a
network because nobody thought of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from gateway.bulk import wire
from gateway.bulk.appends import Refused
from gateway.bulk.ranges import RangeAsked
from gateway.bulk.service import Bulk
from gateway.errors import Denied, GatewayError, InvalidRequest, RequestTimeout, TooLarge, Truncated
from gateway.requests import GroupReset

MOST_STREAMS = 16
"""Ranges that are sent at a time; further ones wait."""
MOST_BODIES = 4
"""Appends that are received and stored at a time; further ones wait."""
BODY_SECONDS = 20.0
MOST_OFFSETS = 10_000

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
log = structlog.get_logger()


class Streamed(Response):
    """A body that is made while it is sent. An error in it ends the connection before the body's end."""

    def __init__(self, parts: AsyncGenerator[bytes], media_type: str, limiter: trio.CapacityLimiter) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._limiter = limiter

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the client goes away."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            async with self._limiter:
                await self._send(send)
            nursery.cancel_scope.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await send(_body(part, more=True))
        except GatewayError as error:
            log.warning("a range ended early", error=error.message, status=error.status.value)
            return
        await send(_body(b"", more=False))


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class Api:
    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._streams = trio.CapacityLimiter(MOST_STREAMS)
        self._bodies = trio.CapacityLimiter(MOST_BODIES)

    async def topics(self, request: Request) -> Response:
        found = self._bulk.topics(request.query_params.get("name", ""))
        return _json(wire.TopicSnapshots(found, self._bulk.ranges.dense_offsets))

    async def purge(self, request: Request) -> Response:
        """Drop a topic of dead letters."""
        seen = (_number(request, "epoch", 0), _number(request, "end", 0)) if "end" in request.query_params else None
        await self._bulk.purge(_text(request, "name"), seen)
        return _json(wire.TopicSnapshots(()))

    async def log(self, request: Request) -> Response:
        """A range, in the encoding that the client accepts."""
        end = request.query_params.get("end")
        asked = RangeAsked(
            _text(request, "topic"),
            _number(request, "partition", 0),
            _number(request, "start", 0),
            _number(request, "end", 0) if end is not None else None,
            _number(request, "max_bytes", 0),
            _number(request, "epoch", 0) if "epoch" in request.query_params else None,
        )
        ranges = self._bulk.ranges
        ranges.find(asked)  # what is wrong with the question is said before the answer begins
        if wire.CHUNKS in request.headers.get("accept", ""):
            return Streamed(ranges.chunks(asked), wire.CHUNKS, self._streams)
        stream = ranges.arrow(asked)
        return Streamed(_begun(await anext(stream), stream), wire.ARROW, self._streams)

    async def offset_for_time(self, request: Request) -> Response:
        topic, partition = _text(request, "topic"), _number(request, "partition", 0)
        return _json(
            wire.OffsetFound(await self._bulk.offset_for_time(topic, partition, _number(request, "timestamp_ms")))
        )

    async def append(self, request: Request) -> Response:
        async with self._bodies:
            body = await _decoded(request, wire.AppendRequest)
            caller = self._bulk.caller(_peer(request), body.protocol, body.listener)
            return _json(await self._bulk.appends.append(caller, body))

    async def producer(self, request: Request) -> Response:
        return _json(await self._bulk.appends.producer(_text(request, "producer")))

    async def redrive(self, request: Request) -> Response:
        async with self._bodies:
            body = await _decoded(request, wire.Redrive)
            caller = self._bulk.caller(_peer(request), body.protocol, body.listener)
            return _json(wire.RedriveResult(await self._bulk.redrives.redrive(caller, body)))

    async def groups(self, request: Request) -> Response:
        text = request.query_params.get("from", "")
        try:
            first = bytes.fromhex(text)
        except ValueError:
            raise InvalidRequest(f"from: what an earlier answer called `following`, not {text!r}") from None
        names = (request.query_params.get(name, "") for name in ("group", "topic"))
        return _json(await self._bulk.groups(first, *names))

    async def reset_group(self, request: Request) -> Response:
        async with self._bodies:
            return _json(await self._bulk.reset_group(await _decoded(request, GroupReset)))

    async def redriven(self, request: Request) -> Response:
        epoch, partition, first = (_number(request, name) for name in ("epoch", "partition", "first"))
        topic = _text(request, "topic")
        return _json(wire.Offsets(await self._bulk.redrives.done(topic, epoch, partition, first, MOST_OFFSETS)))


def bulk_routes(bulk: Bulk, host: str, token: str) -> Sequence[BaseRoute]:
    api = Api(bulk)
    open_to_others = not token and not _loopback(host)

    def route(path: str, method: str, handler: Handler) -> Route:
        async def answered(request: Request) -> Response:
            try:
                if open_to_others:
                    raise Denied(f"the admin address {host} is open to other machines: set admin.token to use {path}")
                if not token and not _loopback(request.url.hostname or ""):
                    # a page in a browser whose name was made to lead here
                    raise Denied("without a token only this machine is served, by an address of its own")
                return await handler(request)
            except Refused as error:
                return _problem(error.error, error.refused)
            except GatewayError as error:
                return _problem(error)

        return Route(path, answered, methods=[method])

    return [
        route(wire.TOPICS, "GET", api.topics),
        route(wire.TOPICS, "DELETE", api.purge),
        route(wire.LOG, "GET", api.log),
        route(wire.OFFSET_FOR_TIME, "GET", api.offset_for_time),
        route(wire.APPEND, "POST", api.append),
        route(wire.PRODUCER, "GET", api.producer),
        route(wire.REDRIVE, "POST", api.redrive),
        route(wire.REDRIVEN, "GET", api.redriven),
        route(wire.GROUPS, "GET", api.groups),
        route(wire.RESET_GROUP, "POST", api.reset_group),
    ]


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _begun(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for part in rest:
            yield part


async def _decoded(request: Request, kind: type[T]) -> T:
    """The body as a value. It has to say what it is: a browser's form cannot."""
    sent = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if sent not in (wire.MSGPACK, wire.JSON):
        raise InvalidRequest(f"the content type has to be {wire.MSGPACK} or {wire.JSON}, not {sent or 'unsaid'}")
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_SECONDS) as slow:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Truncated("the connection ended before the body did")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > wire.LARGEST_APPEND:
                raise TooLarge(f"a request has at most {wire.LARGEST_APPEND} bytes")
            if not message.get("more_body", False):
                break
    if slow.cancelled_caught:
        raise RequestTimeout(f"the body did not come within {BODY_SECONDS:g} s")
    decode = msgspec.msgpack.decode if sent == wire.MSGPACK else msgspec.json.decode
    try:
        return decode(b"".join(parts), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value:
        raise InvalidRequest(f"the parameter {name} is needed")
    return value


def _number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequest(f"{name}: a number from 0 on, not {text!r}")
    return int(text)


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client is not None else ""


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=wire.JSON)


def _problem(error: GatewayError, refused: Sequence[wire.Refusal] = ()) -> Response:
    body = msgspec.json.encode(wire.problem_of(error, refused))
    return Response(body, wire.HTTP[error.status], media_type=wire.JSON)
