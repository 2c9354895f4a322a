"""A protocol of lines, small enough to see through: for what the transport promises to any protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.envelope import Batch, Columns
from gateway.requests import CacheGet, CacheValue, Completion, Outcome, Publish, Request
from gateway.wire.ordering import ReplyQueue
from gateway.wire.session import (
    NO_REQUESTS,
    TURN_BYTES,
    Close,
    Kind,
    Output,
    Requests,
    Send,
    ServerBasics,
    SessionContext,
)


class LineSession:
    """Each line is asked of the broker (CacheGet) and answered with what it says, in order; `quit` closes; `big N` sends
    N bytes at once; `pub ...` is published as it is; `tick` asks for a call a second later; while `hold` waits for its answer nothing is to be read."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self._buffer = b""
        self._replies = ReplyQueue()
        self._slots: dict[int, int] = {}
        self._next = 0
        self._outputs: list[Output] = []
        self._timeout: float | None = None
        self._ended = False
        self.handshaken = False
        self.unsaid = False
        self.answer_due = False
        self.held = False

    @property
    def kept(self) -> int:
        return len(self._buffer)

    @property
    def in_flight(self) -> int:
        return len(self._slots)

    def opened(self, channel: int, kind: Kind, now: float) -> Requests:
        return NO_REQUESTS

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        requests: list[Request] = []
        for line in lines:
            self.handshaken = True
            if line == b"quit":
                self._outputs.append(Close())
            elif line.startswith(b"big "):
                self._replies.put(b"x" * int(line[4:]))
            elif line == b"crash":
                raise RuntimeError("a mistake of this session")
            elif line == b"tick":
                self._timeout = now + 1
            else:
                self.held = self.held or line == b"hold"
                self._next += 1
                self._slots[self._next] = self._replies.take()
                if line.startswith(b"pub "):
                    requests.append(Publish(self._next, Batch("toy", Columns.of([line]))))
                else:
                    requests.append(CacheGet(self._next, "toy", line.decode()))
        return requests

    def eof(self, channel: int, now: float) -> Requests:
        self._ended = True
        return NO_REQUESTS

    def reset(self, channel: int, code: int) -> Requests:
        return NO_REQUESTS

    def stopped(self, channel: int, code: int) -> Requests:
        return NO_REQUESTS

    def lost(self) -> Requests:
        return NO_REQUESTS

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        if isinstance(outcome, CacheValue) and outcome.value == b"crash later":
            raise RuntimeError("a mistake while answering")
        self.held = False
        value = outcome.value if isinstance(outcome, CacheValue) else b"!"
        self._replies.fill(self._slots.pop(request_id), (value or b"") + b"\n")
        return NO_REQUESTS

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes:
        requests = self.complete(request_id, outcome, now)
        if self._outputs or self._ended or self.rests_until() != math.inf:
            return requests
        return b"".join(self._replies.ready())

    def room(self, channel: int, now: float) -> Requests:
        return NO_REQUESTS

    def drain(self, now: float) -> Requests:
        self._outputs += [Send(0, b"bye\n"), Close()]
        return NO_REQUESTS

    def timeout_at(self) -> float | None:
        return self._timeout

    rests_until = ServerBasics.rests_until

    def on_timeout(self, now: float) -> Requests:
        self._timeout = None
        self._replies.put(b"tock\n")
        return NO_REQUESTS

    def outputs(self) -> Sequence[Output]:
        outputs, self._outputs = self._outputs, []
        ready = b"".join(self._replies.ready(TURN_BYTES))
        self.unsaid = self._replies.held_back
        if ready:
            outputs.insert(0, Send(0, ready))
        if self._ended and not self._slots and not self.unsaid:
            self._ended = False
            outputs.append(Close())
        return outputs


class EchoBroker:
    """Answers each CacheGet with its key: at once, or when `release` is called."""

    def __init__(self, *, later: bool = False) -> None:
        self.later = later
        self.held: list[tuple[EchoClient, Completion]] = []
        self.submitted = 0
        self.detached = 0
        self.published = 0
        """Bytes of the publishes that are held."""

    def attach(self, peer: str, on_completions) -> EchoClient:
        return EchoClient(self, on_completions)

    def release(self) -> None:
        held, self.held = self.held, []
        self.published = 0
        for client, completion in held:
            client.on_completions([completion])


class EchoClient:
    def __init__(self, broker: EchoBroker, on_completions) -> None:
        self.broker = broker
        self.on_completions = on_completions
        self.ended: Sequence[Completion] = ()

    def submit(self, requests) -> Sequence[Completion]:
        self.broker.submitted += len(requests)
        completions: list[Completion] = []
        for request in requests:
            if isinstance(request, Publish):
                self.broker.published += request.batch.columns.value_bytes
                completions.append((request.id, CacheValue(b"stored")))
            else:
                completions.append((request.id, CacheValue(request.key.encode())))
        if self.broker.later:
            self.broker.held += [(self, completion) for completion in completions]
            return ()
        return completions

    def start(self, requests) -> None:
        self.ended = self.submit(requests)

    def collect(self) -> Sequence[Completion]:
        return self.ended

    def detach(self) -> None:
        self.broker.detached += 1
