"""The serving side of a FlyMQ connection: frames in, requests out, answers strictly in order (FlyMQ wire 2.1)."""

from __future__ import annotations

import itertools
import math
import struct
import sys
from collections.abc import Callable, Sequence

from gateway.errors import GatewayError, InvalidRequest, Unauthenticated, Unsupported, WireError
from gateway.protocols.flymq.server import accounts, groups, messages, schemas, topics
from gateway.protocols.flymq.server.operations import Call, Operation, Operations, Steps
from gateway.protocols.flymq.states import SERVER, Event, State
from gateway.protocols.flymq.wire.codec_produce import WORD, Collector, ProduceRun
from gateway.protocols.flymq.wire.dialect import Speech
from gateway.protocols.flymq.wire.frames import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    MAGIC,
    MAX_PAYLOAD,
    SIGNATURE,
    VERSION,
    Inflation,
    Op,
    check_header,
)
from gateway.protocols.flymq.wire.mapping import Subject, words
from gateway.requests import (
    Cancel,
    DescribeTopics,
    Fetch,
    Fetched,
    Identity,
    ListGroups,
    Outcome,
    Pause,
    Publish,
    Published,
    Request,
)
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import Machine
from gateway.wire.ordering import Answer, Pieces, ReplyQueue, sends
from gateway.wire.session import (
    BEFORE_LOGIN,
    NO_REQUESTS,
    TURN_BYTES,
    Close,
    Output,
    Requests,
    ServerBasics,
    SessionContext,
    Spoken,
)

OPERATIONS: Operations = {
    **topics.OPERATIONS,
    **groups.OPERATIONS,
    **schemas.OPERATIONS,
    **messages.OPERATIONS,
    **accounts.OPERATIONS,
}
"""Every operation but PRODUCE, which has a way of its own, and AUTH_RESPONSE and ERROR, which only answer."""

BACKLOG = 1 << 20
"""Bytes kept unread behind an operation that bars the way before the connection counts as full."""
SHORT = 1 << 17
"""Bytes that no answer to one PRODUCE has: the name of its topic and little else."""
MUCH = 1 << 20
"""Bytes of a payload that is worked on in a turn of its own: each copy of the largest takes seven to fourteen milliseconds."""
MOST_READS = 4
"""Reads under way per connection: each may answer with `codec_fetch.FETCH_BYTES` and more."""
MOST_OPERATIONS = 1_000
"""Read at once: others have the event loop before the next."""
LISTS = (ListGroups, DescribeTopics)
"""Without an address they are asked for page by page, and count as reads."""

HALTED = sys.maxsize
"""What the buffer waits for while the next frame has to wait: bytes are collected, not looked at."""

SIGNED = int.from_bytes(SIGNATURE, "big")

_PAIR = struct.Struct(">II")


