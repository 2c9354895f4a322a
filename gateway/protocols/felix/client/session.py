"""The client side of one Felix connection: publishes and cache requests on a stream each, a stream per subscription.

It logs in and names its flags like the newest stock clients; `dialect: document` follows the document instead: no login,
no ids in publishes, `ok` for everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gateway import requests
from gateway.errors import (
    GatewayError,
    OffsetOutOfRange,
    TargetLost,
    UnknownSubscription,
    Unsupported,
    WireError,
)
from gateway.protocols.felix.client.publisher import Publisher
from gateway.protocols.felix.client.streams import Line, Login
from gateway.protocols.felix.client.subscriptions import Inflows
from gateway.protocols.felix.settings import FelixSettings
from gateway.protocols.felix.wire import codec
from gateway.protocols.felix.wire.frames import BETWEEN_GATEWAYS, KNOWN, OFFSETS
from gateway.protocols.felix.wire.mapping import DEFAULT_SCOPE, escape, names_of, refused, unescape
from gateway.requests import Completion, Outcome, Request
from gateway.settings import Dialect
from gateway.wire.session import CONNECTION, NO_COMPLETIONS, ClientContext, Close, Completions, Kind, Output


class FelixClient:
    def __init__(self, context: ClientContext) -> None:
        self._document = context.dialect is Dialect.DOCUMENT
        credentials = context.credentials
        scope = context.settings.scope if isinstance(context.settings, FelixSettings) else DEFAULT_SCOPE
        if credentials.tenant:
            scope = f"{escape(credentials.tenant)}/{scope.partition('/')[2]}"
        self._scope = scope
        tenant = credentials.tenant or unescape(scope.partition("/")[0])
        flags = KNOWN | BETWEEN_GATEWAYS if context.says_copies and context.dialect is Dialect.AUTO else KNOWN
        auth = None if self._document else codec.Auth(tenant, credentials.token, flags)
        self._login = Login(auth)
        self._outputs: list[Output] = []
        self._lines: dict[int, Line] = {}
        self._caches: Line | None = None
        self._inflows = Inflows(self._outputs, self._finish)
        self._tokens = itertools.count(-1, -1)
        self._ids = itertools.count(1)
        self._publisher = Publisher(self._line, self._finish, self._login, scope, self._ids, document=self._document)
        self._numbers = itertools.count(2)
        self._open: set[int] = set()
        self._done: list[Completion] = []
        self._up = False
        self._gone: GatewayError | None = None

    # --- what the driver calls ---

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        if channel == CONNECTION:
            self._up = True
        elif kind is Kind.READ_ONLY:
            self._inflows.opened(channel)
        return self._completions()

    def submit(self, request: Request, now: float) -> Completions:
        self._open.add(request.id)
        if self._gone is not None:
            self._finish(request.id, self._gone)
        else:
            self._start(request, now)
        return self._completions()

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        """Replies on streams of ours, events on streams of the server's."""
        line = self._lines.get(channel)
        try:
            if line is not None:
                line.receive(data)
            elif self._inflows.knows(channel):
                self._inflows.receive(channel, data)
        except WireError as error:
            self._end(TargetLost(f"the server broke the protocol: {error.message}"))
            self._outputs.append(Close(0, "protocol error"))
        return self._completions()

    def eof(self, channel: int, now: float) -> Completions:
        self._stream_gone(channel, None)
        return self._completions()

    def reset(self, channel: int, code: int) -> Completions:
        self._stream_gone(channel, TargetLost("the server reset the stream"))
        return self._completions()

    def stopped(self, channel: int, code: int) -> Completions:
        # the server reads no more on a stream: what was sent last may not have been read
        line = self._lines.get(channel)
        if line is not None:
            line.gone = True
        return NO_COMPLETIONS

    def lost(self) -> Completions:
        # what was under way may or may not have happened
        self._end(TargetLost("the connection was lost"))
        self._outputs.clear()
        return self._completions()

    def room(self, channel: int, now: float) -> Completions:
        return NO_COMPLETIONS

    def close(self, now: float) -> Completions:
        # Felix knows no goodbye but the connection's own
        self._end(TargetLost("the connection was closed"))
        self._outputs.append(Close())
        return self._completions()

    def timeout_at(self) -> float | None:
        if not self._inflows.any:
            return None
        times = [t for t in (i.take.hold_until for i in self._inflows.taking() if i.take) if t is not None]
        soonest = min(times, default=float("inf"))
        return soonest if soonest < float("inf") else None

    def on_timeout(self, now: float) -> Completions:
        for inflow in self._inflows.taking():
            take = inflow.take
            if take is not None and take.hold_until is not None and take.hold_until <= now:
                self._inflows.give_up(inflow)
        return self._completions()

    def outputs(self) -> Sequence[Output]:
        if not self._up:
            return ()
        if not self._outputs:
            return ()
        queued = list(self._outputs)
        self._outputs.clear()  # shared with lines and inflows, so never replaced
        return queued

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def admitted(self) -> bool | GatewayError:
        # streams log in one by one, each with its first request
        return self._up

    @property
    def keeps_turns(self) -> bool:
        return self._login.server_flags & BETWEEN_GATEWAYS == BETWEEN_GATEWAYS

    # --- inside ---

    def _finish(self, request_id: int, outcome: Outcome) -> None:
        if request_id in self._open:
            self._open.discard(request_id)
            self._done.append((request_id, outcome))

    def _completions(self) -> Completions:
        done, self._done = self._done, []
        return done

    def _end(self, error: GatewayError) -> None:
        if self._gone is None:
            self._gone = error
        for request_id in sorted(self._open):
            self._finish(request_id, error)
        self._lines.clear()

    def _line(self, *, single: bool = False) -> Line:
        line = Line(next(self._tokens), self._outputs, self._login, single=single)
        self._lines[line.token] = line
        return line

    def _stream_gone(self, channel: int, error: GatewayError | None) -> None:
        line = self._lines.pop(channel, None)
        if line is not None:
            line.fail(error)
        elif self._inflows.knows(channel):
            self._inflows.ended(channel, error)

    def _start(self, request: Request, now: float) -> None:
        match request:
            case requests.Publish():
                self._publisher.publish(request)
            case requests.CachePut() | requests.CacheGet():
                self._cache(request)
            case requests.Subscribe():
                self._subscribe(request)
            case requests.Take():
                inflow = self._inflows.get(request.subscription)
                if inflow is None:
                    self._finish(request.id, UnknownSubscription())
                else:
                    self._inflows.take(inflow, request, now)
            case requests.Unsubscribe():
                self._inflows.unsubscribe(request.subscription)
                self._finish(request.id, requests.DONE)
            case requests.Settle():  # there are no acknowledgements by consumers: what was taken is delivered
                self._finish(request.id, requests.Settled([None] * len(request.tags)))
            case requests.Cancel():
                for inflow in self._inflows.taking():
                    if inflow.take is not None and inflow.take.id == request.request:
                        self._inflows.give_up(inflow)
                self._finish(request.id, requests.DONE)
            case _:
                self._finish(request.id, Unsupported(f"Felix cannot express {type(request).__name__}"))

    # --- cache ---

    def _cache(self, request: requests.CachePut | requests.CacheGet) -> None:
        parts = [unescape(part) for part in request.cache.split("/")]
        if len(parts) != 3:
            self._finish(request.id, Unsupported("a cache is named tenant/namespace/cache"))
            return
        if self._caches is None or self._caches.gone:
            self._caches = self._line()
        tenant, namespace, cache = parts
        number = next(self._ids)
        known_as: codec.Id = str(number) if self._document else number
        message: codec.Message
        if isinstance(request, requests.CachePut):
            message = codec.CachePutOut(tenant, namespace, cache, request.key, request.value, known_as, request.ttl_ms)
        else:
            message = codec.CacheGetOut(tenant, namespace, cache, request.key, known_as)

        def handler(_: int, payload: bytes) -> None:
            match codec.decode_server(payload):
                case codec.CacheOk() | codec.Ok() if isinstance(request, requests.CachePut):
                    self._finish(request.id, requests.DONE)
                case codec.CacheValue(value=value) if isinstance(request, requests.CacheGet):
                    self._finish(request.id, requests.CacheValue(value))
                case codec.Error(message=text):
                    self._finish(request.id, refused(text))
                case _:
                    raise WireError("a cache request was answered with something else")

        self._caches.ask(codec.encode(message), handler, lambda error: self._finish(request.id, error))

    # --- subscribing ---

    def _subscribe(self, request: requests.Subscribe) -> None:
        line = self._line(single=True)
        names = names_of(request.address, self._scope)

        def send() -> None:
            start: str | codec.At | None = None
            if request.start is not requests.Start.LATEST:
                if not self._document and not self._login.server_flags & OFFSETS:
                    self._finish(request.id, Unsupported("this server cannot replay"))
                    return
                start = codec.At(request.start) if isinstance(request.start, int) else "earliest"
            message = codec.SubscribeOut(names.tenant, names.namespace, names.stream, None, start)
            line.ask(codec.encode(message), handler, lambda error: self._finish(request.id, error))

        def handler(_: int, payload: bytes) -> None:
            number = next(self._numbers)
            match codec.decode_server(payload):
                case codec.Subscribed(subscription_id=known_as):
                    self._inflows.expect(number, known_as, request.address)
                case codec.Ok():
                    self._inflows.expect(number, None, request.address)
                case codec.CursorError(reason=reason, available=available):
                    first, following = (available, 0) if reason == "too_old" else (0, available)
                    error = OffsetOutOfRange(f"offset is {reason}: {available}", first=first, next_offset=following)
                    self._finish(request.id, error)
                    return
                case codec.Error(message=text):
                    self._finish(request.id, refused(text))
                    return
                case _:
                    raise WireError("a subscription was answered with something else")
            start = request.start if isinstance(request.start, int) else 0
            self._finish(request.id, requests.Subscribed(number, request.address, start))

        line.when_ready(send, lambda error: self._finish(request.id, error))
