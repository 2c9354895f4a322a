"""The serving side of a BlipMQ connection (BlipMQ document; wire 1.2 to 1.6): framing, order, closing.

Frames of one connection are answered strictly in their order, so a PONG is the publish barrier: it leaves when every
PUBLISH before it is committed or refused. What a frame means is in `operations`, what a POLL means in `polls`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.errors import WireError
from gateway.protocols.blipmq.server.operations import Frame, Operations
from gateway.protocols.blipmq.states import EVENTS, REFUSALS, State
from gateway.protocols.blipmq.wire import codec
from gateway.protocols.blipmq.wire.codec import RefusedFrame
from gateway.protocols.blipmq.wire.frames import HEAD, LENGTH_BYTES, LONGEST_LOGIN, MAX_LENGTH, FrameType
from gateway.requests import Outcome, Request
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import Buffer, Close, Output, Requests, Send, ServerBasics, SessionContext

CHANNEL = 0

_MOST_HELD = 65_536
"""Bytes behind an AUTH that is being checked; a peer that sends more is not read until then."""

_EVERYTHING = 1 << 62
"""More than ever comes: the buffer only collects while an AUTH is being checked."""


class BlipmqServer(ServerBasics):
    def __init__(self, context: SessionContext) -> None:
        self._limits = context.limits
        self._operations = Operations(context)
        self._machine = self._operations.machine
        self._polls = self._operations.polls
        self._buffer = ReceiveBuffer()
        self._out: list[Buffer] = []
        self._unsent = 0
        """Bytes sent since the peer was last known to read."""
        self._stalled = False
        """Deliveries wait until the peer has read the ones before."""
        self._notify = False
        """The next Send asks to be told when the peer has read it."""
        self._ending = False
        """Nothing more is received; close when everything is answered."""
        self._closed = False

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        if self._ending:
            return ()
        buffer = self._buffer
        if (
            len(data) == codec.LONE
            and self._machine.state is State.READY
            and not (buffer.size or buffer.wanted or self._out or self._stalled)
            and (asked := self._operations.lone(data, now)) is not None
        ):
            return asked
        return self._parse(buffer.feed(data) if buffer.size or buffer.wanted else data, now)

    def eof(self, channel: int, now: float) -> Requests:
        # frames already sent are answered, then the connection closes (wire 1.5)
        return self._end(now)

    def lost(self) -> Requests:
        self._ending = self._closed = True
        return self._polls.give_up()

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        if self._closed:
            return ()
        was_checking = self._checking
        requests = list(self._operations.complete(request_id, outcome))
        if was_checking and not self._checking:
            # what came while the key was checked was kept unread: whether it may be sent is known now
            self._buffer.wanted = 0
            requests += self._parse(self._buffer.feed(b""), now)
        self._advance(requests, len(requests), now)
        return requests

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes:
        operations = self._operations
        if self._closed or self._machine.state is not State.READY:
            requests = self.complete(request_id, outcome, now)
        else:
            requests = operations.complete(request_id, outcome)
            if self._polls.groups:
                requests = list(requests)
                self._advance(requests, len(requests), now)
            else:
                operations.release(self._out)
        busy = operations.in_flight or self._buffer.size or self._ending or self._notify or self._closed
        if requests or busy or self._machine.state is not State.READY:
            return requests
        data = b"".join(self._out)
        self._out.clear()
        self._unsent += len(data)
        return data

    def room(self, channel: int, now: float) -> Requests:
        self._stalled = False
        requests: list[Request] = []
        self._advance(requests, 0, now)
        return requests

    def drain(self, now: float) -> Requests:
        # there is no goodbye in this protocol: answer what is in flight and close
        return self._end(now)

    def outputs(self) -> Sequence[Output]:
        if self._closed:
            return ()
        outputs: list[Output] = []
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            # a Send that asks for room starts the count anew: everything before it has left when that is told
            self._unsent = 0 if self._notify else self._unsent + len(data)
            outputs.append(Send(CHANNEL, data, notify=self._notify))
            self._notify = False
        if self._ending and not self._operations.in_flight:
            self._closed = True
            outputs.append(Close())
        return outputs

    @property
    def in_flight(self) -> int:
        return self._operations.in_flight

    @property
    def held(self) -> bool:
        # a peer that goes on sending while its key is checked is not read
        return self._buffer.size > _MOST_HELD and self._checking

    @property
    def kept(self) -> int:
        return self._buffer.size

    @property
    def handshaken(self) -> bool:
        return self._machine.state is State.READY

    def rests_until(self) -> float | None:
        busy = self._buffer.size or self._machine.state is not State.READY or self._operations.in_flight
        return None if busy else math.inf

    @property
    def _checking(self) -> bool:
        return self._machine.state is State.CHECKING

    def _parse(self, data: bytes, now: float) -> Requests:
        requests: list[Request] = []
        machine, polls = self._machine, self._polls
        no_polls = not polls.groups
        first_poll = 0
        position = 0
        wanted = 0
        try:
            while position < len(data) and machine.state is not State.CHECKING:
                end = codec.frame_end(data, position, MAX_LENGTH if machine.state is State.READY else LONGEST_LOGIN)
                if end is None or end > len(data):
                    wanted = LENGTH_BYTES if end is None else end - position
                    break
                position = self._frame(data, position, end, now, requests)
                if no_polls and not polls.groups:
                    first_poll = len(requests)
        except WireError:
            # plain close, without any frame, after the good frames before it are answered (wire 1.6)
            self._ending = True
            self._polls.impatient = math.inf
            self._buffer.clear()
        else:
            checking = machine.state is State.CHECKING
            if checking or position < len(data):
                self._buffer.keep(data[position:], _EVERYTHING if checking else wanted)
        self._operations.handed_over()
        # the first Take stands where its POLL stood: behind the SUBSCRIBE it may rely on, before later publishes
        self._advance(requests, first_poll, now)
        return requests

    def _frame(self, data: bytes, position: int, end: int, now: float, requests: list[Request]) -> int:
        # one frame, or a whole run of PUBLISHes or POLLs; returns where the next one begins
        kind = codec.frame_type(data, position)
        event = EVENTS[kind]
        try:
            if not self._machine.allows(event):
                raise RefusedFrame(REFUSALS[self._machine.state, event])
            if kind is FrameType.PUBLISH:
                self.answer_due = False  # nobody hears of a PUBLISH that is taken
                run = codec.scan_publishes(data, position, end)
                requests.append(self._operations.publish(run))
                return run.end
            if kind is FrameType.POLL:
                polls = codec.scan_polls(data, position, end)
                self._operations.poll(polls, now)
                return polls.end
            if kind is FrameType.PING:  # behind every run of PUBLISHes of who waits for it
                self._operations.reply(codec.pong(codec.frame_cid(data, position)))
                self.answer_due = True
                return end
            frame = Frame(data, codec.frame_cid(data, position), position + HEAD, end, now)
            requests += self._operations.handle(kind, frame)
        except RefusedFrame as error:
            self._operations.reply(codec.nack(codec.frame_cid(data, position), error.refusal))
        return end

    def _end(self, now: float) -> Requests:
        self._ending = True
        self._polls.impatient = math.inf
        requests: list[Request] = []
        self._advance(requests, 0, now)
        return requests

    def _advance(self, requests: list[Request], where: int, now: float) -> None:
        operations = self._operations
        operations.release(self._out)
        if not self._polls.groups:
            return
        if self._out and not self._stalled:
            unsent = self._unsent + sum(map(len, self._out))
            self._stalled = self._notify = unsent >= self._limits.output // 4
        request = operations.advance(now, stalled=self._stalled)
        if request is not None:
            requests.insert(where, request)
