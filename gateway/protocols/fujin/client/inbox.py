"""What a subscription of ours was given and not handed on yet, and the Takes that wait for more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from gateway.envelope import NO_HEADERS, BatchMeta, Columns, Headers, Origin, Run
from gateway.errors import GatewayError, WireError
from gateway.protocols.fujin.client.lane import ClientCore
from gateway.protocols.fujin.wire.bound_headers import taken_out
from gateway.requests import Delivered, Subscribe, Take, Taken

NO_WAIT = 0.25
"""Seconds after which a Take that does not wait is answered empty: FETCH always waits at the server (wire 0, rule 3)."""
HIGH_WATER = 1 << 20
LOW_WATER = HIGH_WATER // 4
"""Bytes pushed and not taken: beyond the high mark the stream is not read, until they have fallen to the low one."""
MOST_HELD = 80 << 20
"""More than can come once a stream is not read any more, or for a first FETCH; one that brings it is lost."""
ON_TOP = 64
"""Bytes that each message counts besides: many that are empty take memory too."""


@attrs.frozen
class Incoming:
    """A message and its id; empty with auto commit."""

    id: bytes
    value: bytes
    headers: Headers = NO_HEADERS

    @property
    def size(self) -> int:
        beside = sum(len(name) + len(value) + ON_TOP for name, value in self.headers)
        return len(self.id) + len(self.value) + beside + ON_TOP


@attrs.frozen
class WaitingTake:
    """A Take that waits."""

    request: Take
    until: float


class Inbox:
    def __init__(self, core: ClientCore, request: Subscribe, withhold: Callable[[bool], None] | None) -> None:
        """`withhold` stops and goes on with reading, where messages come by themselves."""
        self.ids: dict[int, bytes] = {}
        """By tag, what was handed on and is not settled."""
        self.takes: deque[WaitingTake] = deque()
        self.largest = 0
        """What the largest message that was taken last counts."""
        self._core = core
        self._request = request
        self._withhold = withhold
        self._messages: deque[Incoming] = deque()
        self._held = 0
        self._withheld = False
        self._next_tag = 1

    def wait(self, request: Take, now: float) -> None:
        until = request.hold_until if request.hold_until is not None else now + NO_WAIT
        self.takes.append(WaitingTake(request, until))
        self.serve()

    def hold(self, messages: Sequence[Incoming]) -> None:
        self._messages.extend(messages)
        self._held += sum(message.size for message in messages)
        if self._held > MOST_HELD:
            raise WireError("more was pushed than can be held")
        self.serve()
        if self._withhold is not None and self._held > HIGH_WATER and not self._withheld:
            self._withheld = True
            self._withhold(True)

    def serve(self) -> None:
        while self.takes and self._messages:
            request = self.takes.popleft().request
            self._core.done(request.id, self._taken(request.max_messages))

    def cancel(self, request_id: int) -> None:
        """End a Take that waits; what comes fills the next one."""
        for waiting in self.takes:
            if waiting.request.id == request_id:
                self.takes.remove(waiting)
                self._core.done(request_id, self._taken(0))
                return

    def refuse(self, error: GatewayError) -> None:
        while self.takes:
            self._core.done(self.takes.popleft().request.id, error)

    def finish(self) -> None:
        while self.takes:
            self._core.done(self.takes.popleft().request.id, self._taken(0))

    def timeout_at(self) -> float | None:
        return min((waiting.until for waiting in self.takes if waiting.until != float("inf")), default=None)

    def on_timeout(self, now: float) -> None:
        for waiting in [waiting for waiting in self.takes if waiting.until <= now]:
            self.takes.remove(waiting)
            self._core.done(waiting.request.id, self._taken(0))

    def _taken(self, count: int) -> Taken:
        request = self._request
        messages = [self._messages.popleft() for _ in range(min(count, len(self._messages)))]
        if not messages:
            return Taken((), address=request.address, acknowledge=request.acknowledge)
        first_tag = self._next_tag
        self._next_tag += len(messages)
        sizes = [message.size for message in messages]
        self._held -= sum(sizes)
        self.largest = max(sizes)
        if self._withheld and self._held <= LOW_WATER and self._withhold is not None:
            self._withheld = False
            self._withhold(False)
        if request.acknowledge:
            self.ids.update(enumerate((message.id for message in messages), first_tag))
        headers = [message.headers for message in messages]
        columns = taken_out(
            Columns.of([message.value for message in messages], None, headers if any(headers) else None)
        )
        meta = BatchMeta(b"", Origin("fujin", ""))
        run = Run(request.address, 0, 0, columns, [0] * len(messages), [(0, 0, meta)])
        return Taken([Delivered(run, first_tag)], address=request.address, acknowledge=request.acknowledge)
