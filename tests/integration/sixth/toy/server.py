"""The serving side."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Batch, Columns, Delivery
from gateway.requests import Fetch, Fetched, Outcome, Publish, Published, Request
from gateway.wire.ordering import ReplyQueue
from gateway.wire.session import NO_REQUESTS, Close, Kind, Output, Requests, Send, ServerBasics, SessionContext

LONGEST = 1100


class ToyServer(ServerBasics):
    """One connection."""

    def __init__(self, context: SessionContext) -> None:
        self._greeting: str = context.settings.greeting
        self._buffer = b""
        self._replies = ReplyQueue()
        self._slots: dict[int, int] = {}
        self._number = 0
        self._ending = False

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    def opened(self, channel: int, kind: Kind, now: float) -> Requests:
        if self._greeting:
            self._replies.put(self._greeting.encode() + b"\n")
        return NO_REQUESTS

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._ending = self._ending or len(self._buffer) > LONGEST
        return [self._request(line) for line in lines]

    def _request(self, line: bytes) -> Request:
        verb, address, rest = line.split(b" ", 2)
        self._number += 1
        self._slots[self._number] = self._replies.take()
        if verb == b"P":
            batch = Batch(address.decode(), Columns.of([rest]), Delivery.AT_LEAST_ONCE)
            return Publish(self._number, batch)
        return Fetch(self._number, address.decode(), 0, int(rest), 1, LONGEST)

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        match outcome:
            case Published():
                reply = b"%d" % outcome.base_offset
            case Fetched(runs=[run, *_]):
                reply = run.columns.value(0)
            case Fetched():
                reply = b"-"
            case _:
                reply = b"! " + str(outcome).encode()
        self._replies.fill(self._slots.pop(request_id), reply + b"\n")
        return NO_REQUESTS

    def eof(self, channel: int, now: float) -> Requests:
        self._ending = True
        return NO_REQUESTS

    def drain(self, now: float) -> Requests:
        self._ending = True
        return NO_REQUESTS

    def outputs(self) -> Sequence[Output]:
        outputs: list[Output] = []
        data = b"".join(self._replies.ready())
        if data:
            outputs.append(Send(0, data))
        if self._ending and not self._slots:
            outputs.append(Close())
        return outputs
