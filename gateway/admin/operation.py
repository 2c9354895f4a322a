"""What an operation of the admin API is, and how a request becomes a call and its result an answer.

An operation is a method of a resource: what it takes (`Asked[query, body]`) and gives is in its annotations, what it is for in
its docstring. Serving it, checking what comes and describing it in OpenAPI all follow from that.

    request ─► role ─► query, body as values ─► the method ─► a value as JSON, or a stream
                 └──────────┴──────────────────────┴─► GatewayError ─► {type, status, message}
"""

from __future__ import annotations

import inspect
import typing
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

import attrs
import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from gateway.admin.access import Role, Who
from gateway.bulk import wire
from gateway.bulk.appends import Refused
from gateway.errors import Denied, GatewayError, InvalidRequest, RequestTimeout, Throttled, TooLarge, Truncated

MOST_STREAMS = 16
"""Ranges that are sent at a time; further ones wait."""
GZIP_LEVEL = 1
"""The fastest: it is for what is between machines far from each other, and the gateway has more to do."""
MOST_BODIES = 4
"""Bodies that are received and worked on at a time; further ones wait."""
MOST_WATCHERS = 64
"""Who may follow live events at a time."""
BODY_SECONDS = 20.0
KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment shows that the stream lives."""
EVENTS = "text/event-stream"

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")
log = structlog.get_logger()

Large = typing.Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
"""A number from 0 on: an offset, a time."""
Life = typing.Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""The epoch of a topic: of one on Kafka any number of 63 bits."""
Small = typing.Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
"""A number from 0 on: a partition, a count."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of what may stand behind the question mark."""


class Nothing(Query, frozen=True, kw_only=True):
    """Of an operation without parameters."""


@attrs.frozen
class Asked(Generic[Q, B]):
    """One call of an operation."""

    query: Q
    body: B
    who: Who
    peer: str
    accept: str
    """Media types the client wants."""


@attrs.frozen
class ApiOperation:
    """One entry of the API."""

    name: str
    method: str
    path: str
    role: Role
    says: str
    query: type[Query]
    body: Any
    """The type of the body; None where there is none."""
    answer: Any
    """The type of the answer; of each event where it is a stream of them."""
    media: Sequence[str]
    call: Callable[[Asked[Any, Any]], Awaitable[Any]]


def operation(
    method: str, path: str, role: Role, *, media: Sequence[str] = (wire.JSON,), event: Any = None
) -> Callable[[T], T]:
    """Mark a method as an operation. `event`: the type of what a stream of events consists of."""

    def mark(function: T) -> T:
        # on the function and not in a table: what is defined is served, and nothing else has to be edited
        function.__dict__["operation"] = (method, path, role, media, event)
        return function

    return mark


def operations_of(*resources: object) -> Iterator[ApiOperation]:
    """The operations of some resources, in the order they are written down."""
    for resource in resources:
        for name, function in vars(type(resource)).items():
            marked = getattr(function, "operation", None)
            if marked is None:
                continue
            method, path, role, media, event = marked
            hints = typing.get_type_hints(function, include_extras=True)
            query, body = typing.get_args(hints["asked"])
            yield ApiOperation(
                name,
                method,
                path,
                role,
                inspect.getdoc(function) or "",
                query,
                None if body is type(None) else body,
                hints["return"] if event is None else event,
                media,
                getattr(resource, name),
            )


# --- serving ---


class Room(Protocol):
    """The memory that bodies have to share with everything else that is under way."""

    def spent(self, *, writer: bool) -> bool:
        """Whether whoever brings more has to wait."""
        ...

    def change(self, amount: int) -> None:
        """Take, or give back, bytes."""
        ...

    def wait(self, key: object, wake: Callable[[], None], *, writer: bool) -> None:
        """Call back once there is room."""
        ...

    def forget(self, key: object) -> None:
        """Do not call back any more."""
        ...


class Charge:
    """What one request has taken of the room, and gives back at its end."""

    def __init__(self, room: Room | None) -> None:
        self._room = room
        self._taken = 0
        self.waits = False

    async def take(self, size: int) -> None:
        """Count so many bytes more; waits while others have taken everything."""
        room = self._room
        if room is None:
            return
        while room.spent(writer=True):
            event = trio.Event()
            room.wait(self, event.set, writer=True)
            self.waits = True
            try:
                await event.wait()
            finally:
                room.forget(self)
        self.waits = False
        room.change(size)
        self._taken += size

    def give_back(self) -> None:
        if self._room is not None and self._taken:
            self._room.change(-self._taken)
            self._taken = 0


class OperationLimits:
    def __init__(self, room: Room | None = None) -> None:
        self.room = room
        self.streams = trio.CapacityLimiter(MOST_STREAMS)
        self.bodies = trio.CapacityLimiter(MOST_BODIES)
        self.watchers = 0


class Streamed:
    """A long answer, made while it is sent: its parts and what they are."""

    def __init__(self, parts: AsyncGenerator[bytes], media_type: str, *, filename: str = "") -> None:
        self.parts = parts
        self.media_type = media_type
        self.filename = filename


class Events:
    """Live events, until whoever follows them goes away: (name, value as JSON), or None when there is nothing to tell."""

    def __init__(self, events: AsyncGenerator[tuple[str, bytes] | None]) -> None:
        self.events = events


def routes_of(operations: Iterable[ApiOperation], room: Room | None = None) -> Sequence[BaseRoute]:
    """The API as routes. Who asks is in the request's state. `room`: what bodies are charged to."""
    limits = OperationLimits(room)
    return [Route(one.path, _served(one, limits), methods=[one.method]) for one in operations]


