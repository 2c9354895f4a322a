"""The serving side of one Felix connection: the client's streams and the event streams of its subscriptions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.protocols.felix.server.peer import Peer
from gateway.protocols.felix.server.stream import ClientStream
from gateway.protocols.felix.server.subscriptions import Feeds
from gateway.protocols.felix.settings import FelixSettings
from gateway.requests import Outcome, Published
from gateway.settings import Dialect
from gateway.wire.session import (
    BEFORE_LOGIN,
    LISTENER,
    Close,
    Finish,
    Kind,
    Output,
    Requests,
    Send,
    SessionContext,
    Spoken,
)

GOODBYE = "broker shutting down"
"""Reason of the close at a shutdown, with application code 0 (Felix wire 1.2)."""

MAX_INCOMPLETE = 32 << 20
"""Bytes of incomplete frames on all streams of a connection: a frame may have 16 MiB, and a client a thousand streams."""

MAX_BEFORE_LOGIN = 4 * BEFORE_LOGIN
"""The same until one of its streams has logged in: stock clients open twenty streams in a row, each with a small login."""


class FelixServer:
    unsaid = False
    answer_due = False

    def __init__(self, context: SessionContext) -> None:
        settings = context.settings if context.settings is not None else FelixSettings()
        self._peer = Peer(settings, context.dialect, context.auth_required)
        self._streams: dict[int, ClientStream] = {}
        self._feeds = Feeds()
        self._incomplete = 0
        """What the streams hold of frames that are not whole; or more, where it was not looked at again since."""
        self._draining = False
        self._closed = False

    def opened(self, channel: int, kind: Kind, now: float) -> Requests:
        if kind is not Kind.WRITE_ONLY:
            self._streams[channel] = ClientStream(self._peer, self._feeds, channel, kind)
        return self._requests()

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        stream = self._streams.get(channel)
        if stream is not None and not self._draining:
            buffer = stream.buffer
            before = buffer.size
            stream.receive(data)
            self._incomplete += buffer.size - before
            if self._incomplete > MAX_BEFORE_LOGIN:
                # what comes behind a login that is being checked was sent in good faith, and is read no further
                most = MAX_INCOMPLETE if self.handshaken or self._peer.held else MAX_BEFORE_LOGIN
                if self._incomplete > most:
                    self._incomplete = sum(each.buffer.size for each in self._streams.values())
                    if self._incomplete > most:
                        stream.overflow()
        return self._requests()

    def eof(self, channel: int, now: float) -> Requests:
        stream = self._streams.get(channel)
        if stream is not None:
            stream.eof()
        return self._requests()

    def reset(self, channel: int, code: int) -> Requests:
        stream, feed = self._streams.get(channel), self._feeds.get(channel)
        if stream is not None:
            stream.eof(abandoned=True)
        elif feed is not None:
            feed.stop()
        return self._requests()

    def stopped(self, channel: int, code: int) -> Requests:
        # the client reads no more: on an event stream this ends the subscription
        stream, feed = self._streams.get(channel), self._feeds.get(channel)
        if stream is not None:
            stream.stopped()
        elif feed is not None:
            feed.stop()
        return self._requests()

    def lost(self) -> Requests:
        self._closed = True
        self._streams.clear()
        self._feeds.forget()
        self._peer.forget()
        return ()

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self._peer.finish(request_id, outcome, now)
        return self._requests()

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | Send:
        requests, peer = self.complete(request_id, outcome, now), self._peer
        if (
            type(outcome) is not Published
            or len(peer.outputs) != 1
            or requests
            or peer.owed
            or peer.held
            or self._incomplete
            or self._draining
        ):
            return requests
        said = peer.outputs[0]
        if type(said) is not Send or said.notify or said.alone:
            return requests
        peer.outputs = []
        return said

    def room(self, channel: int, now: float) -> Requests:
        stream, feed = self._streams.get(channel), self._feeds.get(channel)
        if stream is not None:
            stream.room()
        elif feed is not None:
            feed.room(now)
        return self._requests()

    def drain(self, now: float) -> Requests:
        self._draining = True
        return self._requests()

    def timeout_at(self) -> float | None:
        return self._feeds.due_at()

    def rests_until(self) -> float | None:
        peer = self._peer
        if peer.owed or peer.held or self._incomplete or (peer.auth_required and not peer.authenticated):
            return None
        due = self._feeds.due_at()
        return math.inf if due is None else due

    def on_timeout(self, now: float) -> Requests:
        self._feeds.wake(now)
        return self._requests()

    def outputs(self) -> Sequence[Output]:
        peer = self._peer
        if self._draining and not self._closed and not peer.owed:
            self._closed = True
            peer.outputs.extend(Finish(token) for token in self._feeds.tokens())
            peer.outputs.append(Close(0, GOODBYE))
        queued, peer.outputs = peer.outputs, []
        return queued

    @property
    def in_flight(self) -> int:
        """Replies that are owed; waiting Takes are not."""
        return self._peer.owed

    @property
    def held(self) -> bool:
        # while one stream is held back nothing is read
        return self._peer.held > 0

    @property
    def kept(self) -> int:
        return self._incomplete

    @property
    def spoken(self) -> Spoken:
        peer = self._peer
        if peer.dialect is not Dialect.AUTO:
            return Spoken(peer.dialect.value, LISTENER)
        if peer.flags is not None:
            return Spoken("stock", f"its login names the flags 0x{peer.flags:04x}")
        return Spoken("stock", "it logs in") if peer.authenticated else Spoken("", "no sign yet")

    @property
    def handshaken(self) -> bool:
        return self._peer.authenticated or not self._peer.auth_required

    def _requests(self) -> Requests:
        peer = self._peer
        if peer.closed:
            for channel in peer.closed:
                self._streams.pop(channel, None)
            peer.closed.clear()
        asked, peer.asked = peer.asked, []
        return asked
