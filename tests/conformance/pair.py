"""A client session and the server session of its protocol, with their bytes carried by hand: no socket, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Completion, Outcome, Reply, Request
from gateway.wire.session import (
    CONNECTION,
    ClientContext,
    ClientSession,
    Close,
    Credentials,
    Finish,
    Kind,
    Open,
    Output,
    Reset,
    Send,
    StopSending,
)
from tests.conformance.harness import Harness

LOGIN = Credentials(api_key="key", username="alice", password="secret", tenant="t1", token="token")
MOST_ROUNDS = 1_000
PATIENCE = 60
"""Seconds that may pass between them: an empty poll is held for less, a silent peer is given up after more."""
OF_SERVER = {Kind.DUPLEX: Kind.DUPLEX, Kind.READ_ONLY: Kind.WRITE_ONLY, Kind.WRITE_ONLY: Kind.READ_ONLY}
"""What a channel of one side is for the other."""


class Pair:
    """What the client asks is answered by a broker in good health; `ended` has what became of each request."""

    def __init__(self, name: str, *, split: int = 0, flip: tuple[int, int] = (0, 0)) -> None:
        """`split`: the client is fed that many bytes at a time; 0: whatever there is. `flip`: the bits that one of the bytes
        it hears has turned.
        """
        spec = protocol(name)
        assert spec.client is not None
        self.server = Harness(name)
        self.client: ClientSession = spec.client(ClientContext(LOGIN))
        self.ended: dict[int, Outcome] = {}
        self.asked: list[int] = []
        self.closed = False
        self._split = split
        self._flip = flip
        self._heard = 0
        self._seen = 0
        self._streams: dict[int, int] = {}
        """What the server calls a channel of the client's, and what the client calls one of the server's."""
        self._numbers = {Kind.DUPLEX: 0, Kind.WRITE_ONLY: 2}
        self._pushed = 3
        if spec.transport is Transport.TCP:
            self._streams[0] = 0
            self.server.open(0, Kind.DUPLEX)
            self.take_in(self.client.opened(0, Kind.DUPLEX, self.now))
        else:
            self.take_in(self.client.opened(CONNECTION, Kind.DUPLEX, self.now))

    @property
    def now(self) -> float:
        return self.server.now

    def ask(self, request: Request) -> Outcome:
        """Submit a request; what it ends with, which is there when nothing moves any more."""
        self.submit(request)
        self.exchange()
        assert request.id in self.ended, f"{type(request).__name__} has no end"
        return self.ended[request.id]

    def submit(self, request: Request) -> None:
        self.asked.append(request.id)
        self.take_in(self.client.submit(request, self.now))

    def take_in(self, completions: Sequence[Completion]) -> None:
        """Every request ends once, with a reply or an error that has a type."""
        for number, outcome in completions:
            assert number in self.asked, f"{number} was never asked for"
            assert number not in self.ended, f"{number} has ended twice"
            assert isinstance(outcome, Reply | GatewayError)
            self.ended[number] = outcome

    def exchange(self) -> None:
        """Carry bytes, and let time pass where somebody waits for it, until neither side has anything to say."""
        longest = self.now + PATIENCE
        for _ in range(MOST_ROUNDS):
            moved = self._to_server(self.client.outputs())
            self.server.settle()
            moved |= self._to_client()
            if moved:
                continue
            due = [at for at in (self.client.timeout_at(), self.server.session.timeout_at()) if at is not None]
            if not due or min(due) > longest or len(self.ended) == len(self.asked):
                return
            self.server.now = max(self.now, min(due))
            self.take_in(self.client.on_timeout(self.now))
            self.server.take_in(self.server.session.on_timeout(self.now))
        raise AssertionError("they talk for ever")

    def known(self) -> list[int]:
        """The client's channels."""
        return list(self._streams)

    def hear(self, channel: int, data: bytes) -> None:
        """Bytes reach the client, as much at a time as was said."""
        at, bits = self._flip
        if self._heard <= at < self._heard + len(data):
            at -= self._heard
            data = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        self._heard += len(data)
        size = self._split or len(data)
        for at in range(0, len(data), size):
            self.take_in(self.client.receive(channel, data[at : at + size], self.now))

    def _to_server(self, outputs: Sequence[Output]) -> bool:
        for output in outputs:
            match output:
                case Open(token, kind):
                    assert token < 0
                    self._streams[token] = self._numbers[kind]
                    self._numbers[kind] += 4
                    self.server.open(self._streams[token], OF_SERVER[kind])
                    self.take_in(self.client.opened(token, kind, self.now))
                case Send(channel, data, notify):
                    assert data
                    self.server.feed(self._streams[channel], data)
                    if notify:
                        self.take_in(self.client.room(channel, self.now))
                case Finish(channel):
                    self.server.take_in(self.server.session.eof(self._streams[channel], self.now))
                case Reset(channel, code):
                    self.server.take_in(self.server.session.reset(self._streams[channel], code))
                case StopSending(channel, code):
                    self.server.take_in(self.server.session.stopped(self._streams[channel], code))
                case Close():
                    self.closed = True
        return bool(outputs)

    def _to_client(self) -> bool:
        said = self.server.outputs[self._seen :]
        self._seen += len(said)
        names = {number: name for name, number in self._streams.items()}
        for output in said:
            match output:
                case Open(token, kind):
                    names[token] = self._pushed
                    self._streams[self._pushed] = token
                    self._pushed += 4
                    self.take_in(self.client.opened(names[token], OF_SERVER[kind], self.now))
                case Send(channel, data):
                    self.hear(names[channel], data)
                case Finish(channel):
                    self.take_in(self.client.eof(names[channel], self.now))
                case Reset(channel, code):
                    self.take_in(self.client.reset(names[channel], code))
                case StopSending(channel, code):
                    self.take_in(self.client.stopped(names[channel], code))
        return bool(said)
