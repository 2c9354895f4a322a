"""Drives a server session through a sample, with a broker that answers as it is told."""

from __future__ import annotations

from collections.abc import Callable

from gateway.protocols.registry import protocol
from gateway.requests import Cancel, Outcome, Request, Take, Taken, Unsubscribe
from gateway.wire.session import (
    Close,
    Finish,
    Kind,
    Open,
    Output,
    Reset,
    Send,
    ServerSession,
    SessionContext,
    StopSending,
)
from tests.conformance.replier import Replier
from tests.conformance.sample import Sample

MAX_TAKES = 3
"""Push sessions ask again and again: after so many the broker has nothing more."""


class Harness:
    """One session, its pending requests and everything it put out."""

    def __init__(
        self, name: str, answer: Callable[[Request], Outcome] | None = None, *, auth_required: bool = False
    ) -> None:
        spec = protocol(name)
        context = SessionContext("conformance", spec.settings(), auth_required=auth_required)
        assert spec.server is not None
        self.session: ServerSession = spec.server(context)
        self.answer = answer if answer is not None else Replier()
        self.now = 100.0
        self.pending: list[Request] = []
        self.asked: list[Request] = []
        self.sent: dict[int, bytearray] = {}
        self.outputs: list[Output] = []
        self.taken = 0
        self.waiting: list[Take] = []
        """For what the broker does not have."""
        self.closed = False

    def open(self, channel: int, kind: Kind) -> None:
        self.take_in(self.session.opened(channel, kind, self.now))

    def feed(self, channel: int, data: bytes) -> None:
        self.take_in(self.session.receive(channel, data, self.now))

    def take_in(self, requests) -> None:
        self.pending += requests
        self.asked += requests
        self.gather()

    def gather(self) -> None:
        self.gather_once()
        while self.session.unsaid:
            self.gather_once()

    def gather_once(self) -> None:
        for output in self.session.outputs():
            self.outputs.append(output)
            match output:
                case Send(channel, data, notify):
                    assert data
                    self.sent.setdefault(channel, bytearray()).extend(data)
                    if notify:
                        self.take_in(self.session.room(channel, self.now))
                case Open(token, kind):
                    assert token < 0
                    self.take_in(self.session.opened(token, kind, self.now))
                case Close():
                    self.closed = True
                case Finish() | Reset() | StopSending():
                    pass

    def settle(self, *, reverse: bool = False) -> None:
        """Answer what is pending, and what that leads to, until nothing is."""
        rounds = 0
        while self.pending:
            rounds += 1
            assert rounds < 1000, "the session asks for ever"
            batch, self.pending = self.pending, []
            for request in reversed(batch) if reverse else batch:
                if isinstance(request, Take):
                    self.taken += 1
                    if self.taken > MAX_TAKES:
                        self.waiting.append(request)
                        continue
                if isinstance(request, Unsubscribe | Cancel):  # ends what waits
                    self.end_takes()
                self.take_in(self.session.complete(request.id, self.answer(request), self.now))

    def end_takes(self) -> None:
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self.take_in(self.session.complete(request.id, Taken((), ended=True), self.now))

    def play(self, sample: Sample, *, split: int | None = None, settle_each: bool = True) -> None:
        """The whole sample; `split` cuts each step in two there (or into single bytes, 0)."""
        for channel, kind in sample.kinds:
            self.open(channel, kind)
        for channel, data in sample.steps:
            for piece in _pieces(data, split):
                self.feed(channel, piece)
                if settle_each:
                    self.settle()
        self.settle()

    def bytes_out(self) -> dict[int, bytes]:
        return {channel: bytes(data) for channel, data in self.sent.items()}

    def takes_left(self) -> int:
        return sum(isinstance(request, Take | Cancel) for request in self.asked)


def _pieces(data: bytes, split: int | None) -> list[bytes]:
    if split is None:
        return [data]
    if split == 0:
        return [data[i : i + 1] for i in range(len(data))]
    return [piece for piece in (data[:split], data[split:]) if piece]
