"""Subscriptions of a client session: events come in on streams of the server's, and are taken from here."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

import attrs

from gateway import requests
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import GatewayError, TargetError, TargetLost, WireError
from gateway.protocols.felix.client.streams import FrameReader
from gateway.protocols.felix.wire.binary import decode_events
from gateway.protocols.felix.wire.codec import Event, EventBatch, Hello, Id, decode_server
from gateway.protocols.felix.wire.frames import EVENTS, SHARED_EVENTS
from gateway.requests import Outcome
from gateway.wire.session import Output, StopSending, Withhold

HIGH_WATER = 1 << 20
LOW_WATER = HIGH_WATER // 4
"""Bytes of events that wait to be taken: beyond the high mark the stream is not read, which stops the server at the stream's
window, until they have fallen to the low one."""

MOST_WAITING = 64 << 20
"""More than can come once a stream is not read any more; one that brings it is ended, not left to lose events in silence."""

ON_TOP = 64
"""Bytes that each frame counts besides: many that are empty take memory too."""

MOST_STRANGERS = 64
"""Event streams whose subscription is not known yet."""

_ORIGIN = Origin("felix", "")


@attrs.define(eq=False)
class Inflow:
    channel: int
    reader: FrameReader = attrs.Factory(FrameReader)
    known_as: Id | None = None
    address: str = ""
    runs: deque[Run] = attrs.Factory(deque)
    waiting: int = 0
    following: int = 0  # offsets where the server tells none: this session's own count
    ended: bool = False
    error: GatewayError | None = None
    take: requests.Take | None = None
    withheld: bool = False


class Inflows:
    def __init__(self, outputs: list[Output], finish: Callable[[int, Outcome], None]) -> None:
        self._outputs = outputs
        self._finish = finish
        self._by_channel: dict[int, Inflow] = {}
        self._by_number: dict[int, Inflow] = {}
        self._unclaimed: dict[Id, Inflow] = {}
        self._expected: dict[Id, tuple[int, str]] = {}
        self._unnamed: deque[tuple[int, str]] = deque()  # subscriptions whose id only the hello tells

    def opened(self, channel: int) -> None:
        self._by_channel[channel] = Inflow(channel)

    def knows(self, channel: int) -> bool:
        return channel in self._by_channel

    # --- subscriptions ---

    def expect(self, number: int, known_as: Id | None, address: str) -> None:
        # a subscription was made; its stream may be here already (Felix wire 2.6)
        if known_as is None:
            if self._unclaimed:
                self._claim(self._unclaimed.pop(next(iter(self._unclaimed))), number, address)
            else:
                self._unnamed.append((number, address))
        elif known_as in self._unclaimed:
            self._claim(self._unclaimed.pop(known_as), number, address)
        else:
            self._expected[known_as] = (number, address)
        self._by_number.setdefault(number, Inflow(-1, address=address))

    def _claim(self, inflow: Inflow, number: int, address: str) -> None:
        early = self._by_number.get(number)
        if early is not None:
            inflow.take = early.take
        inflow.address = address
        self._by_number[number] = inflow
        self._serve(inflow)

    @property
    def any(self) -> bool:
        """Whether there are subscriptions."""
        return bool(self._by_number)

    def get(self, number: int) -> Inflow | None:
        return self._by_number.get(number)

    def unsubscribe(self, number: int) -> None:
        # there is no message for it: stop reading (Felix wire 2.2)
        inflow = self._by_number.pop(number, None)
        if inflow is None:
            return
        if inflow.take is not None:
            self._finish(inflow.take.id, requests.Taken(()))
        if inflow.channel != -1 and not inflow.ended:
            self._outputs.append(StopSending(inflow.channel))
        self._by_channel.pop(inflow.channel, None)

    # --- taking ---

    def take(self, inflow: Inflow, request: requests.Take, now: float) -> None:
        inflow.take = request
        self._serve(inflow)
        if inflow.take is request and (request.hold_until is None or request.hold_until <= now):
            self.give_up(inflow)

    def give_up(self, inflow: Inflow) -> None:
        if inflow.take is not None:
            request, inflow.take = inflow.take, None
            self._finish(request.id, requests.Taken(()))

    def taking(self) -> list[Inflow]:
        return [inflow for inflow in self._by_number.values() if inflow.take is not None]

    def _serve(self, inflow: Inflow) -> None:
        request = inflow.take
        if request is None:
            return
        if inflow.runs:
            inflow.take = None
            self._finish(request.id, requests.Taken(_taken(inflow, request)))
            if inflow.withheld and inflow.waiting <= LOW_WATER and not inflow.ended:
                inflow.withheld = False
                self._outputs.append(Withhold(inflow.channel, on=False))
        elif inflow.error is not None:
            inflow.take = None
            self._finish(request.id, inflow.error)
        elif inflow.ended:
            inflow.take = None
            self._finish(request.id, requests.Taken((), ended=True))

    # --- events ---

    def receive(self, channel: int, data: bytes) -> None:
        """Frames of an event stream. Raises WireError when the server breaks the protocol."""
        inflow = self._by_channel[channel]
        for flags, payload in inflow.reader.feed(data):
            if inflow.known_as is None:
                self._hello(inflow, payload)
            else:
                self._events(inflow, flags, payload)
        self._serve(inflow)
        if inflow.waiting > HIGH_WATER and not inflow.withheld and not inflow.ended:
            inflow.withheld = True
            self._outputs.append(Withhold(channel))
        if inflow.waiting > MOST_WAITING and not inflow.ended:
            inflow.ended = True
            inflow.error = TargetError("the subscription fell too far behind")
            self._outputs.append(StopSending(channel))

    def ended(self, channel: int, error: GatewayError | None = None) -> None:
        # the stream's end: FIN is a clean one, a reset is not (Felix wire 2.6)
        inflow = self._by_channel.pop(channel)
        inflow.ended = True
        inflow.error = inflow.error or error
        self._serve(inflow)

    def lost(self) -> None:
        for inflow in self.taking():
            inflow.error = inflow.error or TargetLost("the connection was lost")
            inflow.runs.clear()
            self._serve(inflow)

    def _hello(self, inflow: Inflow, payload: bytes) -> None:
        message = decode_server(payload)
        if not isinstance(message, Hello):
            raise WireError("an event stream without a hello")
        inflow.known_as = message.subscription_id
        if message.subscription_id in self._expected:
            self._claim(inflow, *self._expected.pop(message.subscription_id))
        elif self._unnamed:
            self._claim(inflow, *self._unnamed.popleft())
        elif len(self._unclaimed) >= MOST_STRANGERS:
            inflow.ended = True
            self._outputs.append(StopSending(inflow.channel))
        else:
            self._unclaimed[message.subscription_id] = inflow

    def _events(self, inflow: Inflow, flags: int, payload: bytes) -> None:
        base: int | None
        if flags & (EVENTS | SHARED_EVENTS):
            known_as, base, columns = decode_events(payload, flags)
            if known_as is not None and known_as != inflow.known_as:
                raise WireError("events of another subscription")
        else:
            message = decode_server(payload)
            if isinstance(message, Event):
                columns, base = Columns.of([message.payload]), message.offset
            elif isinstance(message, EventBatch):
                columns, base = Columns.of(message.payloads) if message.payloads else _NONE, message.base_offset
            else:
                raise WireError("an event stream carries events only")
        if not columns.count or inflow.ended:
            return
        offset = inflow.following if base is None else base
        inflow.following = offset + columns.count
        inflow.waiting += len(columns.packed) + ON_TOP
        meta = [(0, 0, BatchMeta(b"", _ORIGIN))]
        inflow.runs.append(Run(inflow.address, 0, offset, columns, [0] * columns.count, meta))


_NONE = Columns(b"", array("I"))


def _taken(inflow: Inflow, request: requests.Take) -> list[requests.Delivered]:
    # what fits the request; at least one message
    taken: list[requests.Delivered] = []
    messages, size = request.max_messages, request.max_bytes
    while inflow.runs and messages > 0 and (size > 0 or not taken):
        run = inflow.runs[0]
        stop = min(run.count, messages)
        while stop > 1 and run.columns.ends[stop - 1] > size:
            stop //= 2
        part = run.slice(0, stop)
        if stop < run.count:
            inflow.runs[0] = run.slice(stop, run.count)
        else:
            inflow.runs.popleft()
            inflow.waiting -= ON_TOP
        messages -= stop
        size -= len(part.columns.packed)
        inflow.waiting -= len(part.columns.packed)
        taken.append(requests.Delivered(part, part.base_offset))
    return taken
