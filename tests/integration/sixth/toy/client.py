"""The client side: it can publish."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gateway.errors import TargetLost, Unsupported
from gateway.requests import Publish, Published, Request
from gateway.wire.session import NO_COMPLETIONS, ClientContext, Close, Completions, Kind, Output, Send


class ToyClient:
    """One connection."""

    def __init__(self, context: ClientContext) -> None:
        self._buffer = b""
        self._asked: deque[tuple[Publish, int]] = deque()
        """Each publish, and how many answers it still needs."""
        self._outputs: list[Output] = []

    @property
    def in_flight(self) -> int:
        return len(self._asked)

    @property
    def admitted(self) -> bool:
        return True

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        return NO_COMPLETIONS

    def submit(self, request: Request, now: float) -> Completions:
        if not isinstance(request, Publish):
            return ((request.id, Unsupported("a toy")),)
        values = request.batch.columns.values()
        address = request.batch.address.encode()
        self._outputs.append(Send(0, b"".join(b"P %s %s\n" % (address, value) for value in values)))
        self._asked.append((request, len(values)))
        return NO_COMPLETIONS

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        done = []
        for line in lines:
            request, missing = self._asked.popleft()
            if missing > 1:
                self._asked.appendleft((request, missing - 1))
                continue
            first = int(line) + 1 - request.batch.columns.count
            done.append((request.id, Published(request.batch.address, 0, base_offset=first)))
        return done

    def eof(self, channel: int, now: float) -> Completions:
        return self.lost()

    def reset(self, channel: int, code: int) -> Completions:
        return self.lost()

    def stopped(self, channel: int, code: int) -> Completions:
        return NO_COMPLETIONS

    def lost(self) -> Completions:
        asked, self._asked = self._asked, deque()
        return [(request.id, TargetLost("gone")) for request, _ in asked]

    def room(self, channel: int, now: float) -> Completions:
        return NO_COMPLETIONS

    def close(self, now: float) -> Completions:
        self._outputs.append(Close())
        return NO_COMPLETIONS

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, now: float) -> Completions:
        return NO_COMPLETIONS

    def outputs(self) -> Sequence[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs
