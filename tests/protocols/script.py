"""Transcripts for sans-IO sessions: feed bytes, expect requests, complete them, expect what goes out.

A server session is written down as a dialogue:

    script = Script(ServerSession(context))
    script.feed(PING).sends(PONG)
    publish = script.feed(PRODUCE).expect(Publish, id=1)
    script.complete(publish, Published("orders", 0)).sends(ANSWER)
    script.quiet()

`ClientScript` is the same for the other role: `submit` requests, `expect` completions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from gateway.errors import GatewayError
from gateway.requests import Completion, Outcome, Request
from gateway.wire.session import ClientSession, Kind, Output, Send, ServerSession

R = TypeVar("R")
Out = TypeVar("Out", bound=Output)


def hexed(text: str) -> bytes:
    """Bytes from hex with any white space between, as the documents print them."""
    return bytes.fromhex("".join(text.split()))


class _Outputs:
    """What a session wants sent, gathered per channel; everything else in order."""

    def __init__(self, session: ServerSession | ClientSession, now: float) -> None:
        self.session: Any = session
        self.now = now
        self.bytes_of: dict[int, bytearray] = {}
        """Bytes sent and not yet looked at, by channel."""
        self.others: deque[Output] = deque()
        """Every other output not yet looked at."""
        self.history: list[Output] = []
        """Every output there ever was, sends included, in order."""

    def _do(self, given: Sequence[Any]) -> Self:
        """Keep what the session gave back, and what it queued."""
        raise NotImplementedError

    # --- what happens to a session, whichever role it has ---

    def open(self, channel: int, kind: Kind = Kind.DUPLEX) -> Self:
        """A channel is there (for a client: the connection is up, or a stream is there)."""
        return self._do(self.session.opened(channel, kind, self.now))

    def feed(self, data: bytes, channel: int = 0) -> Self:
        """Bytes come in, as one read."""
        return self._do(self.session.receive(channel, data, self.now))

    def feed_each_byte(self, data: bytes, channel: int = 0) -> Self:
        """Bytes come in one by one."""
        for index in range(len(data)):
            self.feed(data[index : index + 1], channel)
        return self

    def eof(self, channel: int = 0) -> Self:
        """The peer sends no more on a channel."""
        return self._do(self.session.eof(channel, self.now))

    def reset(self, channel: int, code: int = 0) -> Self:
        """The peer abandons a channel, or an Open is refused."""
        return self._do(self.session.reset(channel, code))

    def stopped(self, channel: int, code: int = 0) -> Self:
        """The peer reads no more on a channel."""
        return self._do(self.session.stopped(channel, code))

    def room(self, channel: int = 0) -> Self:
        """What was sent with `notify` has left."""
        return self._do(self.session.room(channel, self.now))

    def lost(self) -> Self:
        """The connection is gone."""
        return self._do(self.session.lost())

    def pass_time(self, seconds: float) -> Self:
        """Let time pass, firing every time-out on the way."""
        end = self.now + seconds
        while (due := self.session.timeout_at()) is not None and due <= end:
            self.now = max(self.now, due)
            self._do(self.session.on_timeout(self.now))
            assert self.session.timeout_at() != due, "a time-out that fires must move"
        self.now = end
        return self

    def gather(self) -> None:
        """Take what the session queued."""
        self.gather_once()

    def gather_once(self) -> None:
        """Take what the session puts out in one turn."""
        for output in self.session.outputs():
            self.history.append(output)
            if isinstance(output, Send):
                assert output.data, "an empty Send is noise"
                self.bytes_of.setdefault(output.channel, bytearray()).extend(output.data)
            else:
                self.others.append(output)

    def sent(self, channel: int = 0) -> bytes:
        """Everything sent on a channel since the last look."""
        return bytes(self.bytes_of.pop(channel, b""))

    def sends(self, data: bytes, channel: int = 0) -> Self:
        """Exactly these bytes went out on the channel since the last look."""
        sent = self.sent(channel)
        assert sent == data, (
            f"channel {channel} sent\n  {sent.hex(' ')}\n  {sent!r}\ninstead of\n  {data.hex(' ')}\n  {data!r}"
        )
        return self

    def output(self, kind: type[Out], /, **fields: object) -> Out:
        """The next output that is not a Send is of this type and has these fields."""
        assert self.others, f"no {kind.__name__} went out"
        output = self.others.popleft()
        assert isinstance(output, kind), f"{output} instead of {kind.__name__}"
        _matches(output, fields)
        return output

    def _is_quiet(self) -> None:
        assert not any(self.bytes_of.values()), f"bytes nobody expected: {self.bytes_of}"
        assert not self.others, f"outputs nobody expected: {list(self.others)}"


class Script(_Outputs):
    """A dialogue with a server session."""

    def __init__(self, session: ServerSession, *, now: float = 100.0, channel: int | None = 0) -> None:
        """Opens `channel` (duplex) at once unless it is None."""
        super().__init__(session, now)
        self.asked: deque[Request] = deque()
        """Requests not yet looked at."""
        self.under_way: set[int] = set()
        self.shortly = True
        self.in_turns = False
        """What is too much for one turn waits for `gather`."""
        if channel is not None:
            self.open(channel)

    def _do(self, given: Sequence[Request]) -> Self:
        self.asked.extend(given)
        self.under_way.update(request.id for request in given)
        self.gather()
        return self

    def gather(self) -> None:
        self.gather_once()
        while self.session.unsaid and not self.in_turns:
            self.gather_once()

    def drain(self) -> Script:
        """The gateway goes down."""
        return self._do(self.session.drain(self.now))

    def expect(self, kind: type[R], /, **fields: object) -> R:
        """The next request is of this type and has these fields."""
        assert self.asked, f"no {kind.__name__} was asked for"
        request = self.asked.popleft()
        assert isinstance(request, kind), f"{request} instead of {kind.__name__}"
        _matches(request, fields)
        return request

    def complete(self, request: Request, outcome: Outcome) -> Script:
        """The broker answers. Of requests that are alone every other goes the short way, as a driver may have it go."""
        alone = self.under_way == {request.id} and not isinstance(outcome, GatewayError)
        self.under_way.discard(request.id)
        if not alone:
            return self._do(self.session.complete(request.id, outcome, self.now))
        self.shortly = not self.shortly
        if self.shortly:
            return self._do(self.session.complete(request.id, outcome, self.now))
        due = self.session.timeout_at()
        given = self.session.answered(request.id, outcome, self.now)
        if not isinstance(given, bytes | Send):
            return self._do(given)
        said = Send(0, given) if isinstance(given, bytes) else given
        assert not said.notify
        assert not said.alone
        assert self.session.rests_until() == (math.inf if isinstance(given, bytes) or due is None else due)
        assert not self.session.in_flight
        if said.data:
            self.history.append(said)
            self.bytes_of.setdefault(said.channel, bytearray()).extend(said.data)
        assert not self.session.outputs(), "bytes are all there is"
        return self

    def answer(self, kind: type[Request], outcome: Outcome, /, **fields: object) -> Script:
        """Expect a request and complete it at once."""
        return self.complete(self.expect(kind, **fields), outcome)

    def serve(self, broker: Callable[[Request], Outcome]) -> Script:
        """Answer everything that was asked, and what that leads to, until nothing is left."""
        while self.asked:
            request = self.asked.popleft()
            self.complete(request, broker(request))
        return self

    def quiet(self) -> Script:
        """Nothing is asked and nothing went out that was not looked at."""
        assert not self.asked, f"requests nobody expected: {list(self.asked)}"
        self._is_quiet()
        return self


class ClientScript(_Outputs):
    """A dialogue with a client session."""

    def __init__(self, session: ClientSession, *, now: float = 100.0, channel: int | None = 0) -> None:
        """Opens `channel` (duplex) at once unless it is None."""
        super().__init__(session, now)
        self.completions: deque[Completion] = deque()
        """Completions not yet looked at."""
        if channel is not None:
            self.open(channel)

    def _do(self, given: Sequence[Completion]) -> Self:
        self.completions.extend(given)
        self.gather()
        return self

    def submit(self, request: Request) -> ClientScript:
        """Start a request."""
        return self._do(self.session.submit(request, self.now))

    def close(self) -> ClientScript:
        """Say goodbye."""
        return self._do(self.session.close(self.now))

    def expect(self, request_id: int, kind: type[R], /, **fields: object) -> R:
        """The next completion is for this request, of this type, with these fields."""
        assert self.completions, f"request {request_id} is not completed"
        done, outcome = self.completions.popleft()
        assert done == request_id, f"request {done} was completed ({outcome!r}) instead of {request_id}"
        assert isinstance(outcome, kind), f"{outcome!r} instead of {kind.__name__}"
        _matches(outcome, fields)
        return outcome

    def quiet(self) -> ClientScript:
        """Nothing was completed and nothing went out that was not looked at."""
        assert not self.completions, f"completions nobody expected: {list(self.completions)}"
        self._is_quiet()
        return self


def _matches(value: object, fields: dict[str, object]) -> None:
    for name, wanted in fields.items():
        assert getattr(value, name) == wanted, f"{name} is {getattr(value, name)!r} instead of {wanted!r} in {value!r}"