class FlymqServer(ServerBasics):
    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._speech = Speech(context.dialect)
        self._machine = Machine(SERVER, State.READY)
        self._buffer = ReceiveBuffer()
        self._collector = Collector()
        self._replies = ReplyQueue()
        self._pending: dict[int, ProduceRun | Call | None] = {}
        self._held: list[int] = []
        self._reading: list[int] = []
        """`MOST_READS` at most, and those of them that wait for a message."""
        self._joined: dict[tuple[str, str], None] = {}
        self._ids = itertools.count(1).__next__
        self._unsent = 0
        self._now = 0.0
        self._holds = 0
        self._lone = 0
        """The PRODUCE that is all there is under way, and has no place in the order of answers yet."""
        self._most_unsent = max(context.limits.output - SHORT, 0)
        self._pause = 0
        """The request after which reading goes on: much was read at once."""
        self._barring: Call | None = None
        """Nothing behind it is read before it is answered."""
        self._expected = context.auth_required
        """Somebody who has neither logged in nor been served as nobody in particular (a public topic) is on its way in."""
        self._largest = BEFORE_LOGIN if context.auth_required else MAX_PAYLOAD
        """Bytes of a payload."""

    @property
    def in_flight(self) -> int:
        """Requests under way; at its bound too while much waits until there is room for more answers."""
        # said as if the bound were reached, so that whoever reads stops: what waits is bytes, and grows with what is sent
        if self._buffer.size > BACKLOG and not self.held and self._blocked():
            return max(len(self._pending), self._context.limits.in_flight)
        return len(self._pending)

    @property
    def held(self) -> bool:
        # while much waits behind an operation that bars the way nothing is read
        return self._buffer.size > min(BACKLOG, self._largest) and self._machine.state is not State.READY

    @property
    def kept(self) -> int:
        return self._buffer.size + self._holds

    @property
    def spoken(self) -> Spoken:
        return self._speech.spoken

    @property
    def handshaken(self) -> bool:
        # at once where nobody has to log in: the clients say nothing until they have something to do
        return not self._expected

    def rests_until(self) -> float | None:
        # what is held is behind bytes that are kept
        busy = self._pending or self._expected or self._buffer.size or self._holds or self._replies.slots
        return None if busy else math.inf

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        state = self._machine.state
        if (
            not self._pending
            and not self._buffer.size
            and state is State.READY
            and not self._expected
            and self._unsent < self._most_unsent
        ):
            # who waits for each answer sends one PRODUCE a read, mostly to where the one before it went
            run = self._collector.lone(data)
            if run is not None:
                self._lone = number = self._ids()
                self._pending[number] = run
                return (Publish(number, run.batch()),)
        if state is not State.READY and state is not State.BARRED:  # not a set: hashing an enum is a call
            return NO_REQUESTS
        self._now = now
        buffer = self._buffer
        whole = buffer.feed(data) if buffer.size or buffer.wanted else data
        return self._parse(whole) if whole else NO_REQUESTS

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self._now = now
        if self._lone:
            self._line_up()
        entry = self._pending.pop(request_id, None)
        if request_id == self._pause:
            self._pause = 0
        if self._largest != MAX_PAYLOAD:
            self._let_in(outcome)
        requests: list[Request] = []
        if type(entry) is ProduceRun:
            self._replies.fill(entry.slot, _written(entry, outcome, self._speech))
        elif isinstance(entry, Call):
            if request_id in self._reading:
                self._reading.remove(request_id)
                if request_id in self._held:
                    self._held.remove(request_id)
            self._advance(entry, outcome, requests)
        if self._buffer.wanted == HALTED:
            requests.extend(self._resume())
        return requests

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes:
        if request_id == self._lone and type(outcome) is Published and not outcome.refused:
            self._lone = 0
            run = self._pending.pop(request_id)
            assert type(run) is ProduceRun
            data = run.target.answer(outcome, 0, -1, len(run.pieces[0]) - 4)
        else:
            requests = self.complete(request_id, outcome, now)
            replies = self._replies
            full = self._unsent + replies.size >= self._context.limits.output
            busy = self._pending or self._expected or self._buffer.size or self._holds or len(replies.slots) != 1
            if requests or full or busy or self._machine.state is not State.READY or type(replies.slots[0]) is Pieces:
                return requests
            data = b"".join(replies.ready())
        self._unsent += len(data)
        return data

    def _line_up(self) -> None:
        # others come behind it, or it ends otherwise than most do: it takes its place in the order of answers
        run, self._lone = self._pending[self._lone], 0
        assert type(run) is ProduceRun
        run.slot = self._replies.take()

    def _let_in(self, outcome: Outcome) -> None:
        if isinstance(outcome, Identity):
            if outcome.authenticated:
                self._expected = False
                self._largest = MAX_PAYLOAD
        elif isinstance(outcome, Published | Fetched):
            # only what the broker let through shows that nobody has to log in for it: bytes alone show nothing
            self._expected = False

    def outputs(self) -> Sequence[Output]:
        outputs: list[Output] = []
        ready = self._replies.ready(TURN_BYTES)
        self.unsaid = self._replies.held_back
        if ready:
            size = sum(map(len, ready))
            self._unsent += size
            outputs += sends(0, ready, size, notify=self._unsent >= self._context.limits.output)
        if self._machine.state is State.FINISHING and not self._pending and not self._replies.slots:
            self._machine.step(Event.CLOSE)
            outputs.append(Close())
        return outputs

    def room(self, channel: int, now: float) -> Requests:
        self._now = now
        self._unsent = 0
        return self._resume()

    def eof(self, channel: int, now: float) -> Requests:
        # the client will ask nothing more; what it asked is still answered
        return self._finish()

    def reset(self, channel: int, code: int) -> Requests:
        # as `lost`: there is one channel
        return self.lost()

    def stopped(self, channel: int, code: int) -> Requests:
        # as `lost`: there is one channel
        return self.lost()

    def lost(self) -> Requests:
        self._machine.step(Event.CLOSE)
        self._buffer.clear()
        self._pending.clear()
        self._lone = 0
        self._held.clear()
        self._reading.clear()
        return NO_REQUESTS

    def drain(self, now: float) -> Requests:
        # FlyMQ has no goodbye: answer what is under way and close
        return self._finish()

    # --- reading ---

    def _blocked(self) -> bool:
        limits = self._context.limits
        return (
            self._machine.state is not State.READY
            or len(self._pending) >= limits.in_flight
            or len(self._reading) >= MOST_READS
            or self._unsent + self._replies.size >= limits.output
            or self._pause != 0
        )

    def _resume(self) -> Requests:
        if self._buffer.wanted != HALTED or self._blocked():
            return NO_REQUESTS
        self._buffer.wanted = 0
        return self._parse(self._buffer.feed(b""))

    def _parse(self, data: bytes) -> list[Request]:
        if self._lone:
            self._line_up()
        requests: list[Request] = []
        size = len(data)
        left = MOST_OPERATIONS
        position = 0
        wanted = 0
        while position < size:
            if self._blocked():
                wanted = HALTED
                break
            if size - position < HEADER_SIZE:
                if not _begins(data, position):
                    return [*requests, *self._finish()]  # there is no next frame to be found
                wanted = HEADER_SIZE
                break
            word, length = _PAIR.unpack_from(data, position)
            # one compare finds signature, version, PRODUCE and its flags: nearly every frame is this
            if word | 1 == WORD | 1:
                run, end = self._collector.collect(data, position)
                if run is not None:
                    if word == WORD:
                        self._speech.sign(unflagged=True)
                    self._produce(run, requests)
                    position = end
                    continue
            try:
                check_header(word >> 24, word >> 16 & 0xFF, length, self._largest)
            except WireError:
                # it would be right after a login: the client is told so, or it would look for the mistake in its frame
                if length <= MAX_PAYLOAD and self._largest < length and word >> 16 == SIGNED:
                    self._replies.put(self._speech.error(words(Unauthenticated(), Subject())))
                return [*requests, *self._finish()]  # closes without a word, once earlier answers are out
            end = position + HEADER_SIZE + length
            if end > size:
                wanted = HEADER_SIZE + length
                break
            self._operate(word >> 8 & 0xFF, word & 0xFF, data[position + HEADER_SIZE : end], requests)
            position = end
            left -= 1
            if not left:
                # an answer of the broker's is waited for before the rest is parsed: others have the loop meanwhile
                self._pause = self._ids()
                self._pending[self._pause] = None
                requests.append(Pause(self._pause))
        if position < size:
            self._buffer.keep(data[position:] if position else data, wanted)
        return requests

    def _finish(self) -> list[Request]:
        if self._lone:
            self._line_up()
        self._machine.step(Event.FINISH)
        self._buffer.clear()
        return self._release()

    def _release(self) -> list[Request]:
        # end reads that wait for a message, because somebody waits behind them
        cancels: list[Request] = []
        for held in self._held:
            cancel = Cancel(self._ids(), held)
            self._pending[cancel.id] = None
            cancels.append(cancel)
        self._held.clear()
        return cancels

    def _produce(self, run: ProduceRun, requests: list[Request]) -> None:
        # a read that waits for a message must not hold up what its own client has sent behind it
        if self._held:
            requests.extend(self._release())
        if run.partition < -1:
            text = f"partition {run.partition} out of range"
            self._replies.put(self._speech.error(text) * len(run.pieces))
            return
        number = self._ids()
        run.slot = self._replies.take()
        self._pending[number] = run
        requests.append(Publish(number, run.batch()))

    def _operate(self, code: int, flags: int, payload: bytes, requests: list[Request]) -> None:
        if self._held:
            requests.extend(self._release())
        if flags == 0:
            self._speech.sign(unflagged=True)
        try:
            operation = _operation(code) if code != Op.PRODUCE else None
            if flags & COMPRESSION_MASK:
                inflation = Inflation(payload, flags, self._largest)
                whole = inflation.step()
                if whole is None:
                    self._start(code, self._inflate(operation, inflation), requests, bars=True)
                    return
                payload = whole
            if operation is None:
                self._produce(self._collector.single(payload), requests)
                return
        except GatewayError as error:
            self._replies.put(self._speech.error(words(error, Subject())))
            return
        handler = operation.handler
        if len(payload) < MUCH:
            self._start(code, lambda call: handler(call, payload), requests, bars=operation.bars)
        else:
            self._start(code, _later(handler, payload), requests, bars=True)

    def _start(self, code: int, begin: Callable[[Call], Steps], requests: list[Request], *, bars: bool) -> None:
        call = Call(Op(code), self._replies.take(), self._context, self._speech, self._ids, self._joined)
        call.now = self._now
        call.steps = begin(call)
        if bars:
            self._barring = call
            self._machine.step(Event.BAR)
        self._advance(call, None, requests)

    def _inflate(self, operation: Operation | None, inflation: Inflation) -> Callable[[Call], Steps]:
        # an operation (None: PRODUCE) whose payload takes more than a moment to come to its size
        def run(call: Call) -> Steps:
            whole = None
            while whole is None:
                # a slice a turn: a payload that packs well takes longer to unpack than anybody else should wait
                yield Pause(call.id())
                whole = inflation.step()
                call.holds = inflation.size
            if operation is not None:
                return (yield from operation.handler(call, whole))
            produced = self._collector.single(whole)
            if produced.partition < -1:
                raise InvalidRequest(f"partition {produced.partition} out of range")
            try:
                outcome: Outcome = yield Publish(call.id(), produced.batch())
            except GatewayError as error:
                outcome = error
            return _written(produced, outcome, self._speech)

        return run

    # --- answering ---

    def _advance(self, call: Call, outcome: Outcome | None, requests: list[Request]) -> None:
        before = call.holds
        try:
            steps = call.steps
            request = steps.throw(outcome) if isinstance(outcome, GatewayError) else steps.send(outcome)  # type: ignore[arg-type]  # None starts it
        except StopIteration as stop:
            answer: Answer = stop.value
        except GatewayError as error:
            answer = self._speech.error(words(error, call.subject))
        else:
            self._pending[request.id] = call
            self._holds += call.holds - before
            if type(request) is Fetch:
                self._reading.append(request.id)
                if request.hold_until is not None:
                    self._held.append(request.id)
            elif isinstance(request, LISTS) and not request.address:
                self._reading.append(request.id)
            requests.append(request)
            return
        self._replies.fill(call.slot, answer)
        self._holds -= before
        if call is self._barring:
            self._barring = None
            self._machine.step(Event.LIFT)


