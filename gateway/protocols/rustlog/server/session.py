"""The serving side of one RustLog connection: three dialects, told apart frame by frame, answered in kind and in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.protocols.rustlog.server.operations import SMALL_ANSWER, Desk
from gateway.protocols.rustlog.settings import RustlogSettings
from gateway.protocols.rustlog.states import HELD, KEEPING, LEAVING, READING, TABLE, Event, State
from gateway.protocols.rustlog.wire import binary
from gateway.protocols.rustlog.wire.codec import CODECS, encoding_of
from gateway.protocols.rustlog.wire.frames import (
    HEADER,
    LENGTH,
    MAX_FRAME,
    Encoding,
    Refusal,
    Undecodable,
    check_length,
)
from gateway.requests import Fetched, Outcome
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import Machine
from gateway.wire.ordering import LONG, sends
from gateway.wire.session import (
    NO_REQUESTS,
    TURN_BYTES,
    Close,
    Output,
    Requests,
    ServerBasics,
    SessionContext,
    Spoken,
)

CHANNEL = 0

MOST_OPERATIONS = 1_000
"""Read at once, but for a producer's alike: others have the event loop before the next."""
_NOTHING_IS_ENOUGH = 1 << 62
"""Wanted by a held connection: bytes are only collected until it is released."""


