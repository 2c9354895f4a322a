"""The side that asks: one connection to each gateway that has something for a client of this one, made when it is needed.

Apart from `opening`, which makes both sides and the listener: what is asked, and of whom, is known to `SharedSubscriptions`
alone, so that a connection may end at any time and the next one asks what is left.
"""

from __future__ import annotations

import ssl

import attrs
import trio

from gateway.broker.consume.shared import PassedRequest, SharedSubscriptions, relative
from gateway.broker.service import Caller, Clock
from gateway.errors import FrameTooLarge, WireError
from gateway.link.codec import (
    LARGEST_ANSWER,
    LARGEST_QUESTION,
    Answers,
    ClientCame,
    ClientLeft,
    EnoughTaken,
    LinkAnswer,
    LinkBeat,
    LinkFrame,
    LinkFrames,
    LinkMessages,
    LinkQuestion,
    outcome_of,
)
from gateway.link.members import LinkMembers, MemberRow
from gateway.link.stream import BEAT_SECONDS, LOGIN_SECONDS, LinkStream, secured
from gateway.recorder import Recorder
from gateway.requests import Settle

REST = 0.5
"""Seconds from a connection that could not be made, or has ended, to the next one."""


@attrs.define(eq=False)
class LinkToOwner:
    stream: LinkStream | None = None
    """None until it is open."""
    came: set[int] = attrs.Factory(set)
    """Clients that the other one knows."""


class LinksToOwners:
    """Implements `WayToOwners`."""

    def __init__(
        self,
        shared: SharedSubscriptions,
        members: LinkMembers,
        clock: Clock,
        recorder: Recorder,
        nursery: trio.Nursery,
    ) -> None:
        self._shared = shared
        self._members = members
        self._clock = clock
        self._recorder = recorder
        self._nursery = nursery
        self._links: dict[bytes, LinkToOwner] = {}
        self._rests: dict[bytes, float] = {}

    # --- WayToOwners ---

    def ask(self, gateway: bytes, asked: PassedRequest) -> bool:
        link = self._links.get(gateway)
        if link is None:
            row = self._members.find(gateway)
            if row is None or self._rests.get(gateway, 0.0) > self._clock.now():
                return False
            self._links[gateway] = link = LinkToOwner()
            self._nursery.start_soon(self._run, gateway, row, link)
        if link.stream is not None:
            self._put(link, asked)
        return True

    def cancel(self, gateway: bytes, asked: PassedRequest) -> None:
        self._tell(gateway, asked.caller, EnoughTaken(asked.caller.id, asked.number))

    def settle(self, gateway: bytes, caller: Caller, request: Settle) -> None:
        self._tell(gateway, caller, LinkQuestion(caller.id, request.subscription, "", request))

    def gone(self, gateway: bytes, caller: Caller) -> None:
        self._tell(gateway, caller, ClientLeft(caller.id))
        if link := self._links.get(gateway):
            link.came.discard(caller.id)

    def _tell(self, gateway: bytes, caller: Caller, frame: LinkFrame) -> None:
        # where the way is cut the other one has let the client go
        link = self._links.get(gateway)
        if link is not None and link.stream is not None and caller.id in link.came:
            link.stream.put(frame)

    def _put(self, link: LinkToOwner, asked: PassedRequest) -> None:
        assert link.stream is not None
        caller = asked.caller
        if caller.id not in link.came:
            link.came.add(caller.id)
            listener = caller.listener
            link.stream.put(ClientCame(caller.id, listener.name, listener.protocol, caller.identity.name))
        request = relative(asked.request, asked.number, self._clock.now())
        try:
            link.stream.put(LinkQuestion(caller.id, asked.subscription, asked.topic, request))
        except FrameTooLarge as error:
            self._shared.refused(asked, error)
        else:
            self._shared.passed(asked)

    # --- connections ---

    async def _run(self, gateway: bytes, row: MemberRow, link: LinkToOwner) -> None:
        failed = "unreachable"
        try:
            stream = await self._open(row)
            if stream is not None:
                link.stream = stream
                self._recorder.linked("asks", 1)
                try:
                    for asked in self._shared.asked_of(gateway):
                        self._put(link, asked)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_beat, stream)
                        await stream.run(lambda frame: self._take(gateway, frame))
                        nursery.cancel_scope.cancel()
                finally:
                    self._recorder.linked("asks", -1)
                failed = stream.lost
        finally:
            del self._links[gateway]
            now = self._clock.now()
            self._rests = {one: until for one, until in self._rests.items() if until > now}
            self._rests[gateway] = now + REST
        self._recorder.link_failed(failed)
        self._shared.cut(gateway)

    async def _open(self, row: MemberRow) -> LinkStream | None:
        with trio.move_on_after(LOGIN_SECONDS):
            try:
                tcp = await trio.open_tcp_stream(row.host, row.port)
                tls, shown = await secured(tcp, self._members.identity.asking, server_side=False)
            except (OSError, trio.BrokenResourceError, ssl.SSLError):
                return None
            if shown == row.certificate:
                return LinkStream(tls, LinkFrames(Answers, LARGEST_ANSWER), LARGEST_QUESTION)
            await trio.aclose_forcefully(tls)
        return None

    def _take(self, gateway: bytes, frame: object) -> None:
        if isinstance(frame, (LinkMessages, LinkAnswer)):
            self._shared.answered(gateway, frame.question, outcome_of(frame))
        elif not isinstance(frame, LinkBeat):
            raise WireError("no answer")


async def _beat(stream: LinkStream) -> None:
    while True:
        stream.put(LinkBeat())
        await trio.sleep(BEAT_SECONDS)