def _later(handler: Callable[[Call, bytes], Steps], payload: bytes) -> Callable[[Call], Steps]:
    # to put its frame together has taken a turn, and to work on it takes another
    def run(call: Call) -> Steps:
        yield Pause(call.id())
        return (yield from handler(call, payload))

    return run


def _operation(code: int) -> Operation:
    operation: Operation | None = OPERATIONS.get(code)  # type: ignore[call-overload]  # an IntEnum's keys are found by number
    if operation is None:
        raise Unsupported(f"unknown opcode: {code}")
    return operation


def _written(run: ProduceRun, outcome: Outcome, speech: Speech) -> bytes:
    # the answers to a run, one per frame
    target = run.target
    if isinstance(outcome, Published):
        if not outcome.refused:
            if len(run.pieces) == 1:
                key_size = len(run.keys[0] or b"") if run.keys is not None else -1
                return target.answer(outcome, 0, key_size or -1, len(run.pieces[0]) - 4)
            return target.answers(outcome, run.key_sizes(), run.sizes())
        keys = run.key_sizes() or [-1] * len(run.pieces)
        return b"".join(
            [
                _refused(run, outcome.refused[index], speech)
                if index in outcome.refused
                else target.answer(outcome, index, keys[index], size)
                for index, size in enumerate(run.sizes())
            ]
        )
    if not isinstance(outcome, GatewayError):
        raise TypeError(f"{type(outcome).__name__} is not an answer to a publish")
    return _refused(run, outcome, speech) * len(run.pieces)


def _refused(run: ProduceRun, error: GatewayError, speech: Speech) -> bytes:
    subject = Subject(run.target.address, partition=run.partition, missing="out of range")
    return speech.error(words(error, subject))


def _begins(data: bytes, position: int) -> bool:
    # whether the first bytes of a header are right as far as they are there
    return data[position] == MAGIC and (len(data) - position < 2 or data[position + 1] == VERSION)