async def called(one: ApiOperation, request: Request, limits: OperationLimits | None = None) -> Any:
    """Do what an operation does for a request. Raises GatewayError."""
    who: Who = request.state.who
    check_role(one.role, who)
    query = query_of(request, one.query)
    accept = request.headers.get("accept", "")
    if one.body is None:
        return await one.call(Asked(query, None, who, _peer(request), accept))
    limits = limits or OperationLimits()
    # taken before the body is read: so many are in memory at a time, however many are sent
    async with limits.bodies:
        charge = Charge(limits.room)
        try:
            body = await _decoded(request, one.body, charge)
            return await one.call(Asked(query, body, who, _peer(request), accept))
        finally:
            charge.give_back()


def check_role(role: Role, who: Who) -> None:
    if who.role < role:
        raise Denied(f"{who.name} may {who.role.name.lower()}, and this asks for the role {role.name.lower()}")


def _served(one: ApiOperation, limits: OperationLimits) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            found = await called(one, request, limits)
            if isinstance(found, Streamed):
                return _Stream(found, limits.streams, gzip=_takes_gzip(request.headers.get("accept-encoding", "")))
            if isinstance(found, Events):
                return _EventStream(found, limits)
            return json_of(found)
        except Refused as error:
            return problem_response(error.error, error.refused)
        except GatewayError as error:
            return problem_response(error)

    return answered


def _takes_gzip(accepted: str) -> bool:
    # whether it is asked for by name: `*` may be meant for something else
    for one in accepted.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def query_of(request: Request, kind: type[Q]) -> Q:
    """The parameters as a value. Raises InvalidRequest."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the parameters cannot be read: {error}") from None


async def body_of(request: Request, most: int = wire.LARGEST_APPEND, charge: Charge | None = None) -> bytes:
    """All of a body. Raises what is wrong with how it comes."""
    charge = charge or Charge(None)
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_SECONDS) as slow:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Truncated("the connection ended before the body did")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise TooLarge(f"a request has at most {most} bytes")
            await charge.take(len(parts[-1]))
            if not message.get("more_body", False):
                break
    if slow.cancelled_caught and charge.waits:
        raise Throttled("`memory.budget` is spent")
    if slow.cancelled_caught:
        raise RequestTimeout(f"the body did not come within {BODY_SECONDS:g} s")
    return b"".join(parts)


async def _decoded(request: Request, kind: type[T], charge: Charge) -> T:
    # The body as a value. It has to say what it is: a browser's form cannot.
    sent = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if sent not in (wire.MSGPACK, wire.JSON):
        raise InvalidRequest(f"the content type has to be {wire.MSGPACK} or {wire.JSON}, not {sent or 'unsaid'}")
    body = await body_of(request, charge=charge)
    decode = msgspec.msgpack.decode if sent == wire.MSGPACK else msgspec.json.decode
    try:
        # before the decoder makes objects of it: a few bytes can ask for millions
        wire.check_size(body, sent)
        return decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise wire.undecodable(error) from None


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client is not None else ""


def json_of(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=wire.JSON)


def problem_response(error: GatewayError, refused: Sequence[wire.Refusal] = ()) -> Response:
    """An error as the API says it."""
    body = msgspec.json.encode(wire.problem_of(error, refused))
    status = wire.HTTP[error.status]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(body, status, headers, media_type=wire.JSON)


async def _gzipped(parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    # each part by itself can be unpacked when it is there: whoever follows a stream need not wait for the next one
    packer = zlib.compressobj(GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)

    def pack(part: bytes) -> bytes:
        return packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)

    async with aclosing(parts):
        async for part in parts:
            yield await trio.to_thread.run_sync(pack, part)
    yield packer.flush()


class _Stream(Response):
    """A body that is made while it is sent. An error in it ends the connection before the body's end."""

    def __init__(self, streamed: Streamed, limiter: trio.CapacityLimiter, *, gzip: bool = False) -> None:
        super().__init__(media_type=streamed.media_type)
        # how long it is shows when it ends: it goes out in chunks
        del self.headers["content-length"]
        if streamed.filename:
            self.headers["content-disposition"] = f'attachment; filename="{streamed.filename}"'
        if gzip:
            self.headers["content-encoding"] = "gzip"
        self._parts = _gzipped(streamed.parts) if gzip else streamed.parts
        self._limiter = limiter

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            # nobody else reads: without this a client that goes away is noticed with the next part only, which may never come
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            async with self._limiter:
                await self._send(send)
            nursery.cancel_scope.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await send(_part(part, more=True))
        except GatewayError as error:
            log.warning("a range ended early", error=error.message, status=error.status.value)
            return
        await send(_part(b"", more=False))


class _EventStream(Response):
    def __init__(self, events: Events, limits: OperationLimits) -> None:
        if limits.watchers >= MOST_WATCHERS:
            raise Throttled(f"{MOST_WATCHERS} follow live events already")
        super().__init__(media_type=EVENTS, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events = events.events
        self._limits = limits

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        self._limits.watchers += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                # a browser comes back by itself: after a second, and not after its own three
                await send(_part(b"retry: 1000\n\n", more=True))
                async with aclosing(self._events) as events:
                    async for event in events:
                        await send(_part(_written(event), more=True))
                nursery.cancel_scope.cancel()
        finally:
            self._limits.watchers -= 1


def _written(event: tuple[str, bytes] | None) -> bytes:
    return b":\n\n" if event is None else b"event: %s\ndata: %s\n\n" % (event[0].encode(), event[1])


def _part(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
