"""The side that is asked: connections of other gateways, each with the clients that it passes on.

Apart from `opening`, which makes both sides and the listener: this is what strangers reach, and its bounds are theirs.
"""

from __future__ import annotations

import ssl

import trio
from msgspec.structs import replace

from gateway.broker.consume.shared import FarClient, SharedSubscriptions, tags_of
from gateway.broker.service import Clock, ListenerInfo
from gateway.errors import FrameTooLarge, TooLarge, WireError
from gateway.link.codec import (
    LARGEST_ANSWER,
    LARGEST_QUESTION,
    Asks,
    ClientCame,
    ClientLeft,
    EnoughTaken,
    LinkBeat,
    LinkFrames,
    LinkQuestion,
    answer,
)
from gateway.link.members import LinkMembers
from gateway.link.stream import LOGIN_SECONDS, LinkStream, secured
from gateway.model import AuthNone
from gateway.recorder import Recorder
from gateway.requests import Outcome, Settle, Take, Taken

MOST_STRANGERS = 64
"""Connections that have not shown a certificate yet. Who comes then is closed."""
MOST_CLIENTS = 100_000
"""Of one gateway."""


class LinksFromOthers:
    def __init__(self, shared: SharedSubscriptions, members: LinkMembers, clock: Clock, recorder: Recorder) -> None:
        self._shared = shared
        self._members = members
        self._clock = clock
        self._recorder = recorder
        self._strangers = 0

    async def serve(self, tcp: trio.SocketStream) -> None:
        """One connection, until it ends."""
        if self._strangers >= MOST_STRANGERS:
            self._recorder.link_failed("strangers")
            await trio.aclose_forcefully(tcp)
            return
        self._strangers += 1
        try:
            stream = await self._login(tcp)
        finally:
            self._strangers -= 1
        if stream is None:
            await trio.aclose_forcefully(tcp)
            return
        clients = FarClients(self._shared, stream, self._clock)
        self._recorder.linked("answers", 1)
        try:
            await stream.run(clients.take)
        finally:
            self._recorder.linked("answers", -1)
            clients.all_gone()
        if stream.lost != "closed":
            self._recorder.link_failed(stream.lost)

    async def _login(self, tcp: trio.SocketStream) -> LinkStream | None:
        with trio.move_on_after(LOGIN_SECONDS):
            try:
                tls, shown = await secured(tcp, self._members.identity.answering, server_side=True)
            except (trio.BrokenResourceError, ssl.SSLError, OSError):
                self._recorder.link_failed("stranger")
                return None
            if self._members.whose(shown) is None:
                self._recorder.link_failed("stranger")
                return None
            return LinkStream(tls, LinkFrames(Asks, LARGEST_QUESTION), LARGEST_ANSWER)
        self._recorder.link_failed("login")
        return None


class FarClients:
    """The clients that one gateway passes on, over one connection."""

    def __init__(self, shared: SharedSubscriptions, stream: LinkStream, clock: Clock) -> None:
        self._shared = shared
        self._stream = stream
        self._clock = clock
        self._clients: dict[int, FarClient] = {}
        self._takes: dict[int, tuple[FarClient, Take]] = {}

    def take(self, frame: object) -> None:
        """Raises WireError for what may not come now."""
        match frame:
            case ClientCame(client, listener, protocol, name):
                if client in self._clients or len(self._clients) >= MOST_CLIENTS:
                    raise WireError("a client that came before, or one too many")
                info = ListenerInfo(listener, protocol, AuthNone())
                self._clients[client] = FarClient(info, name, self._answer)
            case ClientLeft(client):
                if (gone := self._clients.pop(client, None)) is not None:
                    gone.detach()
            case EnoughTaken(client, number):
                self._shared.cancel_far(self._client(client), number)
            case LinkQuestion():
                self._asked(frame)
            case LinkBeat():
                self._stream.put(frame)

    def all_gone(self) -> None:
        """The way is cut: what they had goes to others."""
        for client in self._clients.values():
            client.detach()
        self._clients.clear()

    def _client(self, number: int) -> FarClient:
        client = self._clients.get(number)
        if client is None:
            raise WireError("a client that did not come")
        return client

    def _asked(self, asked: LinkQuestion) -> None:
        request = asked.request
        if isinstance(request, Take) and request.hold_until is not None:
            request = replace(request, hold_until=self._clock.now() + max(0.0, request.hold_until))
        client = self._client(asked.client)
        if isinstance(request, Take):
            self._takes[request.id] = client, request
        self._shared.arrived(client, request, asked.subscription, asked.topic)

    def _answer(self, number: int, outcome: Outcome) -> None:
        if not number:
            return
        client, take = self._takes.pop(number, (None, None))
        try:
            self._stream.put(answer(number, outcome))
        except FrameTooLarge as error:
            if client is None or take is None or not isinstance(outcome, Taken):
                self._stream.put(answer(number, TooLarge(error.message)))
                return
            # keys and headers are not among the bytes that a Take asks for: then one by one
            for tags in tags_of(outcome.deliveries):
                given_back = Settle(0, take.subscription, tags, accepted=False, tried=False)
                self._shared.arrived(client, given_back, take.subscription)
            if take.max_messages > 1:
                self._takes[number] = client, (alone := replace(take, max_messages=1))
                self._shared.arrived(client, alone, take.subscription)
            else:
                self._stream.put(answer(number, TooLarge(error.message)))