class RustlogServer(ServerBasics):
    def __init__(self, context: SessionContext) -> None:
        settings = context.settings if context.settings is not None else RustlogSettings()
        self._desk = Desk(settings.fresh_group)
        self._limits = context.limits
        self._unsent = 0
        """Bytes of answers since the peer last took all of them, as far as is known."""
        self._machine = Machine(TABLE, State.OPEN)
        self._buffer = ReceiveBuffer()
        self._encoding = Encoding.BINARY  # of the last frame

    # --- what the driver calls ---

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        state, buffer = self._machine.state, self._buffer
        if (
            state is State.OPEN
            and len(data) > HEADER
            and data[HEADER] == binary.FETCH
            and not (buffer.size or buffer.wanted)
            and (asked := self._desk.lone_fetch(data, self._limits.output - self._unsent)) is not None
        ):
            self._encoding = Encoding.BINARY
            return (asked,)
        if state not in READING:
            return NO_REQUESTS
        whole = buffer.feed(data) if buffer.size or buffer.wanted else data
        return self._parse(whole) if whole else NO_REQUESTS

    def eof(self, channel: int, now: float) -> Requests:
        # what was asked before is answered; a frame that was cut off is forgotten (RustLog wire 1.3)
        self._machine.step(Event.EOF)
        return self._take_asked()

    def reset(self, channel: int, code: int) -> Requests:
        # TCP has no resets of its own
        return self.lost()

    def lost(self) -> Requests:
        self._machine.step(Event.LOST)
        self._desk.forget()
        self._buffer.clear()
        return NO_REQUESTS

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self._desk.finish(request_id, outcome)
        return self._go_on()

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes:
        desk, machine = self._desk, self._machine
        if (
            type(outcome) is Fetched
            and len(outcome.runs) == 1
            and machine.state is State.OPEN
            and not self._buffer.size
            and (size := len(outcome.runs[0].columns.packed)) + self._unsent < self._limits.output // 2 - SMALL_ANSWER
            and size <= LONG
            and desk.ends_alone(request_id)
        ):
            answer = binary.records(outcome.runs, outcome.next_offset)
            assert type(answer) is bytes
            self._unsent += len(answer)
            return answer
        desk.finish(request_id, outcome)
        replies = desk.replies
        if (
            len(replies.slots) != 1
            or type(replies.slots[0]) is not bytes
            or desk.asked
            or desk.waiting
            or self._buffer.size
            or machine.state is not State.OPEN
            or self._unsent + replies.size > self._limits.output // 2
        ):
            return self._go_on()
        answer = b"".join(replies.ready())  # what `outputs` would make of it
        self._unsent += len(answer)
        return answer

    def room(self, channel: int, now: float) -> Requests:
        self._unsent = 0
        return self._go_on()

    @property
    def _load(self) -> int:
        # bytes of answers that are asked for, that wait for their turn, that the peer has not taken as far as is known
        return self._desk.reading + self._desk.replies.size + self._unsent

    def _go_on(self) -> Requests:
        # parse on if that had stopped and nothing stands in the way any more, well below the bounds
        settled = self._take_asked()
        if self._machine.state not in HELD or self._desk.waiting or self._load > self._limits.output // 2:
            return settled
        self._machine.step(Event.RELEASE)
        self._buffer.wanted = 0
        return [*settled, *self._parse(self._buffer.feed(b""))]

    def drain(self, now: float) -> Requests:
        # RustLog knows no goodbye: answer what is under way and close
        self._machine.step(Event.END)
        self._buffer.clear()
        return self._take_asked()

    def outputs(self) -> Sequence[Output]:
        queued: list[Output] = []
        replies = self._desk.replies
        ready = replies.ready(TURN_BYTES)
        self.unsaid = replies.held_back
        if ready:
            size = sum(map(len, ready))
            self._unsent += size
            queued += sends(CHANNEL, ready, size, notify=self._unsent > self._limits.output // 2)
        if not replies.slots and self._machine.state in LEAVING:
            self._machine.step(Event.ANSWERED)
            queued.append(Close())
        return queued

    @property
    def in_flight(self) -> int:
        """Answers that are owed; at its bound too while what is asked or answered has to get smaller first."""
        owed = len(self._desk.replies.slots)
        return max(owed, self._limits.in_flight) if self._machine.state in HELD and not self._desk.waiting else owed

    @property
    def held(self) -> bool:
        # nothing is read behind an operation that has to be through first
        return self._desk.waiting

    @property
    def kept(self) -> int:
        return self._buffer.size

    def rests_until(self) -> float | None:
        desk = self._desk
        busy = desk.replies.slots or desk.waiting or self._buffer.size or self._machine.state in HELD
        return None if busy else math.inf

    @property
    def spoken(self) -> Spoken:
        return Spoken(self._encoding.value, "its last frame")

    # --- frames ---

    def _parse(self, data: bytes) -> Requests:
        position, size = 0, len(data)
        wanted, left = 0, MOST_OPERATIONS
        desk, machine, limit = self._desk, self._machine, self._limits.output
        gathering = desk.gathering
        while size - position >= HEADER:
            (length,) = LENGTH.unpack_from(data, position)
            if not 0 < length <= MAX_FRAME:
                self._break(length)
                break
            start = position + HEADER
            end = start + length
            if end > size:
                wanted = HEADER + length
                break
            kind = data[start]
            if kind == binary.PRODUCE:
                self._encoding = Encoding.BINARY
                taken = gathering.add_frame(data, start, end)
                if not taken:
                    desk.publish()
                    # it begins another batch: the one before it is asked for first, in the order of the requests
                    taken = gathering.add_frame(data, start, end)
                if taken:
                    position = gathering.add_alike(data, position, end)
                    continue
            position = end
            asked = binary.fetch(data, start, end) if kind == binary.FETCH else None
            if asked is not None:
                self._encoding = Encoding.BINARY
                desk.fetch(Encoding.BINARY, asked)
            else:
                self._serve(data[start:end])
            left -= 1
            # many small operations in one read: the others have the loop in between
            if left <= 0 and not desk.waiting:
                desk.pause()
            # answers can be far larger than what asks for them: bytes that are owed hold back the next question
            if desk.waiting or desk.reading + desk.replies.size + self._unsent >= limit:
                machine.step(Event.HOLD)
                wanted = _NOTHING_IS_ENOUGH
                break
        if gathering.counts:
            desk.publish()
        if (position < size or wanted) and machine.state in KEEPING:
            self._buffer.keep(data[position:] if position else data, wanted)
        return self._take_asked()

    def _break(self, length: int) -> None:
        # A frame error: one answer, after all others, and the end (RustLog wire 1.3).
        #
        # The dialect of the frame cannot be known, so it is that of the last one.
        try:
            check_length(length)
        except GatewayError as error:
            self._desk.say(self._encoding, Refusal(error))
        self._machine.step(Event.END)

    def _serve(self, payload: bytes) -> None:
        encoding = self._encoding = encoding_of(payload, self._encoding)
        try:
            operation = CODECS[encoding].decode(payload)
        except Undecodable as error:
            self._desk.say(encoding, Refusal(error))
        else:
            self._desk.serve(encoding, operation)

    def _take_asked(self) -> Requests:
        desk = self._desk
        asked, desk.asked = desk.asked, []
        return asked
