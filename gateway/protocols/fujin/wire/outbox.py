"""What one connection wants from the broker and from the transport, gathered until the driver asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from gateway.requests import Outcome, Request
from gateway.wire.session import Output, Requests, Send

Ended = Callable[[Outcome, float], None]
"""What to do when a request has ended."""


class Outbox:
    """Numbers requests, remembers who waits for them, joins the bytes of each channel into one Send."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._requests: list[Request] = []
        self._waiting: dict[int, Ended] = {}
        self._background: set[int] = set()
        self._outputs: list[Output] = []
        self._parts: dict[int, list[bytes]] = {}

    @property
    def waiting(self) -> int:
        """Requests that have not ended, without those in the background."""
        return len(self._waiting) - len(self._background)

    def ask(self, make: Callable[[int], Request], ended: Ended | None = None, *, background: bool = False) -> int:
        """Start a request; returns its id. Without `ended` nobody cares how it ends."""
        number = next(self._ids)
        self._requests.append(make(number))
        if ended is not None:
            self._waiting[number] = ended
            if background:
                self._background.add(number)
        return number

    def complete(self, request_id: int, outcome: Outcome, now: float) -> None:
        ended = self._waiting.pop(request_id, None)
        self._background.discard(request_id)
        if ended is not None:
            ended(outcome, now)

    def requests(self) -> Requests:
        requests, self._requests = self._requests, []
        return requests

    def forget(self) -> None:
        """The connection is gone: nobody is answered, and nothing leaves."""
        self._waiting.clear()
        self._background.clear()
        self._outputs.clear()
        self._parts.clear()

    def send(self, channel: int, data: bytes) -> None:
        """Bytes that may share a Send with others of the channel."""
        self._parts.setdefault(channel, []).append(data)

    def send_apart(self, channel: int, data: bytes, *, notify: bool = False, alone: bool = False) -> None:
        """Bytes that carry a wish; what waits for the channel goes before them."""
        self._flush(channel)
        self._outputs.append(Send(channel, data, notify=notify, alone=alone))

    def put(self, channel: int, *outputs: Output) -> None:
        """Outputs behind everything that waits for the channel."""
        self._flush(channel)
        self._outputs += outputs

    def alone(self) -> Send | None:
        """The bytes that wait for one channel, where nothing else is there to be put out or asked."""
        parts = self._parts
        if len(parts) != 1 or self._outputs or self._requests:
            return None
        channel, data = parts.popitem()
        return Send(channel, data[0] if len(data) == 1 else b"".join(data))

    def outputs(self) -> Sequence[Output]:
        for channel in list(self._parts):
            self._flush(channel)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _flush(self, channel: int) -> None:
        parts = self._parts.pop(channel, None)
        if parts:
            self._outputs.append(Send(channel, b"".join(parts)))
