"""The client side of a BlipMQ connection (BlipMQ document; wire 7.2): handshake and framing; requests are in `exchange`."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from gateway.errors import GatewayError, Status, TargetLost, TargetRefused, WireError
from gateway.protocols.blipmq.client.exchange import Exchange
from gateway.protocols.blipmq.wire import codec, mapping
from gateway.protocols.blipmq.wire.frames import HEAD, LENGTH_BYTES, VERSION, FrameType
from gateway.requests import Completion, Request
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import ClientBasics, ClientContext, Close, Completions, Kind, Output, Send

CHANNEL = 0


class BlipmqClient(ClientBasics):
    """One connection to a broker."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._buffer = ReceiveBuffer()
        self._cids = itertools.count(1)
        self._greeting: deque[int] = deque()
        """The cids of HELLO and AUTH while they are not answered."""
        self._ready = False
        self._refused = False
        self._early: deque[Request] = deque()
        """Requests that wait for the handshake."""
        self._exchange = Exchange(self._cids)
        self._over: GatewayError | None = None
        """Why nothing more can be asked."""
        self._closing = False
        self._closed = False

    # --- the driver's side ---

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        # HELLO and AUTH go out together (wire 1.2)
        self._greeting.extend((next(self._cids), next(self._cids)))
        self._exchange.out.append(codec.hello(self._greeting[0], VERSION))
        self._exchange.out.append(codec.auth(self._greeting[1], self._context.credentials.api_key))
        return ()

    def submit(self, request: Request, now: float) -> Completions:
        if self._over is not None:
            return ((request.id, self._over),)
        if self._closing:
            return ((request.id, TargetLost("the connection is being closed")),)
        if not self._ready:
            self._early.append(request)
            return ()
        return self._exchange.start(request)

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        if self._over is not None:
            return ()
        data = self._buffer.feed(data)
        completions: list[Completion] = []
        position = 0
        try:
            while True:
                end = codec.frame_end(data, position)
                if end is None or end > len(data):
                    self._buffer.keep(data[position:], LENGTH_BYTES if end is None else end - position)
                    break
                completions += self._frame(data, position, end, now)
                if self._refused:
                    break
                position = end
        except WireError as error:
            completions += self._fail(TargetLost(f"the broker broke the protocol: {error.message}"))
        return completions

    def eof(self, channel: int, now: float) -> Completions:
        return self._fail(TargetLost("the broker closed the connection"))

    def lost(self) -> Completions:
        return self._fail(TargetLost("the connection to the broker is lost"))

    def close(self, now: float) -> Completions:
        # There is no goodbye. What is under way is answered first; waiting Takes end.
        self._closing = True
        error = TargetLost("the connection is being closed")
        completions: list[Completion] = [(request.id, error) for request in self._early]
        self._early.clear()
        completions += self._exchange.finish()
        return completions

    def timeout_at(self) -> float | None:
        return self._exchange.round_at

    def on_timeout(self, now: float) -> Completions:
        self._exchange.round(now)
        return ()

    def outputs(self) -> Sequence[Output]:
        if self._closed:
            return ()
        outputs: list[Output] = []
        if self._exchange.out:
            outputs.append(Send(CHANNEL, b"".join(self._exchange.out)))
            self._exchange.out.clear()
        if self._closing and not self._exchange:
            self._closed = True
            outputs.append(Close())
        return outputs

    @property
    def in_flight(self) -> int:
        return len(self._exchange) + len(self._early)

    @property
    def admitted(self) -> bool | GatewayError:
        # HELLO and AUTH are acknowledged
        return self._over if self._refused and self._over is not None else self._ready

    def _frame(self, data: bytes, position: int, end: int, now: float) -> Completions:
        kind, cid, start = codec.frame_type(data, position), codec.frame_cid(data, position), position + HEAD
        if self._greeting:
            return self._greeted(kind, data, start, end, now)
        return self._exchange.answer(kind, cid, data, start, end, now)

    def _greeted(self, kind: FrameType, data: bytes, start: int, end: int, now: float) -> Completions:
        if kind is FrameType.NACK:
            self._refused = True
            refusal = codec.decode_nack(data, start, end)
            if refusal.code in mapping.FINAL:
                text = f"{refusal.code} {refusal.text}"
                return self._fail(TargetRefused(text, refusal=Status.UNAUTHENTICATED, final=True))
            return self._fail(mapping.upstream_error(refusal.code, refusal.text))
        if kind is not FrameType.ACK:
            raise WireError(f"{kind.name} in the handshake")
        self._greeting.popleft()
        completions: list[Completion] = []
        if not self._greeting:
            self._ready = True
            early, self._early = self._early, deque()
            for request in early:
                completions += self.submit(request, now)
        return completions

    def _fail(self, error: GatewayError) -> Completions:
        # everything that is under way ends with this error, and so does everything that is asked later
        if self._over is not None:
            return ()
        self._over = error
        self._closing = True
        completions = [*self._exchange.fail(error), *((request.id, error) for request in self._early)]
        self._early.clear()
        return completions
